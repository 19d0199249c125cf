// Softmax attention: every tile edge against plain loops, what must not leak, views, memory, repeatability.
#include "autograd/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/allocator.h"
#include "tensor/cpu/packed_gemm.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Sizes {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, key_heads = 1, key_dim = 1, value_dim = 1;
};

/// Operands and cotangent, float64 values that float32 holds exactly.
struct Problem {
  Sizes sizes;
  AttentionOptions options;
  std::vector<int32_t> mask;  // empty: none
  Values q, k, v, d_o;

  Problem(const Sizes& s, const AttentionOptions& given, std::vector<int32_t> key_mask = {})
      : sizes(s), options(given), mask(std::move(key_mask)) {
    Generator generator(11);
    const auto draw = [&](int64_t count) {
      return normal({count}, 1, generator, DType::float64).to(DType::float32).to_vector();
    };
    q = draw(s.batch * s.queries * s.heads * s.key_dim);
    k = draw(s.batch * s.keys * s.key_heads * s.key_dim);
    v = draw(s.batch * s.keys * s.key_heads * s.value_dim);
    d_o = draw(s.batch * s.queries * s.heads * s.value_dim);
  }

  bool sees(int64_t b, int64_t query, int64_t key) const {
    if (!mask.empty() && mask[b * sizes.keys + key] == 0) return false;
    const int64_t newest = query + sizes.keys - sizes.queries;
    return !options.causal || (key <= newest && (options.window == 0 || key > newest - options.window));
  }
};

struct Results {
  Values o, dq, dk, dv;
};

/// By the definition, in double, a row of scores at a time.
Results by_definition(const Problem& p) {
  const Sizes& s = p.sizes;
  Results r{Values(p.d_o.size()), Values(p.q.size()), Values(p.k.size()), Values(p.v.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(s.key_dim));
  for (int64_t row = 0; row < s.batch * s.queries * s.heads; ++row) {
    const int64_t b = row / s.heads / s.queries, query = row / s.heads % s.queries, h = row % s.heads;
    const double *const q = &p.q[row * s.key_dim], *const d_o = &p.d_o[row * s.value_dim];
    double *const o = &r.o[row * s.value_dim], *const dq = &r.dq[row * s.key_dim];
    std::vector<int64_t> rows;  // of k and v
    Values weights;
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t key = 0; key < s.keys; ++key) {
      if (!p.sees(b, query, key)) continue;
      rows.push_back((b * s.keys + key) * s.key_heads + h / (s.heads / s.key_heads));
      double score = 0;
      for (int64_t c = 0; c < s.key_dim; ++c) score += scale * q[c] * p.k[rows.back() * s.key_dim + c];
      weights.push_back(score);
      maximum = std::max(maximum, score);
    }
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    double delta = 0;
    Values dp(rows.size());
    for (size_t j = 0; j < rows.size(); ++j) {
      weights[j] /= sum;
      for (int64_t c = 0; c < s.value_dim; ++c) {
        const int64_t i = rows[j] * s.value_dim + c;
        o[c] += weights[j] * p.v[i];
        dp[j] += d_o[c] * p.v[i];
        r.dv[i] += weights[j] * d_o[c];
      }
      delta += weights[j] * dp[j];
    }
    for (size_t j = 0; j < rows.size(); ++j) {
      const double ds = scale * weights[j] * (dp[j] - delta);
      for (int64_t c = 0; c < s.key_dim; ++c) {
        dq[c] += ds * p.k[rows[j] * s.key_dim + c];
        r.dk[rows[j] * s.key_dim + c] += ds * q[c];
      }
    }
  }
  return r;
}

Results by_op(const Problem& p, Device device, DType dtype) {
  const Sizes& s = p.sizes;
  const Variable q = leaf(p.q, {s.batch, s.queries, s.heads, s.key_dim}, device, dtype);
  const Variable k = leaf(p.k, {s.batch, s.keys, s.key_heads, s.key_dim}, device, dtype);
  const Variable v = leaf(p.v, {s.batch, s.keys, s.key_heads, s.value_dim}, device, dtype);
  const Tensor mask = p.mask.empty() ? Tensor() : Tensor::from(p.mask, {s.batch, s.keys}, device);
  const Variable o = attention(q, k, v, p.options, mask);
  backward({o}, {Tensor::from(p.d_o, o.shape(), device).to(dtype)});
  return {o.value().to_vector(), q.grad().to_vector(), k.grad().to_vector(), v.grad().to_vector()};
}

