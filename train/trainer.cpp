#include "train/trainer.h"

#include <zlib.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "autograd/check_finite.h"
#include "models/generate.h"
#include "tensor/allocator.h"
#include "tensor/cpu_info.h"
#include "tensor/parallel.h"
#include "train/atomic_file.h"
#include "train/checkpoint.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/plots.h"
#include "train/run_file.h"
#include "train/saved_model.h"
#include "train/signals.h"
#include "train/text.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int64_t sample_tokens = 400;
constexpr int64_t excerpt_tokens = 64;
// Of English text, counts of single bytes give 4.3 bits per byte, of pairs 3.4, of triples 2.8.
constexpr double readable_bits_per_byte = 2.5;

/// Refuses, before anything is read, a folder that another run would be lost in. What is left of a run that
/// had nothing to save yet is no loss.
const TrainOptions& checked(const TrainOptions& options) {
  check_usage(options.resume || !has_checkpoints(options.out), "[train] '", options.out.string(),
              "' already holds a run; go on with --resume or choose another --out");
  return options;
}

Corpus read_corpus(const TrainOptions& options) {
  const std::string text = read_text(options.data);
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  const Tokenizer tokenizer = Tokenizer::make(options.tokenizer, text);
  Split parts = split_tokens(tokenizer.encode(text), options.model.context, options.train_fraction);
  return {.tokenizer = tokenizer,
          .parts = std::move(parts),
          .crc32 = static_cast<uint32_t>(crc),
          .has_byte_order_mark = text.starts_with("\xEF\xBB\xBF"),
          .has_crlf = text.find("\r\n") != text.npos};
}

ModelConfig model_config(const TrainOptions& options, const Tokenizer& tokenizer) {
  ModelConfig config = options.model;
  config.vocabulary = tokenizer.vocabulary_size();
  return config.resolved();
}

void check_memory(const char* how_surely, double needed_bytes, Device device) {
  const int64_t available = available_memory_bytes(device);
  check(needed_bytes <= static_cast<double>(available), "[memory] training needs ", how_surely, " ",
        bytes_text(needed_bytes), ", ", bytes_text(available),
        " are available; reduce --batch (--accumulate makes up for it), --context, --width or --layers");
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check(!error, "[train] cannot create '", folder.string(), "': ", error.message());
}

