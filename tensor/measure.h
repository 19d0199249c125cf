// Measuring how much memory a computation would need, without the memory and without computing.
#pragma once

#include <cstdint>
#include <functional>

namespace mixgrad {

/// The most bytes that `run` would have in use at once: what MemoryStats::peak_bytes would become, counted
/// from 0.
///
/// Runs it with all parallel loops skipped, and with memory that consists of addresses: it reads as 0 and
/// takes up room only where something is written after all. Kernels allocate as ever and compute nothing, so
/// the figure is exact as long as no size depends on values. What `run` creates it must also destroy. Counts
/// what the calling thread allocates. Throws what `run` throws, and Error when there are too few addresses.
int64_t measure_peak_bytes(const std::function<void()>& run);

/// Whether the calling thread is in a measurement. A serial loop over large tensors asks, to be skipped too.
bool measuring();

}  // namespace mixgrad
