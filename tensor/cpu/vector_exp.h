// An exponential that the compiler can vectorise: the library's is a call for each element.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace mixgrad {

/// e^x to 1.2 units in the last place, with exp's values at the ends: 0 for -inf, inf for inf, NaN for
/// NaN.
inline float vector_exp(float x) {
  // e^x = 2^n e^r with n = round(x / ln 2), so that |r| <= ln(2) / 2. Beyond the limits the result is 0 or
  // inf anyway; the comparisons are written so that NaN passes through.
  x = x < -105.0f ? -105.0f : x > 90.0f ? 90.0f : x;
  constexpr float round_up = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  const float shifted = x * 1.44269504f + round_up;
  const float n = shifted - round_up;
  // ln 2 in two parts, of which the first has so few bits that its product with n is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // Taylor's series; the first term left out is r^8 / 8! < 6e-9.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors: near the ends of the range n is no float's exponent.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(round_up);
  const int32_t half = exponent >> 1;
  const auto power_of_2 = [](int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return p * power_of_2(half) * power_of_2(exponent - half);
}

/// Double is for checking; there the library's will do.
inline double vector_exp(double x) { return std::exp(x); }

}  // namespace mixgrad
