// The numbers of a training run, one row a logged step: metrics.csv.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tensor/files.h"

namespace mixgrad {

/// One row. What was not measured at that step is empty, in the file as well.
struct MetricsRow {
  int64_t step = 0;                          // optimiser steps done
  int64_t tokens = 0;                        // training tokens seen
  std::optional<double> train_loss;          // nats per token, of the batch before its update
  std::optional<double> val_loss;            // nats per token
  std::optional<double> val_bits_per_byte;   // bits per byte of the text
  std::optional<double> learning_rate;       //
  std::optional<double> grad_norm;           // before clipping
  std::optional<double> step_ms;             // milliseconds
  std::optional<double> tokens_per_s;        // tokens per second
  std::optional<int64_t> peak_memory_bytes;  // bytes
  bool operator==(const MetricsRow&) const = default;
};

/// metrics.csv: a header, then rows, numbers in the shortest form that reads back as the same bits.
///
/// Every row is one write to the file, so that a run that is killed loses nothing but, at most, the row it
/// was writing.
class MetricsFile {
 public:
  /// Opens the file at path for appending; a new one gets the header, a half-written last line is dropped
  /// first. Throws Error as read does for what is there already, and when the file can't be opened or
  /// written.
  explicit MetricsFile(std::filesystem::path path);

  /// Appends one row. Throws Error with path and the system's reason; the file then still ends with the row
  /// before.
  void append(const MetricsRow& row);

  /// The rows of the file at path. A last line without its line end was half-written and is left out.
  /// Throws Error when there is no such file, on a foreign header, and on a malformed cell (with its line
  /// number).
  static std::vector<MetricsRow> read(const std::filesystem::path& path);

  /// Removes the rows later than step, for a run that resumes from that step, all or nothing; returns how
  /// many rows that were. A missing file stays missing. Throws Error as read does, and when the file can't be
  /// written.
  static int64_t cut_back(const std::filesystem::path& path, int64_t step);

 private:
  /// Writes text, whole lines, at the end of the file, or nothing of it.
  void append_lines(const std::string& text);

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace mixgrad
