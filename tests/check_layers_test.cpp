// The floors of the house: a folder includes what stands below it, never what stands above.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path root = MIXGRAD_SOURCE_DIR;

/// For each floor, what its files may include from the project.
const std::map<std::string, std::set<std::string>> allowed = {
    {"tensor", {"tensor"}},
    {"cuda", {"cuda", "tensor"}},
    {"autograd", {"autograd", "tensor"}},
    {"nn", {"nn", "autograd", "tensor"}},
    {"models", {"models", "nn", "autograd", "tensor"}},
    {"train", {"train", "models", "nn", "autograd", "tensor"}},
};

/// The one file of tensor/ that asks the CUDA runtime.
const fs::path seam = root / "tensor" / "device.cpp";

const std::set<std::string> source_extensions = {".h", ".cpp", ".def", ".cu", ".cuh"};

/// The project's files that a source file includes: quoted paths.
std::vector<std::string> project_includes(const fs::path& file) {
  std::vector<std::string> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::string directive = "#include \"";
    if (!line.starts_with(directive)) continue;
    found.push_back(line.substr(directive.size(), line.find('"', directive.size()) - directive.size()));
  }
  return found;
}

std::string violation(const fs::path& file, const std::string& floor, const std::string& include) {
  const std::string target = include.substr(0, include.find('/'));
  if (!allowed.contains(target)) return "not a path from the project's root";
  if (!allowed.at(floor).contains(target) && !(file == seam && include == "cuda/runtime.h"))
    return floor + " may not include " + target;
  if (!fs::exists(root / include)) return "no such file";
  return "";
}

}  // namespace

TEST_CASE("layers: a floor includes only what stands below it") {
  int files = 0;
  for (const auto& [floor, targets] : allowed) {
    for (const auto& entry : fs::recursive_directory_iterator(root / floor)) {
      const std::string extension = entry.path().extension().string();
      if (!source_extensions.contains(extension)) continue;
      ++files;
      for (const std::string& include : project_includes(entry.path())) {
        const std::string fault = violation(entry.path(), floor, include);
        INFO(entry.path().string(), " includes ", include, ": ", fault);
        CHECK(fault.empty());
      }
    }
  }
  CHECK(files > 50);
}

TEST_CASE("layers: an include from above or from nowhere is noticed") {
  const fs::path file = root / "nn" / "module.cpp";
  CHECK_FALSE(violation(file, "tensor", "autograd/variable.h").empty());
  CHECK_FALSE(violation(file, "nn", "train/cli.h").empty());
  CHECK_FALSE(violation(file, "nn", "module.h").empty());
  CHECK_FALSE(violation(file, "nn", "nn/no_such_file.h").empty());
  CHECK(violation(file, "nn", "autograd/variable.h").empty());
  CHECK_FALSE(violation(root / "tensor" / "tensor.cpp", "tensor", "cuda/runtime.h").empty());
  CHECK_FALSE(violation(seam, "tensor", "cuda/device_code.h").empty());
  CHECK(violation(seam, "tensor", "cuda/runtime.h").empty());
}

TEST_CASE("layers: each mixer folder has its line and its derivation") {
  std::set<std::string> lines;
  std::ifstream def(root / "nn/mixers/mixers.def");
  for (std::string line; std::getline(def, line);) {
    if (line.starts_with("MIXER(")) lines.insert(line.substr(6, line.find(')') - 6));
  }
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(root / "nn/mixers")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    folders.insert(name);
    CHECK_MESSAGE(fs::exists(entry.path() / (name + ".md")), name, " has no derivation page");
  }
  CHECK(lines == folders);
}
