// Softmax, its logarithm, log-sum-exp and cross entropy: values at the edges, messages, repeatability.
#include "autograd/ops/softmax.h"

#include <cmath>
#include <limits>

#include "autograd/ops/linear.h"
#include "tensor/allocator.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;

Tensor targets_of(const std::vector<int32_t>& targets, Device device) {
  return Tensor::from(targets, {static_cast<int64_t>(targets.size())}, device);
}

/// |got - want| <= tolerance for each value; equal infinities are equal.
void check_close(const Values& got, const Values& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK((got[i] == want[i] || std::abs(got[i] - want[i]) <= tolerance));
  }
}

}  // namespace

TEST_CASE("tensor/softmax: log-sum-exp at both ends of the range and of nothing") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf({-infinity, -infinity, -infinity, 1, 1000, 1000, -1000, -1000, infinity, 0},
                            {5, 2}, device, dtype);
    const Variable y = logsumexp(x);
    // Rounding 1000.69 to float errs by 3e-5; without subtracting the maximum the values are inf and -inf.
    check_close(y.value().to_vector(), {-infinity, 1, 1000.693147, -999.306853, infinity}, 5e-5);
    backward({y}, {Tensor::full({5}, 2, dtype, device)});
    check_close(x.grad().to_vector(), {0, 0, 0, 2, 1, 1, 1, 1, 2, 0}, 1e-6);
  });
}

TEST_CASE("tensor/softmax: rows with infinities have probabilities as far as they make sense") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Values values = {-infinity, -infinity, -infinity, -infinity, 0, 0, infinity, 5, infinity};
    const Tensor cotangent = Tensor::from(Values{1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3}, device).to(dtype);

    const Variable x = leaf(values, {3, 3}, device, dtype);
    const Variable p = softmax(x);
    check_close(p.value().to_vector(), {0, 0, 0, 0, 0.5, 0.5, 0.5, 0, 0.5}, 0);
    backward({p}, {cotangent});
    check_close(x.grad().to_vector(), {0, 0, 0, 0, -0.25, 0.25, -0.5, 0, 0.5}, 0);

    const Variable z = leaf(values, {3, 3}, device, dtype);
    const Variable log_p = log_softmax(z);
    const double half = std::log(0.5);
    check_close(log_p.value().to_vector(),
                {-infinity, -infinity, -infinity, -infinity, half, half, half, -infinity, half}, 1e-7);
    backward({log_p}, {cotangent});
    check_close(z.grad().to_vector(), {0, 0, 0, 0, -0.5, 0.5, -1, 0, 1}, 1e-6);
  });
}

TEST_CASE("tensor/softmax: log softmax has its gradient beside entries at minus infinity in long rows too") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t columns = 31;
    Values x(columns, 0.0);
    x[3] = -infinity;
    const Values dy = waves(columns);
    const Variable z = leaf(x, {1, columns}, device, dtype);
    const Variable log_p = log_softmax(z);
    backward({log_p}, {Tensor::from(dy, {1, columns}, device).to(dtype)});
    double total = -dy[3];
    for (const double value : dy) total += value;
    Values dx(columns);
    for (int64_t j = 0; j < columns; ++j) dx[j] = j == 3 ? 0 : dy[j] - total / (columns - 1);
    // Float errs by 1e-7. A compiler that loads the wrong lanes beside the -inf errs by 1e-2.
    check_close(z.grad().to_vector(), dx, 1e-6);
  });
}

TEST_CASE("tensor/softmax: a NaN is not mistaken for a row of nothing") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Tensor x = Tensor::from(Values{nan, -infinity, nan, nan, 1, nan}, {3, 2}, device).to(dtype);
    for (const auto op : {softmax, log_softmax, logsumexp}) {
      for (const double value : op(Variable(x)).value().to_vector()) CHECK(std::isnan(value));
    }
  });
}

TEST_CASE("tensor/softmax: cross entropy of logits far apart") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable logits = leaf({-431, 279, 427}, {1, 3}, device, dtype);
    const Variable loss = cross_entropy(logits, targets_of({0}, device));
    CHECK(loss.value().item() == 858);
    backward(loss);
    check_close(logits.grad().to_vector(), {-1, 0, 1}, 1e-60);
  });
}

