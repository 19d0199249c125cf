// Where a tensor lives, and the tags by which a kernel's overload for a device is chosen.
#pragma once

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

/// "cpu", "cuda", "cuda:1" or "auto" (the best that this build and machine have).
/// Throws UsageError for another word, and for a device that isn't here, saying why.
Device parse_device(std::string_view text);

/// The devices that this build can compute on, on this machine. Tests run once for each.
std::vector<Device> available_devices();

/// Kernels are overloaded on the tag of the device that they run on.
struct Cpu {};

/// An NVIDIA GPU, real or simulated. Its kernels are in cuda/kernels.
struct Cuda {
  int index = 0;
  void* stream = nullptr;  // a cudaStream_t; null: the default stream
};

}  // namespace mixgrad
