#include "train/options.h"

#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "nn/mixer.h"
#include "tensor/cpu_info.h"
#include "train/cli.h"
#include "train/run_file.h"

namespace mixgrad {

namespace {

/// Declares every option once: its name, where its value goes, and what it means.
void declare(CLI::App& app, TrainOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto data = [&](auto* option) { option->group("Data"); };
  const auto model = [&](auto* option) { option->group("Model"); };
  const auto optimisation = [&](auto* option) { option->group("Optimisation"); };
  const auto watching = [&](auto* option) { option->group("Watching"); };
  const auto running = [&](auto* option) { option->group("Running"); };

  data(app.add_option("--data", o.data, "Text to learn: a file, plain or gzip-compressed"));
  data(app.add_option("--tokenizer", o.tokenizer, "byte or char"));
  data(app.add_option("--train-fraction", o.train_fraction,
                      "First part of the text that is trained on; the rest validates"));

  declare_model_options(app, o.model);
  model(app.add_option("--context", o.model.context, "Tokens in a training sequence"));

  optimisation(app.add_option("--batch", o.batch, "Sequences in a forward pass"));
  optimisation(app.add_option("--accumulate", o.accumulate, "Forward and backward passes in a step"));
  optimisation(
      app.add_option("--steps", o.steps,
                     "Optimiser steps, counted from the start of the run; the schedule is of so many, so "
                     "that more of them on --resume raise the learning rate again"));
  optimisation(app.add_option("--minutes", o.minutes,
                              "Above 0: train for about so long, evaluations included, which may read "
                              "fewer batches then; on --resume, for so much longer; --steps, if given with "
                              "it, is then an upper limit"));
  optimisation(app.add_option("--lr,--learning-rate", o.learning_rate, "Peak learning rate"));
  optimisation(
      app.add_option("--min-lr", o.min_learning_rate, "Learning rate at the end; -1: a tenth of --lr"));
  optimisation(app.add_option(
      "--warmup", o.warmup, "Steps until the peak, at most --steps; -1: a tenth of the steps, at most 100"));
  optimisation(app.add_option("--beta1", o.adamw.beta1, "AdamW: decay of the first moment"));
  optimisation(app.add_option("--beta2", o.adamw.beta2, "AdamW: decay of the second moment"));
  optimisation(app.add_option("--weight-decay", o.adamw.weight_decay,
                              "AdamW: of matrices, not of norms, biases, mixtures"));
  optimisation(app.add_option("--clip", o.clip, "Largest gradient norm; 0: no clipping"));
  optimisation(app.add_option("--seed", o.seed, "Of initial weights, data order, dropout and samples"));

  watching(app.add_option("--eval-every", o.eval_every,
                          "Steps between evaluations; the last step is always evaluated"));
  watching(app.add_option("--eval-batches", o.eval_batches,
                          "Batches of an evaluation; 0: the whole validation part"));
  watching(app.add_option("--checkpoint-every", o.checkpoint_every,
                          "Steps between checkpoints; the last step always makes one"));
  watching(app.add_option("--sample-every", o.sample_every, "Steps between samples; 0: only at the end"));
  watching(app.add_option("--log-every", o.log_every,
                          "Steps between lines of output in a pipe; a terminal shows all"));

  running(app.add_option("--out", o.out, "Folder of the run: checkpoints, metrics, pictures"));
  running(app.add_flag("--resume", o.resume, "Go on from the newest checkpoint in --out"));
  running(app.add_option("--device", o.device, "cpu, cuda, cuda:N, or auto: a GPU if there is one"));
  running(app.add_option("--threads", o.threads, "0: all that the machine has"));
  running(
      app.add_flag("--check-finite", o.check_finite,
                   "Stop at the first value that is NaN or infinite, naming step, layer and op (slower)"));
  running(app.add_option("--precision", o.precision, precision_help));
  app.set_config("--config", "", "File of key = value lines; the command line wins");
  add_version(app);
  add_mixers_help(app);
}

/// The options in a run's run.json, as arguments; those that are settled are left out.
std::vector<std::string> stored_arguments(const std::filesystem::path& run,
                                          const std::set<std::string>& settled) {
  std::vector<std::string> arguments;
  const nlohmann::ordered_json stored = stored_options(run);
  for (const auto& [name, value] : stored.items()) {
    if (settled.contains(name)) continue;
    arguments.push_back(str("--", name, "=", value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return arguments;
}

bool parse_line(const std::vector<std::string>& arguments, TrainOptions& options,
                std::set<std::string>& said) {
  CLI::App app("Trains a language model on a text.", "train");
  declare(app, options);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  if (!parse(app, static_cast<int>(argv.size()), argv.data())) return false;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) said.insert(option->get_lnames()[0]);
  }
  return true;
}

void check_number(const char* option, double value, double minimum, double maximum) {
  check_usage(std::isfinite(value) && value >= minimum && value <= maximum, "[options] --", option, ": ",
              value, "; allowed: ", minimum, " to ", maximum);
}

void check_decay(const char* option, double value) {
  check_usage(value >= 0 && value < 1, "[options] --", option, ": ", value, "; allowed: 0 or more, below 1");
}

}  // namespace

void check_count(const char* option, int64_t value, int64_t minimum, int64_t maximum) {
  check_usage(value >= minimum && value <= maximum, "[options] --", option, ": ", value,
              "; allowed: ", minimum, " to ", maximum);
}

void check_json_path(const std::string& json) {
  if (json.empty()) return;
  const std::filesystem::path path = json, folder = path.has_parent_path() ? path.parent_path() : ".";
  const auto kind = std::filesystem::symlink_status(path).type();
  check_usage(std::filesystem::is_directory(folder), "[options] --json: there is no folder '",
              folder.string(), "'");
  check_usage(kind == std::filesystem::file_type::not_found || kind == std::filesystem::file_type::regular,
              "[options] --json: '", json, "' is there and no regular file");
}

std::string mixers_help() {
  std::string text = "Mixers of a language model, with the defaults of their options:\n", others;
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) {
      others += str("Not causal, so in no language model: ", kind.name, "\n");
      continue;
    }
    text += str("  ", folded(str(kind.name, ": ", kind.summary), 2), "\n");
    for (const MixerOption& option : kind.options) {
      text += str("    ", folded(str(option.name, "=", option.default_value, "  ", option.help), 4), "\n");
    }
  }
  return text + others;
}

