// Tensor: values of one element type on one device. No gradients here; those are autograd's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/random.h"
#include "tensor/shape.h"

namespace mixgrad {

/// Bytes of a contiguous tensor; nothing when they, or the strides of its axes, go beyond 64 bits.
std::optional<int64_t> byte_size(const Shape& shape, DType dtype);

/// A handle on shared storage: copying a Tensor copies the handle, clone() copies the values.
///
/// Row-major. Tensors are contiguous, but for views made by narrow(); kernels say which strides they take.
/// A default-constructed Tensor is undefined: it stands for "not given".
class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised values.
  static Tensor empty(const Shape& shape, DType dtype, Device device = {});
  static Tensor zeros(const Shape& shape, DType dtype, Device device = {});
  /// Every element is `value`, converted to the element type.
  static Tensor full(const Shape& shape, double value, DType dtype, Device device = {});
  /// The given values in row-major order; as many as the shape has elements.
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = {}) {
    Tensor tensor = empty(shape, dtype_of<T>, device);
    check(static_cast<int64_t>(values.size()) == shape.elements(), "[tensor] ", values.size(),
          " values for shape ", shape);
    tensor.copy_in(values.data());
    return tensor;
  }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const;
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_bytes(dtype_); }
  /// Distance in elements between neighbours along an axis; negative axes count from the end.
  int64_t stride(int axis) const { return strides_[axis < 0 ? axis + shape_.rank() : axis]; }
  bool is_contiguous() const;
  /// No other handle shares the storage, so that writing into it surprises nobody.
  bool is_sole_owner() const { return storage_.use_count() == 1; }

  /// A number that no other storage has had, and that is another one after each time that the values could be
  /// written, by any handle: what has been computed from them is right while it stays. A pointer to the
  /// values counts when it is asked for, so it must not be kept for writing later. The tensor must be
  /// defined.
  uint64_t stamp() const;

  /// The first of contiguous elements. Throws Error when T isn't the element type, and for a view whose
  /// elements do not follow each other: what reads it as if they did would go wrong in silence.
  template <class T>
  T* data() {
    mark_written();
    return const_cast<T*>(std::as_const(*this).data<T>());
  }
  template <class T>
  const T* data() const {
    check(is_contiguous(), "[tensor] a view of shape ", shape_, " that isn't contiguous: use contiguous()");
    return strided_data<T>();
  }
  /// The first element, for who goes by stride(). Throws Error when T isn't the element type.
  template <class T>
  const T* strided_data() const {
    return static_cast<const T*>(address(dtype_of<T>));
  }
  /// Null for an undefined tensor: how kernels are told that an optional operand is absent.
  template <class T>
  T* data_or_null() {
    return defined() ? data<T>() : nullptr;
  }
  template <class T>
  const T* data_or_null() const {
    return defined() ? data<T>() : nullptr;
  }

  /// The first byte of the values, whatever their type: for copies, and for reading and writing files.
  void* raw_data() {
    mark_written();
    return address(dtype_);
  }
  const void* raw_data() const { return address(dtype_); }

  /// A view with another shape of as many elements; the tensor must be contiguous.
  Tensor reshape(const Shape& shape) const;
  /// A view of `length` entries from `start` along an axis.
  Tensor narrow(int axis, int64_t start, int64_t length) const;

  /// Itself when contiguous, else a contiguous copy.
  Tensor contiguous() const;
  /// A contiguous copy.
  Tensor clone() const;
  /// A copy converted to another element type; itself when it has that type.
  Tensor to(DType dtype) const;
  /// A copy on another device; itself when it is there or undefined.
  Tensor to(Device device) const;
  /// Overwrites the values by those of a tensor of the same shape and element type, on any device.
  void copy_from(const Tensor& source);
  void fill(double value);

  /// The only element, as a double.
  double item() const;
  /// All elements in row-major order, as doubles: for tests, messages and pictures.
  std::vector<double> to_vector() const;

 private:
  struct Storage;

  void* address(DType expected) const;
  void mark_written();
  void copy_in(const void* values);
  void copy_strided_from(const Tensor& source);

  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // in elements
  Shape shape_;
  std::array<int64_t, Shape::max_rank> strides_{};
  DType dtype_ = DType::float32;
};

using Tensors = std::vector<Tensor>;

/// Uninitialised, with the shape, element type and device of another.
Tensor empty_like(const Tensor& tensor);
Tensor zeros_like(const Tensor& tensor);
/// Uninitialised, with the element type and device of another; undefined when it isn't wanted.
Tensor empty_if(bool wanted, const Shape& shape, const Tensor& like);

/// Normally distributed with the given standard deviation, drawn on the CPU in double (Box and Muller), so
/// that the values do not depend on the device and a float tensor holds the rounded values of the double one.
Tensor normal(const Shape& shape, double deviation, Generator& generator, DType dtype, Device device = {});
/// Uniform in [low, high).
Tensor uniform(const Shape& shape, double low, double high, Generator& generator, DType dtype,
               Device device = {});

}  // namespace mixgrad
