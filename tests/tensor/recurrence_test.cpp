// The chunkwise recurrence against a token-by-token reference in double, and what must hold whatever the
// chunks: causality, splits, threads, memory.
#include "autograd/ops/recurrence.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/delta_product.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/gma.h"
#include "autograd/ops/longhorn.h"
#include "tensor/allocator.h"
#include "tests/tensor/recurrence_fixtures.h"

namespace mixgrad {
namespace {

/// One token after the other, forward and then back, from the definition.
class Reference {
 public:
  Reference(const Inputs& in, const RecurrenceOptions& options)
      : in_(in), options_(options), q_(in.q.to_vector()), k_(in.k.to_vector()), v_(in.v.to_vector()) {
    const int64_t sequences = in.batch * in.heads;
    result_.o.resize(v_.size());
    result_.state.resize(sequences * in.key_dim * in.value_dim);
    result_.dq.resize(q_.size());
    result_.dk.resize(k_.size());
    result_.dv.resize(v_.size());
    g_ = in.log_decay.defined() ? in.log_decay.to_vector() : Values();
    result_.dlog_decay.resize(g_.size());
    beta_ = values_or_empty(in.beta);
    result_.dbeta.resize(beta_.size());
    if (options.normalise) result_.normaliser.resize(sequences * in.key_dim);
    if (in.state.defined()) result_.dstate.resize(result_.state.size());
    if (in.normaliser.defined()) result_.dnormaliser.resize(result_.normaliser.size());
    for (int64_t row = 0; row < in.batch; ++row) {
      for (int64_t head = 0; head < in.heads; ++head) run(row, head);
    }
  }

  const Results& result() const { return result_; }

 private:
  struct State {
    Values s, z;
  };

  int64_t key_at(int64_t row, int64_t t, int64_t head) const {
    const int64_t key_head = head / (in_.heads / in_.key_heads);
    return ((row * in_.tokens + t) * in_.key_heads + key_head) * in_.key_dim;
  }
  int64_t value_at(int64_t row, int64_t t, int64_t head) const {
    return ((row * in_.tokens + t) * in_.heads + head) * in_.value_dim;
  }
  int64_t scalar_at(int64_t row, int64_t t, int64_t head) const {
    return (row * in_.tokens + t) * in_.heads + head;
  }
  /// Where the log decay of a channel stands, which may be that of all.
  int64_t gate_at(int64_t row, int64_t t, int64_t head, int64_t channel) const {
    const bool by_channel = in_.log_decay.shape().rank() == 4;
    return by_channel ? scalar_at(row, t, head) * in_.key_dim + channel : scalar_at(row, t, head);
  }
  double decay(int64_t row, int64_t t, int64_t head, int64_t channel) const {
    return g_.empty() ? 1 : std::exp(std::max(g_[gate_at(row, t, head, channel)], -100.0));
  }
  /// The residual at a token, from the state before it.
  Values residual(int64_t row, int64_t t, int64_t head, const State& before) const {
    const int64_t dv = in_.value_dim, key = key_at(row, t, head), value = value_at(row, t, head);
    Values r(v_.begin() + value, v_.begin() + value + dv);
    for (int64_t m = 0; m < in_.key_dim; ++m) {
      for (int64_t e = 0; e < dv; ++e) r[e] -= decay(row, t, head, m) * k_[key + m] * before.s[m * dv + e];
    }
    return r;
  }
  /// What the key writes: the value, or the residual times beta.
  Values written(int64_t row, int64_t t, int64_t head, const State& before) const {
    const int64_t value = value_at(row, t, head);
    if (beta_.empty()) return Values(v_.begin() + value, v_.begin() + value + in_.value_dim);
    Values u = residual(row, t, head, before);
    for (double& x : u) x *= beta_[scalar_at(row, t, head)];
    return u;
  }

  void run(int64_t row, int64_t head) {
    const int64_t dk = in_.key_dim, dv = in_.value_dim, T = in_.tokens, sequence = row * in_.heads + head;
    const auto part = [&](const Tensor& x, int64_t size) {
      if (!x.defined()) return Values(size, 0.0);
      const Values all = x.to_vector();
      return Values(all.begin() + sequence * size, all.begin() + (sequence + 1) * size);
    };
    std::vector<State> states = {{part(in_.state, dk * dv), part(in_.normaliser, dk)}};  // after t tokens
    Values denominators(T, 1.0);
    for (int64_t t = 0; t < T; ++t) {
      const double* q = &q_[key_at(row, t, head)];
      const double* k = &k_[key_at(row, t, head)];
      const Values u = written(row, t, head, states.back());
      double* o = &result_.o[value_at(row, t, head)];
      State next = states.back();
      double den = options_.eps;
      for (int64_t m = 0; m < dk; ++m) {
        next.z[m] = next.z[m] * decay(row, t, head, m) + k[m];
        den += options_.scale * q[m] * next.z[m];
        for (int64_t e = 0; e < dv; ++e) {
          next.s[m * dv + e] = next.s[m * dv + e] * decay(row, t, head, m) + k[m] * u[e];
          o[e] += options_.scale * q[m] * next.s[m * dv + e];
        }
      }
      if (options_.normalise) {
        denominators[t] = den;
        for (int64_t e = 0; e < dv; ++e) o[e] /= den;
      }
      states.push_back(next);
    }
    std::copy_n(states[T].s.begin(), dk * dv, result_.state.begin() + sequence * dk * dv);
    if (options_.normalise) std::copy_n(states[T].z.begin(), dk, result_.normaliser.begin() + sequence * dk);
    run_back(row, head, states, denominators);
  }

