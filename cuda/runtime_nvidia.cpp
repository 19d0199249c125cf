// The host's side of a real device, by the CUDA runtime.
#include "cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "tensor/error.h"
#include "tensor/measure.h"

namespace mixgrad::cuda {

namespace {

cudaStream_t stream_of(const Cuda& device) { return static_cast<cudaStream_t>(device.stream); }

/// Throws Error unless a call succeeded.
void check_call(cudaError_t result, const char* call, int index) {
  check(result == cudaSuccess, "[cuda] ", call, " on device ", index, ": ", cudaGetErrorString(result), " (",
        static_cast<int>(result), ")");
}

/// What a kernel is called in its source.
std::string kernel_name(const void* kernel) {
#if CUDART_VERSION >= 12030
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : mangled;
#else
  return kernel == nullptr ? "no kernel" : "a kernel";
#endif
}

void check_kernel(cudaError_t result, const void* kernel, const Cuda& device, const char* file, int line) {
  if (result == cudaSuccess) return;
  if (result == cudaErrorNoKernelImageForDevice) {
    const DeviceInfo info = device_info(device.index);
    throw Error(str("[cuda] device ", device.index, ", ", info.name, ", has compute capability ", info.major,
                    ".", info.minor, ", but the kernels were compiled for ", MIXGRAD_CUDA_ARCHITECTURES,
                    "; configure with -DCMAKE_CUDA_ARCHITECTURES=", info.major, info.minor));
  }
  throw Error(str("[cuda] ", kernel_name(kernel), " on device ", device.index, ", launched at ", file, ":",
                  line, ": ", cudaGetErrorString(result), " (", static_cast<int>(result), ")"));
}

bool synchronises_always() {
  static const char* const setting = std::getenv("MIXGRAD_CUDA_SYNC");
  return setting != nullptr && std::strcmp(setting, "0") != 0;
}

cudaError_t count_devices(int& count) {
  count = 0;  // an error leaves it as it was
  return cudaGetDeviceCount(&count);
}

}  // namespace

int device_count() {
  int count = 0;
  count_devices(count);
  return count;
}

std::string why_unavailable() {
  int count = 0;
  const cudaError_t result = count_devices(count);
  if (result == cudaSuccess && count > 0) return "";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no NVIDIA driver is loaded";
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return str("the NVIDIA driver is for CUDA ", driver / 1000, ", this program for CUDA ",
               CUDART_VERSION / 1000);
  }
  return str("no NVIDIA device: ", cudaGetErrorString(result));
}

DeviceInfo device_info(int index) {
  check_usage(index >= 0 && index < device_count(), "[cuda] device ", index,
              " is not there; devices: ", device_count());
  cudaDeviceProp properties;
  check_call(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", index);
  check_call(cudaSetDevice(index), "cudaSetDevice", index);
  size_t free_bytes = 0;
  size_t memory_bytes = 0;
  check_call(cudaMemGetInfo(&free_bytes, &memory_bytes), "cudaMemGetInfo", index);
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = static_cast<int64_t>(memory_bytes),
          .free_bytes = static_cast<int64_t>(free_bytes),
          .shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

void* allocate(const Cuda& device, int64_t bytes) {
  if (bytes == 0) return nullptr;
  check_call(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  void* block = nullptr;
  const cudaError_t result = cudaMalloc(&block, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told here, and not again by the next launch
    const DeviceInfo info = device_info(device.index);
    throw Error(str("[cuda] out of memory on device ", device.index, ": ", bytes, " bytes needed, ",
                    info.free_bytes, " free of ", info.memory_bytes, "; reduce batch, context or width"));
  }
  check_call(result, "cudaMalloc", device.index);
  return block;
}

void release(const Cuda& device, void* block) noexcept {
  cudaSetDevice(device.index);
  cudaFree(block);
}

void discard(const Cuda&, void*) {}

bool simulated() { return false; }

namespace {

void copy_later(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || measuring()) return;
  check_call(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  check_call(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(device)), "cudaMemcpyAsync",
             device.index);
}

}  // namespace

void copy_to_device(const Cuda& device, void* to, const void* from, int64_t bytes) {
  copy_later(device, to, from, bytes);
  synchronize(device);
}

void copy_to_host(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (measuring()) {
    std::memset(to, 0, bytes);
    return;
  }
  copy_later(device, to, from, bytes);
  synchronize(device);
}

void copy_to_host_later(const Cuda& device, void* to, const void* from, int64_t bytes) {
  copy_later(device, to, from, bytes);
}

void copy(const Cuda& device, void* to, const void* from, int64_t bytes) {
  copy_later(device, to, from, bytes);
}

void fill(const Cuda& device, void* to, unsigned char value, int64_t bytes) {
  if (bytes == 0 || measuring()) return;
  check_call(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  check_call(cudaMemsetAsync(to, value, bytes, stream_of(device)), "cudaMemsetAsync", device.index);
}

void synchronize(const Cuda& device) {
  check_call(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  check_call(cudaStreamSynchronize(stream_of(device)), "cudaStreamSynchronize", device.index);
}

Stream::Stream(int device_index) : device_{device_index, nullptr} {
  check_call(cudaSetDevice(device_index), "cudaSetDevice", device_index);
  cudaStream_t stream = nullptr;
  check_call(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate", device_index);
  device_.stream = stream;
}
Stream::~Stream() { cudaStreamDestroy(stream_of(device_)); }

Event::Event() {
  cudaEvent_t event = nullptr;
  check_call(cudaEventCreate(&event), "cudaEventCreate", 0);
  event_ = event;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(event_)); }

void Event::record(const Cuda& device) {
  check_call(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream_of(device)), "cudaEventRecord",
             device.index);
}

void Event::wait_on(const Cuda& device) const {
  check_call(cudaStreamWaitEvent(stream_of(device), static_cast<cudaEvent_t>(event_), 0),
             "cudaStreamWaitEvent", device.index);
}

double Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check_call(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start.event_),
                                  static_cast<cudaEvent_t>(event_)),
             "cudaEventElapsedTime", 0);
  return milliseconds;
}

void prepare_launch(const void* kernel, const Cuda& device, int64_t dynamic_shared_bytes, const char* file,
                    int line) {
  check_call(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  constexpr int64_t without_opt_in = 48 * 1024;
  if (dynamic_shared_bytes <= without_opt_in) return;
  check_kernel(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(dynamic_shared_bytes)),
               kernel, device, file, line);
}

void check_launch(const void* kernel, const Cuda& device, const char* file, int line) {
  check_kernel(cudaGetLastError(), kernel, device, file, line);
  if (synchronises_always())
    check_kernel(cudaStreamSynchronize(stream_of(device)), kernel, device, file, line);
}

}  // namespace mixgrad::cuda
