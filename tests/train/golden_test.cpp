// Golden vectors: our ops give what an independent program gave, and a difference is noticed.
#include "train/golden.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"

namespace mixgrad {
namespace {

const std::filesystem::path vectors = std::filesystem::path(MIXGRAD_SOURCE_DIR) / "tests" / "golden";

SafetensorsFile sigmoid_file() { return read_safetensors(vectors / "sigmoid" / "odd.safetensors"); }

/// The failures of our sigmoid on a file, in one line.
std::string failures(const SafetensorsFile& file, DType dtype = DType::float64) {
  GoldenCase golden(file, dtype, {});
  golden.output("y", sigmoid(golden.input("x")));
  golden.backward_pass();
  return join(golden.failures(), "; ");
}

/// The file with one element of a tensor moved by a part of the tensor's largest magnitude, here below 2.
SafetensorsFile moved(const std::string& name, double by) {
  SafetensorsFile file = sigmoid_file();
  Tensor& tensor = file.tensors.at(name);
  tensor = tensor.clone();
  tensor.data<double>()[3] += by;
  return file;
}

/// Checks the ops whose names begin with one of these letters, which have so many files, on every device.
void check_ops(char first, char last, DType dtype, int64_t files) {
  const auto wanted = [=](const std::string& label) { return label[0] >= first && label[0] <= last; };
  for (const Device device : available_devices()) {
    CAPTURE(device);
    const GoldenResult result =
        check_golden(vectors, {.device = device, .dtypes = {dtype}, .wanted = wanted});
    CHECK_MESSAGE(result.failures.empty(), join(result.failures, "\n"));
    int64_t checked = 0;
    for (const auto& op : result.ops) {
      checked += op.second.files;
      // Right ops use at most 0.33 in float64 and 0.62 in float32; one whose gradient is off by a part in
      // 1000 uses more than 10.
      CHECK_MESSAGE(op.second.tolerance_used.at(dtype) < 1, op.first);
    }
    CHECK(checked == files);
  }
}

}  // namespace

// In parts, to run side by side: in a simulation all together take minutes.
TEST_CASE_TEMPLATE("train/golden: ops from a to k agree with the golden vectors", T, float, double) {
  check_ops('a', 'k', dtype_of<T>, 157);
}
TEST_CASE_TEMPLATE("train/golden: ops with l agree with the golden vectors", T, float, double) {
  check_ops('l', 'l', dtype_of<T>, 88);
}
TEST_CASE_TEMPLATE("train/golden: ops from m to s agree with the golden vectors", T, float, double) {
  check_ops('m', 's', dtype_of<T>, 122);
}
TEST_CASE_TEMPLATE("train/golden: ops from t to z agree with the golden vectors", T, float, double) {
  check_ops('t', 'z', dtype_of<T>, 20);
}

TEST_CASE("train/golden: every op of the golden vectors is ours") {
  const GoldenResult result = check_golden(vectors, {.dtypes = {}});
  std::vector<std::string> not_covered;
  for (const auto& [name, count] : result.not_covered) not_covered.push_back(name);
  CHECK(join(not_covered) == "");
  int64_t files = 0;
  for (const auto& [name, op] : result.ops) files += op.files;
  CHECK(files == 157 + 88 + 122 + 20);  // those of the parts above
}

TEST_CASE("train/golden: a difference beyond the tolerance is noticed") {
  CHECK(failures(sigmoid_file()) == "");
  CHECK(failures(sigmoid_file(), DType::float32) == "");
  for (const std::string name : {"out.y", "grad.x"}) {
    // The tolerance is 1e-9 to 2e-8 in float64 and 1e-4 to 1e-3 in float32.
    CHECK(failures(moved(name, 1e-10)) == "");
    CHECK(failures(moved(name, 1e-7)).find(name + " element 3: got ") == 0);
    CHECK(failures(moved(name, 1e-7), DType::float32) == "");
    CHECK(failures(moved(name, 1e-2), DType::float32).find(name + " element 3: got ") == 0);
    CHECK(failures(moved(name, std::nan(""))).find(name + " element 3: got ") == 0);
    CHECK(failures(moved(name, std::numeric_limits<double>::infinity())).find(name + " element 3: got ") ==
          0);
  }
}

/// The results of a file in whose place zeros pass, but for those that are 0.
std::vector<std::string> hidden_zeros(const SafetensorsFile& file, DType dtype) {
  std::vector<std::string> hidden;
  for (const auto& [name, want] : file.tensors) {
    if (name.starts_with("in.") || name.starts_with("cot.")) continue;
    const std::vector<double> values = want.to_vector();
    if (std::all_of(values.begin(), values.end(), [](double value) { return value == 0; })) continue;
    GoldenCase golden(file, dtype, {});
    golden.compare(name, Tensor::zeros(want.shape(), dtype));
    if (golden.tolerance_used() <= 1) hidden.push_back(name);
  }
  return hidden;
}

TEST_CASE("train/golden: zeros in place of a result are noticed") {
  int64_t lost = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(vectors)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = read_safetensors(entry.path());
    for (const DType dtype : {DType::float64, DType::float32}) {
      for (const std::string& name : hidden_zeros(file, dtype)) {
        // What is left: float32, or rounding alone, moves the value as much as zeros do; or it underflows.
        const double noise = std::stod(file.metadata.at("noise." + name));
        double largest = 0;
        for (const double value : file.tensors.at(name).to_vector()) {
          largest = std::max(largest, std::abs(value));
        }
        CAPTURE(entry.path());
        CAPTURE(name);
        CHECK((16 * noise >= largest || largest < 1e-37));
        ++lost;
      }
    }
  }
  CHECK(lost == 23);
}