  void run_back(int64_t row, int64_t head, const std::vector<State>& states, const Values& denominators) {
    const int64_t dk = in_.key_dim, dv = in_.value_dim, sequence = row * in_.heads + head;
    const Values dout = cotangent(in_.v.shape()).to_vector();
    State d{Values(dk * dv, 0.0), Values(dk, 0.0)};  // gradient of the state after a token
    if (options_.final_state) {
      const Values all = cotangent({in_.batch, in_.heads, dk, dv}).to_vector();
      std::copy_n(all.begin() + sequence * dk * dv, dk * dv, d.s.begin());
      const Values all_z = cotangent({in_.batch, in_.heads, dk}).to_vector();
      if (options_.normalise) std::copy_n(all_z.begin() + sequence * dk, dk, d.z.begin());
    }
    for (int64_t t = in_.tokens - 1; t >= 0; --t) {
      const int64_t key = key_at(row, t, head), value = value_at(row, t, head);
      const State& after = states[t + 1];
      const State& before = states[t];
      double dden = 0;
      for (int64_t e = 0; e < dv && options_.normalise; ++e) {
        dden -= dout[value + e] * result_.o[value + e] / denominators[t];
      }
      const Values u = written(row, t, head, before);
      for (int64_t m = 0; m < dk; ++m) {
        d.z[m] += options_.scale * q_[key + m] * dden;
        result_.dq[key + m] += options_.scale * dden * after.z[m];
        result_.dk[key + m] += d.z[m];
        for (int64_t e = 0; e < dv; ++e) {
          const double dnum = dout[value + e] / denominators[t];
          d.s[m * dv + e] += options_.scale * q_[key + m] * dnum;
          result_.dq[key + m] += options_.scale * after.s[m * dv + e] * dnum;
          result_.dk[key + m] += d.s[m * dv + e] * u[e];
          result_.dv[value + e] += d.s[m * dv + e] * k_[key + m];
        }
      }
      if (!beta_.empty()) residual_back(row, t, head, before, d);
      for (int64_t m = 0; m < dk; ++m) {
        const double factor = decay(row, t, head, m);
        double dg = 0;
        for (int64_t e = 0; e < dv; ++e) {
          dg += factor * before.s[m * dv + e] * d.s[m * dv + e];
          d.s[m * dv + e] *= factor;
        }
        dg += factor * before.z[m] * d.z[m];
        d.z[m] *= factor;
        if (!g_.empty() && g_[gate_at(row, t, head, m)] >= -100) {
          result_.dlog_decay[gate_at(row, t, head, m)] += dg;
        }
      }
    }
    if (in_.state.defined()) std::copy_n(d.s.begin(), dk * dv, result_.dstate.begin() + sequence * dk * dv);
    if (in_.normaliser.defined()) std::copy_n(d.z.begin(), dk, result_.dnormaliser.begin() + sequence * dk);
  }

  /// From the gradient of what a key writes, which stands in dv, and d, of the state after it, to those of
  /// the value, of beta, of the key that read, and of the decayed state.
  void residual_back(int64_t row, int64_t t, int64_t head, const State& before, State& d) {
    const int64_t dv = in_.value_dim, key = key_at(row, t, head), value = value_at(row, t, head);
    const Values r = residual(row, t, head, before);
    for (int64_t e = 0; e < dv; ++e) {
      result_.dbeta[scalar_at(row, t, head)] += result_.dv[value + e] * r[e];
      result_.dv[value + e] *= beta_[scalar_at(row, t, head)];
    }
    for (int64_t m = 0; m < in_.key_dim; ++m) {
      for (int64_t e = 0; e < dv; ++e) {
        result_.dk[key + m] -= decay(row, t, head, m) * before.s[m * dv + e] * result_.dv[value + e];
        d.s[m * dv + e] -= k_[key + m] * result_.dv[value + e];
      }
    }
  }

  const Inputs& in_;
  const RecurrenceOptions options_;
  const Values q_, k_, v_;
  Values g_, beta_;
  Results result_;
};

}  // namespace

TEST_CASE("tensor/recurrence: three steps by hand") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto column = [&](const Values& values) { return leaf(values, {1, 3, 1, 1}, device, dtype); };
    const Variable q = column({1, 2, 3}), k = column({1, 1, 2}), v = column({3, 1, 1});
    const double half = std::log(0.5);
    const Variable g = leaf({half, half, half}, {1, 3, 1}, device, dtype);
    const Variable state = leaf({2}, {1, 1, 1, 1}, device, dtype);
    const Variable normaliser = leaf({1}, {1, 1, 1}, device, dtype);
    for (const int64_t chunk : {1, 2, 64}) {
      // S = 2, 4, 3, 3.5: forgotten first, then written, then read.
      const Recurrence plain = recurrence(q, k, v, {.chunk = chunk}, g, state);
      const Values o = plain.output.value().to_vector();
      CHECK(o[0] == doctest::Approx(4));
      CHECK(o[1] == doctest::Approx(6));
      CHECK(o[2] == doctest::Approx(10.5));
      CHECK(plain.state.value().item() == doctest::Approx(3.5));
      // z = 1, 1.5, 1.75, 2.875
      const RecurrenceOptions options{.normalise = true, .eps = 0.25, .chunk = chunk};
      const Recurrence divided = recurrence(q, k, v, options, g, state, normaliser);
      const Values ratio = divided.output.value().to_vector();
      CHECK(ratio[0] == doctest::Approx(4 / 1.75));
      CHECK(ratio[1] == doctest::Approx(6 / 3.75));
      CHECK(ratio[2] == doctest::Approx(10.5 / 8.875));
      CHECK(divided.normaliser.value().item() == doctest::Approx(2.875));
    }
  });
}

TEST_CASE("tensor/recurrence: the delta rule by hand") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto column = [&](const Values& values) { return leaf(values, {1, 3, 1, 1}, device, dtype); };
    const auto gate = [&](const Values& values) { return leaf(values, {1, 3, 1}, device, dtype); };
    const Variable q = column({1, 1, 2}), k = column({1, 1, 2}), v = column({3, 5, 1});
    const Variable beta = gate({0.5, 1, 0.25}), g = gate({std::log(0.5), std::log(0.5), 0});
    const Variable state = leaf({2}, {1, 1, 1, 1}, device, dtype);
    for (const int64_t chunk : {1, 2, 64}) {
      // S = 2, 2, 5, 0.5: 2 / 2 + 0.5 (3 - 2 / 2), then the value itself, then 5 + 0.25 * 2 (1 - 2 * 5).
      const Recurrence r = delta_rule(q, k, v, beta, {.chunk = chunk}, g, state);
      const Values o = r.output.value().to_vector();
      CHECK(o[0] == doctest::Approx(2));
      CHECK(o[1] == doctest::Approx(5));
      CHECK(o[2] == doctest::Approx(1));
      CHECK(r.state.value().item() == doctest::Approx(0.5));
    }
  });
}

