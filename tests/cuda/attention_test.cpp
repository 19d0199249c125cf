// Attention on the GPU against that on the CPU.
#include "tensor/kernels/attention.h"

#include <cmath>
#include <limits>

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums of up to 70 terms in another order: float errs by 1e-6, double by 1e-15. A key left out changes
// results by 0.01.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;

constexpr AttentionShape shapes[] = {
    {0, 3, 3, 1, 1, 2, 2},
    {1, 0, 3, 1, 1, 2, 2},
    {1, 3, 0, 1, 1, 2, 2},
    {2, 1, 1, 1, 1, 1, 1, true},
    {1, 70, 70, 2, 1, 5, 3, true, 0, 0.5},
    {2, 5, 40, 4, 2, 3, 35, true, 7, 0.5},  // more keys than queries: a cache
    {1, 40, 5, 1, 1, 4, 4, true, 0, 0.5},   // the first queries see nothing
    {1, 35, 33, 2, 2, 33, 4, false, 0, 0.2},
};

template <class T>
Heads<T> heads_of(T* data, int64_t length, int64_t heads, int64_t width) {
  return {data, length * heads * width, heads * width, width};
}

/// Forward and backward of one shape.
template <class T, class Device, class Operands>
void attend_both_ways(const AttentionShape& s, const std::vector<int32_t>& mask, const std::vector<T>& keys,
                      const std::vector<T>& values, Device device, Operands& operands) {
  const int64_t rows = s.batch * s.heads * s.queries;
  const int64_t key_rows = s.batch * s.key_heads * s.keys;
  const auto query_heads = [&](auto* data, int64_t width) {
    return heads_of(data, s.queries, s.heads, width);
  };
  const auto key_heads = [&](auto* data, int64_t width) {
    return heads_of(data, s.keys, s.key_heads, width);
  };
  const auto q = query_heads(operands.in(waves<T>(rows * s.key_dim)), s.key_dim);
  const auto k = key_heads(operands.in(keys), s.key_dim);
  const auto v = key_heads(operands.in(values), s.value_dim);
  const int32_t* key_mask = mask.empty() ? nullptr : operands.in(mask);
  const auto o = query_heads(operands.template out<T>(rows * s.value_dim), s.value_dim);
  T* maximum = operands.template out<T>(rows);
  T* sum = operands.template out<T>(rows);
  double* score_sums =
      s.decay != nullptr ? operands.template out<double>(s.batch * s.heads * s.keys) : nullptr;
  attention_forward<T>(device, s, q, k, v, key_mask, o, maximum, sum);
  attention_backward<T>(device, s, q, k, v, key_mask, o, maximum, sum,
                        query_heads(operands.in(waves<T>(rows * s.value_dim, 3)), s.value_dim),
                        query_heads(operands.template out<T>(rows * s.key_dim), s.key_dim),
                        key_heads(operands.template out<T>(key_rows * s.key_dim), s.key_dim),
                        key_heads(operands.template out<T>(key_rows * s.value_dim), s.value_dim), score_sums);
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/attention: causal or not with windows and shared key heads", T, float, double) {
  for (const AttentionShape& s : shapes) {
    CAPTURE(s.queries);
    CAPTURE(s.keys);
    const std::vector<T> keys = waves<T>(s.batch * s.key_heads * s.keys * s.key_dim, 1);
    const std::vector<T> values = waves<T>(s.batch * s.key_heads * s.keys * s.value_dim, 2);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      attend_both_ways<T>(s, {}, keys, values, device, operands);
    });
  }
  check_ran("gradients");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/attention: masked keys are never read", T, float, double) {
  for (const AttentionShape& s : shapes) {
    CAPTURE(s.queries);
    CAPTURE(s.keys);
    std::vector<int32_t> mask(s.batch * s.keys);
    std::vector<T> keys = waves<T>(s.batch * s.key_heads * s.keys * s.key_dim, 1);
    const std::vector<T> values = waves<T>(s.batch * s.key_heads * s.keys * s.value_dim, 2);
    const int64_t width = s.key_heads * s.key_dim;
    for (int64_t j = 0; j < s.batch * s.keys; ++j) {
      mask[j] = j % 3 == 1 || j % 50 > 40 ? 0 : 1;
      if (mask[j] == 0) std::fill_n(keys.begin() + j * width, width, std::numeric_limits<T>::quiet_NaN());
    }
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      attend_both_ways<T>(s, mask, keys, values, device, operands);
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/attention: documents and decays", T, float, double) {
  for (AttentionShape s : {AttentionShape{2, 70, 70, 2, 1, 5, 3, true, 0, 0.5},
                           AttentionShape{1, 20, 40, 4, 2, 3, 5, true, 9, 0.5}}) {
    CAPTURE(s.queries);
    const int64_t tokens = s.batch * s.keys;
    std::vector<int32_t> documents(tokens);
    for (int64_t i = 0; i < tokens; ++i) documents[i] = i % 23 == 7 ? 1 : 0;
    std::vector<T> log_decay = waves<T>(tokens * s.heads, 4);
    for (T& value : log_decay) value = -std::abs(value);
    const std::vector<T> keys = waves<T>(s.batch * s.key_heads * s.keys * s.key_dim, 1);
    const std::vector<T> values = waves<T>(s.batch * s.key_heads * s.keys * s.value_dim, 2);
    std::vector<double> sums(tokens * s.heads);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = std::sin(static_cast<double>(i));
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      int64_t* begins = operands.template out<int64_t>(tokens);
      double* decay = operands.template out<double>(tokens * s.heads);
      document_begins(device, s.batch, s.keys, operands.in(documents), begins);
      attention_decay_forward(device, s.batch, s.keys, s.heads, operands.in(log_decay), begins, decay);
      attention_decay_backward(device, s.batch, s.keys, s.heads, operands.in(sums), begins,
                               operands.template out<T>(tokens * s.heads));
      AttentionShape with = s;
      with.begins = begins;
      attend_both_ways<T>(with, {}, keys, values, device, operands);
      with.decay = decay;
      attend_both_ways<T>(with, {}, keys, values, device, operands);
    });
  }
  check_ran("gradients");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/attention: a value that is NaN reaches only those who see it", T, float, double) {
  const AttentionShape s{1, 40, 40, 1, 1, 3, 2, true};
  const std::vector<T> keys = waves<T>(40 * 3, 1);
  std::vector<T> values = waves<T>(40 * 2, 2);
  values[37 * 2] = std::numeric_limits<T>::quiet_NaN();  // seen by the last three queries
  check_same(tolerance<T>, [&](auto device, auto& operands) {
    attend_both_ways<T>(s, {}, keys, values, device, operands);
  });
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/attention: the score of the only key has no gradient", T, float, double) {
  // Rounding in d_o v^T - delta, 1e-7 for float, times keys of 1e6 would be 0.1 in dq. It is 0.
  const AttentionShape s{1, 5, 1, 1, 1, 3, 35};
  std::vector<T> keys = waves<T>(3, 1);
  for (T& value : keys) value *= 1e6;
  const std::vector<T> values = waves<T>(35, 2);
  check_same(tolerance<T>, [&](auto device, auto& operands) {
    attend_both_ways<T>(s, {}, keys, values, device, operands);
  });
}

