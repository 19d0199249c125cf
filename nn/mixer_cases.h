// The gradient-check cases of the mixers.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/gradcheck.h"

namespace mixgrad {

/// For each registered mixer, in its checking configuration, a case for each form that it has: causal,
/// bidirectional, cross, with documents, with a key mask; in that for the causal form, those of this form.
/// Inputs are x, the context where there is one, and every parameter. `seed` draws them.
std::vector<GradCaseGroup> all_mixer_cases(uint64_t seed);

}  // namespace mixgrad