TEST_CASE("tensor/recurrence: one token is scale times q . k times v exactly") {
  const Variable q = leaf({3, -2}, {1, 1, 1, 2}, {}, DType::float32);
  const Variable k = leaf({0.5, 4}, {1, 1, 1, 2}, {}, DType::float32);
  const Variable v = leaf({1, -8, 5}, {1, 1, 1, 3}, {}, DType::float32);
  CHECK(recurrence(q, k, v, {.scale = 0.5}).output.value().to_vector() == Values{-3.25, 26, -16.25});
}

TEST_CASE("tensor/recurrence: chunks of any size equal token by token") {
  for (const int64_t tokens : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}) {
    CAPTURE(tokens);
    for (const bool normalise : {false, true}) {
      CAPTURE(normalise);
      Inputs in = make_inputs({.tokens = tokens});
      if (tokens % 2 == 1) add_state(in, normalise);
      const RecurrenceOptions reference{.normalise = normalise, .eps = 1e-3, .scale = 0.5};
      const Results want = Reference(in, reference).result();
      for (const int64_t chunk : {1, 16, 64}) {
        CAPTURE(chunk);
        RecurrenceOptions options = reference;
        options.chunk = chunk;
        // Double 4e-15, float 2e-6; a head, a state or a normaliser's gradient left out gives 1 and more.
        CHECK(relative_error(run(in, options, DType::float64), want) <= 1e-13);
        CHECK(relative_error(run(in, options, DType::float32), want) <= 2e-5);
      }
    }
  }
}