void add_mixers_help(CLI::App& app) {
  const auto show = [] {
    std::cout << mixers_help();
    throw CLI::Success();
  };
  app.add_flag_callback("--help-mixers", show, "Print the mixers and their options and exit")
      ->configurable(false);
}

MatrixPrecision parse_precision(const std::string& text) {
  check_usage(text == "f32" || text == "bf16", "[options] --precision: '", text, "'; allowed: f32, bf16");
  return text == "bf16" ? MatrixPrecision::bfloat16 : MatrixPrecision::float32;
}

void declare_model_options(CLI::App& app, ModelConfig& model) {
  app.option_defaults()->always_capture_default();
  const auto declare = [&](auto* option) { option->group("Model"); };
  declare(app.add_option(
      "--pattern,--mixer", model.pattern,
      "Mixers by layer, repeated to fill them, see --help-mixers: gma, or \"gma(components=32)*3,sdpa\""));
  declare(app.add_option("--layers", model.layers, "Blocks"));
  declare(app.add_option("--heads", model.heads, "Heads of each mixer; a divisor of the width"));
  declare(app.add_option("--width", model.width, "Width of the residual stream"));
  declare(
      app.add_option("--mlp-hidden", model.mlp_hidden, "Hidden size of the MLPs; 0: four times the width"));
  declare(app.add_option("--positions", model.positions, "auto, learned, sinusoidal, rope or none"));
  declare(app.add_option("--norm", model.norm, "layer or rms"));
  declare(
      app.add_flag("--conv,!--no-conv", model.conv, "Mixers see a short convolution of each block's input"));
  declare(app.add_flag("--bias,!--no-bias", model.bias, "Biases in the MLPs and LayerNorms"));
  declare(app.add_flag("--tie-embeddings,!--no-tie-embeddings", model.tie_embeddings,
                       "The head shares the embedding's weight"));
  declare(app.add_option("--dropout", model.dropout, "Rate, in embedding and residual branches"));
  declare(
      app.add_option("--ttt-tokens", model.ttt_tokens,
                     "First-order end-to-end test-time training: MLPs in the last quarter of the blocks that "
                     "learn from the text, an update after each so many tokens; 0: none"));
  declare(app.add_option("--ttt-rate", model.ttt_rate,
                         "Its learning rate; 0: the same MLPs, which do not learn from the text"));
  declare(app.add_option("--ttt-hidden", model.ttt_hidden, "Hidden size of its MLPs; 0: --mlp-hidden"));
}

