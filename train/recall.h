// Associative recall: how much a mixer's memory holds. A synthetic task, and models trained on it.
//
// A sequence tells P pairs of a key and a value, all keys distinct, and then asks for each key once, in
// another order:
//
//   tokens    k1 v1 k2 v2 ... kP vP    k3 k1 kP ...
//   targets   -  -  -  -      -  -     v3 v1 vP ...      "-": not counted
//
// Multi-query associative recall of Arora et al.: Zoology, 2023. A model that attends to all tokens can look
// every pair up. One with a state of fixed size must have stored them, and what it still answers as P grows
// says how well its update rule uses that state. With several tellings all keys are told so often before the
// questions, each time in another order and with values drawn anew, of which the last count: a memory that
// only adds cannot tell them from those before.
#pragma once

#include <functional>

#include "models/language_model.h"
#include "train/dataset.h"

namespace mixgrad {

/// Keys are the tokens [0, keys), values the tokens [keys, keys + values).
struct RecallTask {
  int64_t keys = 32;
  int64_t values = 32;
  int64_t tellings = 1;

  int64_t vocabulary() const { return keys + values; }
  int64_t length(int64_t pairs) const { return (2 * tellings + 1) * pairs; }
};

/// B sequences of P pairs. Throws UsageError unless 1 <= pairs <= keys, and there are values and tellings.
Batch draw_recall(const RecallTask& task, int64_t pairs, int64_t rows, Generator& generator);

/// The answers, found in the tokens alone: for each key with no value behind it, which is a query, the value
/// that it was last told with, else ignored_target. Knows nothing of how a batch was drawn.
std::vector<int32_t> solve_recall(const RecallTask& task, const Batch& batch);

struct RecallOptions {
  RecallTask task;
  std::vector<int64_t> pairs = {4, 8, 16};  // a training batch has one of these numbers, drawn at random
  ModelConfig model;                        // but for vocabulary, context and pattern
  int64_t steps = 1500;
  int64_t batch = 32;
  double learning_rate = 1e-2;
  int64_t test_rows = 256;  // sequences for each number of pairs that are asked after training
  Device device{};

  /// Throws UsageError for the first that is out of range.
  void validate() const;
};

/// The loss or its gradient is no longer finite.
struct Diverged : Error {
  using Error::Error;
};

struct RecallResult {
  int64_t parameters = 0;
  int64_t state_bytes = 0;       // of one sequence, all layers, after the longest one
  std::vector<double> accuracy;  // for each of options.pairs: the share of queries answered rightly
  double seconds = 0;
};

/// Throws UsageError when no model can be made of the mixer, and Error when training it needs more memory
/// than there is. Computes nothing.
void check_recall(const RecallOptions& options, const MixerChoice& mixer);

/// Trains a model of one mixer on the task from a seed, and asks it. `progress`, if given, hears of each step
/// and its loss. Throws Diverged when that can't go on.
RecallResult run_recall(const RecallOptions& options, const MixerChoice& mixer, uint64_t seed,
                        const std::function<void(int64_t step, double loss)>& progress = {});

}  // namespace mixgrad
