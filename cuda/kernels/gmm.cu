// Gaussian mixtures on a GPU: scores, their softmax, and the gradients of both.
//
// For each head
//   score[n, k] = constant[k] - sum over m of (x[n, m] - mean[m, k])^2 half_precision[m, k]
//   dx[n, m]    = -2 sum over k of ds[n, k] (x[n, m] - mean[m, k]) half_precision[m, k]
// and, with d = x[n, m] - mean[m, k],
//   weight[k], first[m, k], second[m, k] = sum over n of ds[n, k] (1, d, d^2)
//   dmean = precision first, dvariance = precision (precision second - weight) / 2, dlog_prior = weight
//
// A small kernel first writes mean and half_precision = 1 / (2 variance) with the components innermost. Then
// a block owns one head and a stretch of rows, of which a warp has four at a time. Forward, a lane owns the
// components lane, lane + 32, ...: what it loads of the mixture serves four rows, and the scores stay in
// shared memory until they are normalised. Backward, after a barrier, the threads share out the entries of
// dx, then the entries of the moments, which each thread adds to in shared memory; a last kernel adds up the
// at most 64 moments of a head.
//
//   kernel             shared memory, in numbers        numbers moved, N H times    FLOPs, N H K times
//   forward_kernel     (2 dr + 1) K + 32 (dr + K)       dr + K                      4 dr + 25
//   backward_kernel    2 (2 dr + 1) K + 32 (dr + K)     2 dr + 2 K                  10 dr + 4
//
// With dr = 16 and K = 64 in float these are 18 and 27 KB. Where that is more than a block should have, the
// moments, and then the mixture, stay in global memory and its caches.
#include "tensor/kernels/gmm.h"

#include "cuda/device_code.h"
#include "cuda/kernels/block.cuh"
#include "tensor/allocator.h"
#include "tensor/kernels/vector_math.h"

namespace mixgrad {

namespace {

constexpr int rows_of_warp = 4;

/// Numbers in one head's mixture, and in one block's moments.
__host__ __device__ int64_t table_size(const GmmShape& s) { return (2 * s.dim + 1) * s.components; }

/// What a block holds in shared memory, in this order: rows and scores of its warps, moments, mixture.
struct Layout {
  int warps = 0;
  bool moments = false;
  bool mixture = false;
  int64_t numbers = 0;
  int64_t rows_of_block = 0;

  __host__ __device__ int rows() const { return warps * rows_of_warp; }
};

Layout layout_of(const GmmShape& s, bool with_moments, int64_t number_bytes) {
  constexpr int64_t good_bytes = 96 * 1024;  // two blocks a multiprocessor
  constexpr int64_t most_bytes = 160 * 1024;
  constexpr int most_warps = 8;
  const int64_t of_warp = rows_of_warp * (s.dim + s.components);
  check(of_warp * number_bytes <= most_bytes, "[gmm] ", s.components, " components of ", s.dim,
        " dimensions are too many for a GPU: ", of_warp * number_bytes,
        " bytes of shared memory a warp; allowed: ", most_bytes);
  Layout layout;
  layout.warps = static_cast<int>(std::clamp<int64_t>(good_bytes / (of_warp * number_bytes), 1, most_warps));
  layout.numbers = layout.warps * of_warp;
  const auto add_if_it_fits = [&](bool wanted) {
    const bool fits = wanted && (layout.numbers + table_size(s)) * number_bytes <= good_bytes;
    if (fits) layout.numbers += table_size(s);
    return fits;
  };
  layout.moments = add_if_it_fits(with_moments);
  layout.mixture = add_if_it_fits(true);
  const int64_t least_rows = std::max<int64_t>(128, (s.rows + 63) / 64);
  layout.rows_of_block = (least_rows + layout.rows() - 1) / layout.rows() * layout.rows();
  return layout;
}

/// table [H, 2 dr + 1, K]: means, half precisions, constants. log_prior may be null: no prior.
template <class T>
__global__ void tabulate(GmmShape s, const T* mean, const T* variance, const T* log_prior, T* table) {
  const int64_t component = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (component >= s.heads * s.components) return;
  T* entry = table + component / s.components * table_size(s) + component % s.components;
  T log_determinant = 0;
  for (int64_t m = 0; m < s.dim; ++m) {
    const T var = variance[component * s.dim + m];
    entry[m * s.components] = mean[component * s.dim + m];
    entry[(s.dim + m) * s.components] = T(0.5) / var;
    log_determinant += std::log(var);
  }
  const T log_2pi = static_cast<T>(1.8378770664093454836);
  entry[2 * s.dim * s.components] = (log_prior != nullptr ? log_prior[component] : T(0)) -
                                    (static_cast<T>(s.dim) * log_2pi + log_determinant) / 2;
}

/// One block's place in the work, and its pieces of shared memory.
template <class T>
struct Place {
  GmmShape s;
  int64_t head;
  int64_t begin, end;  // rows
  T* vectors;          // [layout.rows, dr]
  T* scores;           // [layout.rows, K]
  T* moments;          // weight [K], first [dr, K], second [dr, K]; null where they are not in shared memory
  const T* mean;       // [dr, K]
  const T* half_precision;
  const T* constant;  // [K]

