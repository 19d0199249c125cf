// Where a tensor lives, the tags by which a kernel's overload for a device is chosen, and what is asked of a
// device beside its kernels.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace mixgrad {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

std::ostream& operator<<(std::ostream& out, Device device);

/// Kernels are overloaded on the tag of the device that they run on.
struct Cpu {};

/// An NVIDIA GPU, real or simulated. Its kernels are in cuda/kernels.
struct Cuda {
  int index = 0;
  void* stream = nullptr;  // a cudaStream_t; null: the default stream

  operator Device() const { return {Device::Kind::cuda, index}; }
};

/// "cpu", "cuda", "cuda:1" or "auto": a GPU if there is one, else the CPU. The simulated GPU is for checking,
/// and must be asked for. Throws UsageError for another word, and for a device that isn't here, saying why.
Device parse_device(std::string_view text);

/// The devices that this build can compute on, on this machine. Tests run once for each.
std::vector<Device> available_devices();

/// What a person calls it: "cpu", "cuda:0 (NVIDIA H200)".
std::string describe(Device device);
/// Why "auto" doesn't mean a GPU; "" when it does.
std::string why_no_gpu();

/// How much memory of a GPU could be allocated.
int64_t free_device_bytes(Device gpu);
/// Copies between the memories of two devices, or within one, behind all work that they were given; what
/// is copied to the CPU can be read at once.
void copy_bytes(Device to_device, void* to, Device from_device, const void* from, int64_t bytes);
/// Waits for all work that the device was given. Throws Error when some of it failed.
void synchronize(Device device);

}  // namespace mixgrad
