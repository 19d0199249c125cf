// Softmax, its logarithm, log-sum-exp and cross entropy on the CPU: one thread a row.
#include "tensor/kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Calls body(row) for each row, blocks of rows in parallel.
template <class Body>
void for_each_row(int64_t rows, int64_t columns, const Body& body) {
  parallel_blocks(rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

/// x - maximum; 0 at the maximum, also where that is +inf.
template <class T>
T below(T x, T maximum) {
  return x == maximum ? T(0) : x - maximum;
}

/// What a row's probabilities are made of: exp(below(x, maximum)) / sum. In a row of -inf, row_maximum is
/// finite, so that every exp is 0 and the sum too.
template <class T>
struct RowSum {
  T maximum;
  T sum;

  T inverse() const { return sum == 0 ? T(0) : 1 / sum; }
  T log() const { return sum == 0 ? T(0) : std::log(sum); }
};

template <class T>
RowSum<T> sum_of_row(int64_t columns, const T* x) {
  const T maximum = row_maximum(columns, x);
  return {maximum, row_sum<T>(columns, [=](int64_t j) { return vector_exp(below(x[j], maximum)); })};
}

/// y = exp(below(x, maximum)), and their sum; y may be x.
template <class T>
RowSum<T> exp_of_row(int64_t columns, const T* x, T maximum, T* y) {
  return {maximum, row_sum<T>(columns, [=](int64_t j) { return y[j] = vector_exp(below(x[j], maximum)); })};
}

/// y = factor exp(below(x, maximum))
template <class T>
void scaled_exp(int64_t columns, const T* x, T maximum, T factor, T* y) {
  for (int64_t j = 0; j < columns; ++j) y[j] = factor * vector_exp(below(x[j], maximum));
}

}  // namespace

template <class T>
void softmax_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y) {
  for_each_row(rows, columns, [=](int64_t row) {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    const T factor = exp_of_row(columns, in, row_maximum(columns, in), out).inverse();
    for (int64_t j = 0; j < columns; ++j) out[j] *= factor;
  });
}

template <class T>
void softmax_backward(Cpu, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx) {
  for_each_row(rows, columns, [=](int64_t row) {
    const T* p = y + row * columns;
    const T* dp = dy + row * columns;
    T* out = dx + row * columns;
    const T mean = row_sum<T>(columns, [=](int64_t j) { return p[j] * dp[j]; });
    for (int64_t j = 0; j < columns; ++j) out[j] = p[j] * (dp[j] - mean);
  });
}

template <class T>
void log_softmax_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y) {
  for_each_row(rows, columns, [=](int64_t row) {
    const T* in = x + row * columns;
    T* out = y + row * columns;
    const RowSum<T> total = sum_of_row(columns, in);
    const T log_sum = total.log();
    for (int64_t j = 0; j < columns; ++j) out[j] = below(in[j], total.maximum) - log_sum;
  });
}

template <class T>
void log_softmax_backward(Cpu, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  for_each_row(rows, columns, [=](int64_t row) {
    const T* log_p = y + row * columns;
    const T* dlog_p = dy + row * columns;
    T* out = dx + row * columns;
    const T total = row_sum<T>(columns, [=](int64_t j) {
      const T gradient =
          dlog_p[j];  // loaded in any case: a load that depends on log_p g++ 12 vectorises wrongly
      return log_p[j] == nothing ? T(0) : gradient;
    });
    for (int64_t j = 0; j < columns; ++j) {
      out[j] = log_p[j] == nothing ? T(0) : dlog_p[j] - vector_exp(log_p[j]) * total;
    }
  });
}

template <class T>
void logsumexp_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y, T* maximum, T* sum) {
  for_each_row(rows, columns, [=](int64_t row) {
    const RowSum<T> total = sum_of_row(columns, x + row * columns);
    maximum[row] = total.maximum;
    sum[row] = total.sum;
    y[row] = total.maximum + std::log(total.sum);  // log 0 = -inf in a row of -inf
  });
}

template <class T>
void logsumexp_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* maximum, const T* sum,
                        const T* dy, T* dx) {
  for_each_row(rows, columns, [=](int64_t row) {
    const RowSum<T> total{maximum[row], sum[row]};
    scaled_exp(columns, x + row * columns, total.maximum, dy[row] * total.inverse(), dx + row * columns);
  });
}

