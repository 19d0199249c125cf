#include "tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "tensor/allocator.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/copy.h"
#include "tensor/measure.h"

namespace mixgrad {

namespace {

uint64_t next_stamp() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

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
  std::atomic<uint64_t> stamp{next_stamp()};  // several threads may write parts of it
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

/// Calls f with an integer as large as an element, by which elements of any type can be moved.
template <class F>
void with_element_size(DType dtype, const F& f) {
  switch (size_bytes(dtype)) {
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
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

uint64_t Tensor::stamp() const {
  check(defined(), "[tensor] an undefined tensor has no stamp");
  return storage_->stamp.load(std::memory_order_relaxed);
}

void Tensor::mark_written() {
  if (defined()) storage_->stamp.store(next_stamp(), std::memory_order_relaxed);
}

void* Tensor::address(DType expected) const {
  check(defined(), "[tensor] the values of an undefined tensor were asked for");
  check(dtype_ == expected, "[tensor] holds ", dtype_, " but ", expected, " was expected");
  return static_cast<char*>(storage_->data) + offset_ * size_bytes(dtype_);
}

void Tensor::copy_in(const void* values) { copy_bytes(device(), address(dtype_), Device{}, values, bytes()); }

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
  if (device() != Device{}) return to(Device{}).to(dtype).to(device());
  const Tensor source = contiguous();
  Tensor converted = empty(shape_, dtype);
  with_type(dtype_, [&](auto from) {
    with_type(dtype, [&](auto to) {
      const auto* in = source.data<decltype(from)>();
      auto* out = converted.data<decltype(to)>();
      for (int64_t i = 0; i < elements(); ++i) out[i] = static_cast<decltype(to)>(in[i]);
    });
  });
  return converted;
}

Tensor Tensor::to(Device where) const {
  if (!defined() || where == device()) return *this;
  Tensor copy = empty(shape_, dtype_, where);
  copy.copy_from(*this);
  return copy;
}

void Tensor::copy_from(const Tensor& source) {
  check(source.shape_ == shape_ && source.dtype_ == dtype_, "[tensor] copy of ", source.shape_, " ",
        source.dtype_, " into ", shape_, " ", dtype_);
  mark_written();
  if (is_contiguous() && source.is_contiguous()) {
    copy_bytes(device(), address(dtype_), source.device(), source.address(dtype_), bytes());
  } else if (source.device() == device()) {
    copy_strided_from(source);
  } else {
    copy_from(source.contiguous().to(device()));
  }
}

void Tensor::copy_strided_from(const Tensor& source) {
  const StridedCopy copy{shape_, strides_, source.strides_};
  with_element_size(dtype_, [&](auto element) {
    using Element = decltype(element);
    const auto* from = static_cast<const Element*>(source.address(dtype_));
    auto* to = static_cast<Element*>(address(dtype_));
    with_device(device(), [&](auto device) { copy_strided(device, copy, from, to); });
  });
}

void Tensor::fill(double value) {
  check(is_contiguous(), "[tensor] fill of a view that isn't contiguous, shape ", shape_);
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    with_device(device(),
                [&](auto device) { mixgrad::fill(device, elements(), static_cast<T>(value), data<T>()); });
  });
}

double Tensor::item() const {
  check(elements() == 1, "[tensor] the only element of a tensor of shape ", shape_);
  return to_vector()[0];
}

std::vector<double> Tensor::to_vector() const {
  const Tensor source = contiguous().to(Device{});
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
  if (measuring()) return Tensor::empty(shape, dtype, device);
  Tensor tensor = Tensor::empty(shape, dtype);
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
  return tensor.to(device);
}

Tensor uniform(const Shape& shape, double low, double high, Generator& generator, DType dtype,
               Device device) {
  std::vector<double> values(shape.elements());
  for (double& value : values) value = low + (high - low) * generator.uniform();
  return Tensor::from(values, shape).to(dtype).to(device);
}

}  // namespace mixgrad
