// What every registered mixer must do, whatever it computes; and the theory of the mixers that have one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"
#include "nn/mixer.h"

namespace mixgrad {
namespace {

constexpr int64_t width = 12;
constexpr int64_t heads = 2;

/// A mixer in its small checking configuration.
std::unique_ptr<Mixer> small_mixer(const MixerKind& kind, DType dtype, const std::string& options = "") {
  Generator generator(3);
  Initialiser initialiser(dtype, Device{}, generator);
  const std::string pattern = kind.name + "(" + (options.empty() ? kind.check_options : options) + ")";
  return make_mixer(parse_pattern(pattern, 1)[0], width, heads, false, initialiser);
}

Tensor random_input(int64_t batch, int64_t length, DType dtype, uint64_t seed = 11) {
  Generator generator(seed);
  return normal({batch, length, width}, 1, generator, dtype);
}

/// Runs f for every mixer, each named in the messages.
template <class F>
void for_each_mixer(const F& f) {
  for (const MixerKind& kind : mixer_kinds()) {
    CAPTURE(kind.name);
    f(kind);
  }
}

/// Likewise for every mixer that language models can be made of, in each of its checking configurations.
template <class F>
void for_each_causal_mixer(const F& f) {
  for_each_mixer([&](const MixerKind& kind) {
    if (!kind.forms.causal) return;
    f(kind);
    for (const std::string& options : kind.causal_check_options) {
      MixerKind other = kind;
      other.check_options = options;
      CAPTURE(other.check_options);
      f(other);
    }
  });
}

double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> left = a.to_vector();
  const std::vector<double> right = b.to_vector();
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i] - right[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

/// Reads x in pieces of the given lengths and joins what comes out, [1, T, D].
Tensor read_in_pieces(Mixer& mixer, const Tensor& x, const std::vector<int64_t>& lengths, MixerState& state) {
  const NoGrad no_grad;
  Tensor y = empty_like(x);
  int64_t at = 0;
  for (const int64_t length : lengths) {
    const Variable piece(x.narrow(1, at, length).clone());
    const Variable out = mixer.forward({.x = piece, .context = {}, .key_mask = {}, .state = &state});
    y.narrow(1, at, length).copy_from(out.value());
    at += length;
  }
  REQUIRE(at == x.shape()[1]);
  return y;
}

Tensor whole(Mixer& mixer, const Tensor& x, bool causal = true, const Tensor& key_mask = {}) {
  const NoGrad no_grad;
  return mixer.forward({.x = Variable(x), .context = {}, .key_mask = key_mask, .causal = causal}).value();
}

}  // namespace

TEST_CASE("mixers: the future does not reach the past") {
  constexpr int64_t length = 130, changed_from = 70;  // inside the second chunk of 64
  for_each_causal_mixer([&](const MixerKind& kind) {
    const auto mixer = small_mixer(kind, DType::float32);
    const Tensor x = random_input(2, length, DType::float32);
    const Tensor before = whole(*mixer, x).narrow(1, 0, changed_from).clone();
    Tensor other = x.clone();
    other.narrow(1, changed_from, length - changed_from)
        .copy_from(random_input(2, length - changed_from, DType::float32, 12));
    CHECK(largest_difference(whole(*mixer, other).narrow(1, 0, changed_from), before) == 0);
    for (const double value : {1e10, std::numeric_limits<double>::quiet_NaN()}) {
      Tensor poisoned = x.clone();
      Tensor rows = poisoned.narrow(1, changed_from, length - changed_from);
      rows.copy_from(Tensor::full(rows.shape(), value, DType::float32));
      // In every chunk before the one that holds the poison; there, mixers may differ.
      CHECK(largest_difference(whole(*mixer, poisoned).narrow(1, 0, 64), before.narrow(1, 0, 64)) == 0);
    }
  });
}

TEST_CASE("mixers: read in pieces equals read at once") {
  // float64: rounding alone, 1e-16; a state that is off by one token errs by 0.01 or more.
  for_each_causal_mixer([&](const MixerKind& kind) {
    const auto mixer = small_mixer(kind, DType::float64);
    const Tensor x = random_input(1, 200, DType::float64);
    const Tensor expected = whole(*mixer, x);
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1, 199}, {63, 137}, {64, 64, 72}, {3, 197}, std::vector<int64_t>(200, 1)}) {
      MixerState state = mixer->initial_state(1, 16);
      CHECK(largest_difference(read_in_pieces(*mixer, x, lengths, state), expected) < 1e-13);
      CHECK(state.position == 200);
    }
  });
}

