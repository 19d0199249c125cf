// Golden vectors: does every op compute what an independent program computed? Their format and the tolerance
// are described in tests/golden/README.md.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "tensor/safetensors.h"

namespace mixgrad {

/// One file of golden vectors while our op runs on it: hands out its inputs, takes and compares the outputs.
class GoldenCase {
 public:
  GoldenCase(const SafetensorsFile& file, DType dtype, Device device);

  /// in.<name> as a leaf whose gradient will be compared; undefined when this case doesn't have the input.
  Variable input(const std::string& name);
  /// Any tensor of the file, by its full name, in an element type; undefined when there is none.
  Tensor tensor(const std::string& full_name, DType dtype) const;
  /// Ids, targets or a mask, in.<name>: int32.
  Tensor integers(const std::string& name) const { return tensor("in." + name, DType::int32); }
  /// The metadata attr.<name>.
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool flag(const std::string& name) const { return number(name) != 0; }
  /// The names of all tensors in.<name>.
  std::vector<std::string> input_names() const;
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

  /// Our out.<name>.
  void output(const std::string& name, const Variable& got);
  /// Has the gradient of a leaf that input() didn't make compared with grad.<name>.
  void leaf(const std::string& name, const Variable& leaf) { leaves_[name] = leaf; }
  /// Runs backward from the outputs and compares the gradients of all leaves.
  void backward_pass();
  /// Compares with the file's tensor of this full name; a tensor that the file doesn't have is let pass.
  void compare(const std::string& full_name, const Tensor& got);

  /// The largest error so far, as a part of its tolerance.
  double tolerance_used() const { return tolerance_used_; }
  /// What went wrong, including results in the file that were never compared.
  std::vector<std::string> failures() const;

 private:
  double tolerance(const std::string& full_name) const;

  const SafetensorsFile& file_;
  DType dtype_;
  Device device_;
  std::map<std::string, Variable> leaves_;
  std::vector<Variable> roots_;
  Tensors cotangents_;
  std::set<std::string> compared_;
  double tolerance_used_ = 0;
  std::vector<std::string> failures_;
};

/// Runs one of our ops on a case.
struct GoldenAdapter {
  std::string op;  // as in the metadata; of language models with their mixer: "lm/sdpa"
  void (*run)(GoldenCase& golden);
};

/// Of all ops that we have.
const std::vector<GoldenAdapter>& golden_adapters();

struct GoldenOptions {
  Device device{};
  std::vector<DType> dtypes = {DType::float64, DType::float32};
  std::function<bool(const std::string& label)> wanted = {};  // by "op/case"; empty: all
};

struct GoldenResult {
  struct Op {
    int64_t files = 0;
    std::map<DType, double> tolerance_used;  // the worst of all files
  };
  std::map<std::string, Op> ops;
  std::vector<std::string> failures;           // a line each
  std::map<std::string, int64_t> not_covered;  // ops without an adapter, with their number of files
};

/// Checks every .safetensors file below a folder, in the order of their paths. Throws UsageError when there
/// is no such folder, or no file that is wanted; Error for a file that can't be read.
GoldenResult check_golden(const std::filesystem::path& folder, const GoldenOptions& options);

}  // namespace mixgrad
