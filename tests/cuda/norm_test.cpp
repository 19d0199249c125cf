// Normalisation on the GPU against that on the CPU.
#include "tensor/kernels/norm.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums in another order: float errs by 1e-6, double by 1e-15. A column left out of 200 changes results by
// 1e-3.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

constexpr double eps = 1e-5;

struct Size {
  int64_t rows, columns;
};
/// The last one has more rows than a backward kernel has blocks, and the one before more columns than fit
/// into shared memory in double.
constexpr Size sizes[] = {{0, 5}, {3, 1}, {5, 37}, {3, 300}, {2, 6500}, {515, 130}};

/// Operands of one comparison.
template <class T>
struct Values {
  explicit Values(const Size& size) : n(size.rows * size.columns) {
    x = waves<T>(n);
    for (T& value : x) value = 3 * value + 1;
    gate = waves<T>(n, 1);
    dy = waves<T>(n, 2);
    weight = waves<T>(size.columns, 3);
    bias = waves<T>(size.columns, 4);
  }
  int64_t n;
  std::vector<T> x, gate, dy, weight, bias;
};

template <class F, class T>
void check_gated(GateOrder order) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const Values<T> v(size);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      for (const bool weighted : {true, false}) {
        const T* x = operands.in(v.x);
        const T* gate = operands.in(v.gate);
        const T* weight = weighted ? operands.in(v.weight) : nullptr;
        T* inverse_deviation = operands.template out<T>(size.rows);
        gated_rms_norm_forward<F>(device, size.rows, size.columns, order, eps, x, gate, weight,
                                  operands.template out<T>(v.n), inverse_deviation);
        gated_rms_norm_backward<F>(device, size.rows, size.columns, order, x, gate, weight,
                                   static_cast<const T*>(inverse_deviation), operands.in(v.dy),
                                   operands.template out<T>(v.n), operands.template out<T>(v.n),
                                   weighted ? operands.template out<T>(size.columns) : nullptr);
      }
    });
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/norm: layer norm with and without weight and bias", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const Values<T> v(size);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      for (const bool affine : {true, false}) {
        const T* x = operands.in(v.x);
        const T* weight = affine ? operands.in(v.weight) : nullptr;
        const T* bias = affine ? operands.in(v.bias) : nullptr;
        T* mean = operands.template out<T>(size.rows);
        T* inverse_deviation = operands.template out<T>(size.rows);
        layer_norm_forward(device, size.rows, size.columns, eps, x, weight, bias,
                           operands.template out<T>(v.n), mean, inverse_deviation);
        T* const unwanted = nullptr;
        layer_norm_backward(device, size.rows, size.columns, x, weight, static_cast<const T*>(mean),
                            static_cast<const T*>(inverse_deviation), operands.in(v.dy),
                            operands.template out<T>(v.n),
                            affine ? operands.template out<T>(size.columns) : unwanted,
                            affine ? operands.template out<T>(size.columns) : unwanted);
      }
    });
  }
  check_ran("norm_forward_kernel");
  check_ran("norm_backward_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/norm: rms norm of ordinary and of very large rows", T, float, double) {
  for (const T factor : {T(1), T(1e18)}) {
    for (const Size& size : sizes) {
      CAPTURE(size.columns);
      Values<T> v(size);
      for (T& value : v.x) value *= factor;
      check_same(tolerance<T>, [&](auto device, auto& operands) {
        const T* x = operands.in(v.x);
        const T* weight = operands.in(v.weight);
        T* inverse_deviation = operands.template out<T>(size.rows);
        rms_norm_forward(device, size.rows, size.columns, eps, x, weight, operands.template out<T>(v.n),
                         inverse_deviation);
        rms_norm_backward(device, size.rows, size.columns, x, weight,
                          static_cast<const T*>(inverse_deviation), operands.in(v.dy),
                          operands.template out<T>(v.n), operands.template out<T>(size.columns));
      });
    }
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/norm: gated rms norm with the norm first", T, float, double) {
  check_gated<Silu, T>(GateOrder::norm_first);
  check_gated<Sigmoid, T>(GateOrder::norm_first);
  check_ran("gated_backward_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/norm: gated rms norm with the gate first", T, float, double) {
  check_gated<Silu, T>(GateOrder::gate_first);
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/norm: division by the length", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const Values<T> v(size);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(v.x);
      T* inverse_length = operands.template out<T>(size.rows);
      l2_normalize_forward(device, size.rows, size.columns, eps, x, operands.template out<T>(v.n),
                           inverse_length);
      l2_normalize_backward(device, size.rows, size.columns, x, static_cast<const T*>(inverse_length),
                            operands.in(v.dy), operands.template out<T>(v.n));
    });
  }
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