/// The options as a command line that gives the same run, folded into lines of about 100 columns.
std::vector<std::string> command_lines(const TrainOptions& options) {
  std::vector<std::string> lines;
  const nlohmann::ordered_json effective = options.effective();
  for (const auto& [name, value] : effective.items()) {
    const std::string word =
        str("--", name, "=", value.is_string() ? value.get<std::string>() : value.dump());
    if (lines.empty() || lines.back().size() + word.size() > 90) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options)
    : options_(checked(options)),
      device_(parse_device(options.device)),
      corpus_(read_corpus(options)),
      config_(model_config(options, corpus_.tokenizer)),
      metrics_path_(options.out / "metrics.csv"),
      dropout_(options.seed, Stream::dropout),
      total_steps_(options.steps),
      planned_(options.minutes == 0),
      eval_batches_(options.eval_batches),
      progress_(options.log_every) {
  if (options_.threads > 0) set_thread_count(static_cast<int>(options_.threads));
  set_matrix_precision(parse_precision(options_.precision), device_);
  check_memory("at least", least_training_bytes(config_, options_.batch), device_);
  memory_bytes_ = measure_training_bytes(config_, batches(), options_.resume, device_);
  check_memory("about", static_cast<double>(memory_bytes_), device_);
  Generator generator(options_.seed, Stream::parameters);
  Initialiser initialiser(DType::float32, device_, generator);
  model_ = std::make_unique<LanguageModel>(config_, initialiser);
  parameters_ = model_->parameters();
  optimizer_ = std::make_unique<AdamW>(parameters_, options_.adamw);
  if (options_.resume) load_newest_checkpoint();
}

nlohmann::json Trainer::identity() const {
  return {{"checksum of the data", corpus_.crc32},
          {"train-fraction", options_.train_fraction},
          {"seed", std::to_string(options_.seed)},
          {"batch", options_.batch},
          {"accumulate", options_.accumulate}};
}

void Trainer::load_newest_checkpoint() {
  lock_.emplace(options_.out);
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
  const auto require_same = [&](bool same, const auto&... difference) {
    check_usage(same, "[resume] '", newest->string(), "' does not fit: ", difference...,
                " (in the checkpoint and in this run)");
  };
  const auto saved_tokenizer = Tokenizer::from_json(field("tokenizer"));
  require_same(saved_tokenizer.kind() == corpus_.tokenizer.kind(), "tokenizer ", saved_tokenizer.kind(),
               " and ", corpus_.tokenizer.kind());
  const nlohmann::json saved_crc = field("identity").value("checksum of the data", nlohmann::json());
  check_usage(saved_crc == corpus_.crc32, "[resume] '", options_.data.string(), "' is not the text that '",
              newest->string(), "' was trained on, or has changed since; give that one with --data");
  const nlohmann::json wanted = identity();
  for (const auto& [name, mine] : wanted.items()) {
    const nlohmann::json saved = field("identity").value(name, nlohmann::json());
    require_same(saved == mine, name, " ", saved.dump(), " and ", mine.dump());
  }
  const std::string difference = first_difference(field("model").get<ModelConfig>(), config_);
  require_same(difference.empty(), difference);

  NamedTensors values = named_values(*model_);
  load_parameters(checkpoint.model, values);
  NamedTensors moments = optimizer_->state();
  load_parameters(checkpoint.optimizer, moments);
  step_ = saved_step_ = first_step_ = checkpoint.step;
  optimizer_->set_steps(step_);
  dropout_ =
      Generator(options_.seed, Stream::dropout, std::stoull(field("dropout_position").get<std::string>()));
  // Older checkpoints, and those of runs that were interrupted at once, do not know which is the best.
  if (const auto best = state.find("best"); best != state.end() && !best->is_null())
    best_ = SavedLoss{best->at("step"), best->at("loss")};
  // Steps that were derived from --minutes stay, so that the schedule does, unless other ones are asked for.
  const nlohmann::json& plan = field("plan");
  if (!options_.more_minutes && plan.at("minutes") == options_.minutes &&
      plan.at("steps") == options_.steps) {
    total_steps_ = plan.at("total_steps");
    planned_ = plan.at("final");
    if (plan.value("asked_eval_batches", int64_t{-1}) == options_.eval_batches)
      eval_batches_ = plan.at("eval_batches");
  }
}

std::string Trainer::saved_checkpoint_text() const {
  if (best_) return str("the checkpoint of step ", best_->step, " is intact, its loss ", best_->loss);
  return saved_step_ < 0 ? "no checkpoint was made yet"
                         : str("the checkpoint of step ", saved_step_, " is intact");
}

nlohmann::ordered_json Trainer::derived_numbers() const {
  const double flops = 3 * model_->flops_per_token(config_.context)  // forward 1, backward 2
                       + model_->learning_flops(config_.context) / static_cast<double>(config_.context);
  return {{"parameters", model_->parameter_count()},
          {"train_tokens", corpus_.parts.train.size()},
          {"validation_tokens", corpus_.parts.validation.size()},
          {"tokens_per_step", options_.tokens_per_step()},
          {"flops_per_step", flops * static_cast<double>(options_.tokens_per_step())},
          {"memory_bytes", memory_bytes_},
          {"total_steps", planned_ ? nlohmann::ordered_json(total_steps_) : nullptr}};
}

void Trainer::describe_run() const {
  write_run_file(
      options_.out,
      {{"options", options_.effective()}, {"model", nlohmann::json(config_)}, {"derived", derived_numbers()}},
      {.after_step = first_step_, .to_step = std::max(saved_step_, first_step_)},
      {{"device", describe(device_)}, {"threads", thread_count()}, {"options", options_.effective()}});
}

/// What is probably not meant, though it can be trained.
std::vector<std::string> Trainer::notes() const {
  std::vector<std::string> notes;
  if (corpus_.has_byte_order_mark) {
    notes.push_back("the text begins with a byte order mark, which is learned as a part of it");
  }
  if (corpus_.has_crlf) {
    notes.push_back("the text has lines that end in CR LF, which are learned as they are: two characters");
  }
  if (config_.width == 1 && config_.norm == "layer") {
    notes.push_back("with --width 1 every LayerNorm gives 0, so that gradients are 0 and nothing is learned");
  }
  return notes;
}

void Trainer::announce() {
  const auto line = [&](const char* title, const auto&... parts) {
    const std::string name = title;
    progress_.say(str(name, std::string(10 - name.size(), ' '), parts...));
  };
  const nlohmann::ordered_json derived = derived_numbers();
  line("data", options_.data.string(), ": ", corpus_.parts.train.size(), " tokens to train on, ",
       corpus_.parts.validation.size(), " to validate, a vocabulary of ", config_.vocabulary, " (",
       corpus_.tokenizer.kind(), ")");
  line("model", model_->parameter_count(), " parameters: ", config_.pattern, ", positions ",
       config_.positions);
  line("step", options_.tokens_per_step(), " tokens, ", derived["flops_per_step"].get<double>() / 1e9,
       " GFLOP");
  line("memory", "about ", bytes_text(static_cast<double>(memory_bytes_)), " in tensors at the peak");
  for (const std::string& words : command_lines(options_)) line("options", words);
  const bool fell_back = options_.device == "auto" && device_ == Device{};
  line("run", planned_ ? str(total_steps_, " steps") : str("about ", options_.minutes, " minutes"), " on ",
       describe(device_), fell_back ? str(" (", why_no_gpu(), ")") : "", ", ", thread_count(),
       " threads, into ", options_.out.string());
  if (step_ > 0) line("resumed", "after step ", step_);
  for (const std::string& note : notes()) progress_.say("note: " + note);
}

StepBatches Trainer::batches() const {
  return {.tokens = corpus_.parts.train,
          .B = options_.batch,
          .T = config_.context,
          .accumulate = options_.accumulate,
          .seed = options_.seed};
}

MetricsRow Trainer::train_step() {
  const Clock::time_point start = Clock::now();
  std::optional<FiniteCheck> finite;
  if (options_.check_finite) finite.emplace(str("step ", step_ + 1));
  const double loss = compute_gradients(*model_, batches(), step_, &dropout_);
  const double norm = gradient_norm(parameters_);
  const double rate = options_.schedule(total_steps_).rate(step_);
  check(std::isfinite(loss) && std::isfinite(norm), "[train] step ", step_ + 1, ": loss ", loss,
        ", gradient norm ", norm, ", learning rate ", rate, "; stopped before the update, ",
        saved_checkpoint_text());
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
  row.peak_memory_bytes = Allocator::of(device_).stats().peak_bytes;
  return row;
}

/// Turns --minutes into steps, once enough of them have been timed: such that the whole run, with its
/// evaluations and from its start on, takes that time.
void Trainer::plan_steps(double step_seconds) {
  const double budget = 60 * options_.minutes;
  if (untimed_step_) {  // the first one allocates: it is not typical
    untimed_step_ = false;
    return;
  }
  ++timed_steps_;
  timed_seconds_ += step_seconds;
  if (!timed_enough(timed_steps_, timed_seconds_, budget)) return;

  const int64_t all = evaluation_batches();
  RunTimes times{.step_seconds = timed_seconds_ / static_cast<double>(timed_steps_),
                 .batch_seconds = evaluation_batch_seconds(all)};
  if (interrupt() != 0) return;
  times.left_seconds = budget - seconds_since(start_);
  const RunPlan plan = plan_run(times, options_.eval_every, all);
  total_steps_ = std::min(options_.steps, step_ + plan.steps);
  if (plan.eval_batches < all) eval_batches_ = plan.eval_batches;
  planned_ = true;
  progress_.plan(step_, total_steps_);
  progress_.say(
      str("planned   ", total_steps_, " steps for ", options_.minutes,
          " minutes: ", duration_text(times.step_seconds), " a step, ",
          duration_text(times.batch_seconds * static_cast<double>(plan.eval_batches)), " an evaluation",
          plan.eval_batches < all ? str(" of ", plan.eval_batches, " batches instead of ", all) : ""));
  describe_run();
}

/// How many batches an evaluation has, unless a plan shortens it.
int64_t Trainer::evaluation_batches() const {
  const int64_t all = EvaluationBatches(corpus_.parts.validation, options_.batch, config_.context).size();
  return options_.eval_batches > 0 ? std::min(options_.eval_batches, all) : all;
}

/// What one of them takes, by a few.
double Trainer::evaluation_batch_seconds(int64_t all) {
  const int64_t timed = std::min<int64_t>(all, 4);
  evaluate_batches(1);  // allocates
  const Clock::time_point start = Clock::now();
  evaluate_batches(timed);
  return seconds_since(start) / static_cast<double>(timed);
}

/// Empty when an interrupt arrives on the way.
std::optional<Evaluation> Trainer::evaluate_batches(int64_t most) {
  return evaluate(*model_, corpus_.tokenizer, corpus_.parts.validation, options_.batch, most);
}

/// Empty cells stay when an interrupt arrives on the way.
void Trainer::evaluate_into(MetricsRow& row) {
  const auto evaluation = evaluate_batches(eval_batches_);
  if (!evaluation) return;
  check(std::isfinite(evaluation->nats_per_token), "[train] step ", step_, ": validation loss ",
        evaluation->nats_per_token, ", learning rate ", row.learning_rate.value_or(0), "; stopped, ",
        saved_checkpoint_text());
  last_evaluation_ = evaluation;
  row.val_loss = evaluation->nats_per_token;
  row.val_bits_per_byte = evaluation->bits_per_byte;
}

/// A run that was interrupted in an evaluation makes up for it when it is resumed, so that its rows are those
/// of an uninterrupted one.
void Trainer::make_up_evaluation() {
  const std::vector<MetricsRow> rows = MetricsFile::read(metrics_path_);
  if (rows.empty() || rows.back().step != step_ || rows.back().val_loss || !due(options_.eval_every)) return;
  MetricsRow row = rows.back();
  evaluate_into(row);
  MetricsFile::cut_back(metrics_path_, step_ - 1);
  MetricsFile(metrics_path_).append(row);
}

/// Judges the parameters by the first batches of the validation part, the same each time. A run that has
/// diverged must not push out what it has learned before.
bool Trainer::worth_saving() {
  const auto judged = evaluate_batches(4);
  if (!judged) return true;  // interrupted: better saved than judged
  const double loss = judged->nats_per_token, guess = std::log(static_cast<double>(config_.vocabulary));
  check(std::isfinite(loss), "[train] step ", step_, ": validation loss ", loss, ", learning rate ",
        options_.schedule(total_steps_).rate(step_ - 1), "; stopped, ", saved_checkpoint_text());
  const bool worse_than_guessing = loss > guess, has_better = best_ && best_->loss <= guess;
  if (worse_than_guessing) {
    progress_.say(str("note: after step ", step_, " the loss is ", loss, ", above the ", guess,
                      " of a guess without training; ",
                      has_better ? "not saved, " + saved_checkpoint_text() : "saved all the same"));
  }
  if (worse_than_guessing && has_better) return false;
  if (!best_ || loss < best_->loss) best_ = SavedLoss{step_, loss};
  return true;
}

void Trainer::save() {
  if (saved_step_ == step_) return;
  for (const Parameter& parameter : parameters_) {
    check(count_not_finite(parameter.variable->value()) == 0, "[train] step ", step_, ": parameter ",
          parameter.name, " is no longer finite; stopped, ", saved_checkpoint_text());
  }
  if (!worth_saving()) return;
  nlohmann::json best;
  if (best_) best = {{"step", best_->step}, {"loss", best_->loss}};
  Retention retention;
  if (best_) retention.steps = {best_->step};
  save_checkpoint(options_.out,
                  {.step = step_,
                   .model = named_values(*model_),
                   .optimizer = optimizer_->state(),
                   .state = {{"model", config_},
                             {"tokenizer", corpus_.tokenizer.to_json()},
                             {"identity", identity()},
                             {"plan",
                              {{"steps", options_.steps},
                               {"minutes", options_.minutes},
                               {"total_steps", total_steps_},
                               {"asked_eval_batches", options_.eval_batches},
                               {"eval_batches", eval_batches_},
                               {"final", planned_}}},
                             {"best", best},
                             {"dropout_position", std::to_string(dropout_.position())}}},
                  retention);
  saved_step_ = step_;
  describe_run();
}

void Trainer::sample() {
  Generator generator(options_.seed, Stream::sampling);
  std::vector<int32_t> drawn;
  generate(*model_, {opening_token(corpus_.tokenizer)}, {.tokens = sample_tokens, .temperature = 0.8},
           generator, [&](int32_t token) { drawn.push_back(token); });
  progress_.say(str("---- sample after step ", step_, " ", std::string(50, '-')));
  progress_.say(printable(corpus_.tokenizer.decode(drawn)));
  progress_.say(std::string(74, '-'));
}

void Trainer::draw_pictures() {
  std::vector<LossPoint> train, validation;
  for (const MetricsRow& row : MetricsFile::read(metrics_path_)) {
    if (row.train_loss) train.push_back({row.step, *row.train_loss});
    if (row.val_loss) validation.push_back({row.step, *row.val_loss});
  }
  plot_loss(options_.out / "loss.png", train, validation,
            str(config_.pattern, ": loss on ", options_.data.filename().string()));

  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    const NoGrad no_grad;
    const auto count = std::min<int64_t>(
        {excerpt_tokens, config_.context, static_cast<int64_t>(corpus_.parts.validation.size())});
    const std::vector<int32_t> excerpt(corpus_.parts.validation.begin(),
                                       corpus_.parts.validation.begin() + count);
    const Variable x = model_->mixer_input(Tensor::from(excerpt, {1, count}), layer);
    const Tensor gamma = model_->mixer(layer).key_responsibilities(x);
    if (!gamma.defined()) continue;
    Responsibilities picture;
    picture.tokens = count;
    picture.components = gamma.shape()[3];
    picture.layer = layer;
    for (const double value : gamma.narrow(2, 0, 1).to_vector())
      picture.gamma.push_back(static_cast<float>(value));
    for (const int32_t id : excerpt) picture.token_text.push_back(corpus_.tokenizer.decode({&id, 1}));
    plot_responsibilities(options_.out / "responsibilities.png", picture);
    break;
  }
}