/// The largest difference, relative to the largest value; NaN when there is one.
double distance(const Values& got, const Values& want) {
  double largest = 0, worst = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) worst = worse(worst, std::abs(got[i] - want[i]));
  return worst == 0 ? 0 : worst / largest;
}

void check_against_definition(const Problem& p) {
  CAPTURE(p.sizes.queries);
  CAPTURE(p.sizes.keys);
  CAPTURE(p.sizes.key_dim);
  CAPTURE(p.sizes.value_dim);
  CAPTURE(p.options.causal);
  CAPTURE(p.options.window);
  const Results want = by_definition(p);
  for_each_device_and_dtype([&](Device device, DType dtype) {
    if (is_simulated(device) && p.sizes.queries > 70) return;
    const Results got = by_op(p, device, dtype);
    // Over all problems here the right code errs by up to 8e-7 and 5e-15, with delta times 1.0001 by 5e-4.
    const double tolerance = dtype == DType::float32 ? 1e-5 : 1e-13;
    CHECK(distance(got.o, want.o) <= tolerance);
    CHECK(distance(got.dq, want.dq) <= tolerance);
    CHECK(distance(got.dk, want.dk) <= tolerance);
    CHECK(distance(got.dv, want.dv) <= tolerance);
  });
}

/// The first `count` tokens of values that have `width` elements a token; of the only sample.
Values first(const Values& values, int64_t count, int64_t width) {
  return Values(values.begin(), values.begin() + count * width);
}

/// About two thirds of all keys; none of the last sample's.
std::vector<int32_t> some_mask(int64_t batch, int64_t keys) {
  Generator generator(5);
  std::vector<int32_t> mask(batch * keys);
  for (int64_t i = 0; i < (batch - 1) * keys; ++i) mask[i] = generator.uniform() < 0.67 ? 1 : 0;
  return mask;
}

}  // namespace

TEST_CASE("tensor/attention: every length agrees with plain loops") {
  for (const int64_t length : {1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 1000}) {
    const Sizes sizes{1, length, length, 2, 1, 3, 2};
    check_against_definition({sizes, {}});
    for (const int64_t window : {0, 1, 13, 64, 5000}) {
      check_against_definition({sizes, {.causal = true, .window = window}});
    }
  }
}

TEST_CASE("tensor/attention: every set of micro-kernels agrees with plain loops") {
  const MicroKernels& before = micro_kernels();
  for (const MicroKernels* kernels : {avx512_kernels(), avx2_kernels(), portable_kernels()}) {
    if (kernels == nullptr) continue;
    use_micro_kernels(*kernels);
    for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{3, 150}, {4, 150}, {300, 300}}) {
      const Problem p({1, queries, keys, 2, 1, 33, 40}, {.causal = true});
      CAPTURE(kernels->name);
      CAPTURE(queries);
      const Results want = by_definition(p), got = by_op(p, Device{}, DType::float32);
      // Right: up to 5e-7. The last panel left out: 0.9.
      CHECK(distance(got.o, want.o) <= 1e-5);
      CHECK(distance(got.dq, want.dq) <= 1e-5);
      CHECK(distance(got.dk, want.dk) <= 1e-5);
      CHECK(distance(got.dv, want.dv) <= 1e-5);
    }
  }
  use_micro_kernels(before);
}

TEST_CASE("tensor/attention: fewer or more queries than keys are aligned at the end") {
  const std::pair<int64_t, int64_t> lengths[] = {{1, 130}, {3, 64},   {5, 67},   {64, 65},  {65, 200},
                                                 {2, 1},   {130, 64}, {200, 67}, {129, 128}};
  for (const auto& [queries, keys] : lengths) {
    const Sizes sizes{2, queries, keys, 2, 2, 4, 3};
    check_against_definition({sizes, {}});
    for (const int64_t window : {0, 3, 64}) {
      check_against_definition({sizes, {.causal = true, .window = window}});
    }
  }
}

