// The forgetting gate on the GPU against that on the CPU.
#include "tensor/kernels/decay_gate.h"

#include "tests/cuda/compare.h"

namespace mixgrad {

TEST_CASE_TEMPLATE("cuda/decay_gate: gates and their gradients, wanted or not", T, float, double) {
  for (const DecayGateShape shape : {DecayGateShape{0, 2, 3}, {1, 1, 1}, {520, 3, 2}, {3, 4, 40}}) {
    CAPTURE(shape.tokens);
    const int64_t columns = shape.heads * shape.channels;
    const int64_t n = shape.tokens * columns;
    // Sums over up to 520 tokens: float errs by 1e-6 of them. A token left out changes a sum by 0.5.
    check_same(sizeof(T) == 4 ? 1e-5 : 1e-12, [&](auto device, auto& operands) {
      const T* a = operands.in(waves<T>(n));
      const T* A_log = operands.in(waves<T>(shape.heads, 1));
      const T* dt_bias = operands.in(waves<T>(columns, 2));
      const T* dg = operands.in(waves<T>(n, 3));
      T* g = operands.template out<T>(n);
      decay_gate_forward(device, shape, a, A_log, dt_bias, g);
      decay_gate_backward(device, shape, a, A_log, dt_bias, static_cast<const T*>(g), dg,
                          operands.template out<T>(n), operands.template out<T>(shape.heads),
                          operands.template out<T>(columns));
      T* const unwanted = nullptr;
      decay_gate_backward(device, shape, a, A_log, dt_bias, static_cast<const T*>(g), dg, unwanted, unwanted,
                          operands.template out<T>(columns));
    });
  }
  check_ran("decay_gate_backward_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