TEST_CASE("cuda/attention: on tensor cores for every padded width and the float kernels beyond") {
  const InBf16 in_bf16;
  // Operands, probabilities and their gradients are rounded to 8 bits: results err by 0.0035. Where the sums
  // of one warp are not corrected for a new maximum, by 0.2; without the last key, by 0.2.
  constexpr double rounding = 0.01;
  constexpr AttentionShape shapes[] = {
      {0, 3, 3, 1, 1, 2, 2},
      {1, 0, 3, 1, 1, 2, 2},
      {1, 3, 0, 1, 1, 2, 2},
      {1, 140, 140, 1, 1, 5, 3, true, 0, 0.5},  // two tiles of queries, three of keys
      {2, 5, 40, 4, 2, 32, 9, true, 7, 0.1},    // more keys than queries: a cache
      {1, 70, 5, 1, 1, 17, 40, true, 0, 0.2},   // the first queries see nothing
      {1, 30, 33, 2, 2, 33, 128, false, 0, 0.2},
      {1, 40, 40, 1, 1, 129, 4, true, 0, 0.1},
  };
  for (const AttentionShape& s : shapes) {
    CAPTURE(s.queries);
    CAPTURE(s.key_dim);
    const std::vector<float> keys = waves<float>(s.batch * s.key_heads * s.keys * s.key_dim, 1);
    const std::vector<float> values = waves<float>(s.batch * s.key_heads * s.keys * s.value_dim, 2);
    check_same(rounding, [&](auto device, auto& operands) {
      attend_both_ways<float>(s, {}, keys, values, device, operands);
    });
    if (s.batch * s.queries * s.keys > 0) check_ran(s.key_dim <= 128 ? "attend_bf16" : "attend");
  }
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/attention: masked keys are never read on tensor cores either") {
  const InBf16 in_bf16;
  const AttentionShape s{2, 20, 70, 2, 1, 16, 16, true, 0, 0.3};
  std::vector<int32_t> mask(s.batch * s.keys);
  std::vector<float> keys = waves<float>(s.batch * s.keys * s.key_dim, 1);
  const std::vector<float> values = waves<float>(s.batch * s.keys * s.value_dim, 2);
  for (int64_t j = 0; j < s.batch * s.keys; ++j) {
    mask[j] = j % 3 == 1 || j % 50 > 40 ? 0 : 1;
    if (mask[j] == 0) std::fill_n(keys.begin() + j * s.key_dim, s.key_dim, std::nanf(""));
  }
  check_same(0.01, [&](auto device, auto& operands) {
    attend_both_ways<float>(s, mask, keys, values, device, operands);
  });
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/attention: windows that end within a tile and beyond it, on tensor cores") {
  const InBf16 in_bf16;
  for (const int64_t window : {2, 40, 66, 70}) {
    CAPTURE(window);
    const AttentionShape s{1, 200, 200, 1, 1, 5, 3, true, window, 0.5};
    const std::vector<float> keys = waves<float>(s.keys * s.key_dim, 1);
    const std::vector<float> values = waves<float>(s.keys * s.value_dim, 2);
    // Rounding to 8 bits, 0.0035; a tile that is seen whole though its last rows see less of it, 0.02 or
    // more.
    check_same(0.01, [&](auto device, auto& operands) {
      attend_both_ways<float>(s, {}, keys, values, device, operands);
    });
    check_ran("attend_bf16");
  }
}

TEST_CASE("cuda/attention: decays are for the float kernels, whatever the precision of products") {
  const InBf16 in_bf16;
  AttentionShape s{1, 40, 40, 2, 2, 5, 3, true, 0, 0.5};
  const std::vector<float> keys = waves<float>(s.keys * s.key_heads * s.key_dim, 1);
  const std::vector<float> values = waves<float>(s.keys * s.key_heads * s.value_dim, 2);
  std::vector<float> log_decay(s.keys * s.heads);
  for (size_t i = 0; i < log_decay.size(); ++i) log_decay[i] = -0.1f * static_cast<float>(i % 5);
  check_same(tolerance<float>, [&](auto device, auto& operands) {
    double* decay = operands.template out<double>(s.keys * s.heads);
    attention_decay_forward(device, s.batch, s.keys, s.heads, operands.in(log_decay),
                            static_cast<const int64_t*>(nullptr), decay);
    AttentionShape with = s;
    with.decay = decay;
    attend_both_ways<float>(with, {}, keys, values, device, operands);
  });
  check_ran("attend");
}

}  // namespace mixgrad
