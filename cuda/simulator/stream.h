// Streams of the simulated device: work that waits until somebody asks for it.
#pragma once

#include <functional>

#include "cuda/simulator/scheduler.h"
#include "tensor/device.h"

namespace mixgrad::simulator {

/// Appends work to a stream. It runs when the stream is synchronised, and not before, so that a host that
/// forgets to synchronise reads what was there before.
void enqueue(const Cuda& device, std::function<void()> work);

/// Appends a launch of `kernel`, a closure over its arguments. Throws Error at once for sizes beyond the
/// limits.
template <class Kernel>
void enqueue_launch(const Cuda& device, Grid grid, const Kernel& kernel) {
  check_limits(grid);
  enqueue(device, [grid, kernel]() mutable {
    grid.closure = &kernel;
    run_grid(grid);
  });
}

}  // namespace mixgrad::simulator
