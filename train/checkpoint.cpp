#include "train/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "tensor/files.h"

namespace mixgrad {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view manifest_format = "mixgrad-checkpoint-1";
constexpr const char* model_file = "model.safetensors";
constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* state_file = "state.json";
constexpr const char* manifest_file = "manifest.json";
constexpr const char* content_files[] = {model_file, optimizer_file, state_file};

template <class... Parts>
void require(bool ok, const fs::path& path, const Parts&... parts) {
  check(ok, "[checkpoint] ", path.string(), ": ", parts...);
}

/// "step-00002000": padded so that names sort like their steps.
std::string step_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

/// A checkpoint's folder, by its name alone.
struct Candidate {
  int64_t step;
  bool aside;  // step-N.old: stands aside while its successor is put in place
  fs::path path;
};

/// Nothing when the name is neither step-N nor step-N.old.
std::optional<Candidate> parse_candidate(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view stem = name;
  const bool aside = stem.ends_with(".old");
  if (aside) stem.remove_suffix(4);
  if (!stem.starts_with("step-")) return std::nullopt;
  int64_t step = -1;
  std::from_chars(stem.data() + 5, stem.data() + stem.size(), step);
  if (step < 0 || stem != step_name(step)) return std::nullopt;
  return Candidate{step, aside, path};
}

/// The entries of a run folder; none when it isn't there.
std::vector<fs::path> entries_of(const fs::path& run_dir) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator entry(run_dir, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) paths.push_back(entry->path());
  require(!error || error == std::errc::no_such_file_or_directory, run_dir, error.message());
  return paths;
}

/// Newest first, and a step's folder before the one that stands aside.
std::vector<Candidate> list_candidates(const fs::path& run_dir) {
  std::vector<Candidate> candidates;
  for (const fs::path& path : entries_of(run_dir)) {
    if (auto candidate = parse_candidate(path)) candidates.push_back(*candidate);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.aside < b.aside;
  });
  return candidates;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;  // what can't be looked at is not there
  return fs::exists(path, ignored);
}

void delete_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require(!error, path, "can't remove it: ", error.message());
}

void move_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  require(!error, from, "can't rename it to ", to.filename().string(), ": ", error.message());
}

/// Calls visit(data, bytes) for each piece of a file.
template <class Visit>
void read_pieces(const fs::path& path, const Visit& visit) {
  FileReader file(path);
  std::vector<char> piece(1 << 16);
  for (int64_t left = file.bytes(); left > 0;) {
    const int64_t bytes = std::min<int64_t>(left, piece.size());
    file.read(piece.data(), bytes);
    visit(piece.data(), bytes);
    left -= bytes;
  }
}

/// What the manifest holds of a file, both as text.
struct Fingerprint {
  std::string bytes, crc32;
};

Fingerprint fingerprint(const fs::path& path) {
  int64_t size = 0;
  uLong crc = ::crc32(0, Z_NULL, 0);
  read_pieces(path, [&](const char* data, int64_t bytes) {
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(data), static_cast<uInt>(bytes));
    size += bytes;
  });
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08lx", static_cast<unsigned long>(crc));
  return {std::to_string(size), hex};
}

