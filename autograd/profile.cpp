#include "autograd/profile.h"

#include <utility>

namespace mixgrad {

namespace {

SpanObserver span_observer;
Device observed_device;
thread_local bool inside = false;

}  // namespace

void set_span_observer(SpanObserver observer, Device device) {
  span_observer = std::move(observer);
  observed_device = device;
}

Span::Span(std::string_view name, Phase phase)
    : name_(name), phase_(phase), timed_(span_observer != nullptr && !inside) {
  if (!timed_) return;
  inside = true;
  synchronize(observed_device);
  start_ = std::chrono::steady_clock::now();
}

Span::~Span() {
  if (!timed_) return;
  inside = false;
  synchronize(observed_device);
  span_observer(name_, phase_,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
}

}  // namespace mixgrad
