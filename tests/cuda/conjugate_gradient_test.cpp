// Conjugate gradients on the GPU against those on the CPU.
#include "tensor/kernels/conjugate_gradient.h"

#include "tests/cuda/compare.h"

namespace mixgrad {

TEST_CASE_TEMPLATE("cuda/conjugate_gradient: two steps of systems that do and do not converge", T, float,
                   double) {
  for (const LinearSystems shape : {LinearSystems{0, 3, 1}, {1, 1, 1}, {6, 5, 2}, {9, 40, 3}}) {
    CAPTURE(shape.columns);
    const int64_t n = shape.rows * shape.columns;
    std::vector<T> b = waves<T>(n);
    // The last system has converged before the first step.
    for (int64_t i = std::max<int64_t>(0, n - shape.columns); i < n; ++i) b[i] = 0;
    std::vector<T> lambda = waves<T>(shape.heads * shape.columns, 1);
    for (T& value : lambda) value = 2 + value;
    // Sums of up to 40 terms in another order: float errs by 1e-6. A step left out changes x by 0.1.
    check_same(sizeof(T) == 4 ? 1e-4 : 1e-12, [&](auto device, auto& operands) {
      const ConjugateGradients<T> cg{operands.template out<T>(n), operands.template out<T>(n),
                                     operands.template out<T>(n), operands.template out<T>(shape.rows),
                                     operands.template out<T>(shape.rows)};
      const T* diagonal = operands.in(lambda);
      conjugate_gradient_start(device, shape, operands.in(b), cg);
      const T* product = operands.in(waves<T>(n, 2));
      operands.returned(conjugate_gradient_step(device, shape, diagonal, product, cg));
      operands.returned(conjugate_gradient_step(device, shape, diagonal, product, cg));
    });
  }
  check_ran("system_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
