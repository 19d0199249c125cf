// Ctrl-C and termination, noticed between steps.
#pragma once

namespace mixgrad {

/// From now on SIGPIPE and SIGXFSZ are ignored (the write fails instead), and SIGINT and SIGTERM only set a
/// flag: the program ends at a point of its own choosing, however often the key is pressed.
void catch_interrupts();

/// The signal that has arrived (SIGINT or SIGTERM), 0 if none.
int interrupt();

}  // namespace mixgrad