TEST_CASE("tensor/recurrence: gates of any strength equal token by token") {
  for (const int64_t tokens : {1, 17, 64, 65, 129}) {
    CAPTURE(tokens);
    for (const double g : {0.0, -0.0009765625, -1.0, -20.0, -100.0, nan}) {
      CAPTURE(g);
      for (const bool normalise : {false, true}) {
        CAPTURE(normalise);
        Inputs in = make_inputs({.tokens = tokens});
        in.log_decay = std::isnan(g) ? resetting_gate(in) : constant_gate(in, g);
        add_state(in, normalise);
        const RecurrenceOptions reference{.normalise = normalise, .eps = 0.25, .scale = 0.5};
        const Results want = Reference(in, reference).result();
        for (const int64_t chunk : {1, 16, 64}) {
          CAPTURE(chunk);
          RecurrenceOptions options = reference;
          options.chunk = chunk;
          // Double 2e-15, float 6e-7. A cumulative decay in float gives 1e-4 with resets; the reverse sum of
          // q . dq - k . dk gives a dlog_decay of rounding errors at g = -20.
          CHECK(relative_error(run(in, options, DType::float64), want) <= 1e-13);
          CHECK(relative_error(run(in, options, DType::float32), want) <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("tensor/recurrence: the delta rule in chunks of any size equals token by token") {
  for (const int64_t tokens : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}) {
    CAPTURE(tokens);
    Inputs in = make_delta_inputs({.tokens = tokens});
    if (tokens % 2 == 1) add_state(in, false);
    const Results want = Reference(in, {.scale = 0.5}).result();
    for (const int64_t chunk : {1, 16, 32, 64, 128}) {
      CAPTURE(chunk);
      const RecurrenceOptions options{.scale = 0.5, .chunk = chunk};
      // Double 3e-15, float 2e-6; without what the residuals hand back to the state before 10.
      CHECK(relative_error(run(in, options, DType::float64), want) <= 1e-13);
      CHECK(relative_error(run(in, options, DType::float32), want) <= 2e-5);
    }
  }
}

TEST_CASE("tensor/recurrence: the delta rule with gates of any strength equals token by token") {
  for (const int64_t tokens : {1, 17, 64, 65, 129}) {
    CAPTURE(tokens);
    for (const double g : {0.0, -0.0009765625, -1.0, -20.0, -100.0, nan}) {
      CAPTURE(g);
      Inputs in = make_delta_inputs({.tokens = tokens});
      in.log_decay = std::isnan(g) ? resetting_gate(in) : constant_gate(in, g);
      add_state(in, false);
      const Results want = Reference(in, {.scale = 0.5}).result();
      for (const int64_t chunk : {16, 32, 64, 128}) {
        CAPTURE(chunk);
        const RecurrenceOptions options{.scale = 0.5, .chunk = chunk};
        // Double 3e-15, float 2e-6; without gates in what the residuals see of each other 5e30.
        CHECK(relative_error(run(in, options, DType::float64), want) <= 1e-13);
        CHECK(relative_error(run(in, options, DType::float32), want) <= 1e-5);
      }
    }
  }
}

TEST_CASE("tensor/recurrence: gates for each channel equal token by token") {
  for (const int64_t tokens : {1, 15, 16, 17, 64, 65, 129, 1000}) {
    CAPTURE(tokens);
    for (const double g : {0.0, -1.0, -20.0, -100.0, nan}) {
      CAPTURE(g);
      if (tokens == 1000 && !std::isnan(g)) continue;
      for (const int kind : {0, 1, 2}) {
        CAPTURE(kind);
        Inputs in = kind == 2 ? make_delta_inputs({.tokens = tokens}) : make_inputs({.tokens = tokens});
        in.log_decay = channel_gate(in, g);
        add_state(in, kind == 1);
        const RecurrenceOptions reference{.normalise = kind == 1, .eps = 0.25, .scale = 0.5};
        const Results want = Reference(in, reference).result();
        for (const int64_t chunk : {1, 16, 32, 64, 128}) {
          CAPTURE(chunk);
          RecurrenceOptions options = reference;
          options.chunk = chunk;
          // Double 3e-15, float 2e-6; gates without the pairs inside a block give 1.
          CHECK(relative_error(run(in, options, DType::float64), want) <= 1e-13);
          CHECK(relative_error(run(in, options, DType::float32), want) <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("tensor/recurrence: gates for each channel that are all alike are one gate for the head") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in = make_delta_inputs({.batch = 2, .tokens = 100});
    in.log_decay = resetting_gate(in);
    add_state(in, false);
    const Results by_head = run(in, {}, dtype, device);
    const Values gate = in.log_decay.to_vector();
    Values channels;
    for (const double g : gate) channels.insert(channels.end(), in.key_dim, g);
    in.log_decay = Tensor::from(channels, {in.batch, in.tokens, in.heads, in.key_dim});
    Results by_channel = run(in, {}, dtype, device);
    Values sums(gate.size(), 0.0);
    for (size_t i = 0; i < by_channel.dlog_decay.size(); ++i) {
      sums[i / in.key_dim] += by_channel.dlog_decay[i];
    }
    by_channel.dlog_decay = sums;
    CHECK(relative_error(by_channel, by_head) <= (dtype == DType::float32 ? 1e-5 : 1e-13));  // 2e-7
  });
}

TEST_CASE("tensor/recurrence: the delta rule is stable for rates up to 2 and keys all alike") {
  for (const bool identical : {false, true}) {
    CAPTURE(identical);
    for (const double rate : {0.0, 1.0, 2.0, nan}) {
      CAPTURE(rate);
      Inputs in = make_delta_inputs({.tokens = 2000, .heads = 1, .key_heads = 1});
      in.beta.fill(std::isnan(rate) ? 0 : rate);
      for (int64_t t = 0; t < 2000 && std::isnan(rate); t += 2)
        in.beta.data<double>()[t] = 1;                   // 1, 0, 1, 0, ...
      for (int64_t t = 1; t < 2000 && identical; ++t) {  // the other way round every third time
        for (int64_t m = 0; m < in.key_dim; ++m) {
          in.k.data<double>()[t * in.key_dim + m] = (t % 3 == 2 ? -1 : 1) * in.k.data<double>()[m];
        }
      }
      add_state(in, false);
      const Results want = Reference(in, {}).result();
      for (const int64_t chunk : {16, 64, 128}) {
        CAPTURE(chunk);
        // Double 5e-14, float 5e-5, both for rates of 2, whose steps are reflections and forget no rounding
        // error; without what the residuals hand back to the state before 30.
        CHECK(relative_error(run(in, {.chunk = chunk}, DType::float64), want) <= 1e-11);
        CHECK(relative_error(run(in, {.chunk = chunk}, DType::float32), want) <= 1e-3);
      }
    }
  }
}

TEST_CASE("tensor/recurrence: the delta rule at rate 0 carries the state and nothing else") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in = make_delta_inputs({.batch = 2, .tokens = 70});
    in.beta.fill(0);
    add_state(in, false);
    const Results r = run(in, {}, dtype, device);
    CHECK(r.state == in.state.to_vector());
    CHECK(std::all_of(r.dv.begin(), r.dv.end(), [](double d) { return d == 0; }));
    CHECK(std::any_of(r.dbeta.begin(), r.dbeta.end(), [](double d) { return d != 0; }));
  });
}

TEST_CASE("tensor/recurrence: a product of equal steps is one longer step") {
  // n steps of rate beta on one pair, with |k| = 1, leave (1 - beta)^n of the residual. 70 tokens of 3 steps:
  // chunks of 64 steps end inside a token.
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in = make_delta_inputs({.tokens = 70, .heads = 1, .key_heads = 1});
    in.log_decay = resetting_gate(in);
    add_state(in, false);
    const int64_t steps = 3;
    const auto repeated = [&](const Tensor& x, int64_t size) {
      const Values values = x.to_vector();
      Values all;
      for (int64_t t = 0; t < in.tokens; ++t) {
        for (int64_t j = 0; j < steps; ++j) {
          all.insert(all.end(), values.begin() + t * size, values.begin() + (t + 1) * size);
        }
      }
      return all;
    };
    const auto constant = [&](const Tensor& x) { return leaf(x.to_vector(), x.shape(), device, dtype); };
    const Recurrence product =
        delta_product(constant(in.q), leaf(repeated(in.k, 5), {1, 70, steps, 1, 5}, device, dtype),
                      leaf(repeated(in.v, 7), {1, 70, steps, 1, 7}, device, dtype),
                      leaf(repeated(in.beta, 1), {1, 70, steps, 1}, device, dtype), {},
                      constant(in.log_decay), constant(in.state));
    for (int64_t t = 0; t < in.tokens; ++t) {
      double& rate = in.beta.data<double>()[t];
      rate = 1 - std::pow(1 - rate, 3);
    }
    const Results step = run(in, {}, dtype, device);
    const Results got{.o = value_of(product.output), .state = value_of(product.state)};
    // Float 1e-7; forgetting with the last step instead of the first gives 0.2.
    CHECK(relative_error(got, {.o = step.o, .state = step.state}) <= 1e-5);
  });
}

TEST_CASE("tensor/recurrence: longhorn is stable and exact for keys of any length") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    // S = 2, k = 3, v = 12, beta = 1e6: the rate is 1 / 9 to 1e-7, and the state answers with the value, S =
    // 12 / 3.
    const auto one = [&](double x) { return leaf({x}, {1, 1, 1, 1}, device, dtype); };
    const Variable beta = leaf({1e6}, {1, 1, 1}, device, dtype);
    const Recurrence exact = longhorn(one(1), one(3), one(12), beta, {}, one(2));
    CHECK(exact.state.value().item() == doctest::Approx(4));
    // beta = 1: 2 + 3 (12 - 6) / 10.
    const Recurrence half =
        longhorn(one(1), one(3), one(12), leaf({1}, {1, 1, 1}, device, dtype), {}, one(2));
    CHECK(half.state.value().item() == doctest::Approx(3.8));
  });
}

TEST_CASE("tensor/recurrence: log decays below the limit act as it and have no gradient") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in = make_inputs({.tokens = 20});
    in.log_decay = constant_gate(in, -100);
    const Results limit = run(in, {.chunk = 8}, dtype, device);
    for (const double g : {-1e4, -infinity}) {
      in.log_decay = constant_gate(in, g);
      const Results beyond = run(in, {.chunk = 8}, dtype, device);
      CHECK(beyond.o == limit.o);
      CHECK(beyond.dk == limit.dk);
      CHECK(std::all_of(beyond.dlog_decay.begin(), beyond.dlog_decay.end(), [](double d) { return d == 0; }));
    }
  });
}