void write_json(const fs::path& path, const Json& value) {
  std::string text;
  try {
    text = value.dump(1) + "\n";
  } catch (const Json::exception&) {
    require(false, path, "a text in it is not valid UTF-8");
  }
  FileWriter file(path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.finish();
}

Json read_json(const fs::path& path) {
  std::string text;
  read_pieces(path, [&](const char* data, int64_t bytes) { text.append(data, static_cast<size_t>(bytes)); });
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(!value.is_discarded(), path, "not valid JSON");
  return value;
}

void write_manifest(const fs::path& folder, int64_t step) {
  Json files;
  for (const char* file : content_files) {
    const Fingerprint print = fingerprint(folder / file);
    files[file] = {{"bytes", print.bytes}, {"crc32", print.crc32}};
  }
  write_json(folder / manifest_file,
             {{"format", manifest_format}, {"step", std::to_string(step)}, {"files", files}});
}

struct Manifest {
  int64_t step = 0;
  std::map<std::string, Fingerprint> files;
};

/// The manifest of a checkpoint's folder, its form and its step checked but not yet the files.
Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / manifest_file;
  const Json json = read_json(path);
  Manifest manifest;
  std::string format, step;
  try {
    format = json.at("format").get<std::string>();
    step = json.at("step").get<std::string>();
    for (const char* file : content_files) {
      const Json& entry = json.at("files").at(file);
      manifest.files[file] = {entry.at("bytes").get<std::string>(), entry.at("crc32").get<std::string>()};
    }
  } catch (const Json::exception&) {
    require(false, path, "not a checkpoint's manifest");
  }
  require(format == manifest_format, path, "format ", format, "; known: ", manifest_format);
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), manifest.step);
  const bool is_number = error == std::errc() && end == step.data() + step.size() && manifest.step >= 0;
  require(is_number, path, "the step is not a number");
  const auto named = parse_candidate(folder);
  require(!named || named->step == manifest.step, path, "it is of step ", manifest.step,
          ", other than the folder's name says");
  return manifest;
}

