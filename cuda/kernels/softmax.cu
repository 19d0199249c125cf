// Softmax, its logarithm, log-sum-exp and cross entropy on a GPU.
//
// A block owns one row, a thread the columns threadIdx.x, threadIdx.x + blockDim.x, ... of it. A row is read
// once for its maximum and sum together: a thread whose maximum grows scales the sum that it has so far.
// Where the row is read again, for the result, it still is in the L2 cache (a row of 50257 floats has 200
// KB). Shared memory: that of the block_reduce, 64 to 512 bytes.
//
//   kernel                      bytes moved for each element     FLOPs for each element
//   softmax, log_softmax        2 sizeof(T)                      some 45: two exponentials
//   ..._backward                3 sizeof(T)                      4; 25 with an exponential
//   logsumexp, cross_entropy    1 sizeof(T)                      some 25
//   ..._backward, ..._in_place  2 sizeof(T)                      some 25; in place 50
#include "tensor/kernels/softmax.h"

#include <limits>

#include "cuda/device_code.h"
#include "cuda/kernels/rows.cuh"
#include "tensor/kernels/vector_math.h"

namespace mixgrad {

namespace {

/// Calls f(row) in all threads of a block for each row.
template <class F>
__global__ void row_kernel(F f) {
  f(int64_t{blockIdx.x});
}

template <class F>
void for_each_row(const Cuda& device, int64_t rows, int64_t columns, const F& f) {
  if (rows == 0) return;
  launch<row_kernel<F>>(device, {blocks_for(rows, 1), threads_for_row(columns)}, f);
}

/// x - maximum; 0 at the maximum, also where that is +inf.
template <class T>
__device__ T below(T x, T maximum) {
  return x == maximum ? T(0) : x - maximum;
}

/// What a row's probabilities are made of: exp(below(x, maximum)) / sum. In a row of -inf, maximum is finite,
/// so that every exp is 0 and the sum too.
template <class T>
struct RowSum {
  T maximum;
  T sum;

  __device__ T inverse() const { return sum == 0 ? T(0) : 1 / sum; }
  __device__ T log() const { return sum == 0 ? T(0) : std::log(sum); }
};

template <class T>
__device__ RowSum<T> sum_of_row(int64_t columns, const T* x) {
  constexpr T lowest = std::numeric_limits<T>::lowest();
  T maximum = lowest;
  T sum = 0;
  for_my_columns(columns, [&](int64_t j) {
    const T value = x[j];
    if (value > maximum) {
      sum *= vector_exp(maximum - value);
      maximum = value;
    }
    sum += vector_exp(below(value, maximum));
  });
  const T of_row = block_reduce<Maximum>(maximum, lowest);
  return {of_row, block_reduce<Sum>(sum * vector_exp(below(maximum, of_row)), T(0))};
}

/// y = factor exp(below(x, maximum))
template <class T>
__device__ void scaled_exp(int64_t columns, const T* x, T maximum, T factor, T* y) {
  for_my_columns(columns, [=](int64_t j) { y[j] = factor * vector_exp(below(x[j], maximum)); });
}

}  // namespace

template <class T>
void softmax_forward(Cuda device, int64_t rows, int64_t columns, const T* x, T* y) {
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const RowSum<T> total = sum_of_row(columns, x + row * columns);
    scaled_exp(columns, x + row * columns, total.maximum, total.inverse(), y + row * columns);
  });
}

template <class T>
void softmax_backward(Cuda device, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx) {
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const T* p = y + row * columns;
    const T* dp = dy + row * columns;
    T* out = dx + row * columns;
    const T mean = block_sum<T>(columns, [=](int64_t j) { return p[j] * dp[j]; });
    for_my_columns(columns, [=](int64_t j) { out[j] = p[j] * (dp[j] - mean); });
  });
}

template <class T>
void log_softmax_forward(Cuda device, int64_t rows, int64_t columns, const T* x, T* y) {
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    const RowSum<T> total = sum_of_row(columns, in);
    const T log_sum = total.log();
    for_my_columns(columns, [=](int64_t j) { out[j] = below(in[j], total.maximum) - log_sum; });
  });
}

template <class T>
void log_softmax_backward(Cuda device, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const T* log_p = y + row * columns;
    const T* dlog_p = dy + row * columns;
    T* out = dx + row * columns;
    const T total = block_sum<T>(columns, [=](int64_t j) { return log_p[j] == nothing ? T(0) : dlog_p[j]; });
    for_my_columns(columns, [=](int64_t j) {
      out[j] = log_p[j] == nothing ? T(0) : dlog_p[j] - vector_exp(log_p[j]) * total;
    });
  });
}

template <class T>
void logsumexp_forward(Cuda device, int64_t rows, int64_t columns, const T* x, T* y, T* maximum, T* sum) {
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const RowSum<T> total = sum_of_row(columns, x + row * columns);
    if (threadIdx.x != 0) return;
    maximum[row] = total.maximum;
    sum[row] = total.sum;
    y[row] = total.maximum + std::log(total.sum);  // log 0 = -inf in a row of -inf
  });
}

template <class T>
void logsumexp_backward(Cuda device, int64_t rows, int64_t columns, const T* x, const T* maximum,
                        const T* sum, const T* dy, T* dx) {
  for_each_row(device, rows, columns, [=] __device__(int64_t row) {
    const RowSum<T> total{maximum[row], sum[row]};
    scaled_exp(columns, x + row * columns, total.maximum, dy[row] * total.inverse(), dx + row * columns);
  });
}

