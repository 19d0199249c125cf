// What a .cu file includes first: CUDA's device language, from nvcc or from the simulator, and how kernels
// are launched. Kernels are written in plain CUDA C++, but for three things that both compilers must read:
//
//   launch<kernel>(device, {blocks, threads}, arguments...)    for kernel<<<blocks, threads>>>(arguments...)
//   __shared__ SharedArray<float, 32> sums                     for __shared__ __align__(16) float sums[32]
//   dynamic_shared<float>()                                    for extern __shared__ float values[]
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "cuda/simulator/device_code.h"
#include "cuda/simulator/stream.h"
#endif

#include "cuda/runtime.h"
#include "tensor/device.h"
#include "tensor/measure.h"

namespace mixgrad {

/// The sizes of a launch, and where in the source it is.
struct Launch {
  dim3 blocks;
  dim3 threads;
  int64_t dynamic_shared_bytes = 0;
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

#if defined(__CUDACC__)

/// Runs a kernel after what was launched before on the same stream; not in a measurement of memory. Throws
/// Error for sizes beyond the device's limits; an error while it runs shows at the next synchronisation, or
/// here with MIXGRAD_CUDA_SYNC=1.
template <auto kernel, class... Args>
void launch(const Cuda& device, const Launch& size, Args... args) {
  if (measuring()) return;
  cuda::prepare_launch(reinterpret_cast<const void*>(kernel), device, size.dynamic_shared_bytes, size.file,
                       size.line);
  kernel<<<size.blocks, size.threads, size.dynamic_shared_bytes, static_cast<cudaStream_t>(device.stream)>>>(
      args...);
  cuda::check_launch(reinterpret_cast<const void*>(kernel), device, size.file, size.line);
}

template <class T, int count>
struct alignas(16) SharedArray {
  T values[count];

  __device__ T* data() { return values; }
  __device__ T& operator[](int i) { return values[i]; }
};

/// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

#else

template <auto kernel, class... Args>
void launch(const Cuda& device, const Launch& size, Args... args) {
  if (measuring()) return;
  const auto run = [=] { kernel(args...); };
  simulator::enqueue_launch(device,
                            {.kernel = simulator::kernel_name(__PRETTY_FUNCTION__),
                             .blocks = size.blocks,
                             .threads = size.threads,
                             .dynamic_shared_bytes = size.dynamic_shared_bytes,
                             .run_threads = &simulator::run_threads<decltype(run)>},
                            run);
}

template <class T, int count>
class SharedArray {
 public:
  T* data() { return static_cast<T*>(simulator::shared_array(slot_, count * sizeof(T))); }
  T& operator[](int i) { return data()[i]; }

 private:
  simulator::SharedSlot slot_;
};

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(simulator::dynamic_shared_array());
}

#endif

}  // namespace mixgrad