  /// After it, a barrier must come before the mixture is read.
  __device__ Place(const GmmShape& shape, const Layout& layout, const T* table) : s(shape) {
    head = blockIdx.x % s.heads;
    begin = blockIdx.x / s.heads * layout.rows_of_block;
    end = min(s.rows, begin + layout.rows_of_block);
    vectors = dynamic_shared<T>();
    scores = vectors + layout.rows() * s.dim;
    T* next = scores + layout.rows() * s.components;
    moments = layout.moments ? next : nullptr;
    if (layout.moments) next += table_size(s);
    const T* of_head = table + head * table_size(s);
    if (layout.mixture) {
      for (int64_t i = threadIdx.x; i < table_size(s); i += blockDim.x) next[i] = of_head[i];
      of_head = next;
    }
    mean = of_head;
    half_precision = mean + s.dim * s.components;
    constant = half_precision + s.dim * s.components;
  }

  /// The numbers of row n of an array [N, H, size].
  template <class U>
  __device__ U* row_of(U* array, int64_t n, int64_t size) const {
    return array + (n * s.heads + head) * size;
  }
};

__device__ int64_t lane_index() { return threadIdx.x % 32; }
__device__ int64_t warp_index() { return threadIdx.x / 32; }

/// Copies x of the warp's rows from n on; beyond the last row, that one again.
template <class T>
__device__ void load_vectors(const Place<T>& place, int64_t n, const T* x) {
  const int64_t dim = place.s.dim;
  T* vectors = place.vectors + warp_index() * rows_of_warp * dim;
  for (int64_t i = lane_index(); i < rows_of_warp * dim; i += 32) {
    vectors[i] = place.row_of(x, min(n + i / dim, place.end - 1), dim)[i % dim];
  }
}

/// A row's softmax by one warp. Each lane reads and writes only the entries that are its own.
template <class T>
__device__ void softmax_row(int64_t components, const T* scores, T* gamma) {
  T peak = std::numeric_limits<T>::lowest();
  for (int64_t k = lane_index(); k < components; k += 32) peak = Maximum::join(peak, scores[k]);
  peak = warp_reduce<Maximum>(peak);
  T sum = 0;
  for (int64_t k = lane_index(); k < components; k += 32) sum += vector_exp(scores[k] - peak);
  const T factor = 1 / warp_reduce<Sum>(sum);
  for (int64_t k = lane_index(); k < components; k += 32) gamma[k] = factor * vector_exp(scores[k] - peak);
}

/// y [N, H, K]: the scores, or with `normalised` the responsibilities.
template <class T, bool normalised>
__global__ void forward_kernel(GmmShape s, Layout layout, const T* table, const T* x, T* y) {
  const Place<T> place(s, layout, table);
  __syncthreads();
  const int64_t first_of_warp = warp_index() * rows_of_warp;
  const T* vectors = place.vectors + first_of_warp * s.dim;
  T* scores = place.scores + first_of_warp * s.components;
  for (int64_t n = place.begin + first_of_warp; n < place.end; n += layout.rows()) {
    load_vectors(place, n, x);
    __syncwarp();
    for (int64_t k = lane_index(); k < s.components; k += 32) {
      T sum[rows_of_warp];
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r) sum[r] = place.constant[k];
      for (int64_t m = 0; m < s.dim; ++m) {
        const T mean = place.mean[m * s.components + k];
        const T half_precision = place.half_precision[m * s.components + k];
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
          const T distance = vectors[r * s.dim + m] - mean;
          sum[r] -= half_precision * distance * distance;
        }
      }
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r) scores[r * s.components + k] = sum[r];
    }
    for (int r = 0; r < rows_of_warp && n + r < place.end; ++r) {
      const T* row = scores + r * s.components;
      T* out = place.row_of(y, n + r, s.components);
      if (normalised) {
        softmax_row(s.components, row, out);
      } else {
        for (int64_t k = lane_index(); k < s.components; k += 32) out[k] = row[k];
      }
    }
    __syncwarp();  // the vectors are read by all lanes, and now replaced
  }
}

