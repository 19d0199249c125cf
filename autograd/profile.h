// Where the time goes: pieces of work that are timed when somebody watches, and cost a comparison when nobody
// does.
//
// apply() times the forward pass of every op, backward() every op's backward pass and the adding up of
// gradients; what else belongs to a training step, such as the optimiser, times itself with a Span.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "tensor/device.h"

namespace mixgrad {

/// The part of a training step that a piece of work belongs to: before and after the two passes is `update`.
enum class Phase { forward, backward, update };

/// Called at the end of each piece of work with its name, its phase and the seconds that it took. Pieces do
/// not overlap: what is timed within another piece belongs to the outer one alone. Empty: nobody watches.
using SpanObserver = std::function<void(std::string_view name, Phase phase, double seconds)>;
/// Not while a piece of work is being timed. One observer for all threads; the calls come from the thread
/// that does the work. Before and after each piece the device is waited for, so that it gets its own time.
void set_span_observer(SpanObserver observer, Device device = {});

/// A piece of work, from construction to the end of the scope. The name must outlive it.
class Span {
 public:
  Span(std::string_view name, Phase phase);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const std::string_view name_;
  const Phase phase_;
  const bool timed_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace mixgrad
