#include "train/trainer.h"

#include <zlib.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "autograd/tape.h"
#include "models/generate.h"
#include "nn/mixers/gma/gma.h"
#include "tensor/allocator.h"
#include "tensor/cpu_info.h"
#include "tensor/files.h"
#include "train/checkpoint.h"
#include "train/plots.h"
#include "train/saved_model.h"
#include "train/signals.h"
#include "train/text.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int64_t timed_steps = 10;  // on which --minutes is based
constexpr int64_t sample_tokens = 400;
constexpr int64_t excerpt_tokens = 64;

/// Refuses, before anything is read, a folder that another run would be lost in.
void check_folder(const TrainOptions& options) {
  check_usage(options.resume || !std::filesystem::exists(options.out / "run.json"), "[train] '",
              options.out.string(), "' already holds a run; go on with --resume or choose another --out");
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check(!error, "[train] cannot create '", folder.string(), "': ", error.message());
}

}  // namespace

Trainer::Trainer(const TrainOptions& options)
    : options_((check_folder(options), options)),
      tokenizer_(Tokenizer::make("byte", "")),
      dropout_(options.seed, Stream::dropout),
      total_steps_(options.steps),
      progress_(options.log_every, options.steps) {
  const Device device = parse_device(options_.device);
  if (options_.threads > 0) set_thread_count(options_.threads);
  const std::string text = read_text(options_.data);
  data_checksum_ =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
  tokenizer_ = Tokenizer::make(options_.tokenizer, text);
  data_ = split_tokens(tokenizer_.encode(text), options_.model.context, options_.train_fraction);
  ModelConfig config = options_.model;
  config.vocabulary = tokenizer_.vocabulary_size();
  config_ = config.resolved();

  Generator generator(options_.seed, Stream::parameters);
  Initialiser initialiser(DType::float32, device, generator);
  model_ = std::make_unique<LanguageModel>(config_, initialiser);
  parameters_ = model_->parameters();
  optimizer_ = std::make_unique<AdamW>(parameters_, options_.adamw);
  if (options_.resume) load_newest_checkpoint();
}

nlohmann::json Trainer::identity() const {
  return {{"data", {{"bytes_crc32", data_checksum_}, {"train_fraction", options_.train_fraction}}},
          {"seed", std::to_string(options_.seed)},
          {"batch", options_.batch},
          {"accumulate", options_.accumulate}};
}

void Trainer::load_newest_checkpoint() {
  std::vector<std::string> skipped;
  const auto newest = newest_checkpoint(options_.out, &skipped);
  for (const std::string& line : skipped) progress_.say(line);
  check(newest.has_value(), "[resume] no complete checkpoint in '", options_.out.string(), "'");
  const Checkpoint checkpoint = load_checkpoint(*newest);
  const nlohmann::json& state = checkpoint.state;
  const auto field = [&](const char* name) -> const nlohmann::json& {
    check(state.is_object() && state.contains(name), "[resume] '", newest->string(), "' holds no ", name,
          "; was it written by train?");
    return state[name];
  };
  const std::string difference = first_difference(field("model").get<ModelConfig>(), config_);
  check_usage(difference.empty(), "[resume] '", newest->string(), "' does not fit: ", difference,
              " (checkpoint and this run)");
  check_usage(Tokenizer::from_json(field("tokenizer")) == tokenizer_, "[resume] '", newest->string(),
              "' does not fit: it has another tokenizer or vocabulary");
  const nlohmann::json mine = identity();
  for (const auto& [name, value] : mine.items()) {
    const nlohmann::json& theirs = field("identity").value(name, nlohmann::json());
    check_usage(theirs == value, "[resume] '", newest->string(), "' does not fit: ", name, " ", theirs.dump(),
                " and ", value.dump(), " (checkpoint and this run)");
  }

  NamedTensors values = named_values(*model_);
  load_parameters(checkpoint.model, values);
  NamedTensors moments = optimizer_->state();
  load_parameters(checkpoint.optimizer, moments);
  step_ = saved_step_ = checkpoint.step;
  optimizer_->set_steps(step_);
  dropout_ =
      Generator(options_.seed, Stream::dropout, std::stoull(field("dropout_position").get<std::string>()));
  // A number of steps that was derived from --minutes stays, so that the schedule does.
  if (options_.minutes > 0) total_steps_ = std::min(total_steps_, field("total_steps").get<int64_t>());
  progress_.set_total(total_steps_);
}

