#include "tensor/cpu/vector_instructions.h"

namespace mixgrad {

const char* vector_instructions() {
#if defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "baseline vectors";
#endif
}

}  // namespace mixgrad
