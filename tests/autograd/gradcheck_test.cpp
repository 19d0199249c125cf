// The gradient checker: right gradients pass, wrong ones are reported, and every op is checked.
#include "autograd/gradcheck.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "autograd/gradcheck_self_test.h"
#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/softmax.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Inputs = const std::vector<Variable>&;
using Values = std::vector<double>;

const std::filesystem::path ops_folder = std::filesystem::path(MIXGRAD_SOURCE_DIR) / "autograd" / "ops";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The first group of every match of the pattern.
std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found.insert((*match)[1]);
  }
  return found;
}

/// An elementwise op with any function and any derivative.
struct Elementwise {
  static constexpr std::string_view name = "elementwise";
  double (*function)(double);
  double (*derivative)(double);

  Tensor forward(Context& context, const Tensor& x) const {
    context.save(x);
    Values y = x.to_vector();
    for (double& element : y) element = function(element);
    return Tensor::from(y, x.shape()).to(x.dtype());
  }
  Tensors backward(const Context& context, const Tensor& dy) const {
    const Values x = context.saved(0).to_vector();
    Values dx = dy.to_vector();
    for (size_t i = 0; i < x.size(); ++i) dx[i] *= derivative(x[i]);
    return {Tensor::from(dx, dy.shape()).to(dy.dtype())};
  }
};

GradCase elementwise_case(double (*function)(double), double (*derivative)(double), const Values& x) {
  return {"case", {{"x", Tensor::from(x, {static_cast<int64_t>(x.size())})}}, [=](Inputs in) {
            return std::vector{apply(Elementwise{function, derivative}, in[0])};
          }};
}

/// The messages of a check, in one line.
std::string failures(const GradCase& grad_case, const GradCheckOptions& options = {}) {
  return join(check_gradients("group/case", grad_case, options).failures, "; ");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Checks the cases of a file of ops in an element type, on every device.
void check_file(const std::string& file, DType dtype) {
  const std::vector<GradCaseGroup> groups = all_op_cases(1);
  const auto group = std::find_if(groups.begin(), groups.end(),
                                  [&](const GradCaseGroup& candidate) { return candidate.name == file; });
  REQUIRE(group != groups.end());
  REQUIRE(!group->cases.empty());
  for (const GradCase& grad_case : group->cases) {
    const GradChecker checker(file + "/" + grad_case.name, grad_case, 1);
    for (const Device device : available_devices()) {
      CAPTURE(device);
      const GradCheckResult result = checker.check(dtype, {}, device);
      CHECK_MESSAGE(result.failures.empty(), join(result.failures, "; "));
      CHECK(result.derivatives > 0);
    }
  }
}

}  // namespace

