// Finding the first value that is not finite.
#include "autograd/check_finite.h"

#include <doctest/doctest.h>

#include <limits>

#include "autograd/ops/elementwise.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

TEST_CASE("autograd/check_finite: a value that is not finite is found on every device") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    CHECK(count_not_finite(Tensor::from<double>({1, -2, 1e30}, {3}).to(dtype).to(device)) == 0);
    CHECK(count_not_finite(Tensor::zeros({0}, dtype, device)) == 0);
    CHECK(count_not_finite(Tensor::full({3}, 1e200, DType::float64, device)) == 0);  // its square overflows
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
      CHECK(count_not_finite(Tensor::from<double>({1, bad, 3}, {3}).to(dtype).to(device)) == 1);
  });
}

TEST_CASE("autograd/check_finite: an output is named by time and place and op") {
  const Variable large = leaf({1e200, 1}, {2}, {}, DType::float64);
  CHECK_NOTHROW(multiply(large, large));
  const FiniteCheck checking("step 7");
  CHECK(checking_finite());
  const Place block("blocks", 3), mixer("mixer");
  CHECK(error_of([&] { multiply(large, large); }) ==
        "[check-finite] step 7, blocks.3.mixer, multiply: output 0 has 1 of 2 values that are not finite");
}

TEST_CASE("autograd/check_finite: a gradient is named by the place of its op") {
  const Variable x = leaf({1e200, 1}, {2}, {}, DType::float64);
  const FiniteCheck checking("step 8");
  Variable y;
  {
    const Place head("head");
    y = multiply(x, Variable(Tensor::full({2}, 1e-200, DType::float64)));
    y = scale(y, 1e200);
  }
  CHECK(error_of([&] { backward({y}, {Tensor::full({2}, 1e200, DType::float64)}); }) ==
        "[check-finite] step 8, head, scale: the gradient of input 0 has 2 of 2 values that are not finite");
}

}  // namespace mixgrad
