// The gates of the recurrence: what a chunk's log decays do to its Gram matrices, rows and states, and their
// gradients.
//
// No exponent above 0 is formed, and no gradient is a difference of large sums: the usual reverse sum of q .
// dq - k . dk is the same in exact arithmetic but cancels in float, completely where the gates are strong.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tensor/allocator.h"
#include "tensor/cpu/tiles.h"
#include "tensor/kernels/recurrence.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

/// b of one head in a chunk, [C, channels]: the sums of the log decays up to and including each token.
struct ChunkDecay {
  const double* b = nullptr;  // null: no gate
  int64_t length = 0;         // C
  int64_t channels = 1;       // one number a token, or, unless it is 1, one for each of the dk key channels

  bool gated() const { return b != nullptr; }
  bool by_channel() const { return channels > 1; }
  const double* operator[](int64_t i) const { return b + i * channels; }
  /// e^{b_C}: what the whole chunk leaves.
  double whole(int64_t channel) const {
    return gated() && length > 0 ? std::exp((*this)[length - 1][channel]) : 1;
  }
};

/// b of every chunk. In double: differences of large sums become exponents.
class CumulativeDecay {
 public:
  /// log_decay [B, T, H, channels]; null: no gate.
  template <class T>
  CumulativeDecay(const RecurrenceShape& s, const ChunkPlan& plan, const T* log_decay)
      : s_(s),
        gated_(log_decay != nullptr),
        sums_(gated_ ? s.batch * s.heads * s.keys * s.gate_channels : 0) {
    if (!gated_) return;
    parallel_tasks(static_cast<int64_t>(plan.chunks.size()) * s.heads, [&](int64_t task) {
      const Chunk& chunk = plan.chunks[task / s.heads];
      const int64_t head = task % s.heads, channels = s.gate_channels;
      double* b = at(chunk, head);
      for (int64_t i = 0; i < chunk.length; ++i) {
        const T* g = log_decay + ((chunk.row * s.keys + chunk.start + i) * s.heads + head) * channels;
        for (int64_t m = 0; m < channels; ++m) {
          const double before = i == 0 ? 0 : b[(i - 1) * channels + m];
          b[i * channels + m] = before + std::max(static_cast<double>(g[m]), least_log_decay);
        }
      }
    });
  }

  ChunkDecay of(const Chunk& chunk, int64_t head) {
    return {gated_ ? at(chunk, head) : nullptr, chunk.length, s_.gate_channels};
  }

 private:
  double* at(const Chunk& chunk, int64_t head) {
    return sums_.data() + ((head * s_.batch + chunk.row) * s_.keys + chunk.start) * s_.gate_channels;
  }

  RecurrenceShape s_;
  bool gated_;
  Scratch<double> sums_;
};

/// y_i = e^{b_i - b_reference} x_i for rows that come after the reference row: `first` and the following of
/// the chunk. A reference of -1 is the chunk's start. x and y [rows, dim] may be the same.
template <class T>
void decay_since(const ChunkDecay& d, int64_t reference, int64_t first, int64_t rows, int64_t dim,
                 Rows<const T> x, Rows<T> y) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = x[i];
    T* to = y[i];
    if (d.by_channel()) {
      const double* b = d[first + i];
      const double* b_reference = reference < 0 ? nullptr : d[reference];
      for (int64_t m = 0; m < dim; ++m) {
        to[m] = vector_exp(static_cast<T>(b[m] - (b_reference == nullptr ? 0 : b_reference[m]))) * from[m];
      }
    } else {
      const double b_reference = reference < 0 ? 0 : *d[reference];
      const T left = d.gated() ? vector_exp(static_cast<T>(*d[first + i] - b_reference)) : T(1);
      for (int64_t m = 0; m < dim; ++m) to[m] = left * from[m];
    }
  }
}

