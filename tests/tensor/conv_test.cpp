// Short causal convolution: values, reading in pieces, what lies in the future, messages, repeatability.
#include "autograd/ops/conv.h"

#include <cmath>
#include <limits>

#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

/// Tokens [start, start + length) of x [B, T, D], as a tensor of their own.
Variable tokens(const Variable& x, int64_t start, int64_t length) {
  return Variable(x.value().narrow(1, start, length).contiguous());
}

Values operator+(Values a, const Values& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double largest_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

}  // namespace

TEST_CASE("tensor/conv: each channel sums its newest values with the last tap on the newest") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf({1, 10, 2, 20, 3, 30}, {1, 3, 2}, device, dtype);
    const Variable weight = leaf({100, 10, 1, 1, 0, -1}, {2, 3}, device, dtype);
    const Variable bias = leaf({0.5, 0}, {2}, device, dtype);
    const Convolution got = causal_conv1d(x, weight, bias);
    CHECK(got.output.value().to_vector() == Values{1.5, -10, 12.5, -20, 123.5, -20});
    CHECK(got.state.value().to_vector() == Values{2, 20, 3, 30});
    const Variable before = leaf({7, 70, 8, 80}, {1, 2, 2}, device, dtype);
    const Convolution with_state = causal_conv1d(x, weight, bias, before);
    CHECK(with_state.output.value().to_vector() == Values{781.5, 60, 812.5, 60, 123.5, -20});
  });
}

TEST_CASE("tensor/conv: any split with the state handed on gives the same bits") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const NoGrad no_grad;
    const int64_t length = 9, channels = 67, taps = 4;
    const Variable x = leaf(waves(2 * length * channels), {2, length, channels}, device, dtype);
    const Variable weight = leaf(waves(channels * taps), {channels, taps}, device, dtype);
    const Variable bias = leaf(waves(channels), {channels}, device, dtype);
    const Convolution whole = causal_conv1d(x, weight, bias, {}, {.silu = true});
    for (const int64_t piece : {1, 2, 4, 9}) {
      CAPTURE(piece);
      Variable state;
      for (int64_t start = 0; start < length; start += piece) {
        const int64_t count = std::min(piece, length - start);
        const Convolution part = causal_conv1d(tokens(x, start, count), weight, bias, state, {.silu = true});
        CHECK(part.output.value().to_vector() == tokens(whole.output, start, count).value().to_vector());
        state = part.state;
      }
      CHECK(state.value().to_vector() == whole.state.value().to_vector());
    }
  });
}

TEST_CASE("tensor/conv: no output sees a later token or one further back than the taps") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t length = 8, channels = 3;
    const Variable weight = leaf(waves(channels * 3), {channels, 3}, device, dtype);
    Values values = waves(length * channels);
    const Variable before = causal_conv1d(leaf(values, {1, length, channels}, device, dtype), weight).output;
    for (int64_t c = 0; c < channels; ++c) {
      values[4 * channels + c] = std::numeric_limits<double>::quiet_NaN();
    }
    const Variable after = causal_conv1d(leaf(values, {1, length, channels}, device, dtype), weight).output;
    const Values old_values = before.value().to_vector(), new_values = after.value().to_vector();
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        CAPTURE(t);
        const int64_t i = t * channels + c;
        if (t >= 4 && t < 7)
          CHECK(std::isnan(new_values[i]));
        else
          CHECK(new_values[i] == old_values[i]);
      }
    }
  });
}

TEST_CASE("tensor/conv: documents in a row are as if each had a call of its own") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t length = 11, channels = 67, taps = 4;
    const std::vector<std::pair<int64_t, int64_t>> documents = {{0, 2}, {2, 1}, {3, 6}, {9, 2}};
    const Variable x = leaf(waves(length * channels), {1, length, channels}, device, dtype);
    const Variable weight = leaf(waves(channels * taps), {channels, taps}, device, dtype);
    Variable before = leaf(waves(3 * channels), {1, 3, channels}, device, dtype);
    const auto dy = [&](int64_t start, int64_t count) {
      return tokens(leaf(waves(length * channels), x.shape(), device, dtype), start, count).value();
    };
    // The first document is the end of one that began before.
    const Tensor begins =
        Tensor::from(std::vector<int32_t>{0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0}, {1, length}, device);
    const Convolution packed = causal_conv1d(x, weight, {}, before, {.silu = true, .documents = begins});
    backward({packed.output}, {dy(0, length)});
    const Values dstate = before.grad().to_vector();
    for (const auto& [start, count] : documents) {
      CAPTURE(start);
      const Variable part(tokens(x, start, count).value(), true);
      before.zero_grad();
      const Convolution alone =
          causal_conv1d(part, weight, {}, start == 0 ? before : Variable(), {.silu = true});
      CHECK(tokens(packed.output, start, count).value().to_vector() == alone.output.value().to_vector());
      backward({alone.output}, {dy(start, count)});
      CHECK(x.grad().narrow(1, start, count).contiguous().to_vector() == part.grad().to_vector());
      if (start == 0) CHECK(before.grad().to_vector() == dstate);
      if (start == 9) CHECK(packed.state.value().to_vector() == alone.state.value().to_vector());
    }
  });
}