TEST_CASE("tensor/recurrence: any split with the state carried over equals the whole") {
  for (const int kind : {0, 1, 2, 3, 4}) {
    const bool normalise = kind == 1, delta = kind == 2 || kind == 3;
    CAPTURE(kind);
    Inputs in =
        delta ? make_delta_inputs({.batch = 2, .tokens = 200}) : make_inputs({.batch = 2, .tokens = 200});
    in.log_decay = kind >= 3 ? channel_gate(in, nan) : resetting_gate(in);
    add_state(in, normalise);
    const RecurrenceOptions options{.normalise = normalise, .scale = 0.5};
    const Results whole = run(in, options, DType::float32);

    const std::vector<std::vector<int64_t>> splits = {
        {1, 199}, {63, 137}, {64, 64, 72}, {3, 197}, std::vector<int64_t>(200, 1)};
    for (const std::vector<int64_t>& split : splits) {
      CAPTURE(split.size());
      std::vector<Variable> q, k, v, g, beta, roots;
      Tensors cotangents;
      const auto leaf_of = [](const Tensor& x) { return leaf(x.to_vector(), x.shape(), {}, DType::float32); };
      const Variable state0 = leaf_of(in.state);
      const Variable normaliser0 = normalise ? leaf_of(in.normaliser) : Variable();
      const Tensor all_cotangents = cotangent(in.v.shape()).to(DType::float32);
      Recurrence r{{}, state0, normaliser0};
      int64_t start = 0;
      for (const int64_t length : split) {
        q.push_back(leaf_of(in.q.narrow(1, start, length)));
        k.push_back(leaf_of(in.k.narrow(1, start, length)));
        v.push_back(leaf_of(in.v.narrow(1, start, length)));
        g.push_back(leaf_of(in.log_decay.narrow(1, start, length)));
        beta.push_back(delta ? leaf_of(in.beta.narrow(1, start, length)) : Variable());
        r = either_rule(q.back(), k.back(), v.back(), options, g.back(), beta.back(), r.state, r.normaliser);
        roots.push_back(r.output);
        cotangents.push_back(all_cotangents.narrow(1, start, length).contiguous());
        start += length;
      }
      for (const Variable& last : {r.state, r.normaliser}) {
        if (!last.defined()) continue;
        roots.push_back(last);
        cotangents.push_back(cotangent(last.shape()).to(DType::float32));
      }
      backward(roots, cotangents);

      /// The pieces [B, length, ...] of a tensor of the whole, put together.
      const auto joined = [&](const Shape& shape, const auto& piece) {
        Tensor all = Tensor::empty(shape, DType::float32);
        int64_t begin = 0;
        for (size_t i = 0; i < split.size(); begin += split[i++]) {
          all.narrow(1, begin, split[i]).copy_from(piece(i));
        }
        return all.to_vector();
      };
      const Results pieces{
          joined(in.v.shape(), [&](size_t i) { return roots[i].value(); }),
          value_of(r.state),
          value_of(r.normaliser),
          joined(in.q.shape(), [&](size_t i) { return q[i].grad(); }),
          joined(in.k.shape(), [&](size_t i) { return k[i].grad(); }),
          joined(in.v.shape(), [&](size_t i) { return v[i].grad(); }),
          joined(in.log_decay.shape(), [&](size_t i) { return g[i].grad(); }),
          gradient_of(state0),
          gradient_of(normaliser0),
          delta ? joined(in.beta.shape(), [&](size_t i) { return beta[i].grad(); }) : Values()};
      CHECK(relative_error(pieces, whole) <=
            2e-5);  // 2e-6; a state that is dropped or transposed gives 0.1 and more
    }
  }
}

namespace {

/// The inputs of the tokens [start, start + length) of one row alone, from a state of zero.
Inputs document_of(const Inputs& in, int64_t row, int64_t start, int64_t length) {
  Inputs part = in;
  part.batch = 1;
  part.tokens = length;
  part.state = part.normaliser = Tensor();
  for (Tensor* x : {&part.q, &part.k, &part.v, &part.log_decay, &part.beta}) {
    if (x->defined()) *x = x->narrow(0, row, 1).narrow(1, start, length).contiguous();
  }
  return part;
}

/// What a result [B, T, ...] of `columns` numbers a token holds for those tokens.
Values tokens_of(const Values& all, const Inputs& in, int64_t row, int64_t start, int64_t length) {
  const auto columns = static_cast<int64_t>(all.size()) / (in.batch * in.tokens);
  const auto begin = all.begin() + (row * in.tokens + start) * columns;
  return Values(begin, begin + length * columns);
}

}  // namespace