/// y_i = e^{b_reference - b_i} x_i for the chunk's first rows, none of which comes after the reference row.
template <class T>
void decay_until(const ChunkDecay& d, int64_t reference, int64_t rows, int64_t dim, Rows<const T> x,
                 Rows<T> y) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = x[i];
    T* to = y[i];
    if (d.by_channel()) {
      const double *b = d[i], *b_reference = d[reference];
      for (int64_t m = 0; m < dim; ++m) to[m] = vector_exp(static_cast<T>(b_reference[m] - b[m])) * from[m];
    } else {
      const T left = d.gated() ? vector_exp(static_cast<T>(*d[reference] - *d[i])) : T(1);
      for (int64_t m = 0; m < dim; ++m) to[m] = left * from[m];
    }
  }
}

/// matrix_ij *= e^{b_i - b_j} in the lower triangle, for one number a token. For rows i of a block and j
/// before it, that is e^{b_i - b_r} e^{b_r - b_j} with r the block's first row. until: room for [C].
template <class T>
void decay_lower(const ChunkDecay& d, Rows<T> matrix, T* until) {
  for_row_blocks(d.length, [&](int64_t begin, int64_t end) {
    for (int64_t j = 0; j < begin; ++j) until[j] = vector_exp(static_cast<T>(*d[begin] - d.b[j]));
    for (int64_t i = begin; i < end; ++i) {
      T* row = matrix[i];
      const double b_i = *d[i];
      const T since = vector_exp(static_cast<T>(b_i - *d[begin]));
      for (int64_t j = 0; j < begin; ++j) row[j] *= since * until[j];
      for (int64_t j = begin; j < end; ++j) {
        const T left = vector_exp(static_cast<T>(std::min(b_i - d.b[j], 0.0)));
        row[j] = j <= i ? left * row[j] : row[j];
      }
    }
  });
}

/// Of different rows of a block.
constexpr int64_t pairs_in_block = row_block * (row_block - 1) / 2;

/// Numbers of room that the functions of Gram matrices below need.
inline int64_t gram_room(int64_t length, int64_t dim, int64_t channels) {
  return channels > 1 ? (3 * length + 2 * row_block + pairs_in_block + 1) * dim : length;
}

// With a gate for each channel, e^{b_i - b_j} is inside the product of row i and row j. For rows i of a block
// and j before it, it is e^{b_i - b_r} e^{b_r - b_j} with r the block's first row, so that a product of two
// decayed matrices remains. Both exponents are at most 0. Pairs within a block are taken one by one.

/// z = x y, element by element.
template <class T>
void multiply_elements(int64_t n, const T* x, const T* y, T* z) {
#pragma omp simd
  for (int64_t m = 0; m < n; ++m) z[m] = x[m] * y[m];
}

/// y_m = e^{b_i[m] - b_j[m]}, j <= i
template <class T>
void decay_row(const ChunkDecay& d, int64_t i, int64_t j, T* y) {
  const double *b_i = d[i], *b_j = d[j];
#pragma omp simd
  for (int64_t m = 0; m < d.channels; ++m) y[m] = vector_exp(static_cast<T>(b_i[m] - b_j[m]));
}

/// The decays of all pairs of rows that a block has a part in, each an exponential or the product of two.
template <class T>
class BlockDecays {
 public:
  BlockDecays(int64_t begin, int64_t end, const ChunkDecay& d, Tiles<T>& tiles)
      : begin_(begin),
        end_(end),
        channels_(d.channels),
        pairs_(tiles.matrix(pairs_in_block, channels_)),
        until_(tiles.matrix(begin, channels_)) {
    for (int64_t j = 0; j < begin; ++j) decay_row(d, begin, j, until_[j]);
    for (int64_t i = begin + 1; i < end; ++i) {
      const int64_t middle = i - (i - begin) % few;
      for (int64_t j = i - 1; j >= begin; --j) {
        if (j < middle && middle < i) {
          multiply_elements(channels_, pair(i, middle), pair(middle, j), pair(i, j));
        } else {
          decay_row(d, i, j, pair(i, j));
        }
      }
    }
  }

