// Gaussian mixtures on the CPU. A task is one head's rows of one block; inside, the loop over the components
// is the innermost, so that it runs over contiguous memory whatever the dimension.
#include "tensor/kernels/gmm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Rows of a task, and of a partial sum of the parameters' gradients.
constexpr int64_t block_rows = 128;
/// Rows whose sums stay in registers while the loop over the dimensions runs.
constexpr int64_t tile_rows = 8;

/// As many components as fit into 64 bytes, for arithmetic lane by lane: a vector type of GCC and Clang,
/// since loops over an array do not stay in registers.
template <class T>
struct LanesOf {
  using Type [[gnu::vector_size(64)]] = T;
};
template <class T>
using Lanes = typename LanesOf<T>::Type;
template <class T>
constexpr int64_t lane_count = 64 / sizeof(T);

template <class T>
Lanes<T> load(const T* values) {
  Lanes<T> lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

template <class T>
void store(const Lanes<T>& lanes, T* values) {
  std::memcpy(values, &lanes, sizeof(lanes));
}

template <class T>
T sum_of(const Lanes<T>& lanes) {
  return row_sum<T>(lane_count<T>, [&](int64_t lane) { return lanes[lane]; });
}

/// At least 1: without rows there is one empty block, whose sums are zero.
int64_t block_count(const GmmShape& s) {
  return std::max<int64_t>(1, (s.rows + block_rows - 1) / block_rows);
}

/// Components, rounded up to whole vectors.
template <class T>
int64_t padded_components(const GmmShape& s) {
  return (s.components + lane_count<T> - 1) / lane_count<T> * lane_count<T>;
}

/// Some rows of one head; at most tile_rows, but for the rows of a block.
struct RowRange {
  int64_t head, begin, end;
};

/// Calls body(block, rows) for each block and head, in parallel.
template <class Body>
void for_each_block(const GmmShape& s, const Body& body) {
  parallel_tasks(block_count(s) * s.heads, [&](int64_t task) {
    const int64_t block = task / s.heads;
    body(block, RowRange{task % s.heads, block * block_rows, std::min(s.rows, (block + 1) * block_rows)});
  });
}

/// Calls body(rows) for the tiles of a block's rows.
template <class Body>
void for_each_tile(const RowRange& block, const Body& body) {
  for (int64_t begin = block.begin; begin < block.end; begin += tile_rows) {
    body(RowRange{block.head, begin, std::min(begin + tile_rows, block.end)});
  }
}

/// One head's mixture as the inner loops want it: components contiguous, Kp = padded_components of them.
template <class T>
struct Mixture {
  T* mean;            // [dr, Kp]
  T* half_precision;  // [dr, Kp], 1 / (2 variance)
  T* constant;        // [Kp], the part of the score that doesn't depend on x
};

/// The mixtures of all heads, rewritten once a kernel call.
template <class T>
class Mixtures {
 public:
  /// log_prior may be null: no prior.
  Mixtures(const GmmShape& s, const T* mean, const T* variance, const T* log_prior)
      : dim_(s.dim), padded_(padded_components<T>(s)), room_(s.heads * (2 * dim_ + 1) * padded_) {
    std::fill_n(room_.data(), s.heads * (2 * dim_ + 1) * padded_, T(0));
    parallel_tasks(s.heads, [&](int64_t head) {
      const Mixture<T> mixture = of(head);
      for (int64_t k = 0; k < s.components; ++k) {
        const int64_t component = head * s.components + k;
        T log_determinant = 0;
        for (int64_t m = 0; m < dim_; ++m) {
          const T var = variance[component * dim_ + m];
          mixture.mean[m * padded_ + k] = mean[component * dim_ + m];
          mixture.half_precision[m * padded_ + k] = T(0.5) / var;
          log_determinant += std::log(var);
        }
        const T log_2pi = std::log(2 * std::numbers::pi_v<T>);
        mixture.constant[k] = (log_prior != nullptr ? log_prior[component] : T(0)) -
                              (static_cast<T>(dim_) * log_2pi + log_determinant) / 2;
      }
    });
  }

  Mixture<T> of(int64_t head) {
    T* start = room_.data() + head * (2 * dim_ + 1) * padded_;
    return {start, start + dim_ * padded_, start + 2 * dim_ * padded_};
  }

 private:
  int64_t dim_;
  int64_t padded_;
  Scratch<T> room_;
};

/// The vectors of a tile's rows; the last one again where the tile is short, so that loops over a tile's rows
/// have a fixed length.
template <class T>
std::array<const T*, tile_rows> vectors_of(const GmmShape& s, const RowRange& rows, const T* x) {
  std::array<const T*, tile_rows> vectors;
  for (int64_t r = 0; r < tile_rows; ++r) {
    vectors[r] = x + (std::min(rows.begin + r, rows.end - 1) * s.heads + rows.head) * s.dim;
  }
  return vectors;
}

/// score[k] = constant[k] - sum over m of (x_m - mean_mk)^2 half_precision_mk, for a tile's rows.
template <class T>
void score_tile(const GmmShape& s, const Mixture<T>& mixture, const RowRange& rows, const T* x, T* score) {
  const auto vectors = vectors_of(s, rows, x);
  const int64_t padded = padded_components<T>(s);
  for (int64_t first = 0; first < padded; first += lane_count<T>) {
    Lanes<T> sum[tile_rows];
    for (Lanes<T>& lanes : sum) lanes = load(mixture.constant + first);
    for (int64_t m = 0; m < s.dim; ++m) {
      const Lanes<T> mean = load(mixture.mean + m * padded + first);
      const Lanes<T> half_precision = load(mixture.half_precision + m * padded + first);
      for (int64_t r = 0; r < tile_rows; ++r) {
        const Lanes<T> distance = vectors[r][m] - mean;
        sum[r] -= half_precision * distance * distance;
      }
    }
    const int64_t count = std::min(lane_count<T>, s.components - first);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      std::memcpy(score + (row * s.heads + rows.head) * s.components + first, &sum[row - rows.begin],
                  count * sizeof(T));
    }
  }
}

