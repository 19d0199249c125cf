#include "train/signals.h"

#include <csignal>

namespace mixgrad {

namespace {
volatile std::sig_atomic_t arrived = 0;
void remember(int signal) { arrived = signal; }
}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

int interrupt() { return arrived; }

}  // namespace mixgrad