  /// e^{b_i - b_j} for j < i, both of the block.
  T* pair(int64_t i, int64_t j) const { return pairs_[(i - begin_) * (i - begin_ - 1) / 2 + j - begin_]; }
  /// y_i = e^{b_i - b_begin} x_i for the rows of the block; x and y begin with them.
  void since(Rows<const T> x, Rows<T> y) const {
    std::copy_n(x[0], channels_, y[0]);
    for (int64_t i = begin_ + 1; i < end_; ++i) {
      multiply_elements(channels_, x[i - begin_], pair(i, begin_), y[i - begin_]);
    }
  }
  /// y_j = e^{b_begin - b_j} x_j for the rows before the block.
  void until(Rows<const T> x, Rows<T> y) const {
    for (int64_t j = 0; j < begin_; ++j) multiply_elements(channels_, x[j], until_[j], y[j]);
  }

 private:
  static constexpr int64_t few = 4;  // rows of which all pairs are exponentials

  int64_t begin_, end_, channels_;
  Rows<T> pairs_, until_;
};

/// y = x^T in double; x [rows, columns]. A few rows at a time, so that each cache line of y is written at
/// once.
inline void transpose_to_double(int64_t rows, int64_t columns, Rows<const float> x, Rows<double> y) {
  constexpr int64_t few = 8;
  for (int64_t begin = 0; begin < rows; begin += few) {
    const int64_t end = std::min(begin + few, rows);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = begin; i < end; ++i) y[j][i] = x[i][j];
    }
  }
}

/// c = scale a b^T, summed in double, of transposed operands: of small ones that product is the fastest.
/// room: [m n + (m + n) k]
inline void multiply_bt_in_double(int64_t m, int64_t n, int64_t k, float scale, Rows<const float> a,
                                  Rows<const float> b, Rows<float> c, double* room) {
  Tiles<double> tiles(room);
  const Rows<double> left = tiles.matrix(k, m), right = tiles.matrix(k, n), product = tiles.matrix(m, n);
  transpose_to_double(m, k, a, left);
  transpose_to_double(n, k, b, right);
  multiply_at<double>(m, n, k, scale, left, right, 0, product);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c[i][j] = static_cast<float>(product[i][j]);
  }
}

/// The lower triangle of x x^T, summed in double; x [C, dim]. room: [C (dim + row_block)]
inline void lower_gram_in_double(int64_t length, int64_t dim, Rows<const float> x, Rows<float> gram,
                                 double* room) {
  Tiles<double> tiles(room);
  const Rows<double> transposed = tiles.matrix(dim, length), product = tiles.matrix(row_block, length);
  transpose_to_double(length, dim, x, transposed);
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply_at<double>(end - begin, end, dim, 1, transposed.from(0, begin), transposed, 0, product);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j <= i; ++j) gram[i][j] = static_cast<float>(product[i - begin][j]);
    }
  });
}

/// The decayed Gram matrix where each channel has its gate, summed in Sum. sum_room: where Sum is not T,
/// [C C + C dim].
template <class Sum, class T>
void channel_gram(int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const ChunkDecay& d, Rows<T> gram,
                  T* room, Sum* sum_room) {
  for_row_blocks(d.length, [&](int64_t begin, int64_t end) {
    Tiles<T> tiles(room);
    const BlockDecays<T> decays(begin, end, d, tiles);
    const Rows<T> block_q = tiles.matrix(end - begin, dim), block_k = tiles.matrix(begin, dim);
    decays.since(q.from(begin), block_q);
    decays.until(k, block_k);
    if constexpr (std::is_same_v<Sum, T>) {
      multiply_bt<T>(end - begin, begin, dim, scale, block_q, block_k, 0, gram.from(begin));
    } else {
      multiply_bt_in_double(end - begin, begin, dim, scale, block_q, block_k, gram.from(begin), sum_room);
    }
    for (int64_t i = begin; i < end; ++i) {
      const T* q_i = q[i];
      for (int64_t j = begin; j < i; ++j) {
        const T *k_j = k[j], *decay = decays.pair(i, j);
        gram[i][j] = static_cast<T>(
            scale * row_sum<Sum>(dim, [=](int64_t m) { return Sum{q_i[m]} * Sum{k_j[m]} * Sum{decay[m]}; }));
      }
      const T* k_i = k[i];
      gram[i][i] =
          static_cast<T>(scale * row_sum<Sum>(dim, [=](int64_t m) { return Sum{q_i[m]} * Sum{k_i[m]}; }));
      std::fill(gram[i] + i + 1, gram[i] + end, T(0));
    }
  });
}