template <bool normalised, class T>
void forward(const Cuda& device, const GmmShape& s, const T* x, const T* mean, const T* variance,
             const T* log_prior, T* y) {
  if (s.rows * s.heads * s.components == 0) return;
  const Layout layout = layout_of(s, false, sizeof(T));
  Scratch<T> table(s.heads * table_size(s), device);
  launch<tabulate<T>>(device, {blocks_for(s.heads * s.components, 128), 128}, s, mean, variance, log_prior,
                      table.data());
  launch<forward_kernel<T, normalised>>(
      device,
      {blocks_for(s.rows, layout.rows_of_block) * static_cast<unsigned>(s.heads),
       static_cast<unsigned>(32 * layout.warps), layout.numbers * static_cast<int64_t>(sizeof(T))},
      s, layout, table.data(), x, y);
}

/// ds of the warp's rows from n on, 0 beyond the last: dscore itself, or, where gamma isn't null, what the
/// softmax makes of its gradient: gamma (dgamma - gamma . dgamma).
template <class T>
__device__ void load_score_gradients(const Place<T>& place, int64_t n, const T* gamma, const T* gradient) {
  const int64_t components = place.s.components;
  for (int r = 0; r < rows_of_warp; ++r) {
    T* ds = place.scores + (warp_index() * rows_of_warp + r) * components;
    const bool exists = n + r < place.end;
    const T* given = place.row_of(gradient, n + r, components);
    const T* probability = gamma == nullptr ? nullptr : place.row_of(gamma, n + r, components);
    T dot = 0;
    if (exists && probability != nullptr) {
      for (int64_t k = lane_index(); k < components; k += 32) dot += probability[k] * given[k];
    }
    dot = warp_reduce<Sum>(dot);
    for (int64_t k = lane_index(); k < components; k += 32) {
      ds[k] = !exists ? T(0) : probability != nullptr ? probability[k] * (given[k] - dot) : given[k];
    }
  }
}

/// dx of the block's rows from n on; threads share out the entries.
template <class T>
__device__ void vector_gradients(const Place<T>& place, const Layout& layout, int64_t n, T* dx) {
  const int64_t dim = place.s.dim;
  const int64_t components = place.s.components;
  for (int64_t i = threadIdx.x; i < layout.rows() * dim; i += blockDim.x) {
    const int64_t row = i / dim;
    const int64_t m = i % dim;
    if (n + row >= place.end) break;
    const T* ds = place.scores + row * components;
    const T x = place.vectors[i];
    T sum = 0;
    // Threads of neighbouring m start at neighbouring k, so that they do not wait for the same bank of
    // memory.
    int64_t k = m % components;
    for (int64_t step = 0; step < components; ++step) {
      sum += ds[k] * (x - place.mean[m * components + k]) * place.half_precision[m * components + k];
      if (++k == components) k = 0;
    }
    place.row_of(dx, n + row, dim)[m] = -2 * sum;
  }
}

/// Adds the rows that are in shared memory to the moments; each thread has its own entries of them.
template <class T>
__device__ void add_moments(const Place<T>& place, const Layout& layout, T* moments) {
  const int64_t dim = place.s.dim;
  const int64_t components = place.s.components;
  for (int64_t i = threadIdx.x; i < (dim + 1) * components; i += blockDim.x) {
    const int64_t k = i % components;
    const T* ds = place.scores + k;
    T first = 0;
    T second = 0;
    if (i < components) {
      for (int row = 0; row < layout.rows(); ++row) first += ds[row * components];
    } else {
      const int64_t m = i / components - 1;
      const T mean = place.mean[m * components + k];
      for (int row = 0; row < layout.rows(); ++row) {
        const T distance = place.vectors[row * dim + m] - mean;
        const T weighted = ds[row * components] * distance;
        first += weighted;
        second += weighted * distance;
      }
      moments[i + dim * components] += second;
    }
    moments[i] += first;
  }
}