TEST_CASE("tensor/conv: gradients are those of the definition at every edge of a block of tokens") {
  const auto check = [](Device device, DType dtype, int64_t length, const std::vector<int32_t>& begins) {
    const int64_t channels = 67, taps = 4, before = taps - 1;
    const Variable x = leaf(waves(length * channels), {1, length, channels}, device, dtype);
    const Variable weight = leaf(waves(channels * taps), {channels, taps}, device, dtype);
    const Variable bias = leaf(waves(channels), {channels}, device, dtype);
    const Variable state = leaf(waves(before * channels), {1, before, channels}, device, dtype);
    Convolution got =
        causal_conv1d(x, weight, bias, state, {.documents = Tensor::from(begins, {1, length}, device)});
    const Tensor dy = x.value(), dlast = state.value();
    backward({got.output, got.state}, {dy, dlast});

    const Values rows = state.value().to_vector() + x.value().to_vector();  // [W - 1 + T, D]
    const Values w = weight.value().to_vector(), e = dy.to_vector(), last = dlast.to_vector();
    Values drows(rows.size()), dweight(w.size()), dbias(channels);
    int64_t first = 0;  // in rows: the first that can be seen
    for (int64_t t = 0; t < length; ++t) {
      if (begins[t] != 0) first = t + before;
      for (int64_t c = 0; c < channels; ++c) {
        dbias[c] += e[t * channels + c];
        for (int64_t i = 0; i < taps; ++i) {
          if (t + i < first) continue;
          drows[(t + i) * channels + c] += w[c * taps + i] * e[t * channels + c];
          dweight[c * taps + i] += rows[(t + i) * channels + c] * e[t * channels + c];
        }
      }
    }
    for (int64_t i = 0; i < before; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        if (length + i >= first) drows[(length + i) * channels + c] += last[i * channels + c];
      }
    }
    const Values got_rows = state.grad().to_vector() + x.grad().to_vector();
    // Rounding in float: 1e-5; a token that sees a row too much or too little: 0.01 and more.
    const double line = dtype == DType::float32 ? 3e-5 : 1e-13;
    CHECK(largest_difference(got_rows, drows) < line);
    CHECK(largest_difference(weight.grad().to_vector(), dweight) < line);
    CHECK(largest_difference(bias.grad().to_vector(), dbias) < line);
  };
  for_each_device_and_dtype([&](Device device, DType dtype) {
    for (const int64_t length : {1, 2, 31, 32, 33, 66}) {
      CAPTURE(length);
      std::vector<int32_t> begins(length, 0);
      check(device, dtype, length, begins);
      for (const int64_t t : {1, 30, 31, 32, 34, 63, 64, 65}) {
        if (t < length) begins[t] = 1;
      }
      check(device, dtype, length, begins);
    }
  });
}

TEST_CASE("tensor/conv: without tokens the state passes unchanged and so does its gradient") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x(Tensor::zeros({2, 0, 3}, dtype, device), true);
    const Variable weight = leaf(waves(12), {3, 4}, device, dtype);
    const Variable before = leaf(waves(18), {2, 3, 3}, device, dtype);
    const Convolution got = causal_conv1d(x, weight, {}, before);
    CHECK(got.output.shape() == Shape{2, 0, 3});
    CHECK(got.state.value().to_vector() == before.value().to_vector());
    backward({got.state}, {before.value()});
    CHECK(before.grad().to_vector() == before.value().to_vector());
    CHECK(weight.grad().to_vector() == Values(12, 0));
    // Nor does it need a state before the first token.
    CHECK(causal_conv1d(x, weight).state.value().to_vector() == Values(18, 0));
  });
}

TEST_CASE("tensor/conv: operands that do not fit are named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto zeros = [&](const Shape& shape) { return Variable(Tensor::zeros(shape, dtype, device)); };
    const Variable x = zeros({2, 5, 3});
    CHECK(error_of([&] {
            causal_conv1d(zeros({5, 3}), zeros({3, 4}));
          }) == "[causal_conv1d] x (5, 3); allowed: [B, T, D]");
    CHECK(error_of([&] {
            causal_conv1d(x, zeros({4, 3}));
          }) == "[causal_conv1d] weight (4, 3) for x (2, 5, 3); allowed: (3, W) with W of 1 or more");
    CHECK(error_of([&] {
            causal_conv1d(x, zeros({3, 4}), zeros({4}));
          }) == "[causal_conv1d] bias (4); allowed: (3)");
    CHECK(error_of([&] {
            causal_conv1d(x, zeros({3, 4}), {}, zeros({2, 4, 3}));
          }) == "[causal_conv1d] initial_state (2, 4, 3); allowed: (2, 3, 3)");
  });
}

TEST_CASE("tensor/conv: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const Shape shape{3, 100, 150};
    check_same_with_any_threads([&] {
      const Variable x = leaf(waves(shape.elements()), shape, device, dtype);
      const Variable weight = leaf(waves(600), {150, 4}, device, dtype);
      const Variable bias = leaf(waves(150), {150}, device, dtype);
      const Convolution got = causal_conv1d(x, weight, bias, {}, {.silu = true});
      backward({got.output}, {x.value()});
      Values all = got.output.value().to_vector();
      for (const Variable& input : {x, weight, bias}) {
        const Values more = input.grad().to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  });
}

}  // namespace mixgrad
