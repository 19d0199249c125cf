// The recurrence on the GPU against that on the CPU.
#include "tensor/kernels/recurrence.h"

#include <cmath>
#include <limits>

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums of up to 150 terms in another order: float errs by 2e-6, double by 1e-14. A factor or term left out
// changes results by 5e-5 and more.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;

/// A call, and which of its operands there are.
struct Case {
  RecurrenceShape s;
  int64_t chunk;
  bool gated = false;
  bool delta = false;
  bool states = false;     // initial and final ones
  double strongest = 0.6;  // log decays are in [-strongest, 0], and, where it is above 100, -inf
  double size = 1;         // of values and of the outputs' gradients
  bool repeated = false;   // the same key of length 1 at all tokens, at rate 2
  std::vector<int32_t> documents = {};
};

template <class T>
Heads<T> heads_of(T* data, int64_t length, int64_t heads, int64_t width) {
  return {data, length * heads * width, heads * width, width};
}

/// offset + factor waves
template <class T>
std::vector<T> numbers(int64_t count, double phase, T offset, T factor) {
  std::vector<T> values = waves<T>(count, phase);
  for (T& value : values) value = offset + factor * value;
  return values;
}

/// The arrays of a case on one device.
template <class T, class Operands>
struct Call {
  const Case& c;
  Operands& operands;
  const RecurrenceShape& s = c.s;
  ChunkPlan plan = chunk_plan(s.batch, s.keys, c.chunk, c.documents.empty() ? nullptr : c.documents.data());
  int64_t keys = s.batch * s.keys * s.key_heads * s.key_dim;
  int64_t rows = s.batch * s.keys * s.heads;
  int64_t values = rows * s.value_dim;
  int64_t states = s.batch * s.heads * s.key_dim * s.value_dim;
  int64_t normalisers = s.batch * s.heads * s.key_dim;

  const T* in(bool wanted, int64_t count, double phase, T offset = 0, T factor = 1) {
    return wanted ? operands.in(numbers<T>(count, phase, offset, factor)) : nullptr;
  }
  T* out(bool wanted, int64_t count) { return wanted ? operands.template out<T>(count) : nullptr; }
  template <class U>
  Heads<U> key_heads(U* data) const {
    return heads_of(data, s.keys, s.key_heads, s.key_dim);
  }
  template <class U>
  Heads<U> value_heads(U* data) const {
    return heads_of(data, s.keys, s.heads, s.value_dim);
  }

  std::vector<T> log_decays() const {
    std::vector<T> all = numbers<T>(rows * s.gate_channels, 3, -c.strongest / 2, c.strongest / 2);
    for (size_t i = 0; c.strongest > 100 && i < all.size(); i += 11)
      all[i] = -std::numeric_limits<T>::infinity();
    return all;
  }
  std::vector<T> repeated_keys() const {
    const std::vector<double> key = waves<double>(s.key_dim);
    double square = 0;
    for (const double x : key) square += x * x;
    std::vector<T> all(keys);
    for (int64_t i = 0; i < keys; ++i) all[i] = static_cast<T>(key[i % s.key_dim] / std::sqrt(square));
    return all;
  }

  RecurrenceInputs<T> inputs() {
    const T offset = s.normalise ? 1.5 : 0;  // keeps denominators away from 0
    const T size = c.delta ? 0.5 : 1;        // of keys: the delta rule grows with them
    return {.q = key_heads(in(true, keys, 0, offset)),
            .k = key_heads(c.repeated ? operands.in(repeated_keys()) : in(true, keys, 1, offset, size)),
            .v = value_heads(in(true, values, 2, 0, c.size)),
            .log_decay = c.gated ? operands.in(log_decays()) : nullptr,
            .beta = c.repeated ? in(c.delta, rows, 4, 2, 0) : in(c.delta, rows, 4, 0.5, 0.5),
            .state = in(c.states, states, 5),
            .normaliser = in(c.states && s.normalise, normalisers, 6, offset)};
  }
  RecurrenceOutputs<T> outputs() {
    return {.o = value_heads(out(true, values)),
            .state = out(c.states, states),
            .normaliser = out(c.states && s.normalise, normalisers),
            .denominators = out(s.normalise, rows),
            .states = out(true, plan.states * s.heads * s.key_dim * s.value_dim),
            .normalisers = out(s.normalise, plan.states * s.heads * s.key_dim),
            .residuals = value_heads(out(c.delta, c.delta ? values : 0))};
  }
  RecurrenceOutputGradients<T> output_gradients() {
    return {.o = value_heads(in(true, values, 7, 0, c.size)),
            .state = in(c.states, states, 8),
            .normaliser = in(c.states && s.normalise, normalisers, 9)};
  }
  RecurrenceInputGradients<T> input_gradients() {
    return {.q = key_heads(out(true, keys)),
            .k = key_heads(out(true, keys)),
            .v = value_heads(out(true, values)),
            .log_decay = out(c.gated, rows * s.gate_channels),
            .beta = out(c.delta, rows),
            .state = out(c.states, states),
            .normaliser = out(c.states && s.normalise, normalisers)};
  }
};