TEST_CASE("mixers: a window forgets what it has passed") {
  const auto mixer = small_mixer(find_mixer("sdpa"), DType::float64, "window=5");
  const Tensor x = random_input(1, 60, DType::float64);
  MixerState state = mixer->initial_state(1, 60);
  CHECK(largest_difference(read_in_pieces(*mixer, x, {7, 20, 1, 1, 1, 30}, state), whole(*mixer, x)) < 1e-13);
  MixerState steady = mixer->initial_state(1, 1000);
  read_in_pieces(*mixer, x, std::vector<int64_t>(60, 1), steady);
  CHECK(steady.bytes() == mixer->initial_state(1, 10).bytes());
}

TEST_CASE("mixers: every length works") {
  for_each_causal_mixer([&](const MixerKind& kind) {
    const auto mixer = small_mixer(kind, DType::float64);
    const Tensor x = random_input(1, 131, DType::float64);
    const Tensor expected = whole(*mixer, x);
    for (const int64_t length : {1, 2, 63, 64, 65, 131}) {
      // Causal: a prefix alone gives what it gives inside the whole.
      const Tensor prefix = x.narrow(1, 0, length).clone();
      CHECK(largest_difference(whole(*mixer, prefix), expected.narrow(1, 0, length)) < 1e-13);
    }
  });
}

TEST_CASE("mixers: a sequence does not depend on its neighbours in the batch") {
  for_each_mixer([&](const MixerKind& kind) {
    const auto mixer = small_mixer(kind, DType::float64);
    const Tensor x = random_input(3, 40, DType::float64);
    const bool causal = kind.forms.causal;
    const Tensor alone = whole(*mixer, x.narrow(0, 1, 1).clone(), causal);
    CHECK(largest_difference(whole(*mixer, x, causal).narrow(0, 1, 1), alone) < 1e-13);
  });
}

TEST_CASE("mixers: causal and bidirectional agree on the last token") {
  for_each_mixer([&](const MixerKind& kind) {
    if (!kind.forms.causal || !kind.forms.bidirectional) return;
    const auto mixer = small_mixer(kind, DType::float64);
    const Tensor x = random_input(2, 70, DType::float64);
    CHECK(largest_difference(whole(*mixer, x, false).narrow(1, 69, 1), whole(*mixer, x).narrow(1, 69, 1)) <
          1e-13);
  });
}

TEST_CASE("mixers: masked keys do not exist") {
  for_each_mixer([&](const MixerKind& kind) {
    if (!kind.forms.key_mask) return;
    const auto mixer = small_mixer(kind, DType::float64);
    const int64_t length = 9, kept = 6;
    const Tensor x = random_input(1, length, DType::float64);
    const Tensor mask = Tensor::from(std::vector<int32_t>{1, 1, 1, 1, 1, 1, 0, 0, 0}, {1, length});
    const Tensor expected = whole(*mixer, x.narrow(1, 0, kept).clone(), false);
    CHECK(largest_difference(whole(*mixer, x, false, mask).narrow(1, 0, kept), expected) < 1e-13);
  });
}

