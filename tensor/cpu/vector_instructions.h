// Which instructions the kernels' loops were compiled to.
#pragma once

namespace mixgrad {

/// AVX-512, AVX2 or baseline vectors: in a build for any x86-64 processor the best that this one has.
const char* vector_instructions();

}  // namespace mixgrad