bool parse_train_options(int argc, char** argv, TrainOptions& options) {
  const std::vector<std::string> given(argv, argv + argc);
  std::set<std::string> said;
  if (!parse_line(given, options, said)) return false;
  if (options.resume) {
    const bool minutes_given = said.contains("minutes");
    std::set<std::string> settled = said;
    // Both say how long a run is, so that one which is given takes the place of both.
    if (minutes_given || said.contains("steps")) settled.insert({"steps", "minutes"});
    std::vector<std::string> complete = given;
    for (const std::string& argument : stored_arguments(options.out, settled)) complete.push_back(argument);
    options = TrainOptions{};
    parse_line(complete, options, said);
    options.more_minutes = minutes_given;
  }
  options.program = argv[0];
  if (options.minutes > 0 && !said.contains("steps")) options.steps = most_steps;
  options.validate();
  return true;
}

CosineSchedule TrainOptions::schedule(int64_t total_steps) const {
  const int64_t rising =
      warmup < 0 ? std::min<int64_t>(100, total_steps / 10) : std::min(warmup, total_steps);
  return {learning_rate, min_learning_rate < 0 ? learning_rate / 10 : min_learning_rate, rising, total_steps};
}

void TrainOptions::validate() const {
  check_usage(!data.empty(), "[options] --data is missing: the text to learn");
  check_number("train-fraction", train_fraction, 0.01, 0.99);
  // Counts are bounded such that their products, tokens and bytes, stay within 64 bits.
  check_count("batch", batch, 1, 1 << 20);
  check_count("accumulate", accumulate, 1, 1 << 16);
  check_count("steps", steps, 1, most_steps);
  check_number("minutes", minutes, 0, 1e6);
  check_number("lr", learning_rate, 0, 1e9);
  check_usage(min_learning_rate == -1 || (min_learning_rate >= 0 && min_learning_rate <= learning_rate),
              "[options] --min-lr: ", min_learning_rate, "; allowed: 0 to --lr ", learning_rate,
              ", or -1: a tenth of it");
  check_count("warmup", warmup, -1, most_steps);
  check_decay("beta1", adamw.beta1);
  check_decay("beta2", adamw.beta2);
  check_number("weight-decay", adamw.weight_decay, 0, 1e3);
  check_number("clip", clip, 0, 1e9);
  check_count("eval-every", eval_every, 1, most_steps);
  check_count("eval-batches", eval_batches, 0, most_steps);
  check_count("checkpoint-every", checkpoint_every, 1, most_steps);
  check_count("sample-every", sample_every, 0, most_steps);
  check_count("log-every", log_every, 1, most_steps);
  check_count("threads", threads, 0, most_threads());
  parse_precision(precision);
  ModelConfig with_any_vocabulary = model;
  with_any_vocabulary.vocabulary = 1;  // the real one is known once the data is read
  with_any_vocabulary.validate();
}

nlohmann::ordered_json TrainOptions::effective() const {
  return {{"data", std::filesystem::absolute(data).lexically_normal().string()},
          {"tokenizer", tokenizer},
          {"train-fraction", train_fraction},
          {"pattern", model.pattern},
          {"layers", model.layers},
          {"heads", model.heads},
          {"width", model.width},
          {"context", model.context},
          {"mlp-hidden", model.mlp_hidden},
          {"positions", model.positions},
          {"norm", model.norm},
          {"conv", model.conv},
          {"bias", model.bias},
          {"tie-embeddings", model.tie_embeddings},
          {"dropout", model.dropout},
          {"ttt-tokens", model.ttt_tokens},
          {"ttt-rate", model.ttt_rate},
          {"ttt-hidden", model.ttt_hidden},
          {"batch", batch},
          {"accumulate", accumulate},
          {"steps", steps},
          {"minutes", minutes},
          {"lr", learning_rate},
          {"min-lr", min_learning_rate},
          {"warmup", warmup},
          {"beta1", adamw.beta1},
          {"beta2", adamw.beta2},
          {"weight-decay", adamw.weight_decay},
          {"clip", clip},
          {"seed", seed},
          {"eval-every", eval_every},
          {"eval-batches", eval_batches},
          {"checkpoint-every", checkpoint_every},
          {"sample-every", sample_every},
          {"log-every", log_every},
          {"device", device},
          {"threads", threads},
          {"check-finite", check_finite},
          {"precision", precision}};
}

}  // namespace mixgrad
