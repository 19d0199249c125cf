// What the tests of the recurrence share: its inputs, gates and rates, a forward and a backward pass of
// either rule, and how far two results are apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/recurrence.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

using Values = std::vector<double>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// The inputs of one call, in double.
struct Inputs {
  int64_t batch = 1, tokens = 7, heads = 4, key_heads = 2, key_dim = 5, value_dim = 7;
  Tensor q = {}, k = {}, v = {};
  Tensor log_decay = {};               // undefined: no gate
  Tensor beta = {};                    // of the delta rule; undefined: additive
  Tensor state = {}, normaliser = {};  // undefined: zero
};

/// With positive q and k, so that normalised outputs are well conditioned; rounded to float.
inline Inputs make_inputs(Inputs sizes, uint64_t seed = 5) {
  Generator generator(seed);
  const auto round = [](const Tensor& x) { return x.to(DType::float32).to(DType::float64); };
  const Shape keys{sizes.batch, sizes.tokens, sizes.key_heads, sizes.key_dim};
  sizes.q = round(uniform(keys, 0.1, 1, generator, DType::float64));
  sizes.k = round(uniform(keys, 0.1, 1, generator, DType::float64));
  const Shape values{sizes.batch, sizes.tokens, sizes.heads, sizes.value_dim};
  sizes.v = round(normal(values, 1, generator, DType::float64));
  return sizes;
}

/// For the delta rule: keys of length 1 in all directions, and rates between 0 and 1.
inline Inputs make_delta_inputs(Inputs sizes) {
  Inputs in = make_inputs(sizes);
  Generator generator(12);
  Values keys = normal(in.k.shape(), 1, generator, DType::float64).to_vector();
  for (size_t row = 0; row < keys.size(); row += in.key_dim) {
    double squares = 0;
    for (int64_t m = 0; m < in.key_dim; ++m) squares += keys[row + m] * keys[row + m];
    for (int64_t m = 0; m < in.key_dim; ++m) keys[row + m] /= std::sqrt(squares);
  }
  in.k = Tensor::from(keys, in.k.shape()).to(DType::float32).to(DType::float64);
  in.beta = uniform({in.batch, in.tokens, in.heads}, 0, 1, generator, DType::float32).to(DType::float64);
  return in;
}

inline void add_state(Inputs& in, bool normalise) {
  Generator generator(6);
  const Shape shape{in.batch, in.heads, in.key_dim, in.value_dim};
  in.state = normal(shape, 1, generator, DType::float64).to(DType::float32).to(DType::float64);
  if (normalise) {
    in.normaliser =
        uniform(shape.drop_last(), 0.1, 1, generator, DType::float64).to(DType::float32).to(DType::float64);
  }
}

/// Everything that a forward and a backward pass return, tensor by tensor; absent ones are empty.
struct Results {
  Values o = {}, state = {}, normaliser = {}, dq = {}, dk = {}, dv = {}, dlog_decay = {}, dstate = {},
         dnormaliser = {}, dbeta = {};
};
using Member = Values Results::*;
constexpr Member members[] = {&Results::o,           &Results::state, &Results::normaliser, &Results::dq,
                              &Results::dk,          &Results::dv,    &Results::dlog_decay, &Results::dstate,
                              &Results::dnormaliser, &Results::dbeta};

/// Cotangents of outputs and final states: the same for the reference and for every dtype.
inline Tensor cotangent(const Shape& shape) {
  Generator generator(shape.rank());
  return normal(shape, 1, generator, DType::float64).to(DType::float32).to(DType::float64);
}

inline Values values_or_empty(const Tensor& x) { return x.defined() ? x.to_vector() : Values(); }
inline Values value_of(const Variable& x) { return values_or_empty(x.value()); }
inline Values gradient_of(const Variable& x) { return values_or_empty(x.grad()); }