/// The decayed Gram matrix A_ij = scale q_i . k_j e^{b_i - b_j} for j <= i.
template <class T>
void decayed_gram(int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const ChunkDecay& d, Rows<T> gram,
                  T* room) {
  if (d.by_channel()) return channel_gram<T>(dim, scale, q, k, d, gram, room, room);
  lower_product<T>(d.length, dim, scale, q, k, 0, gram);
  if (d.gated()) decay_lower(d, gram, room);
}

/// terms_i = the product of row i of x and y, for each channel where each has its gate; [rows, channels].
template <class T>
void gate_terms(int64_t rows, int64_t dim, int64_t channels, Rows<const T> x, Rows<const T> y,
                Rows<T> terms) {
  for (int64_t i = 0; i < rows; ++i) {
    if (channels == 1) {
      *terms[i] = dot<T>(dim, x[i], y[i]);
    } else {
      for (int64_t m = 0; m < dim; ++m) terms[i][m] = x[i][m] * y[i][m];
    }
  }
}

/// dlog_decay_t += the sum of terms_i over i >= t, for exponents b_i; [rows, channels]. Overwrites terms.
template <class T>
void add_later_terms(int64_t rows, int64_t channels, Rows<T> terms, Rows<T> dlog_decay) {
  for (int64_t t = rows - 1; t >= 0; --t) {
    if (t < rows - 1) add_scaled<T>(channels, 1, terms[t + 1], terms[t]);
    add_scaled<T>(channels, 1, terms[t], dlog_decay[t]);
  }
}

/// dlog_decay_t += sum + the sum of terms_j over j < t, for exponents b_C - b_j. Overwrites sum [channels].
template <class T>
void add_earlier_terms(int64_t rows, int64_t channels, Rows<const T> terms, T* sum, Rows<T> dlog_decay) {
  for (int64_t t = 0; t < rows; ++t) {
    add_scaled<T>(channels, 1, sum, dlog_decay[t]);
    add_scaled<T>(channels, 1, terms[t], sum);
  }
}

/// log_decay_t is part of every exponent b_i - b_j with j < t <= i, so to dlog_decay_t is added the sum of
/// gram_ij dgram_ij over those pairs, C^2 terms for all t together. Goes through whole blocks, for the sake
/// of vector instructions; what a column has from above the diagonal is in no sum. column: room for C
/// numbers.
template <class T>
void gate_pairs(int64_t length, Rows<const T> gram, Rows<const T> dgram, T* column, Rows<T> dlog_decay) {
  std::fill_n(column, length, T(0));
  for (int64_t t = length - 1; t >= 0; --t) {
    const T* a = gram[t];
    const T* da = dgram[t];
    const int64_t end = row_block_end(t, length);
#pragma omp simd
    for (int64_t j = 0; j < end; ++j) column[j] += j < t ? a[j] * da[j] : 0;
    *dlog_decay[t] += row_sum<T>(end, [=](int64_t j) { return j < t ? column[j] : 0; });
  }
}

/// What the pairs of a block of rows and all rows before it add to dq, dk and dlog_decay: t of the block lies
/// between a pair when i >= t, t before the block when j < t.
template <class T>
void channel_block_backward(int64_t begin, int64_t end, int64_t dim, T scale, Rows<const T> q,
                            Rows<const T> k, const BlockDecays<T>& decays, Rows<const T> dgram, Rows<T> dq,
                            Rows<T> dk, Rows<T> dlog_decay, Tiles<T> tiles) {
  const int64_t rows = end - begin;
  const Rows<T> block_q = tiles.matrix(rows, dim), block_k = tiles.matrix(begin, dim);
  decays.since(q.from(begin), block_q);
  decays.until(k, block_k);
  const Rows<T> tile = tiles.matrix(std::max(rows, begin), dim);
  multiply<T>(rows, dim, begin, scale, dgram.from(begin), block_k, 0, tile);
  decays.since(tile, tile);
  for (int64_t i = 0; i < rows; ++i) add_scaled<T>(dim, 1, tile[i], dq[begin + i]);
  gate_terms<T>(rows, dim, dim, q.from(begin), tile, tile);
  add_later_terms<T>(rows, dim, tile, dlog_decay.from(begin));

  multiply_at<T>(begin, dim, rows, scale, dgram.from(begin), block_q, 0, tile);
  decays.until(tile, tile);
  for (int64_t j = 0; j < begin; ++j) add_scaled<T>(dim, 1, tile[j], dk[j]);
  gate_terms<T>(begin, dim, dim, k, tile, tile);
  T* sum = tiles.vector(dim);
  std::fill_n(sum, dim, T(0));
  add_earlier_terms<T>(begin, dim, tile, sum, dlog_decay);
}

