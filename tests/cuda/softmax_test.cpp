// The softmax family on the GPU against that on the CPU.
#include "tensor/kernels/softmax.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums in another order and one exponential more: float errs by 1e-6, double by 1e-15. A column left out of a
// sum over 700 changes the results by 1e-3.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

struct Size {
  int64_t rows, columns;
};
constexpr Size sizes[] = {{0, 5}, {3, 1}, {2, 31}, {5, 129}, {2, 700}, {1, 2500}};

/// Values in [-10, 10]; with rows of infinities where there is room.
template <class T>
std::vector<T> logits(const Size& size) {
  std::vector<T> x = waves<T>(size.rows * size.columns);
  for (T& value : x) value *= 10;
  if (size.rows < 5) return x;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  std::fill_n(x.begin() + size.columns, size.columns, -infinity);
  x[2 * size.columns + 1] = infinity;
  x[2 * size.columns + 40] = infinity;
  x[3 * size.columns + 7] = -infinity;
  x[4 * size.columns + 100] = std::numeric_limits<T>::quiet_NaN();
  return x;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/softmax: softmax and its logarithm with their gradients", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const int64_t n = size.rows * size.columns;
    const std::vector<T> dy = waves<T>(n, 1);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(logits<T>(size));
      T* y = operands.template out<T>(n);
      softmax_forward(device, size.rows, size.columns, x, y);
      softmax_backward(device, size.rows, size.columns, static_cast<const T*>(y), operands.in(dy),
                       operands.template out<T>(n));
      T* log_y = operands.template out<T>(n);
      log_softmax_forward(device, size.rows, size.columns, x, log_y);
      log_softmax_backward(device, size.rows, size.columns, static_cast<const T*>(log_y), operands.in(dy),
                           operands.template out<T>(n));
    });
  }
  check_ran("row_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/softmax: logsumexp with its gradient", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(logits<T>(size));
      T* maximum = operands.template out<T>(size.rows);
      T* sum = operands.template out<T>(size.rows);
      logsumexp_forward(device, size.rows, size.columns, x, operands.template out<T>(size.rows), maximum,
                        sum);
      logsumexp_backward(device, size.rows, size.columns, x, static_cast<const T*>(maximum),
                         static_cast<const T*>(sum), operands.in(waves<T>(size.rows, 2)),
                         operands.template out<T>(size.rows * size.columns));
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/softmax: cross entropy with ignored rows", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const CrossEntropyShape shape{size.rows, size.columns, -1};
    std::vector<int32_t> targets(size.rows);
    for (int64_t row = 0; row < size.rows; ++row) {
      targets[row] = row == 1 ? -1 : static_cast<int32_t>(row * 7 % size.columns);
    }
    std::vector<T> x = waves<T>(size.rows * size.columns);
    for (T& value : x) value *= 10;
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* in = operands.in(x);
      const int32_t* ids = operands.in(targets);
      T* maximum = operands.template out<T>(size.rows);
      T* sum = operands.template out<T>(size.rows);
      cross_entropy_forward(device, shape, in, ids, maximum, sum, operands.template out<double>(1));
      cross_entropy_backward(device, shape, 3, in, ids, static_cast<const T*>(maximum),
                             static_cast<const T*>(sum), operands.in(std::vector<T>{T(2)}),
                             operands.template out<T>(size.rows * size.columns));
    });
  }
  check_ran("row_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/softmax: cross entropy in place", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.columns);
    const CrossEntropyShape shape{size.rows, size.columns, -1};
    std::vector<int32_t> targets(size.rows);
    for (int64_t row = 0; row < size.rows; ++row) {
      targets[row] = row == 1 ? -1 : static_cast<int32_t>((row * 7 + 40) % size.columns);
    }
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      cross_entropy_in_place(device, shape, T(2), operands.in(targets), operands.in_out(logits<T>(size)),
                             operands.template out<double>(size.rows));
    });
  }
  check_ran("row_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/softmax: targets are surveyed as on the CPU") {
  std::vector<int32_t> targets(700, 3);
  for (const int32_t bad : {-2, 50}) {
    targets[600] = bad;
    targets[641] = bad;
    targets[1] = targets[2] = -1;
    check_same(0, [&](auto device, auto& operands) {
      const int32_t* ids = operands.in(targets);
      for (const int64_t rows : {700, 600, 0}) {  // 698, 598 and 0 are counted, 600 is the first invalid one
        const TargetSurvey survey = survey_targets(device, {rows, 50, -1}, ids);
        operands.returned(survey.counted);
        operands.returned(survey.first_invalid);
      }
    });
  }
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