TEST_CASE("tensor/recurrence: documents in a row are as if each had a call of its own") {
  const std::vector<int64_t> starts[] = {{0, 1, 17, 81, 130, 131}, {64, 65, 150}};
  for (const int kind : {0, 1, 2, 3, 4}) {
    CAPTURE(kind);
    const bool normalise = kind == 1, delta = kind == 2 || kind == 3;
    Inputs in =
        delta ? make_delta_inputs({.batch = 2, .tokens = 200}) : make_inputs({.batch = 2, .tokens = 200});
    in.log_decay = kind >= 3 ? channel_gate(in, nan) : resetting_gate(in);
    add_state(in, normalise);
    std::vector<int32_t> documents(400, 0);
    for (const int row : {0, 1}) {
      for (const int64_t start : starts[row]) documents[row * 200 + start] = 1;
    }
    const RecurrenceOptions options{.normalise = normalise, .scale = 0.5, .final_state = false};
    RecurrenceOptions packed_options = options;
    packed_options.documents = Tensor::from(documents, {2, 200});
    const Results packed = run(in, packed_options, DType::float32);
    packed_options.final_state = true;
    const Results packed_states = run(in, packed_options, DType::float32);
    const Tensor dout = cotangent(in.v.shape());

    for (const int64_t row : {0, 1}) {
      CAPTURE(row);
      for (size_t i = 0; i < starts[row].size(); ++i) {
        const bool is_last = i + 1 == starts[row].size();
        const int64_t start = starts[row][i], length = (is_last ? 200 : starts[row][i + 1]) - start;
        CAPTURE(start);
        const Inputs alone_in = document_of(in, row, start, length);
        const Tensor alone_dout = dout.narrow(0, row, 1).narrow(1, start, length).contiguous();
        const Results alone = run(alone_in, options, DType::float32, {}, alone_dout);
        Results inside;
        for (const Member member :
             {&Results::o, &Results::dq, &Results::dk, &Results::dv, &Results::dlog_decay, &Results::dbeta}) {
          inside.*member = tokens_of(packed.*member, in, row, start, length);
        }
        // The same chunks, so the same numbers; a state that passes gives 0.1 and more.
        CHECK(relative_error(inside, alone) <= 1e-6);
        if (!is_last) continue;
        RecurrenceOptions with_state = options;
        with_state.final_state = true;
        const Results end = run(alone_in, with_state, DType::float32, {}, alone_dout);
        const auto half = static_cast<int64_t>(packed_states.state.size()) / 2;
        const auto of_row = packed_states.state.begin() + row * half;
        CHECK(relative_error({.state = Values(of_row, of_row + half)}, {.state = end.state}) <= 1e-6);
      }
    }
    // The first row's initial state is that of a text which has ended; the second row's is read on.
    const auto half = packed.dstate.begin() + static_cast<int64_t>(packed.dstate.size()) / 2;
    CHECK(std::all_of(packed.dstate.begin(), half, [](double d) { return d == 0; }));
    CHECK(std::any_of(half, packed.dstate.end(), [](double d) { return d != 0; }));

    // Whatever stands in one document changes no bit of the others.
    for (const double value : {1e10, nan}) {
      Inputs changed = in;
      for (Tensor* x : {&changed.q, &changed.k, &changed.v}) {
        *x = x->clone();
        x->narrow(0, 0, 1).narrow(1, 81, 49).fill(value);
      }
      packed_options.final_state = false;
      const Results after = run(changed, packed_options, DType::float32);
      for (const Member member :
           {&Results::o, &Results::dq, &Results::dk, &Results::dv, &Results::dlog_decay, &Results::dbeta}) {
        for (const auto& [start, length] : {std::pair{0, 81}, {130, 70}}) {
          CHECK(tokens_of(after.*member, in, 0, start, length) ==
                tokens_of(packed.*member, in, 0, start, length));
        }
      }
    }
  }
}

TEST_CASE("tensor/recurrence: a product of steps keeps documents apart") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t steps = 2, length = 9, first = 4;
    Generator generator(14);
    const auto random = [&](const Shape& shape) {
      return Variable(normal(shape, 0.5, generator, dtype, device));
    };
    const Variable q = random({1, length, 1, 3}), k = random({1, length, steps, 1, 3}),
                   v = random({1, length, steps, 1, 2}), beta = random({1, length, steps, 1});
    const auto part = [&](const Variable& x) {
      return Variable(x.value().narrow(1, first, length - first).contiguous());
    };
    DeltaRuleOptions options{.chunk = 3};
    const Recurrence alone = delta_product(part(q), part(k), part(v), part(beta), options);
    options.documents = Tensor::from(std::vector<int32_t>{0, 0, 0, 0, 1, 0, 0, 0, 0}, {1, length}, device);
    const Recurrence packed = delta_product(q, k, v, beta, options);
    CHECK(part(packed.output).value().to_vector() == alone.output.value().to_vector());
    CHECK(packed.state.value().to_vector() == alone.state.value().to_vector());
  });
}

TEST_CASE("tensor/recurrence: the form that sees all keys is the causal form at the last token") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const bool normalise : {false, true}) {
      for (const int64_t tokens : {1, 65, 300}) {  // 300: more than a block of partial sums
        if (is_simulated(device) && tokens > 65) continue;
        Inputs in = make_inputs({.batch = 2, .tokens = tokens});
        add_state(in, normalise);
        RecurrenceOptions options{.normalise = normalise, .eps = 1e-3, .scale = 0.5};
        const auto last = [&] {
          const Results r = run(in, options, dtype, device);
          const Tensor o = Tensor::from(r.o, in.v.shape()).narrow(1, tokens - 1, 1);
          return Results{.o = o.to_vector(), .state = r.state, .normaliser = r.normaliser};
        };
        const Results causal = last();
        options.causal = false;
        CHECK(relative_error(last(), causal) <= (dtype == DType::float32 ? 2e-6 : 1e-13));  // 4e-7 and 4e-16
      }
    }
  });
}

TEST_CASE("tensor/recurrence: the future changes no bit of the past") {
  for (const int kind : {0, 1, 2, 3, 4}) {
    CAPTURE(kind);
    const RecurrenceOptions options{.normalise = kind == 1};
    const bool delta = kind == 2 || kind == 3;
    Inputs in = delta ? make_delta_inputs({.tokens = 130}) : make_inputs({.tokens = 130});
    in.log_decay = kind >= 3 ? channel_gate(in, nan) : resetting_gate(in);
    const int64_t t0 = 70;  // inside a chunk, and inside a block of 16
    const Values before = run(in, options, DType::float32).o;
    const size_t past = t0 * in.heads * in.value_dim;
    for (const double value : {-0.3, 1e10, nan}) {
      CAPTURE(value);
      Inputs changed = in;
      for (Tensor* x : {&changed.q, &changed.k, &changed.v, &changed.log_decay, &changed.beta}) {
        if (!x->defined()) continue;
        *x = x->clone();
        x->narrow(1, t0, 60).fill(x == &changed.log_decay && value > 0 ? -value : value);
      }
      const Values after = run(changed, options, DType::float32).o;
      // A NaN may reach the tokens of its own block, not those before it.
      const size_t kept = std::isnan(value) ? 64 * in.heads * in.value_dim : past;
      CHECK(std::equal(before.begin(), before.begin() + kept, after.begin()));
      CHECK(after[past] != before[past]);
    }
  }
}

TEST_CASE("tensor/recurrence: parts of a fused projection are read in place") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Generator generator(8);
    const Tensor fused = uniform({2, 70, 9, 4}, 0.1, 1, generator, dtype, device);
    for (const bool causal : {true, false}) {
      const RecurrenceOptions options{.causal = causal, .normalise = true};
      const auto part = [&](int64_t first) { return fused.narrow(2, first, 3); };
      const Recurrence views = recurrence(Variable(part(0)), Variable(part(3)), Variable(part(6)), options);
      const Recurrence copies = recurrence(Variable(part(0).contiguous()), Variable(part(3).contiguous()),
                                           Variable(part(6).contiguous()), options);
      CHECK(views.output.value().to_vector() == copies.output.value().to_vector());
      CHECK(views.state.value().to_vector() == copies.state.value().to_vector());
    }
  });
}

