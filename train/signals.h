// Ctrl-C, termination and a terminal that has gone, noticed between steps.
#pragma once

namespace mixgrad {

/// From now on SIGPIPE and SIGXFSZ are ignored (the write fails instead), and SIGINT, SIGTERM and SIGHUP only
/// set a flag: the program ends at a point of its own choosing, however often the key is pressed. Those that
/// are ignored already stay so.
void catch_interrupts();

/// The signal that has arrived (SIGINT, SIGTERM or SIGHUP), 0 if none.
int interrupt();

}  // namespace mixgrad
