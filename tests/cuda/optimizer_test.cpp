// The kernels of an optimiser step on the GPU against those on the CPU.
#include "tensor/kernels/optimizer.h"

#include "tests/cuda/compare.h"

namespace mixgrad {

TEST_CASE_TEMPLATE("cuda/optimizer: three steps of AdamW", T, float, double) {
  for (const int64_t n : {0, 1, 1500}) {
    CAPTURE(n);
    std::vector<T> moments = waves<T>(n, 2);
    for (T& value : moments) value = 1 + value;
    // Fused multiply-adds apart, the arithmetic is the same: 1e-7 in float. A step without bias correction is
    // larger by a third.
    check_same(sizeof(T) == 4 ? 1e-6 : 1e-14, [&](auto device, auto& operands) {
      T* p = operands.in_out(waves<T>(n));
      T* m = operands.in_out(waves<T>(n, 1));
      T* v = operands.in_out(moments);
      for (int64_t step = 1; step <= 3; ++step) {
        adamw(device, n, AdamWStep{0.1, 0.9, 0.95, 1e-8, 0.1, 0.5, step}, operands.in(waves<T>(n, step)), p,
              m, v);
      }
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/optimizer: a sum of squares", T, float, double) {
  for (const int64_t n : {0, 1, 20001}) {
    CAPTURE(n);
    std::vector<T> x = waves<T>(n);
    for (T& value : x) value *= T(1e18);  // squares that float doesn't have
    // In double whatever T is. A block of 8192 left out is 0.4 of the sum.
    check_same(1e-13, [&](auto device, auto& operands) {
      operands.returned(sum_of_squares(device, n, operands.in(x)));
    });
  }
  check_ran("sum_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
