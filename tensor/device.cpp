// The only file outside cuda/ that asks the CUDA runtime: which devices there are, their memory, copies.
#include "tensor/device.h"

#include <charconv>
#include <cstring>

#include "tensor/allocator.h"
#include "tensor/error.h"
#include "tensor/measure.h"

#if defined(MIXGRAD_CUDA)
#include "cuda/runtime.h"
#endif

namespace mixgrad {

namespace {

bool is_gpu(Device device) { return device.kind == Device::Kind::cuda; }

#if defined(MIXGRAD_CUDA)

Cuda tag(Device device) { return {device.index}; }

int gpu_count() { return cuda::device_count(); }
bool gpu_is_simulated() { return cuda::simulated(); }
std::string why_unavailable() { return cuda::why_unavailable(); }
std::string gpu_name(Device device) { return cuda::device_info(device.index).name; }
Allocator& gpu_allocator(Device device) { return cuda::allocator(tag(device)); }

#else

constexpr const char* without_cuda = "mixgrad was built without CUDA";

int gpu_count() { return 0; }
bool gpu_is_simulated() { return false; }
std::string why_unavailable() { return without_cuda; }
std::string gpu_name(Device) { throw Error(without_cuda); }
Allocator& gpu_allocator(Device) { throw Error(without_cuda); }

#endif

/// "cuda:3" -> 3, "cuda" -> 0; -1 for what isn't of that form.
int gpu_index(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return -1;
  const std::string_view digits = text.substr(5);
  int index = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return error == std::errc() && end == digits.data() + digits.size() ? index : -1;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Device device) {
  if (!is_gpu(device)) return out << "cpu";
  return out << "cuda:" << device.index;
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "auto") return why_no_gpu().empty() ? Device{Device::Kind::cuda, 0} : Device{};
  const int index = gpu_index(text);
  check_usage(index >= 0, "[device] unknown device '", text, "'; known: auto, cpu, cuda, cuda:N");
  check_usage(gpu_count() > 0, "[device] '", text, "' is not available: ", why_unavailable(), "; use cpu");
  check_usage(index < gpu_count(), "[device] '", text, "' is not available: there are ", gpu_count(),
              " CUDA devices; allowed: cuda:0 to cuda:", gpu_count() - 1);
  return {Device::Kind::cuda, index};
}

std::vector<Device> available_devices() {
  std::vector<Device> devices = {Device{}};
  if (gpu_count() > 0) devices.push_back({Device::Kind::cuda, 0});
  return devices;
}

std::string describe(Device device) {
  return is_gpu(device) ? str(device, " (", gpu_name(device), ")") : str(device);
}

std::string why_no_gpu() {
  if (gpu_count() == 0) return why_unavailable();
  return gpu_is_simulated() ? "the GPU of this build is simulated" : "";
}

Allocator& Allocator::of(Device device) {
  // Never destroyed: tensors in static storage may outlive every other static object.
  static Allocator* const cpu = new Allocator(host_memory());
  static Allocator* const measurements = new Allocator(addresses_only());
  if (measuring()) return *measurements;
  return is_gpu(device) ? gpu_allocator(device) : *cpu;
}

#if defined(MIXGRAD_CUDA)

int64_t free_device_bytes(Device gpu) { return cuda::device_info(gpu.index).free_bytes; }

void copy_bytes(Device to_device, void* to, Device from_device, const void* from, int64_t bytes) {
  if (bytes == 0 || measuring()) return;
  if (!is_gpu(to_device) && !is_gpu(from_device)) {
    std::memcpy(to, from, bytes);
  } else if (!is_gpu(to_device)) {
    cuda::copy_to_host(tag(from_device), to, from, bytes);
  } else if (!is_gpu(from_device)) {
    cuda::copy_to_device(tag(to_device), to, from, bytes);
  } else {
    check(to_device == from_device, "[device] a copy from ", from_device, " to ", to_device,
          "; allowed: by way of the CPU");
    cuda::copy(tag(to_device), to, from, bytes);
  }
}

void synchronize(Device device) {
  if (is_gpu(device)) cuda::synchronize(tag(device));
}

#else

int64_t free_device_bytes(Device) { return 0; }

void copy_bytes(Device, void* to, Device, const void* from, int64_t bytes) {
  if (bytes > 0 && !measuring()) std::memcpy(to, from, bytes);
}

void synchronize(Device) {}

#endif

}  // namespace mixgrad
