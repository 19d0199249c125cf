#include "nn/mixer_cases.h"

#include <doctest/doctest.h>

#include "nn/mixer.h"

namespace mixgrad {

TEST_CASE("mixers: gradients of every mixer agree with numeric ones") {
  const std::vector<GradCaseGroup> groups = all_mixer_cases(1);
  CHECK(groups.size() == mixer_kinds().size());
  for (const GradCaseGroup& group : groups) {
    REQUIRE(!group.cases.empty());
    for (const GradCase& grad_case : group.cases) {
      const GradChecker checker(grad_case.name, grad_case, 1);
      for (const DType dtype : {DType::float64, DType::float32}) {
        const GradCheckResult result = checker.check(dtype);
        INFO(grad_case.name, " in ", name(dtype), ": error ", result.error, "; ",
             join(result.failures, "; "));
        CHECK(result.failures.empty());
      }
    }
  }
}

}  // namespace mixgrad
