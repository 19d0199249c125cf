// run.json: what a run is, and how it came about.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace mixgrad {

/// Steps that one process trained.
struct Stretch {
  int64_t after_step = 0;  // those that were done before
  int64_t to_step = 0;     // the newest that is saved
};

/// Writes run.json: `about`, and the list "stretches", whose last entry is this stretch, described by `how`
/// and by the program that runs. Before it stand those of the file that began earlier, as far as this one
/// does not go back behind them: what they did later is lost. Throws Error when the file can't be written.
void write_run_file(const std::filesystem::path& run, nlohmann::ordered_json about, const Stretch& stretch,
                    const nlohmann::ordered_json& how);

/// The options of the last stretch. Throws UsageError when there is no run.json, Error when it is damaged.
nlohmann::ordered_json stored_options(const std::filesystem::path& run);

}  // namespace mixgrad
