#include "autograd/profile.h"

#include <utility>

namespace mixgrad {

namespace {

SpanObserver span_observer;
thread_local bool inside = false;

}  // namespace

void set_span_observer(SpanObserver observer) { span_observer = std::move(observer); }

Span::Span(std::string_view name, Phase phase)
    : name_(name), phase_(phase), timed_(span_observer != nullptr && !inside) {
  if (!timed_) return;
  inside = true;
  start_ = std::chrono::steady_clock::now();
}

Span::~Span() {
  if (!timed_) return;
  inside = false;
  span_observer(name_, phase_,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
}

}  // namespace mixgrad