// A test for each file of ops and element type, to run side by side: in a simulation some take a minute.
#define OP(file)                                                                               \
  TEST_CASE_TEMPLATE("autograd/gradcheck: every case of " #file " passes", T, float, double) { \
    check_file(#file, dtype_of<T>);                                                            \
  }
#include "autograd/ops/ops.def"
#undef OP

TEST_CASE("autograd/gradcheck: a strongly bent function is no wrong gradient") {
  // sigmoid(130 x) around its steepest point: the usual step of 2^-12 errs by 3e-8 of the largest entry.
  const GradCase bent{
      "bent",
      {{"x", Tensor::from(std::vector<double>{1, 0.0002, -0.0003}, {3})}},
      [](const std::vector<Variable>& in) { return std::vector{sigmoid(scale(in[0], 130))}; }};
  const GradCheckResult result = GradChecker("bent", bent, 1).check(DType::float64);
  CHECK_MESSAGE(result.failures.empty(), join(result.failures, "; "));
}

TEST_CASE("autograd/gradcheck: every op has a case that reaches its backward") {
  std::set<std::string> reached;
  for (const GradCaseGroup& group : all_op_cases(1)) {
    for (const GradCase& grad_case : group.cases) reached.merge(ops_reached(grad_case));
  }
  const std::regex declaration(R"re(string_view name = "([^"]+)";)re");
  std::set<std::string> declared =
      matches(read(std::filesystem::path(MIXGRAD_SOURCE_DIR) / "tensor/kernels/scalar.h"), declaration);
  for (const auto& entry : std::filesystem::directory_iterator(ops_folder)) {
    if (entry.path().extension() == ".cpp") declared.merge(matches(read(entry.path()), declaration));
  }
  CHECK(declared.count("linear") == 1);
  for (const std::string& op : declared) CHECK_MESSAGE(reached.count(op) == 1, "no case reaches ", op);
  for (const std::string& op : reached) CHECK_MESSAGE(declared.count(op) == 1, op, " is declared nowhere");
}

TEST_CASE("autograd/gradcheck: every file of ops has its line and every line its file") {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(ops_folder)) {
    if (entry.path().extension() == ".cpp") files.insert(entry.path().stem().string());
  }
  const std::set<std::string> lines =
      matches(read(ops_folder / "ops.def"), std::regex(R"((?:^|\n)OP\((\w+)\))"));
  for (const std::string& file : files) {
    CHECK_MESSAGE(lines.count(file) == 1, "add OP(", file, ") to autograd/ops/ops.def");
  }
  for (const std::string& line : lines) {
    CHECK_MESSAGE(files.count(line) == 1, "OP(", line, ") in autograd/ops/ops.def has no ", line, ".cpp");
  }
}

TEST_CASE("autograd/gradcheck: every corrupted backward of every op is noticed") {
  const SelfTestResult result = self_test(all_op_cases(1), {});
  CHECK(join(result.missed) == "");
  // The gradient of a sum is the same for all elements, wherever they are moved.
  CHECK(join(result.unchanged) == "sum, input 0: rolled by one");
  CHECK(result.ops >= 29);
  CHECK(result.inputs >= 53);
  CHECK(result.trials == result.inputs * 7);
  CHECK(result.caught == result.trials - 1);
  CHECK(result.mildest_error > 1e-4);
}

TEST_CASE("autograd/gradcheck: float32 notices corrupted backwards too") {
  std::vector<GradCaseGroup> groups = all_op_cases(1);
  std::erase_if(groups,
                [](const GradCaseGroup& group) { return group.name != "linear" && group.name != "norm"; });
  REQUIRE(groups.size() == 2);
  const SelfTestResult result = self_test(groups, {.dtype = DType::float32});
  CHECK(result.caught == result.trials);
  CHECK(result.mildest_error > 1e-4);
}

TEST_CASE("autograd/gradcheck: a wrong gradient is reported with its place and both values") {
  const auto cube = [](double x) { return x * x * x; };
  const auto wrong = [](double x) { return x > 2 ? 3 * x * x + 0.5 : 3 * x * x; };
  GradCase grad_case = elementwise_case(cube, wrong, {1, 2, 3, -1, -2, -3});
  grad_case.inputs[0].value = grad_case.inputs[0].value.reshape({2, 3});
  const std::string message = failures(grad_case);
  CHECK(contains(message, "group/case: input 0 'x' at (0, 2): analytic "));
  CHECK(contains(message, ", numeric "));
  // The cotangent multiplies both, the wrong 27.5 and the right 27; the largest entry is not necessarily
  // this.
  std::smatch values;
  REQUIRE(std::regex_search(message, values, std::regex("analytic ([-0-9.e]+), numeric ([-0-9.e]+)")));
  CHECK(std::stod(values[1]) / std::stod(values[2]) == doctest::Approx(27.5 / 27).epsilon(1e-9));
}

TEST_CASE("autograd/gradcheck: what a sum of outputs can not see is seen") {
  Generator generator(5);
  const GradCase grad_case{"case", {{"x", normal({4, 7}, 1, generator, DType::float64)}}, [](Inputs in) {
                             return std::vector{softmax(in[0])};
                           }};
  const GradChecker checker("case", grad_case, 1);
  CHECK(checker.check(DType::float64).failures.empty());
  const auto times = [&](double factor) {
    return checker.check(DType::float64, [factor](std::string_view, int, Tensor& gradient) {
      Values values = gradient.to_vector();
      for (double& value : values) value *= factor;
      gradient = Tensor::from(values, gradient.shape());
    });
  };
  CHECK(times(0).failures.size() == 1);
  CHECK(times(-7).failures.size() == 1);
  CHECK(times(1 + 1e-6).failures.size() == 1);
  CHECK(times(1 + 1e-10).failures.empty());
}

TEST_CASE("autograd/gradcheck: NaN fails however it arises") {
  const auto square = [](double x) { return x * x; };
  const auto one_nan = [](double x) { return x == 2 ? std::nan("") : 2 * x; };
  CHECK(contains(failures(elementwise_case(square, one_nan, {1, 2, 3})), "at (1): analytic nan"));
  CHECK(std::isnan(check_gradients("", elementwise_case(square, one_nan, {1, 2, 3}), {}).error));

  const auto root = [](double x) { return std::sqrt(x); };
  const auto slope = [](double x) { return x > 0 ? 0.5 / std::sqrt(x) : 0; };
  CHECK(contains(failures(elementwise_case(root, slope, {1, 0, 3})), "at (1): the numeric value is "));
}

TEST_CASE("autograd/gradcheck: a gradient that is zero everywhere tests nothing and fails") {
  const auto constant = [](double) { return 4.0; };
  const auto zero = [](double) { return 0.0; };
  CHECK(contains(failures(elementwise_case(constant, zero, {1, 2})), "the numeric gradient is 0 everywhere"));
  CHECK(contains(
      failures({"case",
                {},
                [](Inputs) { return std::vector{Variable(Tensor::zeros({}, DType::float64), true)}; }}),
      "no input to differentiate"));
}

TEST_CASE("autograd/gradcheck: a kink is reported as such") {
  const auto relu = [](double x) { return x > 0 ? x : 0; };
  const auto step = [](double x) { return x > 0 ? 1.0 : 0.0; };
  const auto half = [](double x) { return x > 0 ? 1.0 : x == 0 ? 0.5 : 0.0; };
  CHECK(failures(elementwise_case(relu, step, {1, -1, 2})).empty());
  CHECK(
      contains(failures(elementwise_case(relu, step, {1, 0, 2})), "at (1): the function has a kink, slope "));
  // Even where the analytic value happens to equal the central difference.
  CHECK(
      contains(failures(elementwise_case(relu, half, {1, 0, 2})), "at (1): the function has a kink, slope "));
}

TEST_CASE("autograd/gradcheck: an impure function is reported") {
  int calls = 0;
  const GradCase counting{"case", {{"x", Tensor::from(Values{1, 2}, {2})}}, [&calls](Inputs in) {
                            return std::vector{add_scalar(in[0], 1e-9 * ++calls)};
                          }};
  CHECK(contains(failures(counting), "a second call with the same inputs gave other outputs"));

  const GradCase recording_only{"case", {{"x", Tensor::from(Values{1, 2}, {2})}}, [](Inputs in) {
                                  return std::vector{add_scalar(in[0], recording() ? 1 : 2)};
                                }};
  CHECK(contains(failures(recording_only), "a call under NoGrad gave other outputs"));
}

TEST_CASE("autograd/gradcheck: a gradient that never arrives is reported") {
  const GradCase cut{"case",
                     {{"x", Tensor::from(Values{1, 2}, {2})}, {"y", Tensor::from(Values{3, 4}, {2})}},
                     [](Inputs in) { return std::vector{multiply(in[0], in[1].detach())}; }};
  CHECK(failures(cut) == "group/case: input 1 'y': no gradient arrived");
}

TEST_CASE("autograd/gradcheck: what a case throws is its failure") {
  const GradCase throwing{"case", {{"x", Tensor::from(Values{1}, {1})}}, [](Inputs) -> std::vector<Variable> {
                            throw Error("[op] is out of order");
                          }};
  CHECK(failures(throwing) == "group/case: [op] is out of order");
}

TEST_CASE("autograd/gradcheck: one wrong element of a large input is noticed wherever it is") {
  Generator generator(5);
  const GradCase grad_case{"case", {{"x", normal({1000}, 1, generator, DType::float64)}}, [](Inputs in) {
                             return std::vector{sigmoid(in[0])};
                           }};
  const GradChecker checker("case", grad_case, 1);
  const GradCheckResult right = checker.check(DType::float64);
  CHECK(right.failures.empty());
  CHECK(right.derivatives == 201);
  for (int64_t wrong = 0; wrong < 1000; wrong += 37) {
    const GradCheckResult result =
        checker.check(DType::float64, [wrong](std::string_view, int, Tensor& gradient) {
          gradient = gradient.clone();
          gradient.data<double>()[wrong] *= -1;
        });
    CHECK_MESSAGE(result.failures.size() == 1, "element ", wrong);
  }
}

TEST_CASE("autograd/gradcheck: the step fits inputs of any size") {
  const auto exponential = [](double x) { return std::exp(x); };
  const auto reciprocal = [](double x) { return 1 / x; };
  const auto reciprocal_slope = [](double x) { return -1 / (x * x); };
  for (const GradCase& grad_case : {elementwise_case(exponential, exponential, {-1, 0, 2}),
                                    elementwise_case(reciprocal, reciprocal_slope, {1e-4, -2e-4}),
                                    elementwise_case(reciprocal, reciprocal_slope, {1000, 2000, -4000})}) {
    // Right: 2.9e-10 or less. A two-point difference with the same steps errs by up to 9e-8.
    CHECK(check_gradients("", grad_case, {}).error < 1e-9);
  }
}

TEST_CASE("autograd/gradcheck: float32 gradients are judged by float64 differences") {
  std::set<DType> recorded, unrecorded;
  const GradCase grad_case{"case", {{"x", Tensor::from(Values{0.5, 1.25}, {2})}}, [&](Inputs in) {
                             (recording() ? recorded : unrecorded).insert(in[0].dtype());
                             return std::vector{silu(in[0])};
                           }};
  const GradCheckResult result = check_gradients("", grad_case, {.dtype = DType::float32});
  CHECK(result.failures.empty());
  CHECK(recorded == std::set{DType::float32});
  CHECK(unrecorded.count(DType::float64) == 1);
  CHECK(result.error < 1e-6);
  CHECK(result.error > 1e-12);  // float32 did compute it
}

}  // namespace mixgrad
