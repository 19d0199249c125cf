// What the theory says of memories: a correction is a step of regression, gates bring recency, and what a
// memory costs.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/longhorn.h"
#include "autograd/ops/norm.h"
#include "autograd/tape.h"
#include "nn/mixer.h"

namespace mixgrad {
namespace {

constexpr int64_t key_dim = 4, value_dim = 3;

/// One token of one head: a key, its value, and the state before.
struct Lesson {
  Variable k, v, state;  // [1, 1, 1, dk], [1, 1, 1, dv], [1, 1, dk, dv]
  double beta = 0.7;

  explicit Lesson(uint64_t seed) {
    Generator generator(seed);
    const auto draw = [&](const Shape& shape) {
      return Variable(normal(shape, 1, generator, DType::float64));
    };
    k = draw({1, 1, 1, key_dim});
    v = draw({1, 1, 1, value_dim});
    state = draw({1, 1, key_dim, value_dim});
  }

  Variable rate() const { return Variable(Tensor::full({1, 1, 1}, beta, DType::float64)); }

  /// The gradient by S [dk, dv] of loss(|k S - v|^2, S), S given as its transpose, a matrix of weights.
  template <class Loss>
  std::vector<double> gradient(const Tensor& at, const Loss& loss) const {
    const Variable weight(transposed(at), true);
    const Variable error =
        add(linear(reshape(k, {1, key_dim}), weight), scale(reshape(v, {1, value_dim}), -1));
    backward(loss(sum(multiply(error, error)), weight));
    return transposed(weight.grad()).to_vector();
  }

