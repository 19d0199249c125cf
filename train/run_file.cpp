#include "train/run_file.h"

#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tensor/error.h"
#include "train/atomic_file.h"
#include "train/text.h"

namespace mixgrad {

namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path path_in(const std::filesystem::path& run) { return run / "run.json"; }

/// The file's content; discarded when it can't be read or is no JSON.
Json read(const std::filesystem::path& run) {
  std::ifstream file(path_in(run));
  return Json::parse(file, nullptr, false);
}

/// CRC-32 of the file that this program is, which tells builds apart (Linux; elsewhere null).
const Json& binary_crc32() {
  static const Json crc = []() -> Json {
    try {
      const std::string bytes = read_text("/proc/self/exe");
      return crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    } catch (const Error&) {
      return nullptr;
    }
  }();
  return crc;
}

/// The stretches that the file holds, as far as they lead to `step`.
Json stretches_to(const std::filesystem::path& run, int64_t step) {
  Json kept = Json::array();
  const Json stored = read(run);
  if (!stored.is_object() || !stored.contains("stretches")) return kept;
  for (Json stretch : stored["stretches"]) {
    if (stretch.at("after_step") >= step) break;
    stretch["to_step"] = std::min(stretch.at("to_step").get<int64_t>(), step);
    kept.push_back(std::move(stretch));
  }
  return kept;
}

}  // namespace

void write_run_file(const std::filesystem::path& run, Json about, const Stretch& stretch, const Json& how) {
  Json entry = {
      {"after_step", stretch.after_step},
      {"to_step", stretch.to_step},
      {"program", str("mixgrad ", MIXGRAD_VERSION, ", ", MIXGRAD_BUILD, ", compiler ", __VERSION__)},
      {"binary_crc32", binary_crc32()}};
  entry.update(how);
  about["stretches"] = stretches_to(run, stretch.after_step);
  about["stretches"].push_back(std::move(entry));
  write_file_atomically(path_in(run), about.dump(2) + "\n");
}

Json stored_options(const std::filesystem::path& run) {
  const std::filesystem::path path = path_in(run);
  check_usage(std::ifstream(path).good(), "[resume] no run to resume: '", path.string(), "' can't be read");
  const Json stored = read(run);
  check(stored.is_object() && stored.contains("options") && stored["options"].is_object(), "[resume] '",
        path.string(), "' is damaged");
  return stored["options"];
}

}  // namespace mixgrad
