// The selective scan: against plain loops at every edge of a tile and chunk, reading in pieces, the future,
// extreme steps, memory, messages, repeatability.
#include "autograd/ops/scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/allocator.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

struct Sizes {
  int64_t batch, length, channels, states;
};

/// Operands of a scan as leaves.
struct Operands {
  Variable u, delta, A, B, C, D, state;

  Operands(const Sizes& s, Device device, DType dtype) {
    const auto make = [&](const Shape& shape, double offset, double factor) {
      Values values = waves(shape.elements());
      for (double& value : values) value = offset + factor * value;
      return leaf(values, shape, device, dtype);
    };
    u = make({s.batch, s.length, s.channels}, 0, 1);
    delta = make({s.batch, s.length, s.channels}, 0.5, 0.4);
    A = make({s.channels, s.states}, -1, 0.9);
    B = make({s.batch, s.length, s.states}, 0.1, 1);
    C = make({s.batch, s.length, s.states}, -0.1, 1);
    D = make({s.channels}, 0.2, 1);
    state = make({s.batch, s.channels, s.states}, 0, 1);
  }

  Scan scan() const { return selective_scan(u, delta, A, B, C, D, state); }
  std::vector<Variable> all() const { return {u, delta, A, B, C, D, state}; }
};

/// Tokens [start, start + length) of x [B, T, ...], as a tensor of their own.
Variable tokens(const Variable& x, int64_t start, int64_t length) {
  return Variable(x.value().narrow(1, start, length).contiguous());
}

/// y and the last h by the definition.
std::pair<Values, Values> by_definition(const Sizes& s, const Operands& in) {
  const Values u = in.u.value().to_vector(), delta = in.delta.value().to_vector();
  const Values A = in.A.value().to_vector(), B = in.B.value().to_vector(), C = in.C.value().to_vector();
  const Values D = in.D.value().to_vector();
  Values h = in.state.value().to_vector(), y(u.size());
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.length; ++t) {
      const int64_t token = b * s.length + t;
      for (int64_t d = 0; d < s.channels; ++d) {
        const int64_t i = token * s.channels + d;
        y[i] = D[d] * u[i];
        for (int64_t n = 0; n < s.states; ++n) {
          double& state = h[(b * s.channels + d) * s.states + n];
          state =
              std::exp(delta[i] * A[d * s.states + n]) * state + delta[i] * u[i] * B[token * s.states + n];
          y[i] += C[token * s.states + n] * state;
        }
      }
    }
  }
  return {y, h};
}

double largest_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("tensor/scan: plain loops agree at every edge of a tile and a chunk") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{2, 2, 31, 5}, Sizes{1, 63, 32, 16}, Sizes{1, 64, 33, 3},
                           Sizes{2, 65, 3, 2}, Sizes{1, 130, 70, 1}, Sizes{3, 5, 2, 0}}) {
      CAPTURE(s.length);
      CAPTURE(s.channels);
      const Operands in(s, device, dtype);
      const Scan got = in.scan();
      const auto [y, h] = by_definition(s, in);
      // Rounding in float: 2e-6; the state of the wrong token: 0.1 and more.
      const double line = dtype == DType::float32 ? 1e-5 : 1e-13;
      CHECK(largest_difference(got.output.value().to_vector(), y) < line);
      CHECK(largest_difference(got.state.value().to_vector(), h) < line);
    }
  });
}

TEST_CASE("tensor/scan: any split with the state handed on gives the same bits") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const NoGrad no_grad;
    const int64_t length = 70;
    const Operands in({2, length, 35, 4}, device, dtype);
    const Scan whole = in.scan();
    for (const int64_t piece : {1, 3, 64}) {
      CAPTURE(piece);
      Variable state = in.state;
      for (int64_t start = 0; start < length; start += piece) {
        const int64_t count = std::min(piece, length - start);
        const Scan part = selective_scan(tokens(in.u, start, count), tokens(in.delta, start, count), in.A,
                                         tokens(in.B, start, count), tokens(in.C, start, count), in.D, state);
        CHECK(part.output.value().to_vector() == tokens(whole.output, start, count).value().to_vector());
        state = part.state;
      }
      CHECK(state.value().to_vector() == whole.state.value().to_vector());
    }
  });
}