/// The same for the pairs within a block.
template <class T>
void channel_diagonal_backward(int64_t begin, int64_t end, int64_t dim, T scale, Rows<const T> q,
                               Rows<const T> k, const BlockDecays<T>& decays, Rows<const T> dgram, Rows<T> dq,
                               Rows<T> dk, Rows<T> dlog_decay, Tiles<T> tiles) {
  const Rows<T> columns = tiles.matrix(end - begin, dim);
  std::fill_n(columns.data, (end - begin) * dim, T(0));
  for (int64_t i = end - 1; i >= begin; --i) {
    const T own = scale * dgram[i][i];
    add_scaled(dim, own, k[i], dq[i]);
    add_scaled(dim, own, q[i], dk[i]);
    for (int64_t j = begin; j < i; ++j) {
      const T *q_i = q[i], *k_j = k[j], *decay = decays.pair(i, j);
      T *dq_i = dq[i], *dk_j = dk[j], *column = columns[j - begin], *dg = dlog_decay[i];
      const T dproduct = scale * dgram[i][j];
#pragma omp simd
      for (int64_t m = 0; m < dim; ++m) {
        const T weight = dproduct * decay[m];
        dq_i[m] += weight * k_j[m];
        dk_j[m] += weight * q_i[m];
        column[m] += weight * q_i[m] * k_j[m];  // of all pairs of j and rows from i on
        dg[m] += column[m];
      }
    }
  }
}

template <class T>
void channel_gram_backward(int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const ChunkDecay& d,
                           Rows<const T> dgram, T keep, Rows<T> dq, Rows<T> dk, Rows<T> dlog_decay, T* room) {
  for (int64_t i = 0; i < d.length && keep == 0; ++i) {
    std::fill_n(dq[i], dim, T(0));
    std::fill_n(dk[i], dim, T(0));
  }
  for_row_blocks(d.length, [&](int64_t begin, int64_t end) {
    Tiles<T> tiles(room);
    const BlockDecays<T> decays(begin, end, d, tiles);
    channel_block_backward(begin, end, dim, scale, q, k, decays, dgram, dq, dk, dlog_decay, tiles);
    channel_diagonal_backward(begin, end, dim, scale, q, k, decays, dgram, dq, dk, dlog_decay, tiles);
  });
}

/// From the gradient of the decayed Gram matrix, which is overwritten, to those of q and k, with dq and dk
/// multiplied by `keep`, 0 or 1, first, and, where there is a gate, of the log decays [C, channels], which is
/// added.
template <class T>
void decayed_gram_backward(int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const ChunkDecay& d,
                           Rows<const T> gram, Rows<T> dgram, T keep, Rows<T> dq, Rows<T> dk,
                           Rows<T> dlog_decay, T* room) {
  if (d.by_channel()) {
    return channel_gram_backward<T>(dim, scale, q, k, d, dgram, keep, dq, dk, dlog_decay, room);
  }
  if (d.gated()) {
    gate_pairs<T>(d.length, gram, dgram, room, dlog_decay);
    decay_lower(d, dgram, room);
  }
  lower_times<T>(d.length, dim, scale, dgram, k, keep, dq);
  lower_transposed_times<T>(d.length, dim, scale, dgram, q, keep, dk);
}

}  // namespace mixgrad
