// Reductions over one row by one thread, in a fixed order that vector instructions can follow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace mixgrad {

/// combine of start, term(0), ..., term(n - 1); start is combine's neutral element.
///
/// Term i goes into partial result i mod 16, and these are combined pairwise at the end: a compiler may not
/// reorder a sum by itself, so the order that it can vectorise is written out. It depends on n alone, not on
/// alignment or threads.
template <class T, class Term, class Combine>
T reduce(int64_t n, T start, const Term& term, const Combine& combine) {
  constexpr int64_t lanes = 16;
  T partial[lanes];
  std::fill_n(partial, lanes, start);
  const int64_t whole = n / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) partial[lane] = combine(partial[lane], term(i + lane));
  }
  for (int64_t i = whole; i < n; ++i) partial[i - whole] = combine(partial[i - whole], term(i));
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane)
      partial[lane] = combine(partial[lane], partial[lane + width]);
  }
  return partial[0];
}

/// Sum of term(i) over i in [0, n), accumulated in T.
template <class T, class Term>
T row_sum(int64_t n, const Term& term) {
  return reduce(n, T(0), term, [](T sum, T value) { return sum + value; });
}

/// The largest of x[0 .. n), passing over NaN; the lowest finite number where there is none or all are -inf.
template <class T>
T row_maximum(int64_t n, const T* x) {
  return reduce(
      n, std::numeric_limits<T>::lowest(), [x](int64_t i) { return x[i]; },
      [](T maximum, T value) { return value > maximum ? value : maximum; });
}

}  // namespace mixgrad