TEST_CASE("tensor/attention: heads share key heads in consecutive groups") {
  for (const int64_t key_heads : {1, 2, 3, 6}) {
    check_against_definition({{2, 70, 70, 6, key_heads, 5, 4}, {.causal = true}});
    check_against_definition(
        {{2, 9, 70, 6, key_heads, 5, 4}, {.causal = true, .window = 20}, some_mask(2, 70)});
  }
}

TEST_CASE("tensor/attention: key and value heads of any sizes") {
  const std::pair<int64_t, int64_t> unequal[] = {{8, 16}, {16, 8}, {5, 7}, {64, 96}};
  for (const auto& [key_dim, value_dim] : unequal) {
    check_against_definition({{1, 66, 66, 2, 1, key_dim, value_dim}, {.causal = true}});
  }
  for (const int64_t size : {1, 3, 7, 16, 33, 80, 128}) {
    check_against_definition({{2, 66, 66, 1, 1, size, size}, {.causal = true}});
  }
}

TEST_CASE("tensor/attention: masked keys are left out") {
  for (const int64_t keys : {3, 64, 150}) {
    const Sizes sizes{3, 70, keys, 4, 2, 3, 5};
    check_against_definition({sizes, {}, some_mask(3, keys)});
    check_against_definition({sizes, {.causal = true}, some_mask(3, keys)});
    check_against_definition({sizes, {.causal = true, .window = 9}, some_mask(3, keys)});
    check_against_definition({sizes, {}, std::vector<int32_t>(3 * keys, 1)});
  }
}

TEST_CASE("tensor/attention: a query that sees nothing gives zeros and takes no gradient") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    // All keys of the second of two samples are masked.
    const Problem masked({2, 5, 5, 1, 1, 2, 3}, {}, {1, 1, 1, 1, 1, 0, 0, 0, 0, 0});
    const Results two = by_op(masked, device, dtype);
    Problem alone({1, 5, 5, 1, 1, 2, 3}, {});
    alone.q = first(masked.q, 5, 2), alone.k = first(masked.k, 5, 2);
    alone.v = first(masked.v, 5, 3), alone.d_o = first(masked.d_o, 5, 3);
    const Results one = by_op(alone, device, dtype);
    const auto followed_by_zeros = [](Values values) {
      values.resize(2 * values.size(), 0);
      return values;
    };
    CHECK(two.o == followed_by_zeros(one.o));
    CHECK(two.dq == followed_by_zeros(one.dq));
    CHECK(two.dk == followed_by_zeros(one.dk));
    CHECK(two.dv == followed_by_zeros(one.dv));

    // Five queries aligned with the end of two keys: the first three come before any key, and what their
    // operands hold matters to nobody.
    Problem early({1, 5, 2, 1, 1, 2, 3}, {.causal = true});
    std::fill_n(early.q.begin(), 3 * 2, nan);
    std::fill_n(early.d_o.begin(), 3 * 3, nan);
    const Results got = by_op(early, device, dtype);
    CHECK(first(got.o, 3, 3) == Values(9, 0));
    CHECK(first(got.dq, 3, 2) == Values(6, 0));
    for (const Values& values : {got.o, got.dq, got.dk, got.dv}) {
      for (const double value : values) CHECK(std::isfinite(value));
    }
  });
}

TEST_CASE("tensor/attention: nothing of a masked key reaches a result") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const bool causal : {false, true}) {
      const Sizes s{2, 70, 70, 2, 1, 3, 5};
      Problem p(s, {.causal = causal}, some_mask(2, 70));
      const Results before = by_op(p, device, dtype);
      for (const double value : {1e10, nan}) {
        CAPTURE(value);
        for (int64_t key = 0; key < s.batch * s.keys; ++key) {
          if (p.mask[key] != 0) continue;
          std::fill_n(p.k.begin() + key * s.key_dim, s.key_dim, value);
          std::fill_n(p.v.begin() + key * s.value_dim, s.value_dim, value);
        }
        const Results after = by_op(p, device, dtype);
        CHECK(after.o == before.o);
        CHECK(after.dq == before.dq);
        CHECK(after.dk == before.dk);
        CHECK(after.dv == before.dv);
      }
      for (int64_t i = 0; i < s.batch * s.keys * s.key_dim; ++i) {
        CHECK((before.dk[i] == 0) == (p.mask[i / s.key_dim] == 0));
      }
      for (int64_t i = 0; i < s.batch * s.keys * s.value_dim; ++i) {
        CHECK((before.dv[i] == 0) == (p.mask[i / s.value_dim] == 0));
      }
    }
  });
}

