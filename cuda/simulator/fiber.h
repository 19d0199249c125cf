// Stacks that a program can switch between: each carries a simulated thread that waits.
#pragma once

#include <cstdint>
#include <memory>

namespace mixgrad::simulator {

/// A stack, and the point at which what runs on it goes on.
class Fiber {
 public:
  /// The stack of whoever first switches away from this fiber.
  Fiber();
  /// A stack of its own, on which the first switch to it calls entry, which must never return.
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Forgets what is on the stack: the next switch to it calls entry again.
  void restart();
  /// Goes on with `to`, and returns when something switches back to this fiber.
  void switch_to(Fiber& to);
  /// Whether an address lies on this fiber's own stack.
  bool contains(uintptr_t address) const { return address - stack_ < stack_bytes; }

  static constexpr uintptr_t stack_bytes = 256 * 1024;

 private:
  struct Context;

  uintptr_t stack_ = 0;
  void (*entry_)() = nullptr;
  std::unique_ptr<Context> context_;
};

}  // namespace mixgrad::simulator
