// Gaussian mixtures on the CPU. A task is one head's rows of one block.
//
// With z = (x - mean) / sqrt(2 variance) a score is a constant less the sum of z^2. Forward, z = scale x -
// shift is one fused multiply-add and its square another: as many as a product of matrices of x and x^2 would
// take, which cancels. Backward, the sums over components and those over rows are such products.
//
// Both count from a centre c, the mean of the head's means: shift = scale (mean - c), and moments about c
// become those about a mean. What is lost to that grows with |shift|, how many deviations lie between c and a
// mean. With u = 2^-24, for double 2^-53,
//
//   |error of z|          <= u (4 |z| + 3 |shift|): scale, x - c, mean - c, shift and z itself are rounded
//   |error of z^2|        <= u (9 z^2 + 6 |z| |shift|)
//   |error of sum ds z^2| <= n u sum of |ds| (|z| + 2 |shift|)^2, n the number of rows
//
// for x - c is |z| + |shift| deviations at most; first moments and dx lose the first power. With squares of
// x - mean itself the bounds are those of shift = 0. Such squares are taken for a component that has |shift|
// > reach in any dimension, a narrow one; so elsewhere a score loses 6 reach u |z| in each dimension at most,
// and a second moment 4 reach^2 n u times its weight. That is a question of the parameters alone: what
// becomes of a token does not depend on others.
#include "tensor/kernels/gmm.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/registers.h"
#include "tensor/cpu/tiles.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Rows of a task, and of a partial sum of the parameters' gradients.
constexpr int64_t block_rows = 128;
constexpr int reach = 8;

/// Rows and columns of scores that are summed up in registers: half of all there are, the others are for
/// scale and shift, two each, and for z.
constexpr int64_t tile_rows = register_count / 4;
template <class T>
constexpr int64_t panel_columns = 2 * Register<T>::lanes;