TEST_CASE("tensor/attention: the future changes no bit of the past") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const int64_t window : {0, 20}) {
      for (const int64_t start : {1, 64, 70, 129}) {  // inside and at the edges of tiles
        CAPTURE(window);
        CAPTURE(start);
        const Sizes s{1, 130, 130, 2, 1, 4, 5};
        Problem p(s, {.causal = true, .window = window});
        const Results before = by_op(p, device, dtype);
        for (const double value : {0.25, 1e10, nan}) {
          CAPTURE(value);
          std::fill(p.q.begin() + start * s.heads * s.key_dim, p.q.end(), value);
          std::fill(p.k.begin() + start * s.key_heads * s.key_dim, p.k.end(), value);
          std::fill(p.v.begin() + start * s.key_heads * s.value_dim, p.v.end(), value);
          const Results after = by_op(p, device, dtype);
          const int64_t o_width = s.heads * s.value_dim, q_width = s.heads * s.key_dim;
          CHECK(first(after.o, start, o_width) == first(before.o, start, o_width));
          CHECK(first(after.dq, start, q_width) == first(before.dq, start, q_width));
          CHECK(after.o.back() != before.o.back());
        }
      }
    }
  });
}

TEST_CASE("tensor/attention: what fell out of the window is forgotten") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Sizes s{1, 130, 130, 1, 1, 3, 2};
    Problem p(s, {.causal = true, .window = 10});
    const Results before = by_op(p, device, dtype);
    // Tokens 0 to 69 are seen by queries up to 78 only.
    std::fill_n(p.k.begin(), 70 * s.key_dim, nan);
    std::fill_n(p.v.begin(), 70 * s.value_dim, nan);
    const Results after = by_op(p, device, dtype);
    for (int64_t i = 79 * s.value_dim; i < 130 * s.value_dim; ++i) CHECK(after.o[i] == before.o[i]);
    for (int64_t i = 79 * s.key_dim; i < 130 * s.key_dim; ++i) CHECK(after.dq[i] == before.dq[i]);
    // From key 79 on, no query that is NaN looks.
    for (int64_t i = 79 * s.key_dim; i < 130 * s.key_dim; ++i) CHECK(after.dk[i] == before.dk[i]);
    for (int64_t i = 79 * s.value_dim; i < 130 * s.value_dim; ++i) CHECK(after.dv[i] == before.dv[i]);
    CHECK(std::isnan(after.o[78 * s.value_dim]));
  });
}

TEST_CASE("tensor/attention: an only key has all the weight and its score no gradient") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Problem p({1, 70, 70, 1, 1, 3, 5}, {.causal = true, .window = 1});
    const Results got = by_op(p, device, dtype);
    CHECK(got.o == p.v);
    if (device == Device{}) {
      CHECK(got.dv == p.d_o);
    } else {  // where a score is summed in another order backward, the weight is 1 but for rounding
      CHECK(distance(got.dv, p.d_o) <= (dtype == DType::float32 ? 1e-6 : 1e-14));
    }
    CHECK(got.dq == Values(p.q.size(), 0));
    CHECK(got.dk == Values(p.k.size(), 0));
  });
}

TEST_CASE("tensor/attention: small differences of large scores count") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Problem p({1, 1, 2, 1, 1, 1, 1}, {});
    p.q = {1}, p.k = {30000, 30000.5}, p.v = {0, 1}, p.d_o = {1};
    const Results got = by_op(p, device, dtype);
    const double weight = 1 / (1 + std::exp(-0.5));
    // A saved logarithm of the sum would be off by 5e-4 in float, and the gradients with it.
    CHECK(got.o[0] == doctest::Approx(weight).epsilon(1e-6));
    CHECK(got.dv[0] == doctest::Approx(1 - weight).epsilon(1e-6));
    CHECK(got.dv[1] == doctest::Approx(weight).epsilon(1e-6));
    CHECK(got.dk[1] == doctest::Approx(weight * (1 - weight)).epsilon(1e-6));
    CHECK(got.dk[0] == doctest::Approx(-weight * (1 - weight)).epsilon(1e-6));
  });
}

