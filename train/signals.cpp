#include "train/signals.h"

#include <csignal>
#include <initializer_list>

namespace mixgrad {

namespace {
volatile std::sig_atomic_t arrived = 0;
void remember(int signal) { arrived = signal; }
}  // namespace

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // Who started the program and had it ignore one, as nohup does, meant it.
    if (std::signal(signal, remember) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  // A file too large and a reader that has gone are failed writes, not reasons to lose what was learned.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int interrupt() { return arrived; }

}  // namespace mixgrad