constexpr int64_t ceiling(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

/// At least 1: without rows there is one empty block, whose sums are zero.
int64_t block_count(const GmmShape& s) { return std::max<int64_t>(1, ceiling(s.rows, block_rows)); }

/// Some rows of one head.
struct RowRange {
  int64_t head, begin, end;
  int64_t size() const { return end - begin; }
};

/// Calls body(block, rows) for each block and head, in parallel.
template <class Body>
void for_each_block(const GmmShape& s, const Body& body) {
  parallel_tasks(block_count(s) * s.heads, [&](int64_t task) {
    const int64_t block = task / s.heads;
    body(block, RowRange{task % s.heads, block * block_rows, std::min(s.rows, (block + 1) * block_rows)});
  });
}

/// One head's rows of a matrix that has `columns` for each row and head.
template <class T>
Rows<T> rows_of(const GmmShape& s, const RowRange& rows, T* matrix, int64_t columns) {
  return {matrix + (rows.begin * s.heads + rows.head) * columns, s.heads * columns};
}

/// One head's mixture; matrices [K, dr].
template <class T>
struct Mixture {
  Rows<const T> mean, variance;
  Rows<T> scale, shift;
  T* centre;     // [dr]
  bool* narrow;  // [K]
};

/// The mixtures of all heads.
template <class T>
class Mixtures {
 public:
  Mixtures(const GmmShape& s, const T* mean, const T* variance)
      : s_(s),
        mean_(mean),
        variance_(variance),
        scale_(s.heads * s.components * s.dim),
        shift_(s.heads * s.components * s.dim),
        centre_(s.heads * s.dim),
        narrow_(s.heads * s.components) {
    parallel_tasks(s.heads, [&](int64_t head) { prepare(of(head)); });
  }

  Mixture<T> of(int64_t head) {
    const int64_t at = head * s_.components * s_.dim;
    return {{mean_ + at, s_.dim},           {variance_ + at, s_.dim},
            {scale_.data() + at, s_.dim},   {shift_.data() + at, s_.dim},
            centre_.data() + head * s_.dim, narrow_.data() + head * s_.components};
  }

 private:
  void prepare(const Mixture<T>& mixture) const {
    std::fill_n(mixture.centre, s_.dim, T(0));
    for (int64_t k = 0; k < s_.components; ++k) {
      add_scaled(s_.dim, 1 / static_cast<T>(s_.components), mixture.mean[k], mixture.centre);
    }
    for (int64_t k = 0; k < s_.components; ++k) {
      const T *mean = mixture.mean[k], *variance = mixture.variance[k];
      T *scale = mixture.scale[k], *shift = mixture.shift[k];
      int64_t beyond = 0;
      for (int64_t m = 0; m < s_.dim; ++m) {
        scale[m] = std::sqrt(T(0.5) / variance[m]);
        shift[m] = scale[m] * (mean[m] - mixture.centre[m]);
        beyond += std::abs(shift[m]) <= reach ? 0 : 1;  // NaN is beyond
      }
      mixture.narrow[k] = beyond > 0;
    }
  }

  const GmmShape& s_;
  const T *mean_, *variance_;
  Scratch<T> scale_, shift_, centre_;
  Scratch<bool> narrow_;
};

/// What scores need of the mixtures of all heads, in memory of others: panels of components, the columns of
/// score_tile. T is const for who only reads.
template <class T>
class Panels {
 public:
  static constexpr int64_t width = panel_columns<std::remove_const_t<T>>;

  Panels(const GmmShape& s, T* room)
      : components_(s.components),
        dim_(s.dim),
        per_head_(ceiling(s.components, width)),
        panel_size_((2 * s.dim + 1) * width),
        panels_(room),
        rest_(room + s.heads * per_head_ * panel_size_) {}

  /// Elements of the room that they take.
  static int64_t size(const GmmShape& s) {
    return s.heads * (ceiling(s.components, width) * (2 * s.dim + 1) * width + s.dim + s.components);
  }

  int64_t per_head() const { return per_head_; }
  /// [1 + 2 dr, width]: the part of the score that doesn't depend on x, then scale and shift for each
  /// dimension; 0 for narrow components and for those beyond the last.
  T* of(int64_t head, int64_t panel) const { return panels_ + (head * per_head_ + panel) * panel_size_; }
  T* centre(int64_t head) const { return rest_ + head * (dim_ + components_); }  // [dr]
  T* narrow(int64_t head) const { return centre(head) + dim_; }                  // [K], 1 or 0

 private:
  int64_t components_, dim_, per_head_, panel_size_;
  T *panels_, *rest_;
};

template <class T>
T log_normaliser(int64_t dim, const T* variance) {
  const T log_determinant = row_sum<T>(dim, [=](int64_t m) { return vector_log(variance[m]); });
  return (static_cast<T>(dim) * std::log(2 * std::numbers::pi_v<T>) + log_determinant) / 2;
}

/// log_prior may be null: no prior.
template <class T>
void fill_panels(const GmmShape& s, const T* mean, const T* variance, const T* log_prior,
                 const Panels<T>& panels) {
  Mixtures<T> mixtures(s, mean, variance);
  parallel_tasks(s.heads, [&](int64_t head) {
    const Mixture<T> mixture = mixtures.of(head);
    std::copy_n(mixture.centre, s.dim, panels.centre(head));
    std::copy_n(mixture.narrow, s.components, panels.narrow(head));
    std::fill(panels.of(head, 0), panels.of(head + 1, 0), T(0));
    for (int64_t k = 0; k < s.components; ++k) {
      T* column = panels.of(head, k / panels.width) + k % panels.width;
      const T prior = log_prior != nullptr ? log_prior[head * s.components + k] : T(0);
      *column = prior - log_normaliser(s.dim, mixture.variance[k]);
      for (int64_t m = 0; m < s.dim && !mixture.narrow[k]; ++m) {
        column[(2 * m + 1) * panels.width] = mixture.scale[k][m];
        column[(2 * m + 2) * panels.width] = mixture.shift[k][m];
      }
    }
  });
}

/// score = constant - sum over m of (scale_m x_m - shift_m)^2 for a tile of rows and a panel of components.
/// x, about the centre, is [dr, tile_rows]; only the first `rows` and `columns` of the tile are written.
template <class T>
void score_tile(int64_t dim, const T* panel, const T* x, int64_t rows, int64_t columns, Rows<T> score) {
  using Vector = typename Register<T>::Vector;
  using Loose = typename Register<T>::Loose;
  constexpr int64_t lanes = Register<T>::lanes, width = panel_columns<T>;
  const auto load = [](const T* values) -> const Loose& { return *reinterpret_cast<const Loose*>(values); };
  Vector left[tile_rows] = {}, right[tile_rows] = {};
  const T* parameters = panel + width;
  for (int64_t m = 0; m < dim; ++m, parameters += 2 * width, x += tile_rows) {
    const Vector left_scale = load(parameters), right_scale = load(parameters + lanes);
    const Vector left_shift = load(parameters + width), right_shift = load(parameters + width + lanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < tile_rows; ++r) {
      const Vector left_z = left_scale * x[r] - left_shift;
      const Vector right_z = right_scale * x[r] - right_shift;
      left[r] += left_z * left_z;
      right[r] += right_z * right_z;
    }
  }
  alignas(register_bytes) T tile[tile_rows * width];
#pragma GCC unroll 8
  for (int64_t r = 0; r < tile_rows; ++r) {
    *reinterpret_cast<Loose*>(tile + r * width) = load(panel) - left[r];
    *reinterpret_cast<Loose*>(tile + r * width + lanes) = load(panel + lanes) - right[r];
  }
  for (int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * width, columns, score[r]);
}

/// What narrow components' scores lack: the sums of (x - mean)^2 / (2 variance).
template <class T>
void score_narrow(const GmmShape& s, const T* narrow, Rows<const T> means, Rows<const T> variances,
                  int64_t rows, Rows<const T> x, Rows<T> score) {
  for (int64_t k = 0; k < s.components; ++k) {
    if (narrow[k] == 0) continue;
    const T *mean = means[k], *variance = variances[k];
    for (int64_t r = 0; r < rows; ++r) {
      const T* point = x[r];
      score[r][k] -= row_sum<T>(s.dim, [=](int64_t m) {
        const T distance = point[m] - mean[m];
        return T(0.5) / variance[m] * distance * distance;
      });
    }
  }
}

/// The scores of all rows; then calls finish(row of K scores).
template <class T, class Finish>
void scores_forward(const GmmShape& s, const T* x, const T* mean, const T* variance,
                    const Panels<const T>& panels, T* score, const Finish& finish) {
  ThreadRoom<T> room(block_rows * s.dim);
  for_each_block(s, [&](int64_t, const RowRange& rows) {
    const T* centre = panels.centre(rows.head);
    const int64_t parameters = rows.head * s.components * s.dim;
    const Rows<const T> points = rows_of(s, rows, x, s.dim);
    const Rows<T> scores = rows_of(s, rows, score, s.components);
    T* const tiles = room.mine();  // of x - c, [dr, tile_rows] each
    for (int64_t r = 0; r < ceiling(rows.size(), tile_rows) * tile_rows; ++r) {
      const T* point = points[std::min(r, rows.size() - 1)];  // a short tile repeats the last
      T* column = tiles + r / tile_rows * tile_rows * s.dim + r % tile_rows;
      for (int64_t m = 0; m < s.dim; ++m) column[m * tile_rows] = point[m] - centre[m];
    }
    for (int64_t panel = 0; panel < panels.per_head(); ++panel) {
      const int64_t first = panel * panels.width, columns = std::min(panels.width, s.components - first);
      for (int64_t r = 0; r < rows.size(); r += tile_rows) {
        score_tile<T>(s.dim, panels.of(rows.head, panel), tiles + r * s.dim,
                      std::min(tile_rows, rows.size() - r), columns, scores.from(r, first));
      }
    }
    score_narrow<T>(s, panels.narrow(rows.head), {mean + parameters, s.dim}, {variance + parameters, s.dim},
                    rows.size(), points, scores);
    for (int64_t r = 0; r < rows.size(); ++r) finish(scores[r]);
  });
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
/// parameters need. They are about the centre, a narrow component's about its own mean.
template <class T>
struct Moments {
  T* weight;          // [K], sum of ds
  Rows<T> distances;  // [K, 2 dr], sums of ds (x - c) and of ds (x - c)^2
};

/// The moments of all blocks and heads.
template <class T>
class BlockMoments {
 public:
  explicit BlockMoments(const GmmShape& s)
      : s_(s), size_((2 * s.dim + 1) * s.components), room_(block_count(s) * s.heads * size_) {}

  Moments<T> of(int64_t block, int64_t head) {
    T* start = at(block, head);
    return {start, {start + s_.components, 2 * s_.dim}};
  }
  void clear(int64_t block, int64_t head) { std::fill_n(at(block, head), size_, T(0)); }

  /// The moments of one head over all blocks, added in their order into those of the first.
  Moments<T> total(int64_t head) {
    for (int64_t block = 1; block < block_count(s_); ++block) {
      add_scaled(size_, T(1), at(block, head), at(0, head));
    }
    return of(0, head);
  }

 private:
  T* at(int64_t block, int64_t head) { return room_.data() + (block * s_.heads + head) * size_; }

  GmmShape s_;
  int64_t size_;
  Scratch<T> room_;
};

/// From the gradients of the scores to those of all inputs.
template <class T>
class ScoresBackward {
 public:
  ScoresBackward(const GmmShape& s, const T* x, const T* mean, const T* variance, T* dx)
      : s_(s),
        x_(x),
        dx_(dx),
        mixtures_(s, mean, variance),
        moments_(s),
        weights_(s.heads * s.components * 2 * s.dim),
        room_(block_rows * (s.components + 4 * s.dim)) {
    parallel_tasks(s.heads, [&](int64_t head) { prepare_weights(head); });
  }

  /// write_ds(row, head, ds) writes the gradients of one row's scores.
  template <class WriteDs>
  void to_rows(const WriteDs& write_ds) {
    for_each_block(s_, [&](int64_t block, const RowRange& rows) {
      Tiles<T> tiles(room_.mine());
      const Rows<T> ds = tiles.matrix(block_rows, s_.components);
      moments_.clear(block, rows.head);
      const Moments<T> moments = moments_.of(block, rows.head);
      for (int64_t r = 0; r < rows.size(); ++r) {
        write_ds(rows.begin + r, rows.head, ds[r]);
        add_scaled(s_.components, T(1), ds[r], moments.weight);
      }
      block_backward(rows, ds, moments, tiles);
    });
  }

  /// dlog_prior may be null.
  void to_parameters(T* dmean, T* dvariance, T* dlog_prior) {
    parallel_tasks(s_.heads, [&](int64_t head) {
      const Mixture<T> mixture = mixtures_.of(head);
      const Moments<T> total = moments_.total(head);
      for (int64_t k = 0; k < s_.components; ++k) {
        const int64_t component = head * s_.components + k;
        const T weight = total.weight[k];
        const T *about_first = total.distances[k], *about_second = about_first + s_.dim;
        if (dlog_prior != nullptr) dlog_prior[component] = weight;
        for (int64_t m = 0; m < s_.dim; ++m) {
          const T offset = mixture.narrow[k] ? 0 : mixture.mean[k][m] - mixture.centre[m];
          const T first = about_first[m] - offset * weight;                      // of ds (x - mean)
          const T second = about_second[m] - offset * (about_first[m] + first);  // of ds (x - mean)^2
          const T precision = 1 / mixture.variance[k][m];
          dmean[component * s_.dim + m] = precision * first;
          dvariance[component * s_.dim + m] = precision * (precision * second - weight) / 2;
        }
      }
    });
  }

 private:
  /// [K, 2 dr]: half precisions, and these times mean - c.
  Rows<T> weights(int64_t head) { return {weights_.data() + head * s_.components * 2 * s_.dim, 2 * s_.dim}; }
  void prepare_weights(int64_t head) {
    const Mixture<T> mixture = mixtures_.of(head);
    for (int64_t k = 0; k < s_.components; ++k) {
      const T *scale = mixture.scale[k], *shift = mixture.shift[k];
      T *half_precision = weights(head)[k], *pull = half_precision + s_.dim;
      for (int64_t m = 0; m < s_.dim; ++m) {
        half_precision[m] = scale[m] * scale[m];
        pull[m] = scale[m] * shift[m];
      }
    }
  }

  /// dx and the moments of a block. With p = 1 / (2 variance) and both factors about the centre, dx_m =
  /// 2 (sum over k of ds_k p_km mean_km - x_m sum over k of ds_k p_km). ds is zero afterwards for narrow
  /// components.
  void block_backward(const RowRange& rows, Rows<T> ds, const Moments<T>& moments, Tiles<T>& tiles) {
    const Mixture<T> mixture = mixtures_.of(rows.head);
    const Rows<const T> x = rows_of(s_, rows, x_, s_.dim);
    const Rows<T> dx = rows_of(s_, rows, dx_, s_.dim);
    const Rows<T> powers = tiles.matrix(block_rows, 2 * s_.dim);  // x - c and its square
    const Rows<T> sums = tiles.matrix(block_rows, 2 * s_.dim);    // of ds times the weights
    for (int64_t r = 0; r < rows.size(); ++r) {
      std::fill_n(sums[r], 2 * s_.dim, T(0));
      const T* point = x[r];
      T *distance = powers[r], *square = powers[r] + s_.dim;
#pragma omp simd
      for (int64_t m = 0; m < s_.dim; ++m) {
        distance[m] = point[m] - mixture.centre[m];
        square[m] = distance[m] * distance[m];
      }
    }
    for (int64_t k = 0; k < s_.components; ++k) {
      if (mixture.narrow[k]) narrow_backward(mixture, k, rows.size(), x, ds, moments.distances[k], sums);
    }
    multiply<T>(rows.size(), 2 * s_.dim, s_.components, 1, ds, weights(rows.head), 1, sums);
    multiply_at<T>(s_.components, 2 * s_.dim, rows.size(), 1, ds, powers, 1, moments.distances);
    for (int64_t r = 0; r < rows.size(); ++r) {
      const T *distance = powers[r], *precision = sums[r], *pull = sums[r] + s_.dim;
      T* slope = dx[r];
#pragma omp simd
      for (int64_t m = 0; m < s_.dim; ++m) slope[m] = 2 * (pull[m] - distance[m] * precision[m]);
    }
  }

  /// A narrow component's part in the moments and in the second half of the sums; takes it out of ds.
  void narrow_backward(const Mixture<T>& mixture, int64_t k, int64_t rows, Rows<const T> x, Rows<T> ds,
                       T* distances, Rows<T> sums) const {
    const T *mean = mixture.mean[k], *variance = mixture.variance[k];
    for (int64_t r = 0; r < rows; ++r) {
      const T* point = x[r];
      T* pull = sums[r] + s_.dim;
      for (int64_t m = 0; m < s_.dim; ++m) {
        const T distance = point[m] - mean[m];
        const T weighted = ds[r][k] * distance;
        distances[m] += weighted;
        distances[s_.dim + m] += weighted * distance;
        pull[m] -= T(0.5) / variance[m] * weighted;
      }
      ds[r][k] = 0;
    }
  }

  const GmmShape& s_;
  const T* x_;
  T* dx_;
  Mixtures<T> mixtures_;
  BlockMoments<T> moments_;
  Scratch<T> weights_;
  ThreadRoom<T> room_;
};

}  // namespace

template <class T>
void gmm_log_density_forward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, T* score) {
  Scratch<T> room(Panels<T>::size(s));
  fill_panels<T>(s, mean, variance, nullptr, {s, room.data()});
  scores_forward<T>(s, x, mean, variance, {s, room.data()}, score, [](T*) {});
}

