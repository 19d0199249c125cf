// The kernels in use are the best for this CPU; and where they are a library beside the program, the two work
// together.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tensor/allocator.h"
#include "tensor/cpu/vector_instructions.h"
#include "tensor/error.h"
#include "tensor/kernels/elementwise.h"
#include "tensor/kernels/gemm.h"
#include "tensor/kernels/softmax.h"
#include "tensor/parallel.h"

using namespace mixgrad;

namespace {

/// What the kernels of this build are to be compiled for on this CPU.
std::string expected_instructions() {
#ifdef MIXGRAD_KERNELS_BY_LEVEL
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? "AVX-512" : v3 ? "AVX2" : "baseline vectors";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "baseline vectors";
#endif
}

}  // namespace

TEST_CASE("tensor/levels: the kernels are compiled for the best instructions of this CPU") {
  CHECK(std::string(vector_instructions()) == expected_instructions());
}

TEST_CASE("tensor/levels: kernels compute with the program's memory and threads") {
  MESSAGE("kernels for ", std::string(vector_instructions()));
  // Softmax of a product whose rows are all 0, 1, .. n - 1.
  constexpr int64_t m = 300, n = 200, k = 64;
  std::vector<float> a(m * k, 1.0f / k), b(k * n), c(m * n), y(m * n);
  for (int64_t i = 0; i < k * n; ++i) b[i] = static_cast<float>(i % n);
  Allocator& memory = Allocator::of({});
  const int threads = thread_count();
  for (const int used : {1, 3}) {
    set_thread_count(used);
    memory.reset_peak();
    gemm(Cpu{}, {.m = m, .n = n, .k = k}, 1.0f, a.data(), b.data(), 0.0f, c.data());
    softmax_forward(Cpu{}, m, n, c.data(), y.data());
    double worst = 0;
    for (int64_t i = 0; i < m * n; ++i) {
      const double right = std::exp(static_cast<double>(i % n - (n - 1))) * (1 - std::exp(-1.0));
      const double error = std::abs(y[i] - right);
      if (!(error <= worst) && !std::isnan(worst)) worst = error;
    }
    CHECK(worst < 1e-6);  // right: 5e-8; a row that nobody computed: 0.6
    CHECK(memory.stats().peak_bytes > 0);
  }
  set_thread_count(threads);
}

TEST_CASE("tensor/levels: an error of a kernel is the program's Error") {
  CHECK_THROWS_AS(broadcast("add", {2, 3}, {2, 4}), Error);
}
