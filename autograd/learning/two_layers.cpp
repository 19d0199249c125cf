#include "autograd/learning/two_layers.h"

namespace mixgrad {

HiddenErrors hidden_errors(const Tensor& z1, const Tensor& u2, const Tensor& weight2) {
  const Tensor back = matmul(u2, transposed(weight2));
  return {back, mapped_backward<GeluTanh>(z1, back)};
}

Tensor hidden_errors_backward(const HiddenErrors& errors, const Tensor& z1, const Tensor& u2,
                              const Tensor& weight2, const Tensor& du1, Tensor& du2, Tensor& dweight2) {
  const Tensor dback = mapped_backward<GeluTanh>(z1, du1);
  add_matmul(du2, 1, dback, weight2);
  add_matmul(dweight2, 1, transposed(dback), u2);
  return mapped_backward<GeluTanhSlope>(z1, times(du1, errors.back));
}

Tensor two_layers_backward(const Tensor& k, const Tensor& z1, const Tensor& x2, const Tensor& weight1,
                           const Tensor& weight2, const Tensor& dz2, Tensor dx2, const Tensor& dz1,
                           Tensor& dk, Tensor& dweight1, Tensor& dweight2) {
  add_matmul(dx2, 1, dz2, transposed(weight2));
  add_matmul(dweight2, 1, transposed(x2), dz2);
  const Tensor total = plus(dz1, mapped_backward<GeluTanh>(z1, dx2));
  add_matmul(dk, 1, total, transposed(weight1));
  add_matmul(dweight1, 1, transposed(k), total);
  return total;
}

}  // namespace mixgrad
