#include "train/golden.h"

#include <algorithm>
#include <cmath>
#include <iomanip>

#include "autograd/tape.h"

namespace mixgrad {

namespace {

double largest_finite(const Tensor& tensor) {
  double largest = 0;
  for (const double value : tensor.to_vector()) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

/// "grad." of "grad.x"
std::string prefix(const std::string& full_name) { return full_name.substr(0, full_name.find('.') + 1); }

/// Whether a tensor of a file is something that we must compute.
bool is_result(const std::string& full_name) {
  const std::string kind = prefix(full_name);
  return kind != "in." && kind != "cot.";
}

/// How far two values are apart; 0 for the same infinity.
double distance(double got, double want) { return got == want ? 0 : std::abs(got - want); }

}  // namespace

GoldenCase::GoldenCase(const SafetensorsFile& file, DType dtype, Device device)
    : file_(file), dtype_(dtype), device_(device) {}

Variable GoldenCase::input(const std::string& name) {
  const Tensor value = tensor("in." + name, dtype_);
  if (!value.defined()) return {};
  return leaves_[name] = Variable(value, true);
}

Tensor GoldenCase::tensor(const std::string& full_name, DType dtype) const {
  const auto found = file_.tensors.find(full_name);
  if (found == file_.tensors.end()) return {};
  return Tensor::from(found->second.to_vector(), found->second.shape(), device_).to(dtype);
}

const std::string& GoldenCase::text(const std::string& name) const {
  const auto found = file_.metadata.find("attr." + name);
  check(found != file_.metadata.end(), "no attribute '", name, "' in the file");
  return found->second;
}

double GoldenCase::number(const std::string& name) const { return std::stod(text(name)); }

std::vector<std::string> GoldenCase::input_names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : file_.tensors) {
    if (prefix(name) == "in.") names.push_back(name.substr(3));
  }
  return names;
}

void GoldenCase::output(const std::string& name, const Variable& got) {
  compare("out." + name, got.value());
  const Tensor cotangent = tensor("cot." + name, dtype_);
  if (!cotangent.defined()) return;
  roots_.push_back(got);
  cotangents_.push_back(cotangent);
}

void GoldenCase::backward_pass() {
  if (roots_.empty()) return;
  backward(roots_, cotangents_);
  for (const auto& [name, leaf] : leaves_) compare("grad." + name, leaf.grad());
}

void GoldenCase::compare(const std::string& full_name, const Tensor& got) {
  const auto found = file_.tensors.find(full_name);
  if (found == file_.tensors.end()) return;
  compared_.insert(full_name);
  if (!got.defined() || got.shape() != found->second.shape()) {
    failures_.push_back(str(full_name, ": ", got.defined() ? str("shape ", got.shape()) : "nothing",
                            ", expected shape ", found->second.shape()));
    return;
  }
  const std::vector<double> want = found->second.to_vector(), values = got.to_vector();
  const double allowed = tolerance(full_name);
  double worst = 0;
  std::string message;
  for (size_t i = 0; i < want.size(); ++i) {
    const double used = distance(values[i], want[i]) / allowed;
    if (used <= worst || std::isnan(worst)) continue;  // a NaN comes in, and stays
    worst = used;
    message = str(full_name, " element ", i, ": got ", std::setprecision(12), values[i], ", expected ",
                  want[i], std::setprecision(3), ", tolerance ", allowed);
  }
  if (!(worst <= 1)) failures_.push_back(message);
  if (!(worst <= tolerance_used_) && !std::isnan(tolerance_used_)) tolerance_used_ = worst;
}

double GoldenCase::tolerance(const std::string& full_name) const {
  const bool f64 = dtype_ == DType::float64;
  const double magnitude = largest_finite(file_.tensors.at(full_name));
  if (full_name.starts_with("after3")) {
    const bool losses = full_name.ends_with(".losses");
    return magnitude * (f64 ? 1e-8 : losses ? 1e-4 : 1e-3);
  }
  constexpr double underflow = 1e-37;  // gates are limited to what leaves as much of a state
  const auto found = file_.metadata.find("noise." + full_name);
  const double noise = found == file_.metadata.end() ? 0 : std::stod(found->second);
  return f64 ? 1e-9 * magnitude + 16 * noise * 0x1p-29 + underflow
             : 1e-4 * magnitude + 16 * noise + underflow;
}

std::vector<std::string> GoldenCase::failures() const {
  std::vector<std::string> all = failures_;
  for (const auto& [name, value] : file_.tensors) {
    if (is_result(name) && compared_.count(name) == 0) all.push_back(name + ": not computed");
  }
  return all;
}

namespace {

std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  check_usage(std::filesystem::is_directory(folder), "[golden] no folder '", folder.string(), "'");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  return found == file.metadata.end() ? "?" : found->second;
}

void check_file(const SafetensorsFile& file, const std::string& label, const GoldenAdapter& adapter,
                const GoldenOptions& options, GoldenResult& result) {
  GoldenResult::Op& op = result.ops[adapter.op];
  ++op.files;
  for (const DType dtype : options.dtypes) {
    const auto fail = [&](const std::string& what) {
      result.failures.push_back(str(label, ", ", dtype, ": ", what));
    };
    GoldenCase golden(file, dtype, options.device);
    try {
      adapter.run(golden);
      golden.backward_pass();
      for (const std::string& failure : golden.failures()) fail(failure);
    } catch (const std::exception& error) {
      fail(error.what());
    }
    double& worst = op.tolerance_used[dtype];
    if (!(golden.tolerance_used() <= worst) && !std::isnan(worst)) worst = golden.tolerance_used();
  }
}

}  // namespace

GoldenResult check_golden(const std::filesystem::path& folder, const GoldenOptions& options) {
  GoldenResult result;
  bool any = false;
  for (const std::filesystem::path& path : files_below(folder)) {
    const SafetensorsFile file = read_safetensors(path);
    const std::string label = metadata(file, "op") + "/" + metadata(file, "case");
    if (options.wanted && !options.wanted(label)) continue;
    any = true;
    const std::string op = metadata(file, "op") == "lm" ? label : metadata(file, "op");
    const auto& adapters = golden_adapters();
    const auto adapter =
        std::find_if(adapters.begin(), adapters.end(), [&](const GoldenAdapter& a) { return a.op == op; });
    if (adapter == adapters.end()) {
      ++result.not_covered[op];
    } else {
      check_file(file, label, *adapter, options, result);
    }
  }
  check_usage(any, "[golden] no file below '", folder.string(), "' is selected");
  return result;
}

}  // namespace mixgrad