TEST_CASE("tensor/softmax: cross entropy of equal logits is log V") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const auto& [vocabulary, nats] :
         {std::pair<int64_t, double>{256, 5.545177}, {32768, 10.397208}, {50257, 10.824905}}) {
      CAPTURE(vocabulary);
      const Variable logits(Tensor::zeros({3, vocabulary}, dtype, device), true);
      const Variable loss =
          cross_entropy(logits, targets_of({0, 17, static_cast<int32_t>(vocabulary) - 1}, device));
      CHECK(std::abs(loss.value().item() - nats) < 2e-6);  // float: 1e-6; one term too many at V = 256: 4e-3
      backward(loss);
      const Values gradient = logits.grad().to_vector();
      const double p = 1.0 / static_cast<double>(vocabulary);
      CHECK(gradient[0] == doctest::Approx((p - 1) / 3));
      CHECK(gradient[1] == doctest::Approx(p / 3));
      CHECK(gradient[3 * vocabulary - 1] == doctest::Approx((p - 1) / 3));
    }
  });
}

TEST_CASE("tensor/softmax: cross entropy neither counts nor looks at ignored rows") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable logits = leaf({nan, nan, 0, std::log(3.0), 1e30, nan, 2, 2}, {2, 2, 2}, device, dtype);
    const Tensor targets = targets_of({-1, 0, -1, 1}, device).reshape({2, 2});
    const Variable loss = cross_entropy(logits, targets, -1);
    CHECK(loss.value().item() == doctest::Approx((std::log(4.0) + std::log(2.0)) / 2));
    backward(loss);
    check_close(logits.grad().to_vector(), {0, 0, -0.375, 0.375, 0, 0, 0.25, -0.25}, 1e-7);

    const Variable identity = leaf({1, 0, 0, 1}, {2, 2}, device, dtype);
    const NatsOfTargets sum = linear_cross_entropy_sum(logits, identity, targets, -1);
    CHECK(sum.counted == 2);
    CHECK(sum.nats == doctest::Approx(std::log(8.0)));
    const Tensor none = targets_of({-1, -1, -1, -1}, device).reshape({2, 2});
    const NatsOfTargets nothing = linear_cross_entropy_sum(logits, identity, none, -1);
    CHECK(nothing.counted == 0);
    CHECK(nothing.nats == 0);
  });
}

namespace {

/// A head for a vocabulary so large that the logits of its rows come in four blocks in double, and in two in
/// float.
struct LargeHead {
  static constexpr int64_t rows = 700, width = 5, vocabulary = 50021;
  Variable x, weight;
  Tensor targets;

  LargeHead(Device device, DType dtype) {
    Generator generator(8);
    x = Variable(normal({rows, width}, 1, generator, dtype, device), true);
    weight = Variable(normal({vocabulary, width}, 1, generator, dtype, device), true);
    std::vector<int32_t> ids(rows);
    for (int64_t i = 0; i < rows; ++i)
      ids[i] = i % 7 == 3 ? ignored_target : static_cast<int32_t>(i * 7919 % vocabulary);
    targets = targets_of(ids, device);
  }
  /// The loss and its gradients, where the loss counts threefold.
  Values loss_and_gradients(const Variable& loss) {
    backward({loss}, {Tensor::full({}, 3, loss.dtype(), loss.value().device())});
    Values all = {loss.value().item()};
    for (Variable* leaf : {&x, &weight}) {
      for (const double value : leaf->grad().to_vector()) all.push_back(value);
      leaf->zero_grad();
    }
    return all;
  }
};

}  // namespace

TEST_CASE("tensor/softmax: a head with its cross entropy is a linear layer and a cross entropy") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    LargeHead head(device, dtype);
    const Values fused = head.loss_and_gradients(linear_cross_entropy(head.x, head.weight, head.targets));
    const Values composed = head.loss_and_gradients(cross_entropy(linear(head.x, head.weight), head.targets));
    // 2e-15 and 2e-6; a block of rows left out of the weight's gradient 1e-2.
    check_close(fused, composed, dtype == DType::float64 ? 1e-13 : 2e-5);
    const NatsOfTargets sum = linear_cross_entropy_sum(head.x, head.weight, head.targets);
    CHECK(sum.nats / static_cast<double>(sum.counted) == doctest::Approx(composed[0]));
  });
}

TEST_CASE("tensor/softmax: a head with its cross entropy never holds all logits") {
  const LargeHead head(Device{}, DType::float32);
  const Allocator& allocator = Allocator::of(Device{});
  const auto peak_of = [&](const auto& loss) {
    const int64_t before = allocator.stats().live_bytes;
    Allocator::of(Device{}).reset_peak();
    loss();
    return allocator.stats().peak_bytes - before;
  };
  const NoGrad no_grad;
  const int64_t logits_bytes = LargeHead::rows * LargeHead::vocabulary * int64_t{sizeof(float)};  // 140 MB
  CHECK(peak_of([&] { cross_entropy(linear(head.x, head.weight), head.targets); }) >= logits_bytes);
  CHECK(peak_of([&] { linear_cross_entropy(head.x, head.weight, head.targets); }) <= 66 << 20);
}

