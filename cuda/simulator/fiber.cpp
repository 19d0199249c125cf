// Switching stacks: in a dozen instructions where we know them, by the C library elsewhere. swapcontext makes
// a system call each time, which makes the simulator ten times slower.
#include "cuda/simulator/fiber.h"

#include <sys/mman.h>

#include "tensor/error.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace mixgrad::simulator {

#if defined(__x86_64__)

/// Pushes the registers that a function must preserve, stores the stack pointer in *from, takes `to` for it
/// and pops them again. The return address on the new stack is where it goes on.
extern "C" void mixgrad_switch_stack(void** from, void* to);
asm(R"(
.text
.globl mixgrad_switch_stack
.type mixgrad_switch_stack, @function
mixgrad_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mixgrad_switch_stack, .-mixgrad_switch_stack
)");

struct Fiber::Context {
  void* stack_pointer = nullptr;
};

void Fiber::restart() {
  // What the switch expects to find: six registers, and the address to return to; above them a return address
  // for entry itself, which keeps the stack aligned as at any call.
  auto** top = reinterpret_cast<void**>(stack_ + stack_bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry_);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context_->stack_pointer = top;
}

void Fiber::switch_to(Fiber& to) {
  mixgrad_switch_stack(&context_->stack_pointer, to.context_->stack_pointer);
}

#else

struct Fiber::Context {
  ucontext_t registers;
};

void Fiber::restart() {
  getcontext(&context_->registers);
  context_->registers.uc_stack.ss_sp = reinterpret_cast<void*>(stack_);
  context_->registers.uc_stack.ss_size = stack_bytes;
  makecontext(&context_->registers, entry_, 0);
}

void Fiber::switch_to(Fiber& to) { swapcontext(&context_->registers, &to.context_->registers); }

#endif

namespace {
constexpr uintptr_t guard_bytes = 4096;  // below the stack: an overflow ends the program at once
}

Fiber::Fiber() : context_(std::make_unique<Context>()) {}

Fiber::Fiber(void (*entry)()) : entry_(entry), context_(std::make_unique<Context>()) {
  void* block = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(block != MAP_FAILED, "[simulator] no memory for the stack of a thread");
  mprotect(block, guard_bytes, PROT_NONE);
  stack_ = reinterpret_cast<uintptr_t>(block) + guard_bytes;
  restart();
}

Fiber::~Fiber() {
  if (stack_ != 0) munmap(reinterpret_cast<void*>(stack_ - guard_bytes), guard_bytes + stack_bytes);
}

}  // namespace mixgrad::simulator