/// The additive recurrence, or the delta rule where there is a beta.
inline Recurrence either_rule(const Variable& q, const Variable& k, const Variable& v,
                              const RecurrenceOptions& options, const Variable& log_decay,
                              const Variable& beta, const Variable& state, const Variable& normaliser) {
  if (!beta.defined()) return recurrence(q, k, v, options, log_decay, state, normaliser);
  const DeltaRuleOptions delta{.scale = options.scale,
                               .chunk = options.chunk,
                               .final_state = options.final_state,
                               .documents = options.documents};
  return delta_rule(q, k, v, beta, delta, log_decay, state);
}

/// A forward and a backward pass. dout: the cotangent of the output, if it isn't the usual one.
inline Results run(const Inputs& in, const RecurrenceOptions& options, DType dtype, Device device = {},
                   const Tensor& dout = {}) {
  const auto leaf_of = [&](const Tensor& x) {
    return x.defined() ? leaf(x.to_vector(), x.shape(), device, dtype) : Variable();
  };
  const Variable q = leaf_of(in.q), k = leaf_of(in.k), v = leaf_of(in.v), g = leaf_of(in.log_decay);
  const Variable beta = leaf_of(in.beta);
  const Variable state = leaf_of(in.state), normaliser = leaf_of(in.normaliser);
  const Recurrence r = either_rule(q, k, v, options, g, beta, state, normaliser);
  std::vector<Variable> outputs;
  Tensors cotangents;
  for (const Variable& output : {r.output, r.state, r.normaliser}) {
    if (!output.defined()) continue;
    outputs.push_back(output);
    cotangents.push_back(leaf(cotangent(output.shape()).to_vector(), output.shape(), device, dtype).value());
  }
  if (dout.defined()) cotangents[0] = leaf(dout.to_vector(), dout.shape(), device, dtype).value();
  backward(outputs, cotangents);
  return {value_of(r.output),      value_of(r.state), value_of(r.normaliser), gradient_of(q),
          gradient_of(k),          gradient_of(v),    gradient_of(g),         gradient_of(state),
          gradient_of(normaliser), gradient_of(beta)};
}

/// The largest difference beside the largest value, of every tensor; NaN when there is one. Tensors that are
/// nothing beside 1e-30 count as zero.
inline double relative_error(const Results& got, const Results& want) {
  double worst = 0;
  for (const Member member : members) {
    const Values& a = got.*member;
    const Values& b = want.*member;
    REQUIRE(a.size() == b.size());
    double largest = 1e-30, difference = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      largest = std::max(largest, std::abs(b[i]));
      difference = worse(difference, std::abs(a[i] - b[i]));
    }
    worst = worse(worst, difference / largest);
  }
  return worst;
}

inline Tensor constant_gate(const Inputs& in, double g) {
  return Tensor::full({in.batch, in.tokens, in.heads}, g, DType::float64);
}

/// Weak gates, and every fifth token all is forgotten.
inline Tensor resetting_gate(const Inputs& in) {
  Generator generator(7);
  Tensor gate =
      uniform({in.batch, in.tokens, in.heads}, -0.01, 0, generator, DType::float32).to(DType::float64);
  for (int64_t i = 0; i < gate.elements(); i += 5) gate.data<double>()[i] = -100;
  return gate;
}

/// A gate for each channel: g times weights from 0 to 1; or, for NaN, weak ones and now and then a reset of
/// one channel.
inline Tensor channel_gate(const Inputs& in, double g) {
  Generator generator(13);
  const Shape shape{in.batch, in.tokens, in.heads, in.key_dim};
  const bool resets = std::isnan(g);
  Tensor gate =
      uniform(shape, resets ? -0.01 : std::min(g, -1e-9), 0, generator, DType::float32).to(DType::float64);
  for (int64_t i = 0; i < gate.elements() && resets; i += 7) gate.data<double>()[i] = -100;
  return gate;
}

}  // namespace mixgrad
