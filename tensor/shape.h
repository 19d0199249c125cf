// The sizes of a tensor's axes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "tensor/error.h"

namespace mixgrad {

/// Up to 6 axes, each >= 0; rank 0 is a scalar. Row-major: the last axis is the fastest.
class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    for (int64_t size : sizes) push_back(size);
  }

  void push_back(int64_t size) {
    check(rank_ < max_rank, "[shape] at most ", max_rank, " axes are supported");
    check(size >= 0, "[shape] axis ", rank_, " has size ", size, "; sizes are 0 or more");
    sizes_[rank_++] = size;
  }

  int rank() const { return rank_; }

  /// The size of an axis; negative axes count from the end.
  int64_t operator[](int axis) const { return sizes_[index(axis)]; }
  int64_t& operator[](int axis) { return sizes_[index(axis)]; }

  int64_t elements() const {
    int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= sizes_[axis];
    return product;
  }

  /// Product of all sizes but the last: how many rows the tensor has as a matrix; 1 for a scalar.
  int64_t rows() const { return drop_last().elements(); }
  /// Size of the last axis; 1 for a scalar.
  int64_t columns() const { return rank_ == 0 ? 1 : sizes_[rank_ - 1]; }

  Shape drop_last() const {
    Shape shorter = *this;
    if (shorter.rank_ > 0) --shorter.rank_;
    return shorter;
  }

  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int axis = 0; axis < rank_; ++axis) {
      if (sizes_[axis] != other.sizes_[axis]) return false;
    }
    return true;
  }

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '(';
    for (int axis = 0; axis < shape.rank_; ++axis) out << (axis > 0 ? ", " : "") << shape.sizes_[axis];
    return out << ')';
  }

 private:
  int index(int axis) const {
    const int index = axis < 0 ? axis + rank_ : axis;
    check(index >= 0 && index < rank_, "[shape] axis ", axis, " of ", *this, ": it has ", rank_, " axes");
    return index;
  }

  std::array<int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

}  // namespace mixgrad
