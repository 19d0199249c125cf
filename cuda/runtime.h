// What the host asks of the CUDA device: which there is, memory, copies, streams, events. No CUDA header is
// needed to include this one. Implemented twice: by the CUDA runtime (runtime_nvidia.cpp) and by the
// simulator.
//
// Work on a stream runs in the order in which it was given, some time before the next synchronize(). Every
// failure is an Error that names the call, the device and, for a launch, the line. With the environment
// variable MIXGRAD_CUDA_SYNC=1 each launch waits for its end, so that an error is reported by the launch that
// made it.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/allocator.h"
#include "tensor/device.h"

namespace mixgrad::cuda {

/// How many devices can be used. 0 when there is no driver or no device.
int device_count();
/// Why device_count() is 0: "no NVIDIA driver is loaded (cudaGetDeviceCount: ...)"; "" when it isn't.
std::string why_unavailable();

/// Whether the device is the simulator.
bool simulated();

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;  // in all
  int64_t free_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with opt-in
};
/// Throws UsageError for an index that isn't in [0, device_count()).
DeviceInfo device_info(int index);

/// Uninitialised device memory, aligned to 256 bytes; null for 0 bytes. Throws Error that says how much was
/// needed and how much is free.
void* allocate(const Cuda& device, int64_t bytes);
/// Waits for the device, then gives the memory back.
void release(const Cuda& device, void* block) noexcept;

/// Says that what the block holds is of no more use; the simulator takes it for never written from then on.
void discard(const Cuda& device, void* block);
/// The caching allocator on top of these, of which kernels take their scratch memory. A block that is given
/// back is handed out again at once, which is right as long as all its users are on one stream. In the
/// simulator it is in debug mode, so that each block has its own bounds.
Allocator& allocator(const Cuda& device);

// In a measurement (tensor/measure.h), whose memory isn't a device's, copies and fills do nothing, but that
// zeros arrive at the host.

/// Copies after what the stream holds, and waits for it.
void copy_to_device(const Cuda& device, void* to, const void* from, int64_t bytes);
void copy_to_host(const Cuda& device, void* to, const void* from, int64_t bytes);
/// Copies some time before the next synchronize(); until then `to` holds nothing useful.
void copy_to_host_later(const Cuda& device, void* to, const void* from, int64_t bytes);
/// Within the device, in the order of the stream.
void copy(const Cuda& device, void* to, const void* from, int64_t bytes);
/// Sets each byte, in the order of the stream.
void fill(const Cuda& device, void* to, unsigned char value, int64_t bytes);

/// Waits for all work on the device's stream. Throws Error when some of it failed.
void synchronize(const Cuda& device);

/// A stream of its own.
class Stream {
 public:
  explicit Stream(int device_index = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// The tag by which kernels run on this stream.
  Cuda device() const { return device_; }

 private:
  Cuda device_;
};

/// A point in a stream's work.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// The point behind all work that the stream was given until now.
  void record(const Cuda& device);
  /// What the stream is given from now on waits for the recorded point.
  void wait_on(const Cuda& device) const;
  /// Milliseconds from another event to this one, both of which have happened; in the simulator those of the
  /// CPU.
  double milliseconds_since(const Event& start) const;

 private:
  void* event_;
};

/// For launch(): what is to be done before and after <<<>>>.
void prepare_launch(const void* kernel, const Cuda& device, int64_t dynamic_shared_bytes, const char* file,
                    int line);
void check_launch(const void* kernel, const Cuda& device, const char* file, int line);

}  // namespace mixgrad::cuda