void Trainer::write_run_file() const {
  const nlohmann::json run = {
      {"program", str("mixgrad ", MIXGRAD_VERSION)},
      {"options", options_.effective()},
      {"model", config_},
      {"derived",
       {{"parameters", model_->parameter_count()},
        {"tokens_per_step", options_.tokens_per_step()},
        {"train_tokens", data_.train.size()},
        {"validation_tokens", data_.validation.size()},
        {"flops_per_step", 3 * model_->flops_per_token(config_.context) * options_.tokens_per_step()},
        {"threads", thread_count()}}}};
  const std::string text = run.dump(2) + "\n";
  FileWriter file(options_.out / "run.json");
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.finish();
}

void Trainer::announce() {
  progress_.say(str("data      ", options_.data.string(), ": ", data_.train.size(), " tokens to train on, ",
                    data_.validation.size(), " to validate, vocabulary ", config_.vocabulary, " (",
                    tokenizer_.kind(), ")"));
  progress_.say(str("model     ", config_.layers, " layers, ", config_.heads, " heads, width ", config_.width,
                    ", context ", config_.context, ", ", model_->parameter_count(), " parameters"));
  progress_.say(str("mixers    ", config_.pattern, "; positions ", config_.positions));
  progress_.say(str("training  ", total_steps_, " steps of ", options_.tokens_per_step(), " tokens, seed ",
                    options_.seed, ", ", thread_count(), " threads; run folder ", options_.out.string()));
  if (step_ > 0) progress_.say(str("resumed   behind step ", step_));
}

MetricsRow Trainer::train_step() {
  const Clock::time_point start = Clock::now();
  double loss = 0;
  model_->zero_grad();
  for (int64_t micro = 0; micro < options_.accumulate; ++micro) {
    const Batch batch = sample_batch(data_.train, options_.batch, config_.context, options_.seed,
                                     step_ * options_.accumulate + micro);
    const Shape shape{batch.rows, batch.length};
    const Variable batch_loss =
        model_->loss(Tensor::from(batch.inputs, shape), Tensor::from(batch.targets, shape), &dropout_);
    const double share = 1.0 / static_cast<double>(options_.accumulate);
    loss += share * batch_loss.value().item();
    backward({batch_loss}, {Tensor::full({}, share, batch_loss.dtype(), batch_loss.value().device())});
  }
  const double norm = gradient_norm(parameters_);
  const double rate = options_.schedule(total_steps_).rate(step_);
  check(std::isfinite(loss) && std::isfinite(norm), "[train] step ", step_ + 1, ": loss ", loss,
        ", gradient norm ", norm, ", learning rate ", rate, "; stopped before the update",
        saved_step_ >= 0 ? str(", the checkpoint of step ", saved_step_, " is intact")
                         : std::string(", no checkpoint was made yet"));
  optimizer_->step(rate, clip_scale(norm, options_.clip));
  ++step_;

  const double seconds = seconds_since(start);
  MetricsRow row;
  row.step = step_;
  row.tokens = step_ * options_.tokens_per_step();
  row.train_loss = loss;
  row.learning_rate = rate;
  row.grad_norm = norm;
  row.step_ms = 1000 * seconds;
  row.tokens_per_s = static_cast<double>(options_.tokens_per_step()) / seconds;
  row.peak_memory_bytes = Allocator::of(Device{}).stats().peak_bytes;
  return row;
}

void Trainer::plan_steps(double seconds_per_step) {
  const auto affordable = static_cast<int64_t>(60 * options_.minutes / seconds_per_step);
  total_steps_ = std::min(options_.steps, std::max(step_, affordable));
  progress_.set_total(total_steps_);
  progress_.say(str("planned   ", total_steps_, " steps of ", duration_text(seconds_per_step), " for ",
                    options_.minutes, " minutes"));
}

void Trainer::save() {
  if (saved_step_ == step_) return;
  NamedTensors values = named_values(*model_);
  save_checkpoint(options_.out, {.step = step_,
                                 .model = values,
                                 .optimizer = optimizer_->state(),
                                 .state = {{"model", config_},
                                           {"tokenizer", tokenizer_.to_json()},
                                           {"identity", identity()},
                                           {"total_steps", total_steps_},
                                           {"dropout_position", std::to_string(dropout_.position())}}});
  saved_step_ = step_;
}

