// What this machine can do at most: multiply-adds a second, and bytes a second from each level of its memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/device.h"

namespace mixgrad {

/// How fast a level of memory is, on two arrays that fill about half of it.
struct MemoryLevel {
  std::string name;     // L2, L3, memory
  int64_t bytes;        // of the two arrays together, of all threads
  double read_bytes_s;  // bytes a second, reading one of them
  double copy_bytes_s;  // bytes read and bytes written a second, copying one to the other
};

/// The best of many repeats, by so many threads.
struct Peaks {
  int threads = 1;
  double flops_s = 0;               // a fused multiply-add is two
  std::vector<MemoryLevel> levels;  // from the smallest to the largest; never empty
  std::string arithmetic = "fp32";  // what flops_s counts

  /// The smallest level that holds so many bytes.
  const MemoryLevel& level_of(double bytes) const;
};

/// Measures each rate for so many seconds, one call at least. The widest vectors that this CPU has are used,
/// whatever the build is for.
Peaks measure_peaks(int threads, double seconds = 0.1);

/// The same of a GPU: arithmetic is the product of two large matrices in the precision that is set, memory
/// the copy of a large array. Sizes grow until a call takes a while.
Peaks measure_device_peaks(Device gpu, double seconds = 0.1);

}  // namespace mixgrad