  static Tensor transposed(const Tensor& x) {
    const int64_t rows = x.shape()[-2], columns = x.shape()[-1];
    const std::vector<double> values = x.to_vector();
    std::vector<double> turned(values.size());
    for (int64_t i = 0; i < rows * columns; ++i) turned[i % columns * rows + i / columns] = values[i];
    return Tensor::from(turned, {columns, rows});
  }
};

}  // namespace

TEST_CASE("theory: the delta rule is a step down the gradient of a regression") {
  const Lesson lesson(1);
  const Recurrence after = delta_rule(lesson.k, lesson.k, lesson.v, lesson.rate(), {}, {}, lesson.state);
  const std::vector<double> gradient =
      lesson.gradient(lesson.state.value().reshape({key_dim, value_dim}),
                      [](const Variable& squares, const Variable&) { return scale(squares, 0.5); });
  const std::vector<double> before = lesson.state.value().to_vector(), now = after.state.value().to_vector();
  for (size_t i = 0; i < now.size(); ++i) {
    // Rounding alone, 1e-16 beside steps of 1; twice the rate errs by 1.
    CHECK(std::abs(now[i] - (before[i] - lesson.beta * gradient[i])) < 1e-14);
  }
}

TEST_CASE("theory: an additive memory is a step down the gradient of minus the answer times the value") {
  const Lesson lesson(2);
  const Recurrence after = recurrence(lesson.k, lesson.k, lesson.v, {}, {}, lesson.state);
  const Variable weight(Lesson::transposed(lesson.state.value().reshape({key_dim, value_dim})), true);
  const Variable answer = linear(reshape(lesson.k, {1, key_dim}), weight);
  backward(scale(sum(multiply(answer, reshape(lesson.v, {1, value_dim}))), -1));
  const std::vector<double> gradient = Lesson::transposed(weight.grad()).to_vector();
  const std::vector<double> before = lesson.state.value().to_vector(), now = after.state.value().to_vector();
  for (size_t i = 0; i < now.size(); ++i) CHECK(std::abs(now[i] - (before[i] - gradient[i])) < 1e-14);
}

TEST_CASE("theory: a state of longhorn is where the gradient of its own loss vanishes") {
  const Lesson lesson(3);
  const Tensor before = lesson.state.value().reshape({key_dim, value_dim});
  const auto loss = [&](const Variable& squares, const Variable& weight) {
    const Variable moved = add(weight, scale(Variable(Lesson::transposed(before)), -1));
    return add(sum(multiply(moved, moved)), scale(squares, lesson.beta));
  };
  const Recurrence after = longhorn(lesson.k, lesson.k, lesson.v, lesson.rate(), {}, lesson.state);
  double there = 0, here = 0;
  for (const double slope : lesson.gradient(after.state.value().reshape({key_dim, value_dim}), loss))
    there = std::max(there, std::abs(slope));
  for (const double slope : lesson.gradient(before, loss)) here = std::max(here, std::abs(slope));
  CHECK(there < 1e-14);  // rounding alone, 1e-15
  CHECK(here > 0.1);
}

namespace {

/// How well pairs are recalled after a text of random pairs, by their distance from its end: the mean over
/// heads of |k_j S - v_j|^2 / |v_j|^2. Keys have length 1.
std::vector<double> recall_errors(double log_decay, const std::vector<int64_t>& distances) {
  constexpr int64_t length = 256, heads = 64, keys = 32, values = 8;
  Generator generator(4);
  const Variable directions(normal({1, length, heads, keys}, 1, generator, DType::float64));
  const Tensor k = l2_normalize(directions).value();
  const Tensor v = normal({1, length, heads, values}, 1, generator, DType::float64);
  const Variable gate(Tensor::full({1, length, heads}, log_decay, DType::float64));
  const Variable state = recurrence(Variable(k), Variable(k), Variable(v), {}, gate).state;
  std::vector<double> errors;
  for (const int64_t distance : distances) {
    const Variable query(k.narrow(1, length - 1 - distance, 1).clone());
    const Variable nothing(Tensor::zeros({1, 1, heads, values}, DType::float64));
    const Variable answer = recurrence(query, query, nothing, {}, {}, state).output;
    const std::vector<double> got = answer.value().to_vector();
    const std::vector<double> want = v.narrow(1, length - 1 - distance, 1).to_vector();
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    errors.push_back(error / size);
  }
  return errors;
}

}  // namespace

TEST_CASE("theory: gates bring recency") {
  const std::vector<int64_t> distances = {0, 4, 16, 64, 200};
  const std::vector<double> open = recall_errors(0, distances), gated = recall_errors(-0.1, distances);
  for (size_t i = 0; i < distances.size(); ++i) {
    MESSAGE("distance " << distances[i] << ": error " << open[i] << " without a gate, " << gated[i]
                        << " with");
  }
  // Without a gate every pair is disturbed by all others, near or far: 256 / 32 = 8 times the value.
  for (const double error : open) CHECK(error == doctest::Approx(8).epsilon(0.2));
  // With it, by those that are left: e^{-0.2} + e^{-0.4} + ... = 4.5 pairs, 4.5 / 32 = 0.14 times the value.
  // A pair that is old is gone, error 1, and 5.5 / 32 = 0.17 of others are there instead.
  CHECK(gated.front() == doctest::Approx(0.14).epsilon(0.2));
  CHECK(gated.back() == doctest::Approx(1.17).epsilon(0.1));
  CHECK(gated[1] < gated[2]);
  CHECK(gated[2] < gated[3]);
}

TEST_CASE("theory: what is remembered grows with the text for attention alone") {
  constexpr int64_t width = 64, heads = 8, head_size = width / heads;
  const auto bytes = [&](const std::string& pattern, int64_t length) {
    Generator generator(5);
    Initialiser initialiser(DType::float32, Device{}, generator);
    const auto mixer = make_mixer(parse_pattern(pattern, 1)[0], width, heads, false, initialiser);
    const NoGrad no_grad;
    MixerState state = mixer->initial_state(1, length);
    const Variable x(normal({1, length, width}, 1, generator, DType::float32));
    mixer->forward({.x = x, .context = {}, .key_mask = {}, .state = &state});
    return state.bytes();
  };
  for (const int64_t length : {128, 512}) {
    // Keys and values of each key head: multi-head, grouped and multi-query attention.
    CHECK(bytes("sdpa", length) == 2 * heads * head_size * length * 4);
    CHECK(bytes("sdpa(kv_heads=2)", length) == 2 * 2 * head_size * length * 4);
    CHECK(bytes("sdpa(kv_heads=1)", length) == 2 * 1 * head_size * length * 4);
  }
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal || kind.name == "sdpa") continue;
    CHECK_MESSAGE(bytes(kind.name, 128) == bytes(kind.name, 512), kind.name);
  }
  CHECK(bytes("linear", 128) == heads * head_size * head_size * 4);
  CHECK(bytes("linear_transformer", 128) == heads * head_size * (head_size + 1) * 4);
}

}  // namespace mixgrad