void Trainer::sample() {
  Generator generator(options_.seed, Stream::sampling);
  std::vector<int32_t> drawn;
  generate(*model_, {data_.train[0]}, {.tokens = sample_tokens, .temperature = 0.8}, generator,
           [&](int32_t token) { drawn.push_back(token); });
  progress_.say("sample    ----------------------------------------------------------------");
  progress_.say(printable(tokenizer_.decode(drawn)));
  progress_.say("--------------------------------------------------------------------------");
}

void Trainer::draw_pictures() {
  std::vector<LossPoint> train, validation;
  for (const MetricsRow& row : MetricsFile::read(options_.out / "metrics.csv")) {
    if (row.train_loss) train.push_back({row.step, *row.train_loss});
    if (row.val_loss) validation.push_back({row.step, *row.val_loss});
  }
  plot_loss(options_.out / "loss.png", train, validation,
            str(config_.pattern, ": loss on ", options_.data.filename().string()));

  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    auto* gma = dynamic_cast<Gma*>(&model_->mixer(layer));
    if (gma == nullptr) continue;
    const NoGrad no_grad;
    const auto count =
        std::min<int64_t>({excerpt_tokens, config_.context, static_cast<int64_t>(data_.validation.size())});
    const std::vector<int32_t> excerpt(data_.validation.begin(), data_.validation.begin() + count);
    const Tensor gamma =
        gma->key_responsibilities(model_->mixer_input(Tensor::from(excerpt, {1, count}), layer));
    Responsibilities picture;
    picture.tokens = count;
    picture.components = gamma.shape()[3];
    picture.layer = layer;
    for (const double value : gamma.narrow(2, 0, 1).to_vector())
      picture.gamma.push_back(static_cast<float>(value));
    for (const int32_t id : excerpt) picture.token_text.push_back(tokenizer_.decode({&id, 1}));
    plot_responsibilities(options_.out / "responsibilities.png", picture);
    break;
  }
}

void Trainer::finish() {
  sample();
  draw_pictures();
  if (last_evaluation_) {
    progress_.say(str("validation loss ", last_evaluation_->nats_per_token, " nats per token, ",
                      last_evaluation_->bits_per_byte, " bits per byte, over ", last_evaluation_->tokens,
                      " tokens"));
  }
  progress_.say(str("checkpoint      ", newest_checkpoint(options_.out).value_or(options_.out).string()));
  progress_.say(str("metrics         ", (options_.out / "metrics.csv").string()));
  for (const char* picture : {"loss.png", "responsibilities.png"}) {
    if (std::filesystem::exists(options_.out / picture)) {
      progress_.say(str("picture         ", (options_.out / picture).string()));
    }
  }
}

int Trainer::run() {
  catch_interrupts();
  make_folder(options_.out);
  write_run_file();
  MetricsFile::cut_back(options_.out / "metrics.csv", step_);
  MetricsFile metrics(options_.out / "metrics.csv");
  announce();

  Clock::time_point second_step{};
  for (int64_t done = 1; step_ < total_steps_; ++done) {
    MetricsRow row = train_step();
    if (done == 1) second_step = Clock::now();  // the first step allocates: it is not typical
    if (options_.minutes > 0 && step_ == timed_steps && done == timed_steps) {
      plan_steps(seconds_since(second_step) / (timed_steps - 1));
    }
    if (due(options_.eval_every)) {
      last_evaluation_ =
          evaluate(*model_, tokenizer_, data_.validation, options_.batch, options_.eval_batches);
      if (last_evaluation_) {
        row.val_loss = last_evaluation_->nats_per_token;
        row.val_bits_per_byte = last_evaluation_->bits_per_byte;
      }
    }
    metrics.append(row);
    progress_.show(row);
    const int signal = interrupt();
    if (due(options_.checkpoint_every) || signal != 0) save();
    if (signal != 0) {
      progress_.say(
          str("interrupted: step ", step_, " is saved in ", options_.out.string(), "; go on with --resume"));
      return 128 + signal;
    }
    if (options_.sample_every > 0 && step_ % options_.sample_every == 0 && step_ != total_steps_) sample();
  }
  finish();
  return 0;
}

}  // namespace mixgrad
