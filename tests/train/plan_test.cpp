// A run of so many minutes: what is planned, from times that are given. No clock is read here.
#include "train/plan.h"

#include <doctest/doctest.h>

#include <initializer_list>

namespace mixgrad {
namespace {

/// What a plan takes, its evaluations counted one by one.
double seconds_of(const RunPlan& plan, const RunTimes& times, int64_t eval_every) {
  const int64_t evaluations = plan.steps / eval_every + (plan.steps % eval_every != 0);
  return static_cast<double>(plan.steps) * times.step_seconds +
         static_cast<double>(evaluations * plan.eval_batches) * times.batch_seconds;
}

TEST_CASE("train/plan: a run of so many minutes takes them") {
  for (const double left : {1.0, 10.0, 115.0, 3600.0}) {
    for (const double step : {0.0005, 0.03, 0.2}) {
      for (const double batch : {0.0002, 0.01, 0.08}) {
        for (const int64_t eval_every : {10, 250}) {
          for (const int64_t eval_batches : {1, 40, 3000}) {
            CAPTURE(left);
            CAPTURE(step);
            CAPTURE(batch);
            CAPTURE(eval_every);
            CAPTURE(eval_batches);
            const RunTimes times{left, step, batch};
            const RunPlan plan = plan_run(times, eval_every, eval_batches);
            const double evaluation = static_cast<double>(plan.eval_batches) * batch;
            // Never longer than asked for; shorter by a step and by the evaluation that the last one makes up
            // for.
            CHECK(seconds_of(plan, times, eval_every) <= left + 1e-9);
            CHECK(seconds_of(plan, times, eval_every) >= left - step - 2 * evaluation);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "train/plan: evaluations take a fifth of a run at most and read all that they may where it is less") {
  // 3000 batches of 7 ms take 21 s, of a run of 18 s with 0.1 s a step: one evaluation of 3.6 s.
  const RunPlan slow = plan_run({18, 0.1, 0.007}, 250, 3000);
  CHECK(slow.eval_batches == 514);
  CHECK(slow.steps == 125);  // (18 - 3.598) s over 0.1 s and the share of an evaluation, 0.0144 s: 125.9
  CHECK(plan_run({3600, 0.1, 0.007}, 250, 100).eval_batches == 100);
  CHECK(plan_run({10, 1, 5}, 1, 100).eval_batches == 1);  // one batch there is
}

TEST_CASE("train/plan: a run whose time is over has no more steps") {
  CHECK(plan_run({0, 0.1, 0.01}, 250, 40).steps == 0);
  CHECK(plan_run({-5, 0.1, 0.01}, 250, 40).steps == 0);
  CHECK(plan_run({-5, 0.1, 0.01}, 250, 40).eval_batches == 1);
  CHECK(plan_run({0.2, 0.1, 1}, 250, 40).steps == 0);
}

TEST_CASE("train/plan: steps are timed until they tell enough, and no longer than a tenth of the run") {
  CHECK_FALSE(timed_enough(9, 1, 120));
  CHECK_FALSE(timed_enough(10, 1, 120));  // of 120 s, 2.4 s
  CHECK(timed_enough(10, 2.5, 120));
  CHECK(timed_enough(10, 5, 36000));
  CHECK_FALSE(timed_enough(1, 100, 120));  // the first step allocates
  CHECK(timed_enough(2, 12, 120));
}

}  // namespace
}  // namespace mixgrad