TEST_CASE("tensor/scan: a token that is not a number reaches no earlier output and no other channel") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Sizes s{1, 9, 3, 2};
    Operands in(s, device, dtype);
    const Values before = in.scan().output.value().to_vector();
    Values u = in.u.value().to_vector();
    u[5 * s.channels + 1] = std::numeric_limits<double>::quiet_NaN();
    in.u = leaf(u, in.u.shape(), device, dtype);
    const Values after = in.scan().output.value().to_vector();
    for (int64_t t = 0; t < s.length; ++t) {
      for (int64_t d = 0; d < s.channels; ++d) {
        const int64_t i = t * s.channels + d;
        if (t >= 5 && d == 1)
          CHECK(std::isnan(after[i]));
        else
          CHECK(after[i] == before[i]);
      }
    }
  });
}

TEST_CASE("tensor/scan: a step of 0 keeps the state and a huge one forgets it") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Sizes s{1, 66, 2, 3};
    Operands in(s, device, dtype);
    const auto with_steps = [&](double step) {
      in.delta = Variable(Tensor::full(in.delta.shape(), step, dtype, device), true);
      const Scan got = in.scan();
      backward({got.output, got.state}, {in.u.value(), in.state.value()});
      for (const Variable& input : in.all()) {
        for (const double gradient : input.grad().to_vector()) CHECK(std::isfinite(gradient));
      }
      return got.state.value().to_vector();
    };
    CHECK(with_steps(0) == in.state.value().to_vector());
    // exp(-1000) and less is 0 in float: what is left is the last token's write.
    const Values left = with_steps(1e4);
    const Values u = in.u.value().to_vector(), B = in.B.value().to_vector();
    for (int64_t d = 0; d < s.channels; ++d) {
      for (int64_t n = 0; n < s.states; ++n) {
        const double want = 1e4 * u[65 * s.channels + d] * B[65 * s.states + n];
        CHECK(left[d * s.states + n] == doctest::Approx(want).epsilon(1e-6));
      }
    }
  });
}

TEST_CASE("tensor/scan: training takes memory for no more than a part of all states") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const Sizes s{1, 1024, 64, 16};
    const Operands in(s, device, dtype);
    Allocator& allocator = Allocator::of(device);
    const int64_t before = allocator.stats().live_bytes;
    allocator.reset_peak();
    const Scan got = in.scan();
    backward({got.output}, {in.u.value()});
    const int64_t element = dtype == DType::float32 ? 4 : 8;
    const int64_t states = element * s.length * s.channels * s.states;
    // 0.45 of it, of which 0.13 for one chunk of each tile, whatever the length; had they been stored,
    // above 1.
    CHECK(allocator.stats().peak_bytes - before < states * 6 / 10);
  });
}

TEST_CASE("tensor/scan: without tokens the state passes unchanged and so does its gradient") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Operands in({2, 0, 3, 2}, device, dtype);
    const Scan got = in.scan();
    CHECK(got.output.shape() == Shape{2, 0, 3});
    CHECK(got.state.value().to_vector() == in.state.value().to_vector());
    backward({got.state}, {in.state.value()});
    CHECK(in.state.grad().to_vector() == in.state.value().to_vector());
    CHECK(in.A.grad().to_vector() == Values(6, 0));
    CHECK(in.D.grad().to_vector() == Values(3, 0));
  });
}

TEST_CASE("tensor/scan: operands that do not fit are named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto zeros = [&](const Shape& shape) { return Variable(Tensor::zeros(shape, dtype, device)); };
    const Variable u = zeros({2, 5, 3}), A = zeros({3, 4}), B = zeros({2, 5, 4});
    CHECK(error_of([&] {
            selective_scan(u, zeros({2, 5, 1}), A, B, B);
          }) == "[selective_scan] delta (2, 5, 1); allowed: (2, 5, 3)");
    CHECK(error_of([&] {
            selective_scan(u, u, zeros({4, 3}), B, B);
          }) == "[selective_scan] A (4, 3); allowed: (3, 3)");
    CHECK(error_of([&] { selective_scan(u, u, A, B, u); }) ==
          "[selective_scan] C (2, 5, 3); allowed: (2, 5, 4)");
    CHECK(error_of([&] { selective_scan(u, u, A, B, B, zeros({4})); }) ==
          "[selective_scan] D (4); allowed: (3)");
    CHECK(error_of([&] {
            selective_scan(u, u, A, B, B, {}, zeros({2, 4, 3}));
          }) == "[selective_scan] initial_state (2, 4, 3); allowed: (2, 3, 4)");
  });
}

TEST_CASE("tensor/scan: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    check_same_with_any_threads([&] {
      const Operands in({3, 100, 70, 5}, device, dtype);
      const Scan got = in.scan();
      backward({got.output, got.state}, {in.u.value(), in.state.value()});
      Values all = got.output.value().to_vector();
      for (const Variable& input : in.all()) {
        const Values more = input.grad().to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  });
}

}  // namespace mixgrad