/// partial [blocks, H, 2 dr + 1, K] gets the moments of each block's rows.
template <class T>
__global__ void backward_kernel(GmmShape s, Layout layout, const T* table, const T* x, const T* gamma,
                                const T* gradient, T* dx, T* partial) {
  const Place<T> place(s, layout, table);
  T* of_block = partial + int64_t{blockIdx.x} * table_size(s);
  T* moments = place.moments != nullptr ? place.moments : of_block;
  // Entry i of the moments, and of those of its second part, always belongs to the same thread.
  const int64_t half = s.dim * s.components;
  for (int64_t i = threadIdx.x; i < half + s.components; i += blockDim.x) {
    moments[i] = 0;
    if (i >= s.components) moments[i + half] = 0;
  }
  for (int64_t n = place.begin; n < place.end; n += layout.rows()) {
    const int64_t of_warp = n + warp_index() * rows_of_warp;
    load_vectors(place, of_warp, x);
    load_score_gradients(place, of_warp, gamma, gradient);
    __syncthreads();
    vector_gradients(place, layout, n, dx);
    add_moments(place, layout, moments);
    __syncthreads();  // the next rows take the place of these
  }
  if (place.moments == nullptr) return;
  for (int64_t i = threadIdx.x; i < half + s.components; i += blockDim.x) {
    of_block[i] = moments[i];
    if (i >= s.components) of_block[i + half] = moments[i + half];
  }
}

/// From the moments of all blocks to the gradients of the parameters; a thread has one mean.
template <class T>
__global__ void parameter_gradients(GmmShape s, int64_t blocks, const T* partial, const T* variance, T* dmean,
                                    T* dvariance, T* dlog_prior) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;  // [H, K, dr]
  if (i >= s.heads * s.components * s.dim) return;
  const int64_t m = i % s.dim;
  const int64_t component = i / s.dim;
  const int64_t k = component % s.components;
  T weight = 0;
  T first = 0;
  T second = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const T* moments = partial + (block * s.heads + component / s.components) * table_size(s);
    weight += moments[k];
    first += moments[(1 + m) * s.components + k];
    second += moments[(1 + s.dim + m) * s.components + k];
  }
  const T precision = 1 / variance[i];
  dmean[i] = precision * first;
  dvariance[i] = precision * (precision * second - weight) / 2;
  if (dlog_prior != nullptr && m == 0) dlog_prior[component] = weight;
}

template <class T>
void backward(const Cuda& device, const GmmShape& s, const T* x, const T* mean, const T* variance,
              const T* gamma, const T* gradient, T* dx, T* dmean, T* dvariance, T* dlog_prior) {
  if (s.heads * s.components == 0) return;
  const Layout layout = layout_of(s, true, sizeof(T));
  const int64_t blocks = blocks_for(s.rows, layout.rows_of_block);
  Scratch<T> table(s.heads * table_size(s), device);
  Scratch<T> partial(blocks * s.heads * table_size(s), device);
  const T* no_prior = nullptr;
  launch<tabulate<T>>(device, {blocks_for(s.heads * s.components, 128), 128}, s, mean, variance, no_prior,
                      table.data());
  if (blocks > 0) {
    launch<backward_kernel<T>>(device,
                               {blocks_for(blocks * s.heads, 1), static_cast<unsigned>(32 * layout.warps),
                                layout.numbers * static_cast<int64_t>(sizeof(T))},
                               s, layout, table.data(), x, gamma, gradient, dx, partial.data());
  }
  launch<parameter_gradients<T>>(device, {blocks_for(s.heads * s.components * s.dim, 128), 128}, s, blocks,
                                 partial.data(), variance, dmean, dvariance, dlog_prior);
}

}  // namespace

template <class T>
void gmm_log_density_forward(Cuda device, GmmShape s, const T* x, const T* mean, const T* variance,
                             T* score) {
  forward<false, T>(device, s, x, mean, variance, nullptr, score);
}

template <class T>
void gmm_log_density_backward(Cuda device, GmmShape s, const T* x, const T* mean, const T* variance,
                              const T* dscore, T* dx, T* dmean, T* dvariance) {
  backward<T>(device, s, x, mean, variance, nullptr, dscore, dx, dmean, dvariance, nullptr);
}

template <class T>
void gmm_responsibilities_forward(Cuda device, GmmShape s, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma) {
  forward<true, T>(device, s, x, mean, variance, log_prior, gamma);
}

template <class T>
void gmm_responsibilities_backward(Cuda device, GmmShape s, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior) {
  backward<T>(device, s, x, mean, variance, gamma, dgamma, dx, dmean, dvariance, dlog_prior);
}

#define INSTANTIATE(T)                                                                                       \
  template void gmm_log_density_forward<T>(Cuda, GmmShape, const T*, const T*, const T*, T*);                \
  template void gmm_log_density_backward<T>(Cuda, GmmShape, const T*, const T*, const T*, const T*, T*, T*,  \
                                            T*);                                                             \
  template void gmm_responsibilities_forward<T>(Cuda, GmmShape, const T*, const T*, const T*, const T*, T*); \
  template void gmm_responsibilities_backward<T>(Cuda, GmmShape, const T*, const T*, const T*, const T*,     \
                                                 const T*, T*, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