TEST_CASE("train/golden: a wrong backward is noticed") {
  set_backward_hook([](std::string_view, int, Tensor& gradient) {
    gradient = gradient.clone();
    gradient.data<double>()[0] *= -1;
  });
  const std::string message = failures(sigmoid_file());
  set_backward_hook({});
  CHECK(message.find("grad.x element 0: got ") == 0);
}

TEST_CASE("train/golden: a result that is not computed or has another shape is noticed") {
  SafetensorsFile file = sigmoid_file();
  file.tensors["out.state"] = Tensor::zeros({2}, DType::float64);
  CHECK(failures(file) == "out.state: not computed");
  file = sigmoid_file();
  file.tensors["out.y"] = Tensor::zeros({2}, DType::float64);
  CHECK(failures(file) == "out.y: shape (2, 13, 3, 5), expected shape (2)");
  file = sigmoid_file();
  file.tensors["grad.z"] = Tensor::zeros({2}, DType::float64);
  CHECK(failures(file) == "grad.z: not computed");
}

TEST_CASE("train/golden: infinities are compared for equality") {
  const double infinity = std::numeric_limits<double>::infinity();
  SafetensorsFile file;
  file.tensors["out.y"] = Tensor::from(std::vector<double>{1, -infinity}, {2});
  const auto compare = [&](double second) {
    GoldenCase golden(file, DType::float64, {});
    golden.compare("out.y", Tensor::from(std::vector<double>{1, second}, {2}));
    return golden.failures().empty();
  };
  CHECK(compare(-infinity));
  CHECK_FALSE(compare(infinity));
  CHECK_FALSE(compare(-1e300));
  CHECK_FALSE(compare(std::nan("")));
}

TEST_CASE("train/golden: a folder without a wanted file is a usage error") {
  CHECK_THROWS_AS(check_golden(vectors / "nowhere", {}), UsageError);
  CHECK_THROWS_AS(check_golden(vectors, {.wanted = [](const std::string&) { return false; }}), UsageError);
}

}  // namespace mixgrad