/// What goes on with this run, as it is typed.
std::string Trainer::resume_words() const {
  return str(shell_word(options_.program), " --resume --out ", shell_word(options_.out.string()));
}

int Trainer::stop(int signal) {
  save();
  progress_.say(str("interrupted: step ", step_, " is saved; go on with ", resume_words()));
  return 128 + signal;
}

void Trainer::finish() {
  sample();
  draw_pictures();
  if (!last_evaluation_) {  // nothing was left to do for this run
    last_evaluation_ = evaluate_batches(eval_batches_);
  }
  if (last_evaluation_) {
    progress_.say(str("validation loss  ", last_evaluation_->nats_per_token, " nats per token, ",
                      last_evaluation_->bits_per_byte, " bits per byte, over ", last_evaluation_->tokens,
                      " tokens"));
    const bool has_learned =
        last_evaluation_->nats_per_token < std::log(static_cast<double>(config_.vocabulary));
    if (has_learned && last_evaluation_->bits_per_byte > readable_bits_per_byte) {
      progress_.say(str("note: the sample can't be readable yet: words begin at about ",
                        readable_bits_per_byte, " bits per byte in English; ", step_,
                        " steps were not enough, go on with ", resume_words(), " --steps ", 10 * step_));
    }
  }
  progress_.say(str("memory           ", bytes_text(Allocator::of(device_).stats().peak_bytes),
                    " in tensors, ", bytes_text(process_peak_bytes()), " in the process, at their peaks"));
  progress_.say(str("checkpoint       ", newest_checkpoint(options_.out).value_or(options_.out).string()));
  if (best_ && best_->step != saved_step_) {
    progress_.say(str("best checkpoint  that of step ", best_->step, ", which stays"));
  }
  for (const char* name : {"metrics.csv", "loss.png", "responsibilities.png"}) {
    const std::filesystem::path path = options_.out / name;
    const bool picture = path.extension() == ".png";
    if (std::filesystem::exists(path)) {
      progress_.say(str(picture ? "picture          " : "metrics          ", path.string()));
    }
  }
}

int Trainer::run() {
  make_folder(options_.out);
  if (!lock_) lock_.emplace(options_.out);
  MetricsFile::cut_back(metrics_path_, step_);
  if (step_ > 0) make_up_evaluation();
  MetricsFile metrics(metrics_path_);
  announce();
  progress_.plan(step_, planned_ ? total_steps_ : 0);
  if (step_ >= total_steps_) {
    progress_.say(str("nothing is left to train: step ", step_, " of ", total_steps_, "; go on with ",
                      resume_words(), " --steps ", 2 * step_));
  } else {
    describe_run();
  }

  while (step_ < total_steps_) {
    MetricsRow row = train_step();
    if (!planned_) plan_steps(*row.step_ms / 1000);
    if (due(options_.eval_every)) evaluate_into(row);
    metrics.append(row);
    progress_.show(row);
    if (const int signal = interrupt(); signal != 0) return stop(signal);
    if (due(options_.checkpoint_every)) save();
    if (options_.sample_every > 0 && step_ % options_.sample_every == 0 && step_ != total_steps_) sample();
  }
  finish();
  return 0;
}

}  // namespace mixgrad
