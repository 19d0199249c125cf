// Gaussian mixtures on the CPU. A task is one head's rows of one block; inside, the loop over the components
// is the innermost, so that it runs over contiguous memory whatever the routing dimension.
#include "tensor/kernels/gmm.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/vector_exp.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Rows of a task, and of a partial sum of the parameters' gradients.
constexpr int64_t block_rows = 128;

/// At least 1: without rows there is one empty block, whose sums are zero.
int64_t block_count(const GmmShape& s) {
  return std::max<int64_t>(1, (s.rows + block_rows - 1) / block_rows);
}

/// Calls body(block, head, first row, end of rows), in parallel.
template <class Body>
void for_each_block(const GmmShape& s, const Body& body) {
  parallel_tasks(block_count(s) * s.heads, [&](int64_t task) {
    const int64_t block = task / s.heads;
    body(block, task % s.heads, block * block_rows, std::min(s.rows, (block + 1) * block_rows));
  });
}

/// One head's mixture as the inner loops want it.
template <class T>
struct Mixture {
  T* mean;       // [dr, K]
  T* precision;  // [dr, K], 1 / variance
  T* constant;   // [K], the part of the score that doesn't depend on x
};

/// The mixtures of all heads, rewritten once a kernel call.
template <class T>
class Mixtures {
 public:
  /// log_prior may be null: no prior.
  Mixtures(const GmmShape& s, const T* mean, const T* variance, const T* log_prior)
      : s_(s), room_(s.heads * (2 * s.dim + 1) * s.components) {
    parallel_tasks(s.heads, [&](int64_t head) {
      const Mixture<T> mixture = of(head);
      for (int64_t k = 0; k < s.components; ++k) {
        const int64_t component = head * s.components + k;
        T log_determinant = 0;
        for (int64_t m = 0; m < s.dim; ++m) {
          const T var = variance[component * s.dim + m];
          mixture.mean[m * s.components + k] = mean[component * s.dim + m];
          mixture.precision[m * s.components + k] = 1 / var;
          log_determinant += std::log(var);
        }
        const T log_2pi = std::log(2 * std::numbers::pi_v<T>);
        mixture.constant[k] = (log_prior != nullptr ? log_prior[component] : T(0)) -
                              (static_cast<T>(s.dim) * log_2pi + log_determinant) / 2;
      }
    });
  }

  Mixture<T> of(int64_t head) {
    const int64_t matrix = s_.dim * s_.components;
    T* start = room_.data() + head * (2 * matrix + s_.components);
    return {start, start + matrix, start + 2 * matrix};
  }

 private:
  GmmShape s_;
  Scratch<T> room_;
};