namespace {

/// Rows of several documents: where they begin, and the tokens [start, start + length) of each.
struct Packed {
  Tensor begins;  // int32 [2, T]
  struct Document {
    int64_t row, start, length;
  };
  std::vector<Document> documents;
};

/// One token, little more than the taps of a convolution, a chunk of 64 and one more.
Packed packed_documents(int64_t length) {
  std::vector<int32_t> begins(2 * length, 0);
  Packed packed;
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0, 1, 6, 70, 135}, {2, 67, 131}}) {
    const int64_t row = packed.documents.empty() ? 0 : 1;
    if (starts[0] > 0) packed.documents.push_back({row, 0, starts[0]});
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t end = i + 1 < starts.size() ? starts[i + 1] : length;
      begins[row * length + starts[i]] = 1;
      packed.documents.push_back({row, starts[i], end - starts[i]});
    }
  }
  packed.begins = Tensor::from(begins, {2, length});
  return packed;
}

/// Outputs and gradients of a mixer in training.
struct Pass {
  Tensor y, dx;
  std::vector<Tensor> dparameters;
};

Pass forward_and_backward(Mixer& mixer, const Tensor& x, const Tensor& dy, const Tensor& documents) {
  mixer.zero_grad();
  const Variable input(x, true);
  const Variable y = mixer.forward({.x = input, .context = {}, .key_mask = {}, .documents = documents});
  backward({y}, {dy});
  Pass pass{y.value(), input.grad(), {}};
  for (const Parameter& parameter : mixer.parameters())
    pass.dparameters.push_back(parameter.variable->grad());
  return pass;
}

}  // namespace

