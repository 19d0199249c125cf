#include "tensor/device.h"

#include "tensor/error.h"

namespace mixgrad {

std::ostream& operator<<(std::ostream& out, Device device) {
  if (device.kind == Device::Kind::cpu) return out << "cpu";
  return out << "cuda:" << device.index;
}

Device parse_device(std::string_view text) {
  if (text == "cpu" || text == "auto") return Device{};
  check_usage(!text.starts_with("cuda"), "[device] '", text,
              "' is not available: mixgrad was built without CUDA; use cpu");
  throw UsageError(str("[device] unknown device '", text, "'; known: cpu, auto"));
}

std::vector<Device> available_devices() { return {Device{}}; }

}  // namespace mixgrad
