// Conjugate gradients: exact after as many steps as unknowns, row by row.
#include "tensor/kernels/conjugate_gradient.h"

#include <limits>

#include "tests/tensor/fixtures.h"

namespace mixgrad {

namespace {

/// Solves (A + diag(1, 2, 3)) x = b for each row of b [rows, 3], with A the matrix of ones.
std::vector<double> solve(const std::vector<double>& b, int steps) {
  const auto rows = static_cast<int64_t>(b.size()) / 3;
  const LinearSystems shape{.rows = rows, .columns = 3, .heads = 1};
  const std::vector<double> diagonal = {1, 2, 3};
  std::vector<double> x(b.size()), residual(b.size()), direction(b.size()), product(b.size());
  std::vector<double> squares(rows), limits(rows);
  const ConjugateGradients<double> cg{x.data(), residual.data(), direction.data(), squares.data(),
                                      limits.data()};
  conjugate_gradient_start(Cpu{}, shape, b.data(), cg);
  bool goes_on = true;
  for (int step = 0; step < steps && goes_on; ++step) {
    for (int64_t row = 0; row < rows; ++row) {
      const double* p = direction.data() + 3 * row;
      for (int i = 0; i < 3; ++i) product[3 * row + i] = p[0] + p[1] + p[2];
    }
    goes_on = conjugate_gradient_step(Cpu{}, shape, diagonal.data(), product.data(), cg);
  }
  return x;
}

}  // namespace

TEST_CASE("tensor/conjugate_gradient: three steps solve systems of three unknowns") {
  const std::vector<double> x = solve({3, 1, -2, 0, 0, 0}, 3);
  // By hand: x_i = (b_i - s) / d_i, where the sum of x is s = (sum of b_i / d_i) / (1 + sum of 1 / d_i).
  const double s = (3.0 / 1 + 1.0 / 2 - 2.0 / 3) / (1 + 1.0 + 1.0 / 2 + 1.0 / 3);
  // Rounding, 1e-16; two steps err by 1e-2.
  CHECK(x[0] == doctest::Approx(3 - s).epsilon(1e-13));
  CHECK(x[1] == doctest::Approx((1 - s) / 2).epsilon(1e-13));
  CHECK(x[2] == doctest::Approx((-2 - s) / 3).epsilon(1e-13));
  CHECK(std::abs(solve({3, 1, -2}, 2)[0] - (3 - s)) > 1e-3);
  for (int i = 3; i < 6; ++i) CHECK(x[i] == 0);
}

TEST_CASE("tensor/conjugate_gradient: a row does not depend on its neighbours and NaN stays in its own") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> alone = solve({1, 0, 0}, 20);
  const std::vector<double> among = solve({5, -4, 1, 1, 0, 0, nan, 1, 1}, 20);
  for (int i = 0; i < 3; ++i) CHECK(among[3 + i] == alone[i]);
  for (int i = 6; i < 9; ++i) CHECK(std::isnan(among[i]));
}

}  // namespace mixgrad