TEST_CASE("tensor/attention: part of a cache or of a fused projection is taken as it lies") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto values = [&](const Values& numbers, const Shape& shape) {
      return Tensor::from(numbers, shape, device).to(dtype);
    };
    // A cache for 100 tokens of which 70 are filled.
    const auto cache = [&](int64_t size) {
      Values numbers = waves(2 * 100 * 2 * size);
      for (int64_t i = 0; i < 2 * 100; ++i) {
        if (i % 100 >= 70) std::fill_n(numbers.begin() + i * 2 * size, 2 * size, nan);
      }
      return values(numbers, {2, 100, 2, size}).narrow(1, 0, 70);
    };
    const auto compute = [&](const Tensor& query, const Tensor& key, const Tensor& value) {
      const Variable qv(query, true), kv(key, true), vv(value, true);
      const Variable o = attention(qv, kv, vv, {.causal = true});
      backward({o}, {values(waves(o.value().elements()), o.shape())});
      return std::vector<Values>{o.value().to_vector(), qv.grad().to_vector(), kv.grad().to_vector(),
                                 vv.grad().to_vector()};
    };
    const Tensor q = values(waves(2 * 3 * 4 * 5), {2, 3, 4, 5}), k = cache(5), v = cache(6);
    CHECK(compute(q, k, v) == compute(q, k.contiguous(), v.contiguous()));

    const Tensor fused = values(waves(2 * 70 * 8 * 5), {2, 70, 4 + 2 + 2, 5});
    const Tensor parts[] = {fused.narrow(2, 0, 4), fused.narrow(2, 4, 2), fused.narrow(2, 6, 2)};
    CHECK(compute(parts[0], parts[1], parts[2]) ==
          compute(parts[0].contiguous(), parts[1].contiguous(), parts[2].contiguous()));
  });
}

TEST_CASE("tensor/attention: more samples than a grid of blocks has places") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;  // 10^7 threads
    const int64_t batch = 70000;
    const Problem many({batch, 2, 2, 1, 1, 8, 8}, {.causal = true});
    const Results all = by_op(many, device, dtype);
    for (const int64_t b : {int64_t{0}, batch - 1}) {
      const auto sample = [&](const Values& values) {
        return Values(values.begin() + b * 16, values.begin() + (b + 1) * 16);
      };
      Problem p({1, 2, 2, 1, 1, 8, 8}, {.causal = true});
      p.q = sample(many.q), p.k = sample(many.k), p.v = sample(many.v), p.d_o = sample(many.d_o);
      const Results one = by_op(p, device, dtype);
      CHECK(sample(all.o) == one.o);
      CHECK(sample(all.dq) == one.dq);
      CHECK(sample(all.dk) == one.dk);
      CHECK(sample(all.dv) == one.dv);
    }
  });
}

TEST_CASE("tensor/attention: batch and tokens and value sizes may be none") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const bool causal : {false, true}) {
      CHECK(by_op({{0, 3, 3, 2, 1, 4, 4}, {.causal = causal}}, device, dtype).o.empty());
      CHECK(by_op({{1, 0, 3, 2, 1, 4, 2}, {.causal = causal}}, device, dtype).dk == Values(12, 0));
      CHECK(by_op({{1, 3, 0, 2, 1, 4, 2}, {.causal = causal}}, device, dtype).o == Values(12, 0));
      CHECK(by_op({{1, 3, 3, 2, 1, 4, 0}, {.causal = causal}}, device, dtype).dq == Values(24, 0));
    }
  });
}

TEST_CASE("tensor/attention: memory grows with the length and not with its square") {
  for (const Device device : available_devices()) {
    if (is_simulated(device)) continue;
    Allocator& allocator = Allocator::of(device);
    const auto peak = [&](int64_t length, const std::vector<int32_t>& mask) {
      const int64_t before = allocator.stats().live_bytes;
      allocator.reset_peak();
      by_op({{1, length, length, 2, 1, 4, 4}, {.causal = true}, mask}, device, DType::float32);
      return static_cast<double>(allocator.stats().peak_bytes - before);
    };
    for (const bool masked : {false, true}) {
      const auto slope = [&](int64_t from, int64_t to) {
        const auto mask = [&](int64_t keys) { return std::vector<int32_t>(masked ? keys : 0, 1); };
        return std::log(peak(to, mask(to)) / peak(from, mask(from))) /
               std::log(static_cast<double>(to) / from);
      };
      // Exactly proportional is 1; a matrix of scores of this size would give 1.9.
      CHECK(slope(512, 4096) <= 1.05);
    }
  }
}