/// score[k] = constant[k] - 1/2 sum over m of (x_m - mean_mk)^2 precision_mk
template <class T>
void score_row(const GmmShape& s, const Mixture<T>& mixture, const T* x, T* score) {
  std::copy_n(mixture.constant, s.components, score);
  for (int64_t m = 0; m < s.dim; ++m) {
    const T* mean = mixture.mean + m * s.components;
    const T* precision = mixture.precision + m * s.components;
    const T x_m = x[m];
#pragma omp simd
    for (int64_t k = 0; k < s.components; ++k) {
      const T distance = x_m - mean[k];
      score[k] -= T(0.5) * precision[k] * distance * distance;
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
  T* weight;  // [K], sum of ds
  T* first;   // [dr, K], sum of ds (x - mean)
  T* second;  // [dr, K], sum of ds (x - mean)^2
};

/// The moments of all blocks and heads, from zero, and room for one row of ds beside each.
template <class T>
class BlockMoments {
 public:
  explicit BlockMoments(const GmmShape& s)
      : s_(s),
        size_((2 * s.dim + 1) * s.components),
        room_(block_count(s) * s.heads * (size_ + s.components)) {}

  Moments<T> of(int64_t block, int64_t head) {
    T* start = at(block, head);
    return {start, start + s_.components, start + (s_.dim + 1) * s_.components};
  }
  void clear(int64_t block, int64_t head) { std::fill_n(at(block, head), size_, T(0)); }
  T* row(int64_t block, int64_t head) { return at(block, head) + size_; }

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
    return room_.data() + (block * s_.heads + head) * (size_ + s_.components);
  }

  GmmShape s_;
  int64_t size_;
  Scratch<T> room_;
};

/// dx_m = -sum over k of ds_k (x_m - mean_mk) precision_mk; the rest of the gradient goes into the moments.
template <class T>
void score_row_backward(const GmmShape& s, const Mixture<T>& mixture, const T* x, const T* ds,
                        const Moments<T>& moments, T* dx) {
#pragma omp simd
  for (int64_t k = 0; k < s.components; ++k) moments.weight[k] += ds[k];
  for (int64_t m = 0; m < s.dim; ++m) {
    const T* mean = mixture.mean + m * s.components;
    const T* precision = mixture.precision + m * s.components;
    T* first = moments.first + m * s.components;
    T* second = moments.second + m * s.components;
    const T x_m = x[m];
    T pull = 0;
#pragma omp simd reduction(+ : pull)
    for (int64_t k = 0; k < s.components; ++k) {
      const T distance = x_m - mean[k];
      const T weighted = ds[k] * distance;
      first[k] += weighted;
      second[k] += weighted * distance;
      pull += weighted * precision[k];
    }
    dx[m] = -pull;
  }
}

/// From the gradients of the scores, which ds_of(row, head, room) returns, one row at a time, to those of all
/// inputs. dlog_prior may be null.
template <class T, class DsOf>
void scores_backward(const GmmShape& s, const T* x, const T* mean, const T* variance, const DsOf& ds_of,
                     T* dx, T* dmean, T* dvariance, T* dlog_prior) {
  Mixtures<T> mixtures(s, mean, variance, nullptr);
  BlockMoments<T> moments(s);
  for_each_block(s, [&](int64_t block, int64_t head, int64_t begin, int64_t end) {
    moments.clear(block, head);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t offset = (row * s.heads + head) * s.dim;
      const T* ds = ds_of(row, head, moments.row(block, head));
      score_row_backward(s, mixtures.of(head), x + offset, ds, moments.of(block, head), dx + offset);
    }
  });
  parallel_tasks(s.heads, [&](int64_t head) {
    const Moments<T> total = moments.total(head);
    for (int64_t k = 0; k < s.components; ++k) {
      const int64_t component = head * s.components + k;
      const T weight = total.weight[k];
      if (dlog_prior != nullptr) dlog_prior[component] = weight;
      for (int64_t m = 0; m < s.dim; ++m) {
        const int64_t i = component * s.dim + m;
        const T precision = 1 / variance[i];
        const T first = total.first[m * s.components + k];
        const T second = total.second[m * s.components + k];
        dmean[i] = precision * first;
        dvariance[i] = precision * (precision * second - weight) / 2;
      }
    }
  });
}

}  // namespace

template <class T>
void gmm_log_density_forward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, T* score) {
  Mixtures<T> mixtures(s, mean, variance, nullptr);
  for_each_block(s, [&](int64_t, int64_t head, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t item = row * s.heads + head;
      score_row(s, mixtures.of(head), x + item * s.dim, score + item * s.components);
    }
  });
}

template <class T>
void gmm_log_density_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, const T* dscore,
                              T* dx, T* dmean, T* dvariance) {
  const auto given = [=](int64_t row, int64_t head, T*) {
    return dscore + (row * s.heads + head) * s.components;
  };
  scores_backward(s, x, mean, variance, given, dx, dmean, dvariance, static_cast<T*>(nullptr));
}

template <class T>
void gmm_responsibilities_forward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma) {
  Mixtures<T> mixtures(s, mean, variance, log_prior);
  for_each_block(s, [&](int64_t, int64_t head, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t item = row * s.heads + head;
      T* out = gamma + item * s.components;
      score_row(s, mixtures.of(head), x + item * s.dim, out);
      softmax_row(s.components, out);
    }
  });
}

template <class T>
void gmm_responsibilities_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior) {
  const auto through_softmax = [=](int64_t row, int64_t head, T* ds) {
    const int64_t offset = (row * s.heads + head) * s.components;
    softmax_row_backward(s.components, gamma + offset, dgamma + offset, ds);
    return ds;
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
