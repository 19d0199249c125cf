// A program of others that measures the same things, for comparison.
//
// It is run by the shell and prints lines of CSV. The header names at least the columns figure and ms, and
// optionally peak_bytes; each line behind it with as many fields is a figure: its name, the median of its
// times in milliseconds, and the most memory that the process has held. What else it prints is passed over.
//
//   figure,ms,best_ms,peak_bytes
//   step,1234.5,1229.1,934281216
#pragma once

#include <string>
#include <vector>

#include "train/bench/figure.h"

namespace mixgrad {

struct PeerFigure {
  std::string name;
  double ms = 0;
  int64_t peak_bytes = 0;  // 0: not said
};

/// Runs the command and reads what it prints. Throws Error, with its last line, when it fails or prints no
/// figure.
std::vector<PeerFigure> run_peer(const std::string& command);

/// The figures in a program's output. Throws Error for a figure whose numbers can't be read.
std::vector<PeerFigure> parse_peer(const std::string& output);

/// One figure of ours beside the peer's of that name, over the rounds in which they took turns.
struct Comparison {
  std::string name;
  std::vector<double> our_seconds, peer_seconds;  // the median of each round
  int64_t our_peak_bytes = 0, peer_peak_bytes = 0;

  /// Peer over ours of each round: above 1, ours is faster.
  Spread ratio() const;
};

/// Rounds of ours and the peer's, one after the other.
class Rounds {
 public:
  /// Throws Error when no figure is common to both: then names, which the message lists, do not agree.
  void add(const Findings& ours, const std::vector<PeerFigure>& peer);

  const std::vector<Comparison>& comparisons() const { return comparisons_; }

 private:
  std::vector<Comparison> comparisons_;
};

}  // namespace mixgrad
