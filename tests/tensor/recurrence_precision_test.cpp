// The recurrence in float against double: both rules, all gates, the strongest and the weakest, rates at both
// ends, keys that are all alike, chunks of every size, long texts. Outputs and gradients are compared one by
// one, each beside its largest value; double is known to be right from the tests against token by token.
#include "tests/tensor/recurrence_fixtures.h"

namespace mixgrad {
namespace {

constexpr double bound = 1e-4;
const std::vector<int64_t> all_chunks = {16, 32, 64, 128}, short_chunks = {16, 32};

enum class Gate { none, head, channel };

/// A gate of the given strength; NaN: weak, with resets.
void set_gate(Inputs& in, Gate gate, double g) {
  if (gate == Gate::head) in.log_decay = std::isnan(g) ? resetting_gate(in) : constant_gate(in, g);
  if (gate == Gate::channel) in.log_decay = channel_gate(in, g);
}

/// Calls f(gate, strength) for no gate, and for both kinds in all strengths.
template <class F>
void for_each_gate(const F& f) {
  f(Gate::none, 0);
  for (const Gate gate : {Gate::head, Gate::channel}) {
    for (const double g : {0.0, -0.0009765625, -20.0, -100.0, nan}) f(gate, g);
  }
}

/// Every key is the first one.
void make_keys_alike(Inputs& in) {
  auto* keys = in.k.data<double>();
  for (int64_t t = 1; t < in.tokens; ++t) std::copy_n(keys, in.key_dim, keys + t * in.key_dim);
}

/// How far got is from want beside its largest value, for the worst of the outputs and gradients. A gradient
/// that is zero in exact arithmetic, as that of a gate where each write replaces all that its key held,
/// consists of rounding errors in double too: it counts beside a hundredth of what gradients typically are.
double worst_error(const Results& got, const Results& want) {
  std::vector<double> magnitudes;
  for (const Member member : members) {
    const Values& values = want.*member;
    if (!values.empty())
      magnitudes.push_back(std::abs(*std::max_element(
          values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); })));
  }
  std::nth_element(magnitudes.begin(), magnitudes.begin() + magnitudes.size() / 2, magnitudes.end());
  const double typical = magnitudes[magnitudes.size() / 2];
  double worst = 0;
  for (const Member member : members) {
    const Values &a = got.*member, &b = want.*member;
    REQUIRE(a.size() == b.size());
    double largest = std::max(typical / 100, 1e-30), difference = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      largest = std::max(largest, std::abs(b[i]));
      difference = worse(difference, std::abs(a[i] - b[i]));
    }
    worst = worse(worst, difference / largest);
  }
  return worst;
}

/// The worst error of float in chunks of any of the sizes.
double float_error(const Inputs& in, RecurrenceOptions options, const std::vector<int64_t>& chunks) {
  const Results want = run(in, options, DType::float64);
  double worst = 0;
  for (const int64_t chunk : chunks) {
    options.chunk = chunk;
    worst = worse(worst, worst_error(run(in, options, DType::float32), want));
  }
  return worst;
}

const Inputs one_head{.tokens = 2000, .heads = 1, .key_heads = 1, .key_dim = 16, .value_dim = 8};

}  // namespace

TEST_CASE("tensor/recurrence precision: the additive rule with any gate in chunks of any size") {
  for_each_gate([](Gate gate, double g) {
    CAPTURE(static_cast<int>(gate));
    CAPTURE(g);
    for (const bool normalise : {false, true}) {
      CAPTURE(normalise);
      for (const bool alike : {false, true}) {
        CAPTURE(alike);
        Inputs in = make_inputs(one_head);
        set_gate(in, gate, g);
        if (alike) make_keys_alike(in);
        add_state(in, normalise);
        // eps keeps outputs from being nearly their own values alone, with gradients that all but vanish.
        const RecurrenceOptions options{.normalise = normalise, .eps = 0.25};
        // 2e-5; a gradient of the gate by cancellation gives 74 at g = -20, cumulative decays in float
        // 1e-4.
        CHECK(float_error(in, options, all_chunks) <= bound);
      }
    }
  });
}

TEST_CASE("tensor/recurrence precision: the delta rule with any gate and rate in chunks of any size") {
  for_each_gate([](Gate gate, double g) {
    CAPTURE(static_cast<int>(gate));
    CAPTURE(g);
    for (const double rate : {0.0, 1.0, 2.0, nan}) {
      CAPTURE(rate);
      for (const bool alike : {false, true}) {
        CAPTURE(alike);
        Inputs in = make_delta_inputs(one_head);
        set_gate(in, gate, g);
        if (!std::isnan(rate)) in.beta.fill(rate);
        if (alike) make_keys_alike(in);
        add_state(in, false);
        // 9e-5 at rate 2, which forgets no rounding error; 7e-5 where a gradient is one of rounding errors;
        // 3e-6 else. With products of keys in float 2e-4 to 3e-4, by what the keys are. Where keys that are
        // all alike decay slowly, the decays' own rounding adds up in long chunks.
        const bool slow = rate == 2 && alike && g == -0.0009765625;
        CHECK(float_error(in, {}, slow ? short_chunks : all_chunks) <= bound);
      }
    }
  });
}

TEST_CASE("tensor/recurrence precision: both rules over 44000 tokens") {
  for (const bool delta : {false, true}) {
    CAPTURE(delta);
    for (const Gate gate : {Gate::none, Gate::head, Gate::channel}) {
      CAPTURE(static_cast<int>(gate));
      for (const double g : {-0.0009765625, -20.0, nan}) {
        CAPTURE(g);
        if (gate == Gate::none && !std::isnan(g)) continue;
        Inputs sizes = one_head;
        sizes.tokens = 44000;
        Inputs in = delta ? make_delta_inputs(sizes) : make_inputs(sizes);
        set_gate(in, gate, g);
        // 1e-6; rounding errors that add up along the sequence, instead of being forgotten, give 3e-3.
        CHECK(float_error(in, {}, {16, 128}) <= bound);
      }
    }
  }
}

}  // namespace mixgrad