/// Whether the files are there with their sizes, at the cost of no more than looking at them. A folder that
/// was renamed to its name was complete then; this notices what was cut or lost later.
bool looks_complete(const fs::path& folder) {
  try {
    for (const auto& [file, print] : read_manifest(folder).files) {
      if (std::to_string(FileReader(folder / file).bytes()) != print.bytes) return false;
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Reads every byte of the parts; throws Error when anything differs from the manifest.
void verify(const fs::path& folder, CheckpointParts parts) {
  for (const auto& [file, print] : read_manifest(folder).files) {
    if (parts == CheckpointParts::without_optimizer && file == optimizer_file) continue;
    const Fingerprint found = fingerprint(folder / file);
    require(found.bytes == print.bytes, folder / file, "truncated or extended: expected ", print.bytes,
            " bytes, got ", found.bytes);
    require(found.crc32 == print.crc32, folder / file, "damaged: its CRC-32 is ", found.crc32,
            ", the manifest says ", print.crc32);
  }
}

void write_contents(const fs::path& folder, const Checkpoint& checkpoint) {
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, folder, "can't create it: ", error.message());
  write_safetensors(folder / model_file, checkpoint.model);
  write_safetensors(folder / optimizer_file, checkpoint.optimizer);
  write_json(folder / state_file, checkpoint.state);
  write_manifest(folder, checkpoint.step);
  flush_folder(folder);
}

/// Cleans up after saves that were interrupted: their temporaries go, and a checkpoint that stood aside comes
/// back unless its successor was put in place.
void recover(const fs::path& run_dir) {
  for (const fs::path& path : entries_of(run_dir)) {
    if (path.extension() == ".tmp" && parse_candidate(path.stem())) delete_folder(path);
  }
  for (const Candidate& candidate : list_candidates(run_dir)) {
    if (!candidate.aside) continue;
    const fs::path successor = run_dir / step_name(candidate.step);
    if (is_there(successor)) {
      delete_folder(candidate.path);
    } else {
      move_folder(candidate.path, successor);
    }
  }
}

void put_in_place(const fs::path& temporary, const fs::path& target) {
  const fs::path aside = target.string() + ".old";
  if (is_there(target)) move_folder(target, aside);
  move_folder(temporary, target);
  flush_folder(target.parent_path());
  delete_folder(aside);
}

/// Only checkpoints of earlier steps are counted and removed: those of later steps, which a run that went
/// back has ahead of it, are not this save's to judge.
void remove_older(const fs::path& run_dir, int64_t step, const Retention& retention) {
  int kept = 1;
  for (const Candidate& candidate : list_candidates(run_dir)) {
    if (candidate.step >= step || retention.steps.contains(candidate.step)) continue;
    if (kept < retention.newest) {
      kept += looks_complete(candidate.path);
    } else {
      delete_folder(candidate.path);
    }
  }
}

NamedTensors read_tensors(const fs::path& path) {
  auto tensors = read_safetensors(path).tensors;
  return {tensors.begin(), tensors.end()};
}

/// The checkpoint of the highest step whose parts are intact.
std::optional<fs::path> newest_intact(const fs::path& run_dir, std::vector<std::string>* skipped,
                                      CheckpointParts parts) {
  for (const Candidate& candidate : list_candidates(run_dir)) {
    try {
      verify(candidate.path, parts);
      return candidate.path;
    } catch (const Error& error) {
      if (skipped != nullptr) skipped->emplace_back(error.what());
    }
  }
  return std::nullopt;
}

/// What a run's folder lacks, told with the reason when its checkpoints are all damaged.
fs::path require_newest(const fs::path& run_dir, std::vector<std::string>& skipped, CheckpointParts parts) {
  const auto newest = newest_intact(run_dir, &skipped, parts);
  check(newest.has_value(),
        skipped.empty() ? "[checkpoint] " + run_dir.string() + ": there is no checkpoint" : skipped.front());
  return *newest;
}

}  // namespace

fs::path save_checkpoint(const fs::path& run_dir, const Checkpoint& checkpoint, const Retention& retention) {
  check(checkpoint.step >= 0, "[checkpoint] a step of ", checkpoint.step, "; steps are 0 or more");
  const fs::path target = run_dir / step_name(checkpoint.step);
  const fs::path temporary = target.string() + ".tmp";
  recover(run_dir);
  try {
    write_contents(temporary, checkpoint);
  } catch (const Error&) {
    std::error_code ignored;  // the first error is the one to tell
    fs::remove_all(temporary, ignored);
    throw;
  }
  put_in_place(temporary, target);
  remove_older(run_dir, checkpoint.step, retention);
  return target;
}

bool has_checkpoints(const fs::path& run_dir) { return !list_candidates(run_dir).empty(); }

std::optional<fs::path> newest_checkpoint(const fs::path& run_dir, std::vector<std::string>* skipped) {
  return newest_intact(run_dir, skipped, CheckpointParts::all);
}

Checkpoint load_checkpoint(const fs::path& path, std::vector<std::string>* skipped, CheckpointParts parts) {
  std::vector<std::string> damaged;
  // "run/step-00002000/" names the same folder as without the slash.
  const fs::path given = path.has_filename() ? path : path.parent_path();
  const bool is_checkpoint = parse_candidate(given) || is_there(given / manifest_file);
  const fs::path folder = is_checkpoint ? given : require_newest(given, damaged, parts);
  if (skipped != nullptr) *skipped = damaged;
  if (is_checkpoint) verify(folder, parts);
  Checkpoint checkpoint{.step = read_manifest(folder).step,
                        .model = read_tensors(folder / model_file),
                        .optimizer = {},
                        .state = read_json(folder / state_file)};
  if (parts == CheckpointParts::all) checkpoint.optimizer = read_tensors(folder / optimizer_file);
  return checkpoint;
}

void load_parameters(const NamedTensors& saved, NamedTensors& wanted) {
  std::unordered_map<std::string_view, const Tensor*> left;
  for (const auto& [name, tensor] : saved) left[name] = &tensor;

  std::vector<std::string> differences;
  std::vector<const Tensor*> sources;
  for (const auto& [name, tensor] : wanted) {
    const auto found = left.find(name);
    if (found == left.end()) {
      differences.push_back(str(name, " ", tensor.shape(), " is missing"));
      continue;
    }
    const Tensor& source = *found->second;
    if (source.shape() != tensor.shape() || source.dtype() != tensor.dtype()) {
      differences.push_back(str(name, " is ", source.dtype(), " ", source.shape(), " but ", tensor.dtype(),
                                " ", tensor.shape(), " is wanted"));
    }
    sources.push_back(&source);
    left.erase(found);
  }
  for (const auto& [name, tensor] : saved) {
    if (left.contains(name)) differences.push_back(str(name, " ", tensor.shape(), " is not wanted"));
  }

  constexpr size_t most_told = 8;
  const size_t total = differences.size();
  if (total > most_told) {
    differences.resize(most_told);
    differences.push_back(str("and ", total - most_told, " more"));
  }
  check(total == 0, "[checkpoint] the saved parameters don't fit the model: ", join(differences, "; "));
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i].second.copy_from(*sources[i]);
}

}  // namespace mixgrad
