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
  // A file too large and a reader that has gone are failed writes, not reasons to lose what was learned.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int interrupt() { return arrived; }

}  // namespace mixgrad
