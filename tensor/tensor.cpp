#include "tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tensor/allocator.h"
#include "tensor/measure.h"
#include "tensor/parallel.h"

namespace mixgrad {

struct Tensor::Storage {
  Storage(int64_t size, Device where)
      : device(where), allocator(Allocator::of(where)), bytes(size), data(allocator.allocate(size)) {}
  ~Storage() { allocator.release(data, bytes); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device;
  Allocator& allocator;
  int64_t bytes;
  void* data;
};

namespace {

/// Calls f with a value of the C++ type of an element type that the CPU computes with.
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::float32:
      return f(float{});
    case DType::float64:
      return f(double{});
    case DType::int32:
      return f(int32_t{});
    case DType::int64:
      return f(int64_t{});
    case DType::bfloat16:
      break;
  }
  throw Error(str("[tensor] element type ", dtype, " can be stored but not computed with on the CPU"));
}

std::array<int64_t, Shape::max_rank> contiguous_strides(const Shape& shape) {
  std::array<int64_t, Shape::max_rank> strides{};
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

/// Calls f(a offset, b offset) for the start of each row (last axis) of two strided tensors of one shape.
template <class F>
void for_each_row(const Tensor& a, const Tensor& b, const F& f) {
  const Shape outer = a.shape().drop_last();
  std::array<int64_t, Shape::max_rank> index{};
  for (int64_t row = 0; row < outer.elements(); ++row) {
    int64_t a_offset = 0;
    int64_t b_offset = 0;
    for (int axis = 0; axis < outer.rank(); ++axis) {
      a_offset += index[axis] * a.stride(axis);
      b_offset += index[axis] * b.stride(axis);
    }
    f(a_offset, b_offset);
    for (int axis = outer.rank() - 1; axis >= 0 && ++index[axis] == outer[axis]; --axis) index[axis] = 0;
  }
}

}  // namespace

std::optional<int64_t> byte_size(const Shape& shape, DType dtype) {
  int64_t bytes = size_bytes(dtype);
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, shape[axis]), &bytes)) return std::nullopt;
  }
  return shape.elements() == 0 ? 0 : bytes;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  const std::optional<int64_t> bytes = byte_size(shape, dtype);
  check(bytes.has_value(), "[tensor] a tensor of shape ", shape, " is too large for any memory");
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(*bytes, device);
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor tensor = empty(shape, dtype, device);
  tensor.fill(value);
  return tensor;
}

Device Tensor::device() const { return defined() ? storage_->device : Device{}; }

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int axis = shape_.rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] != 1 && strides_[axis] != expected) return false;
    expected *= shape_[axis];
  }
  return true;
}

void* Tensor::address(DType expected) const {
  check(defined(), "[tensor] the values of an undefined tensor were asked for");
  check(dtype_ == expected, "[tensor] holds ", dtype_, " but ", expected, " was expected");
  return static_cast<char*>(storage_->data) + offset_ * size_bytes(dtype_);
}

void Tensor::copy_in(const void* values) {
  if (bytes() > 0) std::memcpy(address(dtype_), values, bytes());
}

Tensor Tensor::reshape(const Shape& shape) const {
  check(is_contiguous(), "[tensor] reshape of a view that isn't contiguous, shape ", shape_);
  check(shape.elements() == elements(), "[tensor] reshape of ", shape_, " to ", shape, ": ", elements(),
        " elements are not ", shape.elements());
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = contiguous_strides(shape);
  return view;
}

Tensor Tensor::narrow(int axis, int64_t start, int64_t length) const {
  if (axis < 0) axis += shape_.rank();
  check(start >= 0 && length >= 0 && start <= shape_[axis] && length <= shape_[axis] - start,
        "[tensor] entries ", start, " to ", start + length, " of axis ", axis, " of ", shape_);
  Tensor view = *this;
  view.offset_ += start * strides_[axis];
  view.shape_[axis] = length;
  return view;
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
  Tensor copy = empty(shape_, dtype_, device());
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  const Tensor source = contiguous();
  Tensor converted = empty(shape_, dtype, device());
  with_type(dtype_, [&](auto from) {
    with_type(dtype, [&](auto to) {
      const auto* in = source.data<decltype(from)>();
      auto* out = converted.data<decltype(to)>();
      for (int64_t i = 0; i < elements(); ++i) out[i] = static_cast<decltype(to)>(in[i]);
    });
  });
  return converted;
}

void Tensor::copy_from(const Tensor& source) {
  check(source.shape_ == shape_ && source.dtype_ == dtype_, "[tensor] copy of ", source.shape_, " ",
        source.dtype_, " into ", shape_, " ", dtype_);
  const int64_t size = size_bytes(dtype_);
  const int64_t row_bytes = shape_.columns() * size;
  if (row_bytes == 0 || measuring()) return;
  auto* out = static_cast<char*>(address(dtype_));
  const auto* in = static_cast<const char*>(source.address(dtype_));
  for_each_row(*this, source,
               [&](int64_t to, int64_t from) { std::memcpy(out + to * size, in + from * size, row_bytes); });
}

void Tensor::fill(double value) {
  check(is_contiguous(), "[tensor] fill of a view that isn't contiguous, shape ", shape_);
  with_type(dtype_, [&](auto type) {
    auto* out = data<decltype(type)>();
    parallel_blocks(elements(), rows_per_block(1), [&](int64_t begin, int64_t end) {
      std::fill(out + begin, out + end, static_cast<decltype(type)>(value));
    });
  });
}

double Tensor::item() const {
  check(elements() == 1, "[tensor] the only element of a tensor of shape ", shape_);
  return to_vector()[0];
}

std::vector<double> Tensor::to_vector() const {
  const Tensor source = contiguous();
  std::vector<double> values(elements());
  with_type(dtype_, [&](auto type) {
    const auto* in = source.data<decltype(type)>();
    std::copy(in, in + elements(), values.begin());
  });
  return values;
}

Tensor empty_like(const Tensor& tensor) {
  return Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device());
}
Tensor zeros_like(const Tensor& tensor) {
  return Tensor::zeros(tensor.shape(), tensor.dtype(), tensor.device());
}
Tensor empty_if(bool wanted, const Shape& shape, const Tensor& like) {
  return wanted ? Tensor::empty(shape, like.dtype(), like.device()) : Tensor();
}

Tensor normal(const Shape& shape, double deviation, Generator& generator, DType dtype, Device device) {
  Tensor tensor = Tensor::empty(shape, dtype, device);
  if (measuring()) return tensor;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    T* values = tensor.data<T>();
    for (int64_t i = 0; i < tensor.elements(); i += 2) {
      const double radius = deviation * std::sqrt(-2 * std::log1p(-generator.uniform()));
      const double angle = 2 * std::numbers::pi * generator.uniform();
      values[i] = static_cast<T>(radius * std::cos(angle));
      if (i + 1 < tensor.elements()) values[i + 1] = static_cast<T>(radius * std::sin(angle));
    }
  });
  return tensor;
}

Tensor uniform(const Shape& shape, double low, double high, Generator& generator, DType dtype,
               Device device) {
  std::vector<double> values(shape.elements());
  for (double& value : values) value = low + (high - low) * generator.uniform();
  return Tensor::from(values, shape, device).to(dtype);
}

}  // namespace mixgrad
