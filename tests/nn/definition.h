// What a test needs to hold a mixer against the formulas of its page, token by token: the mixer with
// parameters far from their start, and plain arithmetic in double, none of it by the ops that the mixer is
// made of.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/mixer.h"

namespace mixgrad::definition {

constexpr int64_t width = 8, heads = 2, head_size = width / heads, length = 70;

using Vector = std::vector<double>;

struct Matrix {
  int64_t rows, columns;
  Vector values;

  Matrix(int64_t rows, int64_t columns) : rows(rows), columns(columns), values(rows * columns) {}
  double* operator[](int64_t row) { return &values[row * columns]; }
  const double* operator[](int64_t row) const { return &values[row * columns]; }
  /// `size` numbers of a row from number index * size on: the part of a head.
  Vector part(int64_t row, int64_t index, int64_t size) const {
    const double* const begin = (*this)[row] + index * size;
    return {begin, begin + size};
  }
  void put(int64_t row, int64_t index, const Vector& part) {
    std::copy(part.begin(), part.end(), (*this)[row] + index * static_cast<int64_t>(part.size()));
  }
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double softplus(double x) { return std::log1p(std::exp(x)); }
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double gelu_slope(double x) {
  const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(inner);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
template <class F>
Vector mapped(Vector x, const F& f) {
  for (double& value : x) value = f(value);
  return x;
}
inline Vector scaled(const Vector& x, double factor) {
  return mapped(x, [=](double value) { return factor * value; });
}
inline Vector product(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}
inline Vector sum(Vector a, const Vector& b, double factor = 1) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}
/// Of length 1.
inline Vector unit(const Vector& x) { return scaled(x, 1 / std::sqrt(dot(x, x) + 1e-6)); }
/// Of root mean square 1.
inline Vector even(const Vector& x) {
  return scaled(x, 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + 1e-6));
}
/// Pairs (j, j + d/2) turned by position theta^(-2j/d).
inline Vector rotated(const Vector& x, int64_t position, double theta = 10000) {
  const size_t half = x.size() / 2;
  Vector y(x.size());
  for (size_t j = 0; j < half; ++j) {
    const double angle =
        static_cast<double>(position) * std::pow(theta, -static_cast<double>(j) / static_cast<double>(half));
    y[j] = x[j] * std::cos(angle) - x[j + half] * std::sin(angle);
    y[j + half] = x[j + half] * std::cos(angle) + x[j] * std::sin(angle);
  }
  return y;
}

/// A matrix [dk, dv] that keys write and queries read.
struct Memory : Matrix {
  using Matrix::Matrix;

  /// key S
  Vector answer(const Vector& key) const {
    Vector value(columns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) value[j] += key[i] * (*this)[i][j];
    }
    return value;
  }
  /// S value^T
  Vector answer_backwards(const Vector& value) const {
    Vector key(rows);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) key[i] += value[j] * (*this)[i][j];
    }
    return key;
  }
  /// S += rate key^T value
  void write(const Vector& key, const Vector& value, double rate = 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) (*this)[i][j] += rate * key[i] * value[j];
    }
  }
  /// S *= e^{log_decay}
  void fade(double log_decay) { values = scaled(values, std::exp(log_decay)); }
};

/// A mixer of the registry, with what it makes of a text.
class Subject {
 public:
  explicit Subject(const std::string& pattern, bool causal = true, bool rope = false) {
    Generator generator(3);
    Initialiser initialiser(DType::float64, Device{}, generator);
    mixer_ = make_mixer(parse_pattern(pattern, 1)[0], width, heads, rope, initialiser);
    for (const Parameter& parameter : mixer_->parameters()) {
      Tensor& value = parameter.variable->value();
      const Tensor moved = normal(value.shape(), 0.5, generator, DType::float64);
      for (int64_t i = 0; i < value.elements(); ++i) value.data<double>()[i] += moved.data<double>()[i];
      parameters_.emplace(parameter.name, as_matrix(value));
    }
    const Tensor text = normal({1, length, width}, 1, generator, DType::float64);
    x = as_matrix(text);
    const NoGrad no_grad;
    y_ = as_matrix(
        mixer_->forward({.x = Variable(text), .context = {}, .key_mask = {}, .causal = causal}).value());
  }

  Matrix x{0, 0};  // [T, D]

  /// By its name; [all axes but the last, the last].
  const Matrix& parameter(const std::string& name) const { return parameters_.at(name); }
  Vector vector(const std::string& name) const { return parameter(name).values; }

  /// input W^T + b for the weight, and the bias if there is one, of that name.
  Matrix projected(const Matrix& input, const std::string& name) const {
    const Matrix& weight = parameter(name + ".weight");
    const auto bias = parameters_.find(name + ".bias");
    Matrix output(input.rows, weight.rows);
    for (int64_t t = 0; t < input.rows; ++t) {
      for (int64_t j = 0; j < weight.rows; ++j) {
        output[t][j] = bias != parameters_.end() ? bias->second.values[j] : 0;
        for (int64_t i = 0; i < weight.columns; ++i) output[t][j] += input[t][i] * weight[j][i];
      }
    }
    return output;
  }
  Matrix projected(const std::string& name) const { return projected(x, name); }

  /// silu of a convolution of each channel of x W^T over the last four tokens.
  Matrix convolved(const std::string& projection, const std::string& conv) const {
    const Matrix input = projected(projection);
    const Matrix& weight = parameter(conv + ".weight");
    const auto bias = parameters_.find(conv + ".bias");
    Matrix output(length, input.columns);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < input.columns; ++c) {
        double total = bias != parameters_.end() ? bias->second.values[c] : 0;
        for (int64_t tap = 0; tap < 4; ++tap) {
          if (t - 3 + tap >= 0) total += weight[c][tap] * input[t - 3 + tap][c];
        }
        output[t][c] = silu(total);
      }
    }
    return output;
  }
  Matrix convolved(const std::string& name) const { return convolved(name, name + "_conv"); }

  /// -exp(A_log) softplus(x . w + dt_bias), [T, H].
  Matrix decay_gate(const std::string& name) const {
    Matrix gate = projected(name);
    const Vector A_log = vector(name + ".A_log"), dt_bias = vector(name + ".dt_bias");
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t h = 0; h < gate.columns; ++h) {
        gate[t][h] = -std::exp(A_log[h]) * softplus(gate[t][h] + dt_bias[h]);
      }
    }
    return gate;
  }

  /// How far the mixer's output is from o Wo, the heads' outputs side by side, as a part of its largest
  /// value.
  double distance_from(const Matrix& o) const {
    const Matrix expected = projected(o, "out");
    double distance = 0, largest = 0;
    for (size_t i = 0; i < expected.values.size(); ++i) {
      const double off = std::abs(y_.values[i] - expected.values[i]);
      distance = std::isnan(off) ? off : std::max(distance, off);
      largest = std::max(largest, std::abs(expected.values[i]));
    }
    return distance / largest;
  }

 private:
  static Matrix as_matrix(const Tensor& tensor) {
    Matrix matrix(tensor.shape().rows(), tensor.shape().columns());
    matrix.values = tensor.to_vector();
    return matrix;
  }

  std::unique_ptr<Mixer> mixer_;
  std::map<std::string, Matrix> parameters_;
  Matrix y_{0, 0};
};

}  // namespace mixgrad::definition
