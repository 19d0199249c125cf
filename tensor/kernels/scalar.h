// The scalar functions of the elementwise ops, each written once, for every kernel on every device.
//
// A function is a type with a name, value(x), and slope(x), its derivative.
#pragma once

#include <cmath>
#include <string_view>

#include "tensor/kernels/vector_math.h"

namespace mixgrad {

/// 1 / (1 + exp(-x)), by the exponential that can't overflow.
template <class T>
MIXGRAD_HOST_DEVICE inline T sigmoid(T x) {
  const T e = vector_exp(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

/// sigmoid(x) and sigmoid(-x), what is left of 1, from one exponential; to 3 ulp each.
template <class T>
struct Sigmoids {
  T value, rest;
};
template <class T>
MIXGRAD_HOST_DEVICE inline Sigmoids<T> sigmoids(T x) {
  const T e = vector_exp(-std::abs(x));
  const T large = 1 / (1 + e), small = e * large;
  return {x >= 0 ? large : small, x >= 0 ? small : large};
}

/// log(1 + exp(x)), exact for large |x|.
template <class T>
MIXGRAD_HOST_DEVICE inline T softplus(T x) {
  return (x > 0 ? x : T(0)) + vector_log1p(vector_exp(-std::abs(x)));
}

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return sigmoid(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    const Sigmoids<T> s = sigmoids(x);
    return s.value * s.rest;
  }
};

struct Softplus {
  static constexpr std::string_view name = "softplus";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return softplus(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return sigmoid(x);
  }
};

struct LogSigmoid {
  static constexpr std::string_view name = "log_sigmoid";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return -softplus(-x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return sigmoid(-x);
  }
};

struct Silu {
  static constexpr std::string_view name = "silu";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return x * sigmoid(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return slope(x, sigmoids(x));
  }
  /// From the sigmoids of x, where the value is wanted too.
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x, Sigmoids<T> s) {
    return s.value * (1 + x * s.rest);
  }
};

/// x Phi(x), Phi the normal distribution function. Hendrycks, Gimpel: Gaussian error linear units, 2016.
struct GeluErf {
  static constexpr std::string_view name = "gelu_erf";
  static constexpr double inverse_sqrt_2pi = 0.39894228040143267794;
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return x * normal_cdf(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return normal_cdf(x) + x * T(inverse_sqrt_2pi) * gaussian(x);
  }
};

/// Its usual approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as x sigmoid(2 u).
struct GeluTanh {
  static constexpr std::string_view name = "gelu_tanh";
  static constexpr double sqrt_2_over_pi = 0.79788456080286535588;
  static constexpr double cubic = 0.044715;
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    const T u = T(sqrt_2_over_pi) * x * (1 + T(cubic) * x * x);
    return x * sigmoid(2 * u);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    // From |x| = 24 on the sigmoid's slope is 0 in any type; du must not become inf beside it.
    const T square = x * x > 576 ? T(576) : x * x;
    const T u = T(sqrt_2_over_pi) * x * (1 + T(cubic) * square);
    const T du = T(sqrt_2_over_pi) * (1 + 3 * T(cubic) * square);
    const Sigmoids<T> s = sigmoids(2 * u);
    return s.value + x * (2 * du * s.value * s.rest);
  }
};

/// GeluTanh's derivative, for ops that have it in their forward pass. It is no op itself and has no name.
struct GeluTanhSlope {
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return GeluTanh::slope(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    const T y = limited(x, T(-24), T(24));  // beyond, the sigmoid's slope is 0 in any type
    const T square = y * y;
    const T u = T(GeluTanh::sqrt_2_over_pi) * y * (1 + T(GeluTanh::cubic) * square);
    const T du = T(GeluTanh::sqrt_2_over_pi) * (1 + 3 * T(GeluTanh::cubic) * square);
    const T y_ddu = T(GeluTanh::sqrt_2_over_pi) * 6 * T(GeluTanh::cubic) * square;
    const Sigmoids<T> s = sigmoids(2 * u);
    return s.value * s.rest * (4 * du + 2 * y_ddu + 4 * y * du * du * (s.rest - s.value));
  }
};

struct Exp {
  static constexpr std::string_view name = "exp";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return vector_exp(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return vector_exp(x);
  }
};

struct Reciprocal {
  static constexpr std::string_view name = "reciprocal";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return 1 / x;
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return -1 / (x * x);
  }
};

/// elu(x) + 1, the positive feature map of the Linear Transformer. Katharopoulos et al., 2020, equation 7.
struct EluPlusOne {
  static constexpr std::string_view name = "elu_plus_one";
  template <class T>
  MIXGRAD_HOST_DEVICE static T value(T x) {
    return x > 0 ? x + 1 : vector_exp(x);
  }
  template <class T>
  MIXGRAD_HOST_DEVICE static T slope(T x) {
    return x > 0 ? T(1) : vector_exp(x);
  }
};

}  // namespace mixgrad
