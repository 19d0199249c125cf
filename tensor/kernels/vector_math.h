// Transcendental functions that the compiler can vectorise: the library's are a call for each element.
//
// Each is straight arithmetic on floats, with selections instead of branches: a loop over them becomes vector
// instructions without -ffast-math. The errors stated are the largest over all floats, in units in the last
// place (ulp) of the right value, subnormal values included where the processor computes with them (in the
// loops of tensor/parallel.h they are 0), with fused multiply-adds or without. NaN gives NaN. Double is for
// checking: there the library's functions will do.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/random.h"

namespace mixgrad {

/// x limited to [low, high]; NaN stays NaN.
template <class T>
MIXGRAD_HOST_DEVICE inline T limited(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

/// e^x = 2^exponent (1 + excess)
struct SplitExp {
  int32_t exponent;
  float excess;
};

/// Splits e^(x - rest), |x - rest| <= 105; rest is for digits of the exponent that do not fit into x.
MIXGRAD_HOST_DEVICE inline SplitExp split_exp(float x, float rest = 0) {
  // With n the whole number nearest to x / ln 2 and r = x - n ln 2, |r| <= ln(2) / 2: e^x = 2^n e^r.
  constexpr float round_up = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  const float shifted = (x - rest) * 1.44269504f + round_up;
  const float n = shifted - round_up;
  // ln 2 in two parts, of which the first has so few bits that its product with n is exact.
  const float r = ((x - n * 0.693359375f) + n * 2.12194440e-4f) - rest;
  // Taylor's series of e^r - 1; the first term left out is r^8 / 8! < 6e-9.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  return {std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(round_up), p * r};
}

/// 2^n for -126 <= n <= 127
MIXGRAD_HOST_DEVICE inline float power_of_2(int32_t n) { return std::bit_cast<float>((n + 127) << 23); }

/// The value of a split exponential, 0 and inf included.
MIXGRAD_HOST_DEVICE inline float joined(SplitExp e) {
  // In two factors: near the ends of the range 2^exponent is no float.
  const int32_t half = e.exponent >> 1;
  return (1 + e.excess) * power_of_2(half) * power_of_2(e.exponent - half);
}

/// e^x to 1.3 ulp; 0 for -inf, inf for inf.
MIXGRAD_HOST_DEVICE inline float vector_exp(float x) {
  return joined(split_exp(limited(x, -105.0f, 90.0f)));  // beyond, the result is 0 or inf anyway
}
MIXGRAD_HOST_DEVICE inline double vector_exp(double x) { return std::exp(x); }

/// log(1 + x) for 0 <= x <= 1 to 1.5 ulp.
MIXGRAD_HOST_DEVICE inline float vector_log1p(float x) {
  // With s = x / (2 + x) <= 1/3: log(1 + x) = 2 artanh s = 2 s + s rest, rest = 2/3 s^2 + 2/5 s^4 + ...; the
  // first term left out is 2/15 s^14 < 3e-8. As 2 s = x - s x, the result is x less a smaller number, whose
  // errors count less.
  const float s = x / (2 + x);
  const float square = s * s;
  float p = 2.0f / 13;
  p = p * square + 2.0f / 11;
  p = p * square + 2.0f / 9;
  p = p * square + 2.0f / 7;
  p = p * square + 2.0f / 5;
  p = p * square + 2.0f / 3;
  return x - s * (x - p * square);
}
MIXGRAD_HOST_DEVICE inline double vector_log1p(double x) { return std::log1p(x); }

/// log x to 1.5 ulp; -inf for 0, NaN below.
MIXGRAD_HOST_DEVICE inline float vector_log(float x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  // x = 2^n (1 + f) with 1 + f between the roots of 1/2 and 2. A denormal number is first multiplied by 2^23.
  const bool denormal = x < 0x1p-126f;
  const int32_t bits = std::bit_cast<int32_t>(denormal ? x * 0x1p23f : x);
  const int32_t n = (bits - 0x3f3504f3) >> 23;  // the root of 1/2
  const float f = std::bit_cast<float>(bits - n * (1 << 23)) - 1;
  // As in vector_log1p, where |s| < 0.172: the first term left out is 2/11 s^10 < 5e-9.
  const float s = f / (2 + f);
  const float square = s * s;
  float p = 2.0f / 9;
  p = p * square + 2.0f / 7;
  p = p * square + 2.0f / 5;
  p = p * square + 2.0f / 3;
  const float log_rest = f - s * (f - p * square);
  const auto exponent = static_cast<float>(denormal ? n - 23 : n);
  // ln 2 in two parts, of which the first has so few bits that its product with n is exact.
  const float log = exponent * 0.693359375f + (log_rest - exponent * 2.12194440e-4f);
  return x > 0 ? (x < infinity ? log : x) : x == 0 ? -infinity : std::numeric_limits<float>::quiet_NaN();
}
MIXGRAD_HOST_DEVICE inline double vector_log(double x) { return std::log(x); }

/// tanh x to 2.7 ulp.
MIXGRAD_HOST_DEVICE inline float vector_tanh(float x) {
  // With m = e^(-2|x|) - 1: -m / (2 + m). Taken from the excess, m keeps its digits where x is tiny.
  const SplitExp e = split_exp(limited(-2 * std::abs(x), -30.0f, 0.0f));
  const float power = power_of_2(e.exponent);
  const float m = power * e.excess + (power - 1);
  return std::copysign(m / (2 + m), x);
}
MIXGRAD_HOST_DEVICE inline double vector_tanh(double x) { return std::tanh(x); }

/// e^(-x^2 / 2) to 1.5 ulp.
MIXGRAD_HOST_DEVICE inline float gaussian(float x) {
  // Half an ulp of a square near 200 is 8e-6, and an error of the exponent is a relative error of the result.
  // So x is cut in two, of which the larger part, 12 bits, has an exact square.
  x = limited(x, -15.0f, 15.0f);  // beyond, the result is 0
  const float large = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xFFFFF000u);
  return joined(split_exp(-0.5f * large * large, 0.5f * (x - large) * (x + large)));
}
MIXGRAD_HOST_DEVICE inline double gaussian(double x) { return std::exp(-0.5 * x * x); }

/// The normal distribution function, (1 + erf(x / sqrt 2)) / 2, to 7.5 ulp.
MIXGRAD_HOST_DEVICE inline float normal_cdf(float x) {
  // P(X > a) = e^(-a^2/2) p(a) / q(a), with p and q from Remez' algorithm for a <= 15: a relative error of
  // 6e-9.
  const float a = limited(std::abs(x), 0.0f, 15.0f);
  float p = 0.004153225784f;
  p = p * a + 0.0408810976f;
  p = p * a + 0.183969044f;
  p = p * a + 0.4392832955f;
  p = p * a + 0.5f;
  float q = 0.01041048152f;
  q = q * a + 0.1024798317f;
  q = q * a + 0.4714084499f;
  q = q * a + 1.205547876f;
  q = q * a + 1.676451598f;
  q = q * a + 1.0f;
  const float tail = gaussian(x) * (p / q);
  return x < 0 ? tail : 1 - tail;
}
MIXGRAD_HOST_DEVICE inline double normal_cdf(double x) {
  return 0.5 * std::erfc(x * -0.70710678118654752440);
}

}  // namespace mixgrad