namespace {

/// One block: how many rows are ignored, and how many there are from the first invalid one on. A measurement
/// of memory, which launches nothing, finds zeros: that all rows count and are valid.
__global__ void survey_kernel(CrossEntropyShape shape, const int32_t* targets, int64_t* result) {
  int64_t ignored = 0;
  int64_t from_invalid = 0;
  for (int64_t row = threadIdx.x; row < shape.rows; row += blockDim.x) {
    const int32_t target = targets[row];
    if (target == shape.ignore_index)
      ++ignored;
    else if (target < 0 || target >= shape.vocabulary)
      from_invalid = max(from_invalid, shape.rows - row);
  }
  ignored = block_reduce<Sum>(ignored, int64_t{0});
  from_invalid = block_reduce<Maximum>(from_invalid, int64_t{0});
  if (threadIdx.x == 0) {
    result[0] = ignored;
    result[1] = from_invalid;
  }
}

}  // namespace

TargetSurvey survey_targets(Cuda device, CrossEntropyShape shape, const int32_t* targets) {
  Scratch<int64_t> result(2, device);
  launch<survey_kernel>(device, {1, threads_for_row(shape.rows)}, shape, targets, result.data());
  int64_t found[2];
  cuda::copy_to_host(device, found, result.data(), sizeof(found));
  return {.counted = shape.rows - found[0], .first_invalid = found[1] == 0 ? -1 : shape.rows - found[1]};
}

namespace {

/// One block: nats = the sum over all rows.
__global__ void add_nats(int64_t rows, const double* row_nats, double* nats) {
  const double sum = block_sum<double>(rows, [=](int64_t row) { return row_nats[row]; });
  if (threadIdx.x == 0) *nats = sum;
}

}  // namespace

template <class T>
void cross_entropy_forward(Cuda device, CrossEntropyShape shape, const T* logits, const int32_t* targets,
                           T* maximum, T* sum, double* nats) {
  Scratch<double> row_nats_scratch(shape.rows, device);
  double* row_nats = row_nats_scratch.data();
  for_each_row(device, shape.rows, shape.vocabulary, [=] __device__(int64_t row) {
    const T* x = logits + row * shape.vocabulary;
    const bool ignored = targets[row] == shape.ignore_index;
    const RowSum<T> total = ignored ? RowSum<T>{} : sum_of_row(shape.vocabulary, x);
    if (threadIdx.x != 0) return;
    maximum[row] = total.maximum;
    sum[row] = total.sum;
    row_nats[row] = ignored ? 0 : total.log() - below(x[targets[row]], total.maximum);
  });
  launch<add_nats>(device, {1, threads_for_row(shape.rows)}, shape.rows, row_nats, nats);
}

template <class T>
void cross_entropy_backward(Cuda device, CrossEntropyShape shape, int64_t counted, const T* logits,
                            const int32_t* targets, const T* maximum, const T* sum, const T* dloss,
                            T* dlogits) {
  for_each_row(device, shape.rows, shape.vocabulary, [=] __device__(int64_t row) {
    const T factor = *dloss / static_cast<T>(counted);
    const T* x = logits + row * shape.vocabulary;
    T* dx = dlogits + row * shape.vocabulary;
    const int32_t target = targets[row];
    const bool ignored = target == shape.ignore_index;
    const RowSum<T> total{maximum[row], sum[row]};
    const T scale = factor * total.inverse();
    for_my_columns(shape.vocabulary, [=](int64_t j) {
      const T probability = scale * vector_exp(below(x[j], total.maximum));
      dx[j] = ignored ? T(0) : j == target ? probability - factor : probability;
    });
  });
}

template <class T>
void cross_entropy_in_place(Cuda device, CrossEntropyShape shape, T factor, const int32_t* targets, T* logits,
                            double* nats) {
  for_each_row(device, shape.rows, shape.vocabulary, [=] __device__(int64_t row) {
    T* x = logits + row * shape.vocabulary;
    const int32_t target = targets[row];
    if (target == shape.ignore_index) {
      if (threadIdx.x == 0) nats[row] = 0;
      for_my_columns(shape.vocabulary, [=](int64_t j) { x[j] = 0; });
      return;
    }
    const RowSum<T> total = sum_of_row(shape.vocabulary, x);
    const T scale = factor * total.inverse();
    // The thread that changes the target's logit is the one that still needs it.
    for_my_columns(shape.vocabulary, [=](int64_t j) {
      const T logit = below(x[j], total.maximum);
      if (j == target) nats[row] = total.log() - logit;
      const T probability = scale * vector_exp(logit);
      x[j] = j == target ? probability - factor : probability;
    });
  });
}

#define INSTANTIATE(T)                                                                                     \
  template void softmax_forward<T>(Cuda, int64_t, int64_t, const T*, T*);                                  \
  template void softmax_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, T*);                       \
  template void log_softmax_forward<T>(Cuda, int64_t, int64_t, const T*, T*);                              \
  template void log_softmax_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, T*);                   \
  template void logsumexp_forward<T>(Cuda, int64_t, int64_t, const T*, T*, T*, T*);                        \
  template void logsumexp_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, const T*, const T*, T*); \
  template void cross_entropy_forward<T>(Cuda, CrossEntropyShape, const T*, const int32_t*, T*, T*,        \
                                         double*);                                                         \
  template void cross_entropy_backward<T>(Cuda, CrossEntropyShape, int64_t, const T*, const int32_t*,      \
                                          const T*, const T*, const T*, T*);                               \
  template void cross_entropy_in_place<T>(Cuda, CrossEntropyShape, T, const int32_t*, T*, double*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