TargetSurvey survey_targets(Cpu, CrossEntropyShape shape, const int32_t* targets) {
  TargetSurvey survey;
  for (int64_t row = 0; row < shape.rows; ++row) {
    if (targets[row] == shape.ignore_index) continue;
    ++survey.counted;
    const bool valid = targets[row] >= 0 && targets[row] < shape.vocabulary;
    if (!valid && survey.first_invalid < 0) survey.first_invalid = row;
  }
  return survey;
}

template <class T>
void cross_entropy_forward(Cpu, CrossEntropyShape shape, const T* logits, const int32_t* targets, T* maximum,
                           T* sum, double* nats) {
  Scratch<double> row_nats_scratch(shape.rows);
  double* row_nats = row_nats_scratch.data();
  for_each_row(shape.rows, shape.vocabulary, [=](int64_t row) {
    const T* x = logits + row * shape.vocabulary;
    const bool ignored = targets[row] == shape.ignore_index;
    const RowSum<T> total = ignored ? RowSum<T>{} : sum_of_row(shape.vocabulary, x);
    maximum[row] = total.maximum;
    sum[row] = total.sum;
    row_nats[row] = ignored ? 0 : total.log() - below(x[targets[row]], total.maximum);
  });
  *nats = row_sum<double>(shape.rows, [=](int64_t row) { return row_nats[row]; });
}

template <class T>
void cross_entropy_backward(Cpu, CrossEntropyShape shape, int64_t counted, const T* logits,
                            const int32_t* targets, const T* maximum, const T* sum, const T* dloss,
                            T* dlogits) {
  const T factor = *dloss / static_cast<T>(counted);
  for_each_row(shape.rows, shape.vocabulary, [=](int64_t row) {
    const T* x = logits + row * shape.vocabulary;
    T* dx = dlogits + row * shape.vocabulary;
    if (targets[row] == shape.ignore_index) {
      std::fill_n(dx, shape.vocabulary, T(0));
    } else {
      const RowSum<T> total{maximum[row], sum[row]};
      scaled_exp(shape.vocabulary, x, total.maximum, factor * total.inverse(), dx);
      dx[targets[row]] -= factor;
    }
  });
}

template <class T>
void cross_entropy_in_place(Cpu, CrossEntropyShape shape, T factor, const int32_t* targets, T* logits,
                            double* nats) {
  for_each_row(shape.rows, shape.vocabulary, [=](int64_t row) {
    T* x = logits + row * shape.vocabulary;
    const int32_t target = targets[row];
    if (target == shape.ignore_index) {
      nats[row] = 0;
      std::fill_n(x, shape.vocabulary, T(0));
      return;
    }
    const T maximum = row_maximum(shape.vocabulary, x);
    const T target_logit = below(x[target], maximum);
    const RowSum<T> total = exp_of_row(shape.vocabulary, x, maximum, x);
    nats[row] = total.log() - target_logit;
    const T scale = factor * total.inverse();
    for (int64_t j = 0; j < shape.vocabulary; ++j) x[j] *= scale;
    x[target] -= factor;
  });
}

#define INSTANTIATE(T)                                                                                       \
  template void softmax_forward<T>(Cpu, int64_t, int64_t, const T*, T*);                                     \
  template void softmax_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, T*);                          \
  template void log_softmax_forward<T>(Cpu, int64_t, int64_t, const T*, T*);                                 \
  template void log_softmax_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, T*);                      \
  template void logsumexp_forward<T>(Cpu, int64_t, int64_t, const T*, T*, T*, T*);                           \
  template void logsumexp_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, const T*, T*);    \
  template void cross_entropy_forward<T>(Cpu, CrossEntropyShape, const T*, const int32_t*, T*, T*, double*); \
  template void cross_entropy_backward<T>(Cpu, CrossEntropyShape, int64_t, const T*, const int32_t*,         \
                                          const T*, const T*, const T*, T*);                                 \
  template void cross_entropy_in_place<T>(Cpu, CrossEntropyShape, T, const int32_t*, T*, double*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