/// In place.
template <class T>
void softmax_row(int64_t components, T* row) {
  const T peak = row_maximum(components, row);
  for (int64_t k = 0; k < components; ++k) row[k] = vector_exp(row[k] - peak);
  const T factor = 1 / row_sum<T>(components, [=](int64_t k) { return row[k]; });
  for (int64_t k = 0; k < components; ++k) row[k] *= factor;
}

/// ds = gamma (dgamma - gamma . dgamma): zero where gamma is zero, and its sum is zero.
template <class T>
void softmax_row_backward(int64_t components, const T* gamma, const T* dgamma, T* ds) {
  const T mean = row_sum<T>(components, [=](int64_t k) { return gamma[k] * dgamma[k]; });
#pragma omp simd
  for (int64_t k = 0; k < components; ++k) ds[k] = gamma[k] * (dgamma[k] - mean);
}

/// Moments of one head's block of rows, weighted by the scores' gradients ds: all that the gradients of its
/// parameters need.
template <class T>
struct Moments {
  T* weight;  // [Kp], sum of ds
  T* first;   // [dr, Kp], sum of ds (x - mean)
  T* second;  // [dr, Kp], sum of ds (x - mean)^2
};

/// The moments of all blocks and heads, and beside each set room for a tile's ds.
template <class T>
class BlockMoments {
 public:
  explicit BlockMoments(const GmmShape& s)
      : s_(s),
        padded_(padded_components<T>(s)),
        size_((2 * s.dim + 1) * padded_),
        room_(block_count(s) * s.heads * (size_ + tile_rows * padded_)) {}

  Moments<T> of(int64_t block, int64_t head) {
    T* start = at(block, head);
    return {start, start + padded_, start + (s_.dim + 1) * padded_};
  }
  /// [tile_rows, Kp]
  T* tile(int64_t block, int64_t head) { return at(block, head) + size_; }
  void clear(int64_t block, int64_t head) { std::fill_n(at(block, head), size_ + tile_rows * padded_, T(0)); }

  /// The moments of one head over all blocks, added in their order into those of the first.
  Moments<T> total(int64_t head) {
    T* sum = at(0, head);
    for (int64_t block = 1; block < block_count(s_); ++block) {
      const T* addend = at(block, head);
      for (int64_t i = 0; i < size_; ++i) sum[i] += addend[i];
    }
    return of(0, head);
  }

 private:
  T* at(int64_t block, int64_t head) {
    return room_.data() + (block * s_.heads + head) * (size_ + tile_rows * padded_);
  }

  GmmShape s_;
  int64_t padded_;
  int64_t size_;
  Scratch<T> room_;
};

