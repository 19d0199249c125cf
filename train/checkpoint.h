// Checkpoints: folders from which a run goes on, safe against crashes, full disks and damage.
//
//   run/step-00002000/model.safetensors      parameters
//                     optimizer.safetensors  the optimiser's tensors
//                     state.json             everything else: whatever the owner of the run puts there
//                     manifest.json          the step, and size and CRC-32 of the other three
//
// A checkpoint is written as step-N.tmp, flushed to the disk and renamed, so that a folder named step-N is
// complete. An older checkpoint of the same step stands aside as step-N.old in between, and counts until the
// new one is in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensor/safetensors.h"

namespace mixgrad {

struct Checkpoint {
  int64_t step = 0;        // optimiser steps done
  NamedTensors model;      // loaded ones are in the order of their names
  NamedTensors optimizer;  // likewise
  /// JSON knows neither infinity nor 64-bit integers that every reader understands: store those as text.
  nlohmann::json state;
};

/// Which checkpoints a save leaves in the run folder. While it saves, the disk needs room for one more.
struct Retention {
  int newest = 2;           // complete ones, counting the one just saved, which stays in any case
  std::set<int64_t> steps;  // kept whatever their age
};

/// Saves into run_dir, created if it isn't there, and returns the folder step-N; one of the same step is
/// replaced. Then removes older checkpoints that retention does not keep, and what interrupted saves left.
/// Throws Error with path and reason when anything can't be written; earlier checkpoints are then untouched.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_dir, const Checkpoint& checkpoint,
                                      const Retention& retention = {});

/// Whether a folder holds checkpoints, complete or not. False when there is no such folder.
bool has_checkpoints(const std::filesystem::path& run_dir);

/// The checkpoint of the highest step whose files all agree with its manifest; none when there is none, or no
/// such folder. `skipped`, when given, receives one line for each damaged checkpoint that was passed over.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run_dir,
                                                       std::vector<std::string>* skipped = nullptr);

/// What of a checkpoint is wanted: all of it, to go on with the run, or what the model has learned.
enum class CheckpointParts { all, without_optimizer };

/// Loads a checkpoint's folder, or the newest of a run folder that is complete as far as the parts go, after
/// verifying them. Throws Error of one line when it is missing, damaged, or of another step than its name
/// says. `skipped` as above.
Checkpoint load_checkpoint(const std::filesystem::path& path, std::vector<std::string>* skipped = nullptr,
                           CheckpointParts parts = CheckpointParts::all);

/// Copies saved values into existing tensors by name. Throws Error, before anything is changed, that tells
/// the first of the names that are missing, not wanted, or of another shape or element type.
void load_parameters(const NamedTensors& saved, NamedTensors& wanted);

}  // namespace mixgrad