template <class T>
void gmm_log_density_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance, const T* dscore,
                              T* dx, T* dmean, T* dvariance) {
  ScoresBackward<T> pass(s, x, mean, variance, dx);
  pass.to_rows([=](int64_t row, int64_t head, T* ds) {
    std::copy_n(dscore + (row * s.heads + head) * s.components, s.components, ds);
  });
  pass.to_parameters(dmean, dvariance, nullptr);
}

template <class T>
int64_t gmm_prepared_size(Cpu, GmmShape s) {
  return Panels<T>::size(s);
}

template <class T>
void gmm_prepare(Cpu, GmmShape s, const T* mean, const T* variance, const T* log_prior, T* prepared) {
  fill_panels<T>(s, mean, variance, log_prior, {s, prepared});
}

template <class T>
void gmm_responsibilities_prepared(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                   const T* prepared, T* gamma) {
  scores_forward<T>(s, x, mean, variance, {s, prepared}, gamma,
                    [=](T* row) { softmax_row(s.components, row); });
}

template <class T>
void gmm_responsibilities_forward(Cpu cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma) {
  Scratch<T> prepared(gmm_prepared_size<T>(cpu, s));
  gmm_prepare(cpu, s, mean, variance, log_prior, prepared.data());
  gmm_responsibilities_prepared<T>(cpu, s, x, mean, variance, prepared.data(), gamma);
}

template <class T>
void gmm_responsibilities_backward(Cpu, GmmShape s, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior) {
  ScoresBackward<T> pass(s, x, mean, variance, dx);
  pass.to_rows([=](int64_t row, int64_t head, T* ds) {
    const int64_t offset = (row * s.heads + head) * s.components;
    softmax_row_backward(s.components, gamma + offset, dgamma + offset, ds);
  });
  pass.to_parameters(dmean, dvariance, dlog_prior);
}

#define INSTANTIATE(T)                                                                                       \
  template void gmm_log_density_forward<T>(Cpu, GmmShape, const T*, const T*, const T*, T*);                 \
  template void gmm_log_density_backward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*, T*, T*,   \
                                            T*);                                                             \
  template int64_t gmm_prepared_size<T>(Cpu, GmmShape);                                                      \
  template void gmm_prepare<T>(Cpu, GmmShape, const T*, const T*, const T*, T*);                             \
  template void gmm_responsibilities_prepared<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*, T*); \
  template void gmm_responsibilities_forward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*, T*);  \
  template void gmm_responsibilities_backward<T>(Cpu, GmmShape, const T*, const T*, const T*, const T*,      \
                                                 const T*, T*, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
