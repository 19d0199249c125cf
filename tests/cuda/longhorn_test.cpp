// The step sizes of Longhorn on the GPU against those on the CPU.
#include "tensor/kernels/longhorn.h"

#include "tests/cuda/compare.h"

namespace mixgrad {

TEST_CASE_TEMPLATE("cuda/longhorn: rates and their gradients, with shared keys", T, float, double) {
  for (const LonghornShape shape : {LonghornShape{0, 2, 1, 3}, {1, 1, 1, 1}, {3, 6, 3, 40}, {2, 70, 2, 5}}) {
    CAPTURE(shape.key_dim);
    const int64_t n = shape.tokens * shape.heads;
    const int64_t keys = shape.tokens * shape.key_heads * shape.key_dim;
    std::vector<T> beta = waves<T>(n, 1);
    for (T& value : beta) value = 1 + value;
    // Sums of up to 40 squares in another order: float errs by 1e-7. An entry left out changes a rate by
    // 1e-3.
    check_same(sizeof(T) == 4 ? 1e-5 : 1e-13, [&](auto device, auto& operands) {
      const T* k = operands.in(waves<T>(keys));
      const T* on_device = operands.in(beta);
      longhorn_rate_forward(device, shape, k, on_device, operands.template out<T>(n));
      longhorn_rate_backward(device, shape, k, on_device, operands.in(waves<T>(n, 2)),
                             operands.template out<T>(keys), operands.template out<T>(n));
    });
  }
  check_ran("key_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