TEST_CASE("tensor/recurrence: without tokens the state stays as it is") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const bool causal : {true, false}) {
      Inputs in = make_inputs({.batch = 2, .tokens = 0});
      add_state(in, true);
      const Results r = run(in, {.causal = causal, .normalise = true}, dtype, device);
      CHECK(r.state == in.state.to_vector());
      CHECK(r.normaliser == in.normaliser.to_vector());
      CHECK(r.dstate == cotangent(in.state.shape()).to_vector());
      in.batch = 0;
      CHECK(run(make_inputs({.batch = 0}), {.causal = causal}, dtype, device).o.empty());
    }
  });
}

TEST_CASE("tensor/recurrence: without tokens the delta rule leaves the state as it is") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in = make_delta_inputs({.batch = 2, .tokens = 0});
    add_state(in, false);
    const Results r = run(in, {}, dtype, device);
    CHECK(r.state == in.state.to_vector());
    CHECK(r.dstate == cotangent(in.state.shape()).to_vector());
    CHECK(run(make_delta_inputs({.batch = 0}), {}, dtype, device).o.empty());
  });
}

TEST_CASE("tensor/recurrence: a final state that nobody wants changes nothing else") {
  Inputs in = make_inputs({.tokens = 70});
  in.log_decay = constant_gate(in, -0.125);
  RecurrenceOptions options{.normalise = true, .final_state = false};
  const Results without = run(in, options, DType::float64);
  CHECK(without.state.empty());
  CHECK(without.o == run(in, {.normalise = true}, DType::float64).o);
  Results want = Reference(in, options).result();
  want.state.clear();
  want.normaliser.clear();
  CHECK(relative_error(without, want) <= 1e-12);  // 1e-14
}

TEST_CASE("tensor/recurrence: the number of threads changes no bit") {
  Inputs in = make_inputs({.batch = 2, .tokens = 600});
  for (const bool causal : {true, false}) {
    if (causal) in.log_decay = resetting_gate(in);
    add_state(in, true);
    check_same_with_any_threads([&] {
      const Results r = run(in, {.causal = causal, .normalise = true}, DType::float32);
      Values all;
      for (const Member member : members) all.insert(all.end(), (r.*member).begin(), (r.*member).end());
      return all;
    });
    in.log_decay = Tensor();
  }
}

TEST_CASE("tensor/recurrence: the number of threads changes no bit of the delta rule") {
  Inputs in = make_delta_inputs({.batch = 2, .tokens = 600});
  add_state(in, false);
  for (const Tensor& gate : {resetting_gate(in), channel_gate(in, nan)}) {
    in.log_decay = gate;
    check_same_with_any_threads([&] {
      const Results r = run(in, {}, DType::float32);
      Values all;
      for (const Member member : members) all.insert(all.end(), (r.*member).begin(), (r.*member).end());
      return all;
    });
  }
}

TEST_CASE("tensor/recurrence: memory with a gate for each channel grows as the length") {
  const auto peak_of = [](int64_t tokens) {
    Inputs in =
        make_delta_inputs({.tokens = tokens, .heads = 1, .key_heads = 1, .key_dim = 64, .value_dim = 32});
    in.log_decay = channel_gate(in, nan);
    Allocator& allocator = Allocator::of({});
    const int64_t before = allocator.stats().live_bytes;
    allocator.reset_peak();
    run(in, {}, DType::float32);
    return static_cast<double>(allocator.stats().peak_bytes - before);
  };
  CHECK(peak_of(4096) / peak_of(1024) <= 4.2);  // a matrix T x T would give 16
}

TEST_CASE("tensor/recurrence: memory grows as the length and keeps no state per token") {
  const auto peak_of = [](int64_t tokens) {
    const Inputs in =
        make_inputs({.tokens = tokens, .heads = 2, .key_heads = 2, .key_dim = 64, .value_dim = 64});
    Allocator& allocator = Allocator::of({});
    const Variable q = leaf(in.q.to_vector(), in.q.shape(), {}, DType::float32);
    const Variable k = leaf(in.k.to_vector(), in.k.shape(), {}, DType::float32);
    const Variable v = leaf(in.v.to_vector(), in.v.shape(), {}, DType::float32);
    const Tensor dout = Tensor::full(in.v.shape(), 1, DType::float32);
    const int64_t before = allocator.stats().live_bytes;
    allocator.reset_peak();
    backward({recurrence(q, k, v, {.normalise = true, .final_state = false}).output}, {dout});
    return static_cast<double>(allocator.stats().peak_bytes - before);
  };
  const double short_peak = peak_of(1024), long_peak = peak_of(4096);
  // 3.95: all but the tiles' room grows. A matrix T x T would give 16.
  CHECK(long_peak / short_peak <= 4.2);
  const double states_per_token = 4096.0 * 2 * 64 * 64 * sizeof(float);
  CHECK(long_peak <= 0.15 * states_per_token);  // 0.096
}

