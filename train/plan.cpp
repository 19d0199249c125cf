#include "train/plan.h"

#include <algorithm>
#include <cmath>

namespace mixgrad {

RunPlan plan_run(const RunTimes& times, int64_t eval_every, int64_t eval_batches) {
  constexpr double evaluating_share = 0.2;
  const double left = std::max(0.0, times.left_seconds), interval = static_cast<double>(eval_every);
  const double evaluations = 1 + std::floor(left / times.step_seconds / interval);  // at most
  const double affordable = left * evaluating_share / evaluations / times.batch_seconds;
  const double batches = std::clamp(std::floor(affordable), 1.0, static_cast<double>(eval_batches));
  const double evaluation = batches * times.batch_seconds;
  const double steps = (left - evaluation) / (times.step_seconds + evaluation / interval);
  return {static_cast<int64_t>(std::max(0.0, steps)), static_cast<int64_t>(batches)};
}

bool timed_enough(int64_t steps, double seconds, double run_seconds) {
  const bool many = steps >= 10 && seconds >= std::min(5.0, run_seconds / 50);
  return many || (steps >= 2 && seconds >= run_seconds / 10);  // where steps are slow
}

}  // namespace mixgrad
