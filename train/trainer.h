// The training loop.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "models/language_model.h"
#include "tensor/files.h"
#include "train/dataset.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/options.h"
#include "train/progress.h"
#include "train/tokenizer.h"
#include "train/training_step.h"

namespace mixgrad {

/// A text as a run sees it.
struct Corpus {
  Tokenizer tokenizer;
  Split parts;
  uint32_t crc32;  // of the text's bytes: a resumed run must read the same
  bool has_byte_order_mark, has_crlf;
};

/// How good a checkpoint is.
struct SavedLoss {
  int64_t step;
  double loss;  // on a few batches of the validation part
};

/// One run: from the options to a trained model in options.out, with everything that is written on the way.
///
/// A run is a function of its options and its data: batches are drawn by step number, dropout by a generator
/// whose position is part of the checkpoint. So a resumed run goes on bit by bit as the uninterrupted one
/// would have.
class Trainer {
 public:
  /// Reads the data, builds the model, and with options.resume loads the newest checkpoint. Throws UsageError
  /// or Error when something does not fit, or not into memory; nothing is written until run().
  explicit Trainer(const TrainOptions& options);

  /// Trains; returns the exit code: 0, or 128 and its number after a signal that ends it, with a checkpoint
  /// of the last whole step. Throws Error when numbers are no longer finite; the checkpoints before stay.
  int run();

 private:
  /// What a checkpoint and this run must have in common, beyond the model and the tokenizer.
  nlohmann::json identity() const;
  void load_newest_checkpoint();
  std::string saved_checkpoint_text() const;
  nlohmann::ordered_json derived_numbers() const;
  void describe_run() const;
  std::vector<std::string> notes() const;
  void announce();

  StepBatches batches() const;
  MetricsRow train_step();
  void plan_steps(double step_seconds);
  int64_t evaluation_batches() const;
  double evaluation_batch_seconds(int64_t all);
  std::optional<Evaluation> evaluate_batches(int64_t most);
  void evaluate_into(MetricsRow& row);
  void make_up_evaluation();
  bool due(int64_t interval) const { return step_ % interval == 0 || step_ == total_steps_; }
  bool worth_saving();
  void save();
  void sample();
  void draw_pictures();
  std::string resume_words() const;
  int stop(int signal);
  void finish();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const TrainOptions options_;
  std::optional<FolderLock> lock_;  // two runs at once would take each other's files away
  const Device device_;
  const Corpus corpus_;
  const ModelConfig config_;
  const std::filesystem::path metrics_path_;
  Generator dropout_;
  std::unique_ptr<LanguageModel> model_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  int64_t memory_bytes_ = 0;  // of tensors and kernels at their peak, measured beforehand
  int64_t step_ = 0;          // whole steps done
  int64_t first_step_ = 0;    // those of processes before this one
  int64_t total_steps_;
  bool planned_;              // total_steps_ is final: --minutes has been turned into steps
  int64_t eval_batches_;      // 0: the whole validation part
  bool untimed_step_ = true;  // the next one is left out of what --minutes is based on
  int64_t timed_steps_ = 0;
  double timed_seconds_ = 0;
  int64_t saved_step_ = -1;        // the step of the newest checkpoint
  std::optional<SavedLoss> best_;  // the checkpoint with the lowest loss, which stays
  std::optional<Evaluation> last_evaluation_;
  Progress progress_;
};

}  // namespace mixgrad