TEST_CASE("tensor/softmax: a head with its cross entropy is the same with any number of threads") {
  check_same_with_any_threads([] {
    LargeHead head(Device{}, DType::float32);
    return head.loss_and_gradients(linear_cross_entropy(head.x, head.weight, head.targets));
  });
}

TEST_CASE("tensor/softmax: a head with its cross entropy names what it can not compute") {
  const Variable x(Tensor::zeros({2, 3}, DType::float32)), weight(Tensor::zeros({5, 3}, DType::float32));
  const auto error = [&](const Variable& head, const std::vector<int32_t>& targets) {
    return error_of([&] { linear_cross_entropy(x, head, targets_of(targets, Device{})); });
  };
  CHECK(error(weight, {0, 1}).empty());
  CHECK(error(weight, {0, 5}) ==
        "[linear_cross_entropy] target 5 in row 1; allowed: 0 to 4 (V = 5), or -100 to ignore the row");
  CHECK(error(weight, {-100, -100}) ==
        "[linear_cross_entropy] no target counts: 2 rows, all of them ignored (-100); the mean needs at "
        "least 1");
  const std::string shapes =
      "[linear_cross_entropy] x (2, 3), weight (5, 4) and targets (2): they must be [..., D], [V, D] and "
      "[...]";
  CHECK(error(Variable(Tensor::zeros({5, 4}, DType::float32)), {0, 1}) == shapes);
  CHECK(error(weight, {0, 1, 2}).find("targets (3)") != std::string::npos);
}

TEST_CASE("tensor/softmax: cross entropy names what it can not compute") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable logits(Tensor::zeros({3, 5}, dtype, device), true);
    const auto error = [&](const std::vector<int32_t>& targets) {
      return error_of([&] { cross_entropy(logits, targets_of(targets, device)); });
    };
    CHECK(error({0, -100, 5}) ==
          "[cross_entropy] target 5 in row 2; allowed: 0 to 4 (V = 5), or -100 to ignore the row");
    CHECK(error({0, -1, 5}).find("target -1 in row 1") != std::string::npos);
    CHECK(error({-100, -100, -100}).find("no target counts: 3 rows") != std::string::npos);
    CHECK(error({0, 1}).find("logits (3, 5) and targets (2)") != std::string::npos);
    const Variable no_rows(Tensor::zeros({0, 5}, dtype, device));
    CHECK(error_of([&] {
            cross_entropy(no_rows, targets_of({}, device));
          }).find("no target counts: 0 rows") != std::string::npos);
  });
}

TEST_CASE("tensor/softmax: rows and columns may be none") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const Shape& shape : {Shape{0, 7}, Shape{3, 0}}) {
      CAPTURE(shape);
      for (const auto op : {softmax, log_softmax, logsumexp}) {
        const Variable x(Tensor::zeros(shape, dtype, device), true);
        const Variable y = op(x);
        CHECK(y.shape() == (op == logsumexp ? shape.drop_last() : shape));
        for (const double value : y.value().to_vector()) CHECK(value == -infinity);
        backward({y}, {zeros_like(y.value())});
        CHECK(x.grad().shape() == shape);
      }
    }
    CHECK(error_of([&] { softmax(leaf({1}, {}, device, dtype)); }) ==
          "[softmax] x is a scalar; it needs a last axis");
  });
}

TEST_CASE("tensor/softmax: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const int64_t rows = 67, columns = 1003;
    const Values values = waves(rows * columns);
    std::vector<int32_t> targets(rows);
    for (int64_t row = 0; row < rows; ++row) targets[row] = static_cast<int32_t>(row * 37 % columns);
    check_same_with_any_threads([&] {
      const Variable x = leaf(values, {rows, columns}, device, dtype);
      const Variable loss = cross_entropy(x, targets_of(targets, device));
      const Variable y = softmax(x), z = log_softmax(x), s = logsumexp(x);
      backward({loss, y, z, s}, {Tensor(), x.value(), x.value(), s.value()});
      Values all = x.grad().to_vector();
      for (const Variable& output : {loss, y, z, s}) {
        const Values more = output.value().to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  });
}

}  // namespace mixgrad