/// Forward and backward on both devices.
template <class T>
void check_case(const Case& c, double allowed = tolerance<T>) {
  CAPTURE(c.s.keys);
  CAPTURE(c.s.key_dim);
  CAPTURE(c.s.value_dim);
  check_same(allowed, [&](auto device, auto& operands) {
    Call<T, std::remove_reference_t<decltype(operands)>> call{c, operands};
    const RecurrenceInputs<T> in = call.inputs();
    const RecurrenceOutputs<T> out = call.outputs();
    recurrence_forward<T>(device, c.s, call.plan, in, out);
    const RecurrenceOutputs<const T> saved{out.o,      nullptr,         nullptr,      out.denominators,
                                           out.states, out.normalisers, out.residuals};
    recurrence_backward<T>(device, c.s, call.plan, in, saved, call.output_gradients(),
                           call.input_gradients());
  });
}

}  // namespace

constexpr double half = 0.5;  // the scale

TEST_CASE_TEMPLATE("cuda/recurrence: additive and normalised", T, float, double) {
  check_case<T>({.s = {1, 20, 20, 2, 1, 5, 3}, .chunk = 8});
  check_case<T>({.s = {2, 70, 70, 1, 1, 18, 66, 1, half}, .chunk = 70, .states = true});
  check_case<T>({.s = {1, 20, 20, 4, 2, 5, 3, 1, half, true, 0.1}, .chunk = 8, .states = true});
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/recurrence: a gate for each head", T, float, double) {
  check_case<T>(
      {.s = {1, 20, 20, 2, 1, 5, 3, 1, half, true, 0.1}, .chunk = 8, .gated = true, .states = true});
  check_case<T>({.s = {2, 70, 70, 1, 1, 66, 3, 1, half}, .chunk = 70, .gated = true, .states = true});
  check_case<T>({.s = {1, 9, 9, 1, 1, 1, 1, 1, half}, .chunk = 4, .gated = true});
  check_ran("log_decay_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/recurrence: a gate for each channel", T, float, double) {
  check_case<T>(
      {.s = {1, 40, 40, 2, 1, 6, 3, 6, half, true, 0.1}, .chunk = 20, .gated = true, .states = true});
  check_case<T>({.s = {1, 84, 84, 1, 1, 66, 2, 66, half}, .chunk = 80, .gated = true});
  check_case<T>({.s = {1, 35, 35, 2, 1, 5, 3, 5, half}, .chunk = 33, .gated = true, .delta = true});
  check_ran("log_decays_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/recurrence: delta rule", T, float, double) {
  check_case<T>({.s = {1, 20, 20, 2, 1, 5, 3}, .chunk = 8, .delta = true, .states = true});
  check_case<T>({.s = {1, 40, 40, 2, 1, 5, 35, 1, half}, .chunk = 36, .gated = true, .delta = true});
  check_case<T>(
      {.s = {1, 72, 72, 2, 1, 5, 3, 5, half}, .chunk = 70, .gated = true, .delta = true, .states = true});
  check_ran("correct_backward_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/recurrence: a key that comes again and again errs little") {
  // At rate 2 nothing is forgotten, errors neither. Products of keys summed in double, results differ by
  // 3e-4; summed in float, by 3e-3.
  check_case<float>({.s = {1, 256, 256, 1, 1, 64, 1, 1, half}, .chunk = 64, .delta = true, .repeated = true},
                    1e-3);
}

TEST_CASE_TEMPLATE("cuda/recurrence: documents", T, float, double) {
  std::vector<int32_t> documents(2 * 20);
  for (const int begin : {0, 3, 8, 9, 20 + 13}) documents[begin] = 1;  // the first row begins with one
  for (const bool delta : {false, true}) {
    for (const int64_t channels : {1, 4}) {
      check_case<T>({.s = {2, 20, 20, 2, 1, 4, 3, channels, half, !delta, 0.1},
                     .chunk = 8,
                     .gated = true,
                     .delta = delta,
                     .states = true,
                     .documents = documents});
    }
  }
}

TEST_CASE_TEMPLATE("cuda/recurrence: sizes of 0 and 1", T, float, double) {
  for (const bool delta : {false, true}) {
    for (const bool gated : {false, true}) {
      for (const RecurrenceShape& s : {RecurrenceShape{0, 3, 3, 2, 1, 2, 2},
                                       {1, 0, 0, 2, 1, 2, 2},
                                       {1, 3, 3, 2, 1, 0, 2},
                                       {1, 3, 3, 2, 1, 2, 0},
                                       {1, 1, 1, 1, 1, 1, 1}}) {
        check_case<T>({.s = s, .chunk = 2, .gated = gated, .delta = delta, .states = true});
      }
    }
  }
}

TEST_CASE_TEMPLATE("cuda/recurrence: log decays below the limit", T, float, double) {
  // They count as -100, and have no gradient. In double that shows where values are large.
  for (const int64_t channels : {1, 5}) {
    for (const bool delta : {false, true}) {
      check_case<T>({.s = {1, 40, 40, 2, 1, 5, 3, channels, half},
                     .chunk = 36,
                     .gated = true,
                     .delta = delta,
                     .states = true,
                     .strongest = 130,
                     .size = sizeof(T) == 8 ? 1e25 : 1});
    }
  }
}

/// Writing and reading, forward and backward, on both devices.
template <class T>
void check_states(const RecurrenceShape& s, bool initial) {
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  check_same(tolerance<T>, [&](auto device, auto& operands) {
    const int64_t states = s.batch * s.heads * s.key_dim * s.value_dim;
    const int64_t normalisers = s.batch * s.heads * s.key_dim;
    const auto in = [&](bool wanted, int64_t count, double phase, T offset = 0) {
      return wanted ? operands.in(numbers<T>(count, phase, offset, 1)) : nullptr;
    };
    const auto out = [&](bool wanted, int64_t count) {
      return wanted ? operands.template out<T>(count) : nullptr;
    };
    const auto rows = [&](auto* data, int64_t tokens, int64_t heads, int64_t size) {
      return heads_of(data, tokens, heads, size);
    };
    const int64_t q_count = s.batch * s.queries * s.key_heads * s.key_dim;
    const int64_t k_count = s.batch * s.keys * s.key_heads * s.key_dim;
    const int64_t v_count = s.batch * s.keys * s.heads * s.value_dim;
    const int64_t o_count = s.batch * s.queries * s.heads * s.value_dim;
    const Heads<const T> k = rows(in(true, k_count, 1, 1.5), s.keys, s.key_heads, s.key_dim);
    const Heads<const T> v = rows(in(true, v_count, 2), s.keys, s.heads, s.value_dim);
    T* const state = out(true, states);
    T* const normaliser = out(s.normalise, normalisers);
    state_write_forward<T>(device, s, k, v, in(initial, states, 3),
                           in(initial && s.normalise, normalisers, 4, 1.5), state, normaliser);
    state_write_backward<T>(device, s, k, v, in(true, states, 5), in(s.normalise, normalisers, 6),
                            rows(out(true, k_count), s.keys, s.key_heads, s.key_dim),
                            rows(out(true, v_count), s.keys, s.heads, s.value_dim));
    const Heads<const T> q = rows(in(true, q_count, 7, 1.5), s.queries, s.key_heads, s.key_dim);
    const Heads<T> o = rows(out(true, o_count), s.queries, s.heads, s.value_dim);
    T* const denominators = out(s.normalise, s.batch * s.queries * s.heads);
    state_read_forward<T>(device, s, q, state, normaliser, o, denominators);
    state_read_backward<T>(device, s, q, state, normaliser, o, denominators,
                           rows(in(true, o_count, 8), s.queries, s.heads, s.value_dim),
                           rows(out(true, q_count), s.queries, s.key_heads, s.key_dim), out(true, states),
                           out(s.normalise, normalisers));
  });
}

TEST_CASE_TEMPLATE("cuda/recurrence: writing and reading states", T, float, double) {
  check_states<T>({2, 5, 7, 4, 2, 5, 3, 1, half, true, 0.1}, true);
  check_states<T>({1, 3, 300, 1, 1, 3, 2, 1, half}, false);
  check_states<T>({1, 260, 3, 1, 1, 3, 2, 1, half, true, 0.1}, false);
  check_states<T>({1, 0, 0, 1, 1, 3, 2, 1, half, true, 0.1}, true);
}

}  // namespace mixgrad