TEST_CASE("tensor/attention: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    for (const std::vector<int32_t>& mask : {std::vector<int32_t>(), some_mask(3, 200)}) {
      const Problem p({3, 200, 200, 4, 2, 8, 5}, {.causal = true, .window = 150}, mask);
      check_same_with_any_threads([&] {
        const Results r = by_op(p, device, dtype);
        Values all = r.o;
        for (const Values& values : {r.dq, r.dk, r.dv}) all.insert(all.end(), values.begin(), values.end());
        return all;
      });
    }
  });
}

TEST_CASE("tensor/attention: what does not go together is named") {
  const auto operand = [](const Shape& shape, DType dtype = DType::float32) {
    return Variable(Tensor::zeros(shape, dtype));
  };
  const Variable q = operand({2, 3, 4, 5}), k = operand({2, 6, 2, 5}), v = operand({2, 6, 2, 7});
  CHECK(attention(q, k, v, {}).shape() == Shape{2, 3, 4, 7});

  CHECK(error_of([&] {
          attention(q, operand({2, 6, 2, 4}), v, {});
        }) ==
        "[attention] q (2, 3, 4, 5), k (2, 6, 2, 4) and v (2, 6, 2, 7); allowed: q [B, Tq, H, dk], "
        "k [B, Tk, Hkv, dk] and v [B, Tk, Hkv, dv]");
  CHECK(error_of([&] { attention(q, k, operand({2, 5, 2, 7}), {}); }) != "");
  CHECK(error_of([&] { attention(q, k, {}, {}); }) == "[attention] q, k and v must all be given");
  CHECK(error_of([&] {
          attention(q, operand({2, 6, 2, 5}, DType::float64), v, {});
        }) == "[attention] q is float32, k float64, v float32; allowed: one type");
  CHECK(error_of([&] {
          attention(q, k, v, {}, Tensor::zeros({2, 3}, DType::int32));
        }) == "[attention] key_mask int32 (2, 3) for k (2, 6, 2, 5); allowed: int32 [B, Tk]");
  CHECK(error_of([&] {
          attention(q, k, v, {}, Tensor::zeros({2, 6}, DType::float32));
        }) == "[attention] key_mask float32 (2, 6) for k (2, 6, 2, 5); allowed: int32 [B, Tk]");
  // A cache whose head axis was cut in the middle of a token's heads is fine, one cut inside a head is not.
  CHECK(
      error_of([&] {
        attention(operand({2, 3, 4, 4}), Variable(k.value().narrow(3, 0, 4)), v, {});
      }) ==
      "[heads] a tensor of shape (2, 6, 2, 4); allowed: [B, T, H, d] with the heads of a token side by side");

  CHECK_THROWS_AS(attention(q, operand({2, 6, 3, 5}), operand({2, 6, 3, 7}), {}), UsageError);
  CHECK(
      error_of([&] {
        attention(q, operand({2, 6, 3, 5}), operand({2, 6, 3, 7}), {});
      }) ==
      "[attention] 4 heads and 3 key heads; allowed: a number of key heads that divides the number of heads");
  CHECK_THROWS_AS(attention(q, k, v, {.window = 2}), UsageError);
  CHECK(error_of([&] { attention(q, k, v, {.window = 2}); }) ==
        "[attention] window 2 without causal; a window is the newest keys of those up to the query");
  CHECK_THROWS_AS(attention(q, k, v, {.causal = true, .window = -1}), UsageError);
  CHECK_THROWS_AS(attention(q, k, v, {.scale = nan}), UsageError);
  CHECK_THROWS_AS(attention(operand({1, 1, 1, 0}), operand({1, 1, 1, 0}), operand({1, 1, 1, 2}), {}),
                  UsageError);
}

}  // namespace mixgrad
