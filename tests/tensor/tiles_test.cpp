// Products and substitutions with small triangular matrices, against the sums that define them.
#include "tensor/cpu/tiles.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensor/cpu/decay.h"
#include "tensor/random.h"

namespace mixgrad {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// A matrix of its own with entries in [-1, 1).
template <class T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, Generator& generator) : values(rows * columns), columns(columns) {
    for (T& value : values) value = static_cast<T>(2 * generator.uniform() - 1);
  }
  Rows<T> rows() { return {values.data(), columns}; }

  std::vector<T> values;
  int64_t columns;
};

/// What a triangular matrix holds on and above its diagonal must not matter.
void spoil_upper(int64_t length, Rows<float> lower) {
  for (int64_t i = 0; i < length; ++i) std::fill(lower[i] + i, lower[i] + length, static_cast<float>(nan));
}

/// The largest |x_i + sum of m_ij beta_j x_j - given_i| over all rows and columns, with m the matrix below
/// its diagonal or, transposed, its transpose.
double residual(int64_t length, int64_t columns, bool transposed, Rows<const float> lower,
                const std::vector<float>& beta, Rows<const float> x, Rows<const float> given) {
  double worst = 0;
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t e = 0; e < columns; ++e) {
      double sum = double{x[i][e]} - given[i][e];
      for (int64_t j = transposed ? i + 1 : 0; j < (transposed ? length : i); ++j) {
        sum += double{transposed ? lower[j][i] : lower[i][j]} * beta[j] * x[j][e];
      }
      if (!(std::abs(sum) <= worst)) worst = std::abs(sum);  // NaN stays
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("tensor/tiles: triangular systems are solved for any number of rows and columns") {
  Generator generator{1};
  for (const int64_t length : {1, 3, 16, 17, 64, 70}) {
    for (const int64_t columns : {1, 8, 63, 64, 65, 130}) {
      for (const bool transposed : {false, true}) {
        CAPTURE(length);
        CAPTURE(columns);
        CAPTURE(transposed);
        Matrix<float> lower(length, length, generator), given(length, columns, generator);
        for (float& value : lower.values) value *= 0.1f;
        spoil_upper(length, lower.rows());
        std::vector<float> beta(length);
        for (float& value : beta) value = static_cast<float>(generator.uniform());
        Matrix<float> x = given, scaled(length, columns, generator);
        const Rows<const float> rates{beta.data(), 1};
        if (transposed) {
          solve_lower_transposed<float>(length, columns, lower.rows(), rates, x.rows(), scaled.rows());
        } else {
          solve_lower<float>(length, columns, lower.rows(), rates, x.rows(), scaled.rows());
        }
        // 5e-7; a row of a block that is left out gives 1e-2 and more.
        CHECK(residual(length, columns, transposed, lower.rows(), beta, x.rows(), given.rows()) <= 2e-6);
        for (int64_t i = 0; i < length; ++i) {
          for (int64_t e = 0; e < columns; ++e) CHECK(scaled.rows()[i][e] == beta[i] * x.rows()[i][e]);
        }
      }
    }
  }
}

TEST_CASE("tensor/tiles: products of keys have the digits of double") {
  Generator generator{2};
  for (const int64_t length : {1, 7, 16, 33, 64}) {
    CAPTURE(length);
    constexpr int64_t dim = 64;
    Matrix<float> x(length, dim, generator), gram(length, length, generator);
    std::vector<double> room((length + row_block) * (dim + row_block));
    lower_gram_in_double(length, dim, x.rows(), gram.rows(), room.data());
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t m = 0; m < dim; ++m) sum += double{x.rows()[i][m]} * x.rows()[j][m];
        // Half a unit of the last place, 6e-8; sums in float err by up to 1e-6 of the sum of magnitudes.
        CHECK(std::abs(gram.rows()[i][j] - sum) <= 6e-8 * std::abs(sum) + 1e-14);
      }
    }
  }
}

TEST_CASE("tensor/tiles: decays of all pairs of rows are products of at most two exponentials") {
  Generator generator{3};
  for (const int64_t length : {1, 5, 16, 40}) {
    for (const int64_t channels : {int64_t{1}, int64_t{3}}) {
      CAPTURE(length);
      CAPTURE(channels);
      std::vector<double> b(length * channels);
      for (int64_t i = 0; i < length * channels; ++i) {
        b[i] = (i < channels ? 0 : b[i - channels]) - generator.uniform();
      }
      const ChunkDecay d{b.data(), length, channels};
      const auto left = [&](int64_t i, int64_t j, int64_t m) { return std::exp(d[i][m] - d[j][m]); };
      // 5e-7, with exponents down to -20; the decay of another row is off by 0.1 and more.
      constexpr double bound = 1e-6;
      if (channels == 1) {
        Matrix<float> ones(length, length, generator);
        std::fill(ones.values.begin(), ones.values.end(), 1.0f);
        std::vector<float> room(length);
        decay_lower(d, ones.rows(), room.data());
        for (int64_t i = 0; i < length; ++i) {
          for (int64_t j = 0; j <= i; ++j) {
            CHECK(std::abs(ones.rows()[i][j] - left(i, j, 0)) <= bound * left(i, j, 0));
          }
        }
        continue;
      }
      for_row_blocks(length, [&](int64_t begin, int64_t end) {
        std::vector<float> room(gram_room(length, channels, channels), static_cast<float>(nan));
        Tiles<float> tiles(room.data());
        const BlockDecays<float> decays(begin, end, d, tiles);
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t j = begin; j < i; ++j) {
            for (int64_t m = 0; m < channels; ++m) {
              CHECK(std::abs(decays.pair(i, j)[m] - left(i, j, m)) <= bound * left(i, j, m));
            }
          }
        }
      });
    }
  }
}

}  // namespace mixgrad