TEST_CASE("mixers: documents in a row are as if each had a row of its own") {
  for_each_causal_mixer([&](const MixerKind& kind) {
    if (!kind.forms.documents) return;
    const auto mixer = small_mixer(kind, DType::float64);
    const int64_t length = 150;
    const Tensor x = random_input(2, length, DType::float64), dy = random_input(2, length, DType::float64, 5);
    const Packed packed = packed_documents(length);
    const Pass together = forward_and_backward(*mixer, x, dy, packed.begins);
    std::vector<Tensor> sums;
    for (const auto& [row, start, count] : packed.documents) {
      CAPTURE(row);
      CAPTURE(start);
      const auto part = [&](const Tensor& whole_row) {
        return whole_row.narrow(0, row, 1).narrow(1, start, count).contiguous();
      };
      const Pass alone = forward_and_backward(*mixer, part(x), part(dy), {});
      // Rounding alone, 1e-16 beside values of 1; a document that sees another errs by 0.01 or more.
      CHECK(largest_difference(part(together.y), alone.y) < 1e-13);
      CHECK(largest_difference(part(together.dx), alone.dx) < 1e-12);
      if (sums.empty()) {
        sums = alone.dparameters;
      } else {
        for (size_t i = 0; i < sums.size(); ++i)
          sums[i] = add(Variable(sums[i]), Variable(alone.dparameters[i])).value();
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      CHECK(largest_difference(together.dparameters[i], sums[i]) < 1e-11);
    }
  });
}

TEST_CASE("mixers: a document or padding changes no bit of its neighbours") {
  for_each_causal_mixer([&](const MixerKind& kind) {
    if (!kind.forms.documents) return;
    const auto mixer = small_mixer(kind, DType::float32);
    const int64_t length = 150, from = 6, until = 70;  // the third document of the first row
    const Tensor x = random_input(2, length, DType::float32), dy = random_input(2, length, DType::float32, 5);
    const Packed packed = packed_documents(length);
    const Pass before = forward_and_backward(*mixer, x, dy, packed.begins);
    for (const double value : {0.0, 1e10, std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(value);
      Tensor changed = x.clone();
      changed.narrow(0, 0, 1).narrow(1, from, until - from).fill(value);
      const Pass after = forward_and_backward(*mixer, changed, dy, packed.begins);
      for (const auto& [was, is] : {std::pair{before.y, after.y}, {before.dx, after.dx}}) {
        const auto rows = [&](const Tensor& t, int64_t row, int64_t start, int64_t count) {
          return t.narrow(0, row, 1).narrow(1, start, count).to_vector();
        };
        CHECK(rows(was, 0, 0, from) == rows(is, 0, 0, from));
        CHECK(rows(was, 0, until, length - until) == rows(is, 0, until, length - until));
        CHECK(rows(was, 1, 0, length) == rows(is, 1, 0, length));
      }
    }
  });
}

TEST_CASE("mixers: documents that are read in pieces equal those read at once") {
  for_each_causal_mixer([&](const MixerKind& kind) {
    if (!kind.forms.documents) return;
    const NoGrad no_grad;
    const auto mixer = small_mixer(kind, DType::float64);
    const int64_t length = 150;
    const Variable x(random_input(2, length, DType::float64));
    const Packed packed = packed_documents(length);
    const auto read = [&](int64_t start, int64_t count, MixerState* state) {
      return mixer
          ->forward({.x = Variable(x.value().narrow(1, start, count).clone()),
                     .context = {},
                     .key_mask = {},
                     .documents = packed.begins.narrow(1, start, count).contiguous(),
                     .state = state})
          .value();
    };
    const Tensor expected = read(0, length, nullptr);
    MixerState state = mixer->initial_state(2, length);
    int64_t at = 0;
    for (const int64_t count : {1, 1, 66, 2, 61, 4, 15}) {  // before, on and behind the begin of documents
      CHECK(largest_difference(read(at, count, &state), expected.narrow(1, at, count)) < 1e-13);
      at += count;
    }
    CHECK(at == length);
  });
}

TEST_CASE("mixers: the cross form with itself as context is the bidirectional form") {
  for_each_mixer([&](const MixerKind& kind) {
    if (!kind.forms.cross) return;
    const NoGrad no_grad;
    const auto mixer = small_mixer(kind, DType::float64);
    const Variable x(random_input(2, 20, DType::float64));
    const Variable crossed = mixer->forward({.x = x, .context = x, .key_mask = {}, .causal = false});
    CHECK(largest_difference(crossed.value(), whole(*mixer, x.value(), false)) < 1e-13);
    const Variable context(random_input(2, 33, DType::float64, 5));
    const Variable y = mixer->forward({.x = x, .context = context, .key_mask = {}, .causal = false});
    CHECK(largest_difference(y.value(), crossed.value()) > 1e-4);
  });
}

TEST_CASE("mixers: every parameter gets a gradient") {
  for_each_mixer([&](const MixerKind& kind) {
    const auto mixer = small_mixer(kind, DType::float64);
    const Variable y = mixer->forward({.x = Variable(random_input(2, 20, DType::float64)),
                                       .context = {},
                                       .key_mask = {},
                                       .causal = kind.forms.causal});
    Generator generator(8);
    backward({y}, {normal(y.shape(), 1, generator, DType::float64)});
    for (const Parameter& parameter : mixer->parameters()) {
      CAPTURE(parameter.name);
      REQUIRE(parameter.variable->grad().defined());
      double largest = 0;
      for (const double value : parameter.variable->grad().to_vector())
        largest = std::max(largest, std::abs(value));
      CHECK(largest > 0);
      CHECK(std::isfinite(largest));
    }
  });
}

TEST_CASE("mixers: behind a state gradients reach the tokens and the parameters and end at the state") {
  for_each_causal_mixer([&](const MixerKind& kind) {
    if (!kind.forms.recorded_state) return;
    const auto mixer = small_mixer(kind, DType::float64);
    const int64_t before = 70, length = 9;
    const Tensor x = random_input(2, before + length, DType::float64);
    const Tensor second = x.narrow(1, before, length).contiguous();
    Tensor dy = Tensor::zeros(x.shape(), DType::float64);  // the first tokens' outputs do not count
    const Tensor dsecond = random_input(2, length, DType::float64, 5);
    dy.narrow(1, before, length).copy_from(dsecond);
    const Pass whole_pass = forward_and_backward(*mixer, x, dy, {});

    const auto state_behind = [&] {
      const NoGrad no_grad;
      MixerState state = mixer->initial_state(2, before);
      mixer->forward({.x = Variable(x.narrow(1, 0, before).contiguous()),
                      .context = {},
                      .key_mask = {},
                      .state = &state});
      return state;
    };
    MixerState state = state_behind();
    mixer->zero_grad();
    const Variable input(second, true);
    const Variable y = mixer->forward({.x = input, .context = {}, .key_mask = {}, .state = &state});
    backward({y}, {dsecond});
    // Rounding alone, 1e-15; without gradients for the keys and values of its own tokens sdpa errs by 0.002.
    CHECK(largest_difference(input.grad(), whole_pass.dx.narrow(1, before, length)) < 1e-12);

    // The parameters' gradients along a random direction, with the state as it was.
    Generator generator(9);
    double analytic = 0;
    Tensors start, direction;
    for (const Parameter& parameter : mixer->parameters()) {
      REQUIRE(parameter.variable->grad().defined());
      start.push_back(parameter.variable->value().clone());
      direction.push_back(normal(start.back().shape(), 1, generator, DType::float64));
      analytic +=
          sum(multiply(Variable(parameter.variable->grad()), Variable(direction.back()))).value().item();
    }
    const auto at = [&](double offset) {
      MixerState held = state_behind();
      const NoGrad no_grad;
      const std::vector<Parameter> parameters = mixer->parameters();
      for (size_t i = 0; i < start.size(); ++i) {
        parameters[i].variable->value().copy_from(
            add(Variable(start[i]), scale(Variable(direction[i]), offset)).value());
      }
      const Variable moved =
          mixer->forward({.x = Variable(second), .context = {}, .key_mask = {}, .state = &held});
      for (size_t i = 0; i < start.size(); ++i) parameters[i].variable->value().copy_from(start[i]);
      return sum(multiply(moved, Variable(dsecond))).value().item();
    };
    constexpr double h = 1e-5;
    const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    // 8e-9 of it at most, by the step.
    CHECK(std::abs(numeric - analytic) < 1e-7 * (1 + std::abs(analytic)));
  });
}

TEST_CASE("mixers: what does not fit is refused by name") {
  Generator generator(1);
  Initialiser initialiser(DType::float32, Device{}, generator);
  const auto build = [&](const std::string& pattern, int64_t w, int64_t h, bool rope) {
    make_mixer(parse_pattern(pattern, 1)[0], w, h, rope, initialiser);
  };
  CHECK_THROWS_WITH_AS(build("sdpa", 10, 3, false), "[sdpa] width 10 is not a multiple of 3 heads",
                       UsageError);
  CHECK_THROWS_WITH_AS(build("sdpa(kv_heads=3)", 16, 4, false),
                       "[sdpa] kv_heads 3 does not divide 4 heads; allowed: the divisors of 4", UsageError);
  CHECK_THROWS_WITH_AS(build("gated_delta(key_heads=3)", 16, 4, false),
                       "[gated_delta] key_heads 3 does not divide 4 heads; allowed: the divisors of 4",
                       UsageError);
  CHECK_THROWS_WITH_AS(build("mamba2(groups=3)", 16, 4, false),
                       "[mamba2] groups 3 does not divide 4 heads; allowed: the divisors of 4", UsageError);
  CHECK_THROWS_WITH_AS(build("retention", 9, 3, false),
                       "[retention] rotation turns pairs: the key size 3 must be even", UsageError);
  CHECK_THROWS_AS(build("sdpa", 9, 3, true), UsageError);
  CHECK_THROWS_AS(build("gma", 16, 4, true), UsageError);
  const auto mixer = small_mixer(find_mixer("gma"), DType::float32);
  const Variable x(random_input(1, 4, DType::float32));
  CHECK_THROWS_AS(mixer->forward({.x = x, .context = x, .key_mask = {}, .causal = true}), UsageError);

  const Tensor marks = Tensor::zeros({1, 4}, DType::int32);
  const auto refusal = [&](const char* name, const MixerInput& input) {
    try {
      small_mixer(find_mixer(name), DType::float32)->forward(input);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal("gma", {.x = x, .context = {}, .key_mask = {}, .documents = marks, .causal = false}) ==
        "[gma] packed documents need the causal form");
  CHECK(refusal("delta",
                {.x = x, .context = {}, .key_mask = {}, .documents = marks.narrow(1, 0, 3).contiguous()}) ==
        "[delta] documents int32 (1, 3); allowed: int32 (1, 4)");
  for_each_mixer([&](const MixerKind& kind) {
    const auto refused = [&](const MixerInput& input, const std::string& reason) {
      CHECK(refusal(kind.name.c_str(), input) == "[" + kind.name + "] " + reason);
    };
    if (!kind.forms.causal) refused({.x = x, .context = {}, .key_mask = {}}, "has no causal form");
    if (!kind.forms.bidirectional)
      refused({.x = x, .context = {}, .key_mask = {}, .causal = false}, "has no bidirectional form");
    if (!kind.forms.cross && kind.forms.bidirectional)
      refused({.x = x, .context = x, .key_mask = {}, .causal = false}, "has no cross form");
    if (!kind.forms.key_mask)
      refused({.x = x, .context = {}, .key_mask = marks},
              "takes no key mask; padding behind a causal text changes nothing before it");
    MixerState state;
    if (!kind.forms.recorded_state && kind.forms.causal)
      refused({.x = x, .context = {}, .key_mask = {}, .state = &state},
              "has no gradients while it is read piece by piece; do that under NoGrad");
    if (!kind.forms.documents && kind.forms.causal)
      refused({.x = x, .context = {}, .key_mask = {}, .documents = marks},
              "packed documents are not kept apart by this mixer; give each a row of its own");
  });
}

TEST_CASE("mixers: options that a form has no room for and texts that are too long are refused by name") {
  const auto refusal = [](const char* name, const std::string& options, int64_t length) {
    const auto mixer = small_mixer(find_mixer(name), DType::float32, options);
    try {
      whole(*mixer, random_input(1, length, DType::float32), false);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal("sdpa", "window=3", 4) == "[sdpa] a window needs the causal form");
  CHECK(refusal("sdpa", "conv=1", 4) == "[sdpa] a convolution needs the causal form");
  CHECK(refusal("sdpa", "forget=1", 4) == "[sdpa] a forget gate needs the causal form");
  CHECK(refusal("linformer", "longest=6", 6) == "");
  CHECK(refusal("linformer", "longest=6", 7) == "[linformer] 7 tokens; allowed: up to its longest, 6");
}

TEST_CASE("mixers: the smallest and the largest sharpness start with finite numbers") {
  for (const char* options :
       {"sharpness=0.001", "sharpness=1000", "routing=4096,components=2,sharpness=0.001"}) {
    CAPTURE(options);
    const auto mixer = small_mixer(find_mixer("gma"), DType::float32, options);
    for (const double value : whole(*mixer, random_input(1, 5, DType::float32)).to_vector())
      CHECK(std::isfinite(value));
  }
}

TEST_CASE("mixers: patterns") {
  const auto choices = parse_pattern("gma(components=32, routing=8)*2,sdpa", 6);
  REQUIRE(choices.size() == 6);
  CHECK(choices[0].text() == "gma(components=32,routing=8)");
  CHECK(choices[1].text() == choices[0].text());
  CHECK(choices[2].text() == "sdpa");
  CHECK(choices[5].text() == "sdpa");
  CHECK(pattern_text(choices) == "gma(components=32,routing=8)*2,sdpa,gma(components=32,routing=8)*2,sdpa");
  CHECK(pattern_text(parse_pattern("sdpa", 3)) == "sdpa*3");
  std::vector<std::string> known;
  for (const MixerKind& kind : mixer_kinds())
    known.push_back(kind.name + (kind.forms.causal ? "" : " (not causal)"));
  CHECK_THROWS_WITH_AS(
      parse_pattern("gam", 1),
      str("[mixer] unknown mixer 'gam'; known: ", join(known), "; did you mean 'gma'?").c_str(), UsageError);
  CHECK_THROWS_WITH_AS(
      parse_pattern("gma(component=3)", 1),
      "[pattern] gma has no option 'component'; known: components, routing, normalise, sharpness; did "
      "you mean 'components'?",
      UsageError);
  for (const char* bad : {"", "gma(", "gma(components)", "gma(components=)", "gma(components=0)",
                          "gma(components=1.5)", "gma(components=nan)", "gma(components=4,components=5)",
                          "gma,,sdpa", "gma*0", "gma*", "gma sdpa", "gma(components=3", "gma)"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_pattern(bad, 1), UsageError);
  }
  CHECK_THROWS_AS(parse_pattern("gma,sdpa", 3), UsageError);
}

TEST_CASE("mixers: recurrent states are of constant size and the cache of sdpa is not") {
  const auto bytes_after = [](const std::string& name, int64_t length) {
    const auto mixer = small_mixer(find_mixer(name), DType::float32);
    MixerState state = mixer->initial_state(1, 1);
    read_in_pieces(*mixer, random_input(1, length, DType::float32), {length}, state);
    return state.bytes();
  };
  for_each_causal_mixer([&](const MixerKind& kind) {
    if (kind.name != "sdpa") CHECK(bytes_after(kind.name, 3) == bytes_after(kind.name, 300));
  });
  CHECK(bytes_after("gma", 3) == heads * 5 * (width / heads + 1) * 4);  // H K (dv + 1) floats
  // dk = 3 and dv = 5 a head, and three tokens for each of the convolutions: of q and k with one head.
  CHECK(bytes_after("gated_delta", 3) == (heads * 3 * 5 + 3 * (2 * 3 + heads * 5)) * 4);
  CHECK(bytes_after("sdpa", 300) > bytes_after("sdpa", 3));
}

TEST_CASE("gated_gma: heads start on a ladder of decay rates and forget accordingly") {
  const auto mixer = small_mixer(find_mixer("gated_gma"), DType::float64);
  const std::vector<Parameter> parameters = mixer->parameters();
  const auto bias = std::find_if(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
    return parameter.name == "decay.dt_bias";
  });
  REQUIRE(bias != parameters.end());
  const std::vector<double> first = bias->variable->value().to_vector();
  CHECK(std::log1p(std::exp(first[0])) == doctest::Approx(1));
  CHECK(std::log1p(std::exp(first[1])) == doctest::Approx(1.0 / 64));

  // How much the first token matters once the convolution has passed it.
  const auto influence = [&](double decay) {
    bias->variable->value().fill(decay);
    const Tensor x = random_input(1, 8, DType::float64);
    Tensor other = x.clone();
    other.narrow(1, 0, 1).copy_from(random_input(1, 1, DType::float64, 12));
    return largest_difference(whole(*mixer, other).narrow(1, 4, 4), whole(*mixer, x).narrow(1, 4, 4));
  };
  CHECK(influence(90) == 0);     // e^-90 is nothing beside what is written later
  CHECK(influence(-90) > 1e-3);  // 0.0037: nothing is forgotten
}

TEST_CASE("gma: responsibilities sum to one and are Lipschitz in the routing vector") {
  const auto mixer = small_mixer(find_mixer("gma"), DType::float64);
  const Tensor gamma = mixer->key_responsibilities(Variable(random_input(2, 50, DType::float64)));
  const std::vector<double> values = gamma.to_vector();
  const int64_t components = gamma.shape()[3];
  for (size_t row = 0; row < values.size() / components; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < components; ++k) {
      CHECK(values[row * components + k] >= 0);
      sum += values[row * components + k];
    }
    CHECK(std::abs(sum - 1) < 1e-14);  // rounding alone
  }
}

}  // namespace mixgrad