TEST_CASE("tensor/recurrence: what does not go together is named") {
  const auto zeros = [](const Shape& shape) { return Variable(Tensor::zeros(shape, DType::float32)); };
  const Variable q = zeros({2, 3, 2, 4}), v = zeros({2, 3, 4, 5});
  CHECK(error_of([&] {
          recurrence(q, zeros({2, 3, 2, 5}), v, {});
        }) ==
        "[recurrence] q (2, 3, 2, 4), k (2, 3, 2, 5), v (2, 3, 4, 5) do not go together: they must be [B, T, "
        "Hk, dk], "
        "[B, Tk, Hk, dk] and [B, Tk, H, dv]");
  CHECK(error_of([&] {
          recurrence(q, q, zeros({2, 3, 3, 5}), {});
        }) == "[recurrence] 2 key heads for 3 value heads: they must divide them");
  CHECK(error_of([&] {
          recurrence(zeros({2, 1, 2, 4}), q, v, {});
        }) == "[recurrence] 1 queries and 3 keys: the causal form needs as many of both");
  CHECK(error_of([&] { recurrence(q, q, v, {.chunk = 0}); }) == "[recurrence] chunk 0; allowed: 1 or more");
  CHECK(error_of([&] {
          recurrence(q, q, v, {}, zeros({2, 3, 2}));
        }) == "[recurrence] log_decay (2, 3, 2); allowed: (2, 3, 4) or (2, 3, 4, 4)");
  CHECK(error_of([&] {
          recurrence(q, q, v, {.normalise = true}, {}, zeros({2, 4, 4, 5}));
        }) ==
        "[recurrence] a normalised recurrence takes an initial normaliser with its initial state, and no "
        "other does");
  CHECK(error_of([&] {
          delta_rule(q, q, v, zeros({2, 3, 2}), {});
        }) == "[delta_rule] beta (2, 3, 2); allowed: (2, 3, 4)");
  CHECK(error_of([&] {
          delta_product(q, q, v, zeros({2, 3, 4}), {});
        }) ==
        "[delta_product] q (2, 3, 2, 4), k (2, 3, 2, 4), v (2, 3, 4, 5), beta (2, 3, 4): they must be [B, T, "
        "Hk, dk], "
        "[B, T, n, Hk, dk], [B, T, n, H, dv] and [B, T, n, H]");
  CHECK(error_of([&] {
          longhorn(q, q, v, zeros({2, 3, 3}), {});
        }) ==
        "[longhorn] k (2, 3, 2, 4), beta (2, 3, 3): they must be [B, T, Hk, dk] and [B, T, H], where Hk "
        "divides H");
  CHECK(error_of([&] { delta_rule(q, q, v, {}, {}); }) == "[delta_rule] beta is missing; allowed: (2, 3, 4)");
  CHECK(error_of([&] {
          recurrence(q, q, v, {.causal = false}, zeros({2, 3, 4}));
        }) == "[recurrence] log_decay is for the causal form only");
  const Tensor three = Tensor::from(std::vector<int32_t>{1, 0, 0}, {1, 3});
  CHECK(error_of([&] { recurrence(q, q, v, {.documents = three}); }) ==
        "[recurrence] documents int32 (1, 3); allowed: int32 (2, 3)");
  CHECK(error_of([&] {
          recurrence(q, q, v, {.causal = false, .documents = Tensor::zeros({2, 3}, DType::int32)});
        }) == "[recurrence] documents are for the causal form only");
}

TEST_CASE("tensor/recurrence: mixture attention with one component is the running mean of the values") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Generator generator(9);
    const Shape points{2, 70, 2, 3};
    const Variable q(normal(points, 1, generator, dtype, device)),
        k(normal(points, 1, generator, dtype, device));
    const Tensor v = normal({2, 70, 2, 4}, 1, generator, dtype, device);
    const Variable mean(normal({2, 1, 3}, 1, generator, dtype, device));
    const Variable omega(normal({2, 1, 3}, 1, generator, dtype, device));
    const Variable alpha(normal({2, 1}, 1, generator, dtype, device));
    const Values o = gma(q, k, Variable(v), mean, omega, alpha, {.eps = 0}).output.value().to_vector();
    const Values values = v.to_vector();
    double sum = 0, worst = 0;
    for (int64_t t = 0; t < 70; ++t) {
      sum += values[t * 8];
      worst = worse(worst, std::abs(o[t * 8] - sum / static_cast<double>(t + 1)));
    }
    CHECK(worst <= 1e-6);  // float 1e-7; a token too many or too few 0.01 and more
  });
}

TEST_CASE("tensor/recurrence: a masked key is never looked at") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Generator generator(10);
    const auto random = [&](const Shape& shape) { return normal(shape, 1, generator, dtype, device); };
    const Variable q(random({1, 6, 2, 3})), mean(random({2, 4, 3})), omega(random({2, 4, 3})),
        alpha(random({2, 4}));
    Tensor k = random({1, 6, 2, 3}), v = random({1, 6, 2, 5});
    Tensor first_k = k.narrow(1, 0, 4).contiguous(), first_v = v.narrow(1, 0, 4).contiguous();
    k.narrow(1, 4, 2).fill(nan);
    v.narrow(1, 4, 2).fill(nan);
    const Tensor mask = Tensor::from(std::vector<int32_t>{1, 1, 1, 1, 0, 0}, {1, 6}, device);
    const GmaOptions options{.causal = false};
    const Variable k_leaf(k, true), v_leaf(v, true);
    const Recurrence masked = gma(q, k_leaf, v_leaf, mean, omega, alpha, options, mask);
    const Recurrence shorter = gma(q, Variable(first_k), Variable(first_v), mean, omega, alpha, options);
    CHECK(masked.output.value().to_vector() == shorter.output.value().to_vector());
    CHECK(masked.state.value().to_vector() == shorter.state.value().to_vector());
    backward({masked.output}, {Tensor::full(masked.output.shape(), 1, dtype, device)});
    for (const double dv : v_leaf.grad().narrow(1, 4, 2).to_vector()) CHECK(dv == 0);
  });
}

TEST_CASE("tensor/recurrence: mixture attention stays in the hull of the values it sees") {
  Generator generator(11);
  const auto random = [&](const Shape& shape) {
    return Variable(normal(shape, 1, generator, DType::float32));
  };
  const Variable q = random({2, 100, 2, 3}), k = random({2, 100, 2, 3}), v = random({2, 100, 2, 1});
  const Variable mean = random({2, 8, 3}), omega = random({2, 8, 3}), alpha = random({2, 8});
  const Values o = gma(q, k, v, mean, omega, alpha, {}).output.value().to_vector();
  const Values values = v.value().to_vector();
  for (int64_t row = 0; row < 4; ++row) {  // batch and head
    double low = 0, high = 0;              // eps draws towards 0
    for (int64_t t = 0; t < 100; ++t) {
      const int64_t i = (row / 2 * 100 + t) * 2 + row % 2;
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
      CHECK(o[i] >= low - 1e-6);
      CHECK(o[i] <= high + 1e-6);
    }
  }
}

}  // namespace mixgrad
