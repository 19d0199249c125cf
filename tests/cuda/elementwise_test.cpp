// Elementwise kernels on the GPU against those on the CPU.
#include "tensor/kernels/elementwise.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Float kernels err by some 1e-7 (the GPU fuses multiply-adds and has its own erfc and log1p), double ones by
// 1e-15. A lost element is NaN or 0 instead of some 0.5.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 2e-6 : 1e-13;

/// Less than a thread's, a block's and a grid's worth of elements.
constexpr int64_t sizes[] = {0, 1, 255, 1024, 2049};

template <class F, class T>
void check_unary(std::string_view name = F::name) {
  INFO(name);
  std::vector<T> x = waves<T>(1100);
  for (T& value : x) value *= 20;
  x[3] = 0;
  x[4] = 1000;
  x[5] = -1000;
  check_same(tolerance<T>, [&](auto device, auto& operands) {
    unary_forward<F>(device, x.size(), operands.in(x), operands.template out<T>(x.size()));
    unary_backward<F>(device, x.size(), operands.in(x), operands.in(waves<T>(x.size(), 1)),
                      operands.template out<T>(x.size()));
  });
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/elementwise: functions of one operand", T, float, double) {
  check_unary<Sigmoid, T>();
  check_unary<LogSigmoid, T>();
  check_unary<Softplus, T>();
  check_unary<Silu, T>();
  check_unary<GeluErf, T>();
  check_unary<GeluTanh, T>();
  check_unary<GeluTanhSlope, T>("the slope of gelu_tanh");
  check_unary<Exp, T>();
  check_unary<Reciprocal, T>();
  check_unary<EluPlusOne, T>();
  check_ran("map_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/elementwise: sums, products and swiglu", T, float, double) {
  for (const int64_t n : sizes) {
    CAPTURE(n);
    const std::vector<T> a = waves<T>(n);
    const std::vector<T> b = waves<T>(n, 1);
    const std::vector<T> dy = waves<T>(n, 2);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      add(device, n, operands.in(a), operands.in(b), operands.template out<T>(n));
      T* in_place = operands.in_out(a);
      add(device, n, in_place, operands.in(b), in_place);
      scale(device, n, T(3), operands.in(a), operands.template out<T>(n));
      swiglu_forward(device, n, operands.in(a), operands.in(b), operands.template out<T>(n));
      swiglu_backward(device, n, operands.in(a), operands.in(b), operands.in(dy), operands.template out<T>(n),
                      operands.template out<T>(n));
      T* const unwanted = nullptr;
      swiglu_backward(device, n, operands.in(a), operands.in(b), operands.in(dy), unwanted,
                      operands.template out<T>(n));
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/elementwise: operands are repeated and their gradients summed", T, float, double) {
  const std::pair<Shape, Shape> cases[] = {{{3, 1, 5}, {4, 5}}, {{700}, {3, 700}}, {{1}, {2, 3, 4}},
                                           {{2, 3}, {2, 3}},    {{0, 4}, {1, 4}},  {{1, 4}, {0, 4}}};
  for (const auto& [a_shape, b_shape] : cases) {
    CAPTURE(a_shape);
    CAPTURE(b_shape);
    const BroadcastShape shape = broadcast("test", a_shape, b_shape);
    const int64_t n = shape.shape.elements();
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* a = operands.in(waves<T>(a_shape.elements()));
      const T* b = operands.in(waves<T>(b_shape.elements(), 1));
      broadcast_add(device, shape, a, b, operands.template out<T>(n));
      broadcast_multiply(device, shape, a, b, operands.template out<T>(n));
      broadcast_reduce(device, shape, a_shape.elements(), operands.in(waves<T>(n, 2)),
                       operands.template out<T>(a_shape.elements()));
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/elementwise: a sum over everything", T, float, double) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{8192}, int64_t{20001}}) {
    CAPTURE(n);
    std::vector<T> x = waves<T>(n);
    // Sums of 20000 values in two orders differ by 1e-6 of their size in float; without a block it is 0.4 of
    // it.
    for (T& value : x) value += 1;
    check_same(10 * tolerance<T>, [&](auto device, auto& operands) {
      sum_all(device, n, operands.in(x), operands.template out<T>(1));
    });
  }
  check_ran("sum_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/elementwise: dropout draws the mask of the CPU", T, float, double) {
  const int64_t n = 4099;
  const std::vector<T> x(n, T(1));
  const Generator generator(7, Stream::dropout);
  // The same values bit for bit: any other mask differs by 1.
  check_same(0, [&](auto device, auto& operands) {
    dropout(device, n, 0.25f, generator, 5, operands.in(x), operands.template out<T>(n));
  });
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/elementwise: masked rows are zero whatever they held", T, float, double) {
  const int64_t columns = 37;
  const std::vector<int32_t> mask = {1, 0, 1, 1, 0};
  std::vector<T> x = waves<T>(5 * columns);
  x[columns + 3] = std::numeric_limits<T>::quiet_NaN();
  check_same(0, [&](auto device, auto& operands) {
    mask_rows(device, 5, columns, operands.in(mask), operands.in(x), operands.template out<T>(5 * columns));
  });
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
