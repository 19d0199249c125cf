// The training loop.
#pragma once

#include <memory>
#include <optional>

#include "models/language_model.h"
#include "train/dataset.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/options.h"
#include "train/progress.h"
#include "train/tokenizer.h"

namespace mixgrad {

/// One run: from the options to a trained model in options.out, with everything that is written on the way.
///
/// A run is a function of its options and its data: batches are drawn by step number, dropout by a generator
/// whose position is part of the checkpoint. So a resumed run goes on bit by bit as the uninterrupted one
/// would have.
class Trainer {
 public:
  /// Reads the data, builds the model, and with options.resume loads the newest checkpoint. Throws UsageError
  /// or Error before anything is written when something does not fit.
  explicit Trainer(const TrainOptions& options);

  /// Trains; returns the exit code: 0, or 130 / 143 after SIGINT / SIGTERM, with a checkpoint of the last
  /// whole step. Throws Error when the loss is no longer finite; the checkpoints before stay.
  int run();

 private:
  /// Everything that must be the same for a checkpoint to fit this run.
  nlohmann::json identity() const;
  void load_newest_checkpoint();
  void write_run_file() const;
  void announce();

  MetricsRow train_step();
  void plan_steps(double seconds_per_step);
  bool due(int64_t interval) const { return step_ % interval == 0 || step_ == total_steps_; }
  void save();
  void sample();
  void draw_pictures();
  void finish();

  const TrainOptions options_;
  Tokenizer tokenizer_;
  uint32_t data_checksum_ = 0;
  Split data_;
  ModelConfig config_;
  Generator dropout_;
  std::unique_ptr<LanguageModel> model_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  int64_t total_steps_;
  int64_t step_ = 0;         // whole steps done
  int64_t saved_step_ = -1;  // the step of the newest checkpoint
  std::optional<Evaluation> last_evaluation_;
  Progress progress_;
};

}  // namespace mixgrad
