// Module: named parameters in a fixed order.
#pragma once

#include <string>
#include <vector>

#include "autograd/variable.h"

namespace mixgrad {

/// A parameter as seen from outside its module.
struct Parameter {
  std::string name;    // path from the outermost module: "blocks.0.mixer.q.weight"
  Variable* variable;  // owned by its module
  bool decays;         // whether weight decay applies: matrices yes; norms, biases, mixtures, gates no
};

/// How new parameters come into being: element type, device and the generator that their values are drawn
/// from. Values are drawn in the order of construction, so that a seed and a configuration determine them.
class Initialiser {
 public:
  Initialiser(DType dtype, Device device, Generator& generator)
      : dtype_(dtype), device_(device), generator_(generator) {}

  Variable normal(const Shape& shape, double deviation) {
    return Variable(mixgrad::normal(shape, deviation, generator_, dtype_, device_), true);
  }
  Variable constant(const Shape& shape, double value) {
    return Variable(Tensor::full(shape, value, dtype_, device_), true);
  }
  /// Given values (float64), in the element type and on the device of the others.
  Variable values(const Tensor& values) { return Variable(values.to(dtype_).to(device_), true); }
  Generator& generator() { return generator_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

 private:
  DType dtype_;
  Device device_;
  Generator& generator_;
};

/// Base of everything that has parameters. A module declares its own and its children's in its constructor;
/// the order of declaration is the order in checkpoints, optimisers and listings.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  std::vector<Parameter> parameters();
  void zero_grad();
  /// Number of values in all parameters; a tied one is counted once.
  int64_t parameter_count();

 protected:
  enum class Decay : bool { no, yes };

  void declare(std::string name, Variable& parameter, Decay decay);
  void declare(std::string name, Module& child);

 private:
  struct Member {
    std::string name;
    Variable* parameter = nullptr;
    bool decays = false;
    Module* child = nullptr;
  };

  void collect(const std::string& prefix, std::vector<Parameter>& found);

  std::vector<Member> members_;
};

}  // namespace mixgrad
