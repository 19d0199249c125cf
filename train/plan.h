// How long a run of so many minutes is. Pure arithmetic on what was measured.
#pragma once

#include <cstdint>

namespace mixgrad {

/// What a run of so many minutes has measured of itself.
struct RunTimes {
  double left_seconds = 0;  // of its minutes
  double step_seconds = 0;
  double batch_seconds = 0;  // of one batch of an evaluation
};

struct RunPlan {
  int64_t steps = 0;         // from now on
  int64_t eval_batches = 0;  // in each evaluation
};

/// The steps that fit, with an evaluation each `eval_every` of them and one at the end. Evaluations read at
/// most `eval_batches` batches, and so many fewer that all of them take no more than a fifth of the time, but
/// one batch at least.
RunPlan plan_run(const RunTimes& times, int64_t eval_every, int64_t eval_batches);

/// Whether steps were timed for long enough to plan on, in a run of so many seconds.
bool timed_enough(int64_t steps, double seconds, double run_seconds);

}  // namespace mixgrad
