// Rotary position embedding on the GPU against that on the CPU.
#include "tensor/kernels/rope.h"

#include "tests/cuda/compare.h"

namespace mixgrad {

TEST_CASE_TEMPLATE("cuda/rope: rotations of a part of a fused projection, there and back", T, float, double) {
  for (const RopeShape shape : {RopeShape{0, 3, 2, 4, 1e4}, {1, 1, 1, 2, 1e4}, {2, 7, 3, 10, 1e4}}) {
    CAPTURE(shape.length);
    std::vector<int64_t> positions(shape.length);
    for (int64_t t = 0; t < shape.length; ++t) positions[t] = t * t * 20001;
    const int64_t width = shape.heads * shape.head_size;
    const int64_t n = shape.batch * shape.length * width;
    const std::vector<T> fused = waves<T>(3 * n);
    // The angle is in double on both: float errs by 1e-7. In float, that of position 720036 would by 0.03.
    check_same(sizeof(T) == 4 ? 1e-6 : 1e-13, [&](auto device, auto& operands) {
      const Heads<const T> x{operands.in(fused), 3 * shape.length * width, 3 * width, shape.head_size};
      const Heads<T> y{operands.template out<T>(n), shape.length * width, width, shape.head_size};
      const Heads<T> back{operands.template out<T>(n), shape.length * width, width, shape.head_size};
      const int64_t* on_device = operands.in(positions);
      rope_forward(device, shape, on_device, x, y);
      rope_backward<T>(device, shape, on_device, y, back);
    });
  }
  check_ran("map_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