/// Adds a tile's rows to the moments, and dx_m = -sum over k of ds_k (x_m - mean_mk) precision_mk. ds
/// [tile_rows, Kp] is zero beyond the components and the rows.
template <class T>
void score_tile_backward(const GmmShape& s, const Mixture<T>& mixture, const RowRange& rows, const T* x,
                         const T* ds, const Moments<T>& moments, T* dx) {
  const auto vectors = vectors_of(s, rows, x);
  const int64_t padded = padded_components<T>(s);
  for (int64_t r = 0; r < tile_rows; ++r) {
    for (int64_t k = 0; k < padded; ++k) moments.weight[k] += ds[r * padded + k];
  }
  for (int64_t m = 0; m < s.dim; ++m) {
    Lanes<T> pull[tile_rows] = {};
    for (int64_t first = 0; first < padded; first += lane_count<T>) {
      const int64_t at = m * padded + first;
      const Lanes<T> mean = load(mixture.mean + at);
      const Lanes<T> half_precision = load(mixture.half_precision + at);
      Lanes<T> first_moment = load(moments.first + at);
      Lanes<T> second_moment = load(moments.second + at);
      for (int64_t r = 0; r < tile_rows; ++r) {
        const Lanes<T> distance = vectors[r][m] - mean;
        const Lanes<T> weighted = load(ds + r * padded + first) * distance;
        first_moment += weighted;
        second_moment += weighted * distance;
        pull[r] += weighted * half_precision;
      }
      store<T>(first_moment, moments.first + at);
      store<T>(second_moment, moments.second + at);
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      dx[(row * s.heads + rows.head) * s.dim + m] = -2 * sum_of<T>(pull[row - rows.begin]);
    }
  }
}

/// From the gradients of the scores, which write_ds(row, head, ds) writes one row at a time, to those of all
/// inputs. dlog_prior may be null.
template <class T, class WriteDs>
void scores_backward(const GmmShape& s, const T* x, const T* mean, const T* variance, const WriteDs& write_ds,
                     T* dx, T* dmean, T* dvariance, T* dlog_prior) {
  Mixtures<T> mixtures(s, mean, variance, nullptr);
  BlockMoments<T> moments(s);
  const int64_t padded = padded_components<T>(s);
  for_each_block(s, [&](int64_t block, const RowRange& block_range) {
    moments.clear(block, block_range.head);
    T* ds = moments.tile(block, block_range.head);
    for_each_tile(block_range, [&](const RowRange& rows) {
      for (int64_t r = 0; r < tile_rows; ++r) {
        if (rows.begin + r < rows.end)
          write_ds(rows.begin + r, rows.head, ds + r * padded);
        else
          std::fill_n(ds + r * padded, padded, T(0));
      }
      score_tile_backward(s, mixtures.of(rows.head), rows, x, ds, moments.of(block, rows.head), dx);
    });
  });
  parallel_tasks(s.heads, [&](int64_t head) {
    const Moments<T> total = moments.total(head);
    for (int64_t k = 0; k < s.components; ++k) {
      const int64_t component = head * s.components + k;
      if (dlog_prior != nullptr) dlog_prior[component] = total.weight[k];
      for (int64_t m = 0; m < s.dim; ++m) {
        const int64_t i = component * s.dim + m;
        const T precision = 1 / variance[i];
        dmean[i] = precision * total.first[m * padded + k];
        dvariance[i] = precision * (precision * total.second[m * padded + k] - total.weight[k]) / 2;
      }
    }
  });
}

}  // namespace

template <class T>
void gmm_log_density_forward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, T* score) {
  Mixtures<T> mixtures(s, mean, variance, nullptr);
  for_each_block(s, [&](int64_t, const RowRange& block) {
    for_each_tile(block,
                  [&](const RowRange& rows) { score_tile(s, mixtures.of(rows.head), rows, x, score); });
  });
}

template <class T>
void gmm_log_density_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, const T* dscore,
                              T* dx, T* dmean, T* dvariance) {
  const auto given = [=](int64_t row, int64_t head, T* ds) {
    std::copy_n(dscore + (row * s.heads + head) * s.components, s.components, ds);
  };
  scores_backward(s, x, mean, variance, given, dx, dmean, dvariance, static_cast<T*>(nullptr));
}

template <class T>
void gmm_responsibilities_forward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma) {
  Mixtures<T> mixtures(s, mean, variance, log_prior);
  for_each_block(s, [&](int64_t, const RowRange& block) {
    for_each_tile(block, [&](const RowRange& rows) {
      score_tile(s, mixtures.of(rows.head), rows, x, gamma);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        softmax_row(s.components, gamma + (row * s.heads + rows.head) * s.components);
      }
    });
  });
}

template <class T>
void gmm_responsibilities_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior) {
  const auto through_softmax = [=](int64_t row, int64_t head, T* ds) {
    const int64_t offset = (row * s.heads + head) * s.components;
    softmax_row_backward(s.components, gamma + offset, dgamma + offset, ds);
  };
  scores_backward(s, x, mean, variance, through_softmax, dx, dmean, dvariance, dlog_prior);
}

#define INSTANTIATE(T)                                                                                      \
  template void gmm_log_density_forward<T>(Cpu, GmmShape, const T*, const T*, const T*, T*);                \
  template void gmm_log_density_backward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*, T*, T*,  \
                                            T*);                                                            \
  template void gmm_responsibilities_forward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*, T*); \
  template void gmm_responsibilities_backward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*,     \
                                                 const T*, T*, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
