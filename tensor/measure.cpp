#include "tensor/measure.h"

#include "tensor/allocator.h"

namespace mixgrad {

namespace {

thread_local bool in_measurement = false;

class MeasurementScope {
 public:
  MeasurementScope() { in_measurement = true; }
  ~MeasurementScope() { in_measurement = false; }
  MeasurementScope(const MeasurementScope&) = delete;
  MeasurementScope& operator=(const MeasurementScope&) = delete;
};

}  // namespace

int64_t measure_peak_bytes(const std::function<void()>& run) {
  const MeasurementScope scope;
  Allocator& addresses = Allocator::of(Device{});
  addresses.reset_peak();
  run();
  const int64_t peak = addresses.stats().peak_bytes;
  addresses.trim();
  return peak;
}

bool measuring() { return in_measurement; }

}  // namespace mixgrad
