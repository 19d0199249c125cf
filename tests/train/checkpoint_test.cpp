// Checkpoints: what is saved comes back, and neither kill, a full disk nor damage loses the last good one.
#include "train/checkpoint.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/random.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

namespace fs = std::filesystem;

constexpr const char* all_files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                     "manifest.json"};

/// A checkpoint whose every value tells its step, and which save of that step it is.
Checkpoint checkpoint_of(int64_t step, double variant = 0) {
  const double value = static_cast<double>(step) + variant;
  return {step,
          {{"embedding", Tensor::full({3, 5}, value, DType::float32)},
           {"bias", Tensor::full({7}, value, DType::float64)}},
          {{"m.embedding", Tensor::full({3, 5}, value, DType::float32)}},
          {{"value", value}, {"seed", "18446744073709551615"}}};
}

/// Whether all parts hold one value: the step plus one variant.
bool is_consistent(const Checkpoint& checkpoint) {
  const double value = checkpoint.state.at("value");
  const auto holds = [&](const Tensor& tensor) {
    const std::vector<double> values = tensor.to_vector();
    return !values.empty() && std::all_of(values.begin(), values.end(), [&](double x) { return x == value; });
  };
  return static_cast<int64_t>(value) == checkpoint.step && checkpoint.model.size() == 2 &&
         checkpoint.optimizer.size() == 1 && holds(checkpoint.model[0].second) &&
         holds(checkpoint.model[1].second) && holds(checkpoint.optimizer[0].second);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string newest_name(const fs::path& run_dir) {
  const auto newest = newest_checkpoint(run_dir);
  return newest ? newest->filename().string() : "none";
}

void cut(const fs::path& path, size_t bytes) { write_bytes(path, file_bytes(path).substr(0, bytes)); }

TEST_CASE("train/checkpoint: what is saved is loaded") {
  const ScratchFolder run;
  Checkpoint saved = checkpoint_of(2000);
  saved.state["nested"] = {{"loss", 0.1}, {"text", "\xC3\xA9\n"}};
  const fs::path folder = save_checkpoint(run.path() / "deep/run", saved);
  CHECK(folder == run.path() / "deep/run/step-00002000");
  CHECK(names_in(folder) == std::vector<std::string>{"manifest.json", "model.safetensors",
                                                     "optimizer.safetensors", "state.json"});

  for (const fs::path& path : {folder, folder / "", run.path() / "deep/run", run.path() / "deep/run/"}) {
    CAPTURE(path.string());
    const Checkpoint loaded = load_checkpoint(path);
    CHECK(loaded.step == 2000);
    CHECK(loaded.state == saved.state);
    CHECK(is_consistent(loaded));
    REQUIRE(loaded.model.size() == 2);
    CHECK(loaded.model[0].first == "bias");  // in the order of names
    CHECK(loaded.model[0].second.dtype() == DType::float64);
    CHECK(loaded.model[1].second.shape() == Shape{3, 5});
    CHECK(loaded.optimizer[0].first == "m.embedding");
  }
  fs::rename(folder, run / "best");
  CHECK(load_checkpoint(run / "best").step == 2000);
}

TEST_CASE("train/checkpoint: the manifest holds sizes and checksums as text") {
  const ScratchFolder run;
  const fs::path folder = save_checkpoint(run.path(), checkpoint_of(12));
  const auto manifest = nlohmann::json::parse(file_bytes(folder / "manifest.json"));
  CHECK(manifest.at("format") == "mixgrad-checkpoint-1");
  CHECK(manifest.at("step") == "12");
  CHECK(manifest.at("files").size() == 3);
  const std::string model = file_bytes(folder / "model.safetensors");
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(model.data()), static_cast<uInt>(model.size()));
  CHECK(manifest.at("files").at("model.safetensors").at("bytes") == std::to_string(model.size()));
  CHECK(std::stoul(manifest.at("files").at("model.safetensors").at("crc32").get<std::string>(), nullptr,
                   16) == crc);
}

TEST_CASE("train/checkpoint: the highest step is the newest") {
  const ScratchFolder run;
  CHECK(newest_name(run.path()) == "none");
  CHECK(newest_name(run / "missing") == "none");
  for (const int64_t step :
       {int64_t{99'999'999}, int64_t{123'456'789'012}, int64_t{0}, int64_t{100'000'000}}) {
    save_checkpoint(run.path(), checkpoint_of(step), {.newest = 9, .steps = {}});
  }
  CHECK(newest_name(run.path()) == "step-123456789012");
  CHECK(load_checkpoint(run.path()).step == 123'456'789'012);
  CHECK(load_checkpoint(run / "step-00000000").step == 0);
}

TEST_CASE("train/checkpoint: older ones go and named ones stay") {
  const ScratchFolder run;
  for (int64_t step = 1; step <= 5; ++step)
    save_checkpoint(run.path(), checkpoint_of(step), {.newest = 2, .steps = {1}});
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000001", "step-00000004", "step-00000005"});
  // A run that went back leaves the later ones alone.
  save_checkpoint(run.path(), checkpoint_of(2), {.newest = 1, .steps = {}});
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000002", "step-00000004", "step-00000005"});
}

TEST_CASE("train/checkpoint: a broken one is not counted as kept") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(1));
  cut(save_checkpoint(run.path(), checkpoint_of(2)) / "model.safetensors", 20);
  save_checkpoint(run.path(), checkpoint_of(3));
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003"});
  save_checkpoint(run.path(), checkpoint_of(4));
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000003", "step-00000004"});
}

TEST_CASE("train/checkpoint: one of the same step is replaced") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(3));
  save_checkpoint(run.path(), checkpoint_of(3, 0.5));
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000003"});
  const Checkpoint loaded = load_checkpoint(run.path());
  CHECK(loaded.state.at("value") == 3.5);
  CHECK(is_consistent(loaded));
}

TEST_CASE("train/checkpoint: what interrupted saves left is passed over and cleaned up") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(3));
  // As after a kill between the two renames of a replacement, and in the middle of writing step 4.
  fs::rename(run / "step-00000003", run / "step-00000003.old");
  fs::create_directory(run / "step-00000003.tmp");
  fs::create_directory(run / "step-00000004.tmp");
  write_bytes(run / "step-00000004.tmp/model.safetensors", "half");
  write_bytes(run / "metrics.csv.tmp", "of another");
  fs::create_directory(run / "step-5.tmp");  // not a name of ours
  CHECK(newest_name(run.path()) == "step-00000003.old");
  CHECK(load_checkpoint(run.path()).step == 3);

  save_checkpoint(run.path(), checkpoint_of(5));
  CHECK(names_in(run.path()) ==
        std::vector<std::string>{"metrics.csv.tmp", "step-00000003", "step-00000005", "step-5.tmp"});
  CHECK(is_consistent(load_checkpoint(run / "step-00000003")));
}

TEST_CASE("train/checkpoint: one changed byte anywhere is noticed and the one before is found") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(1));
  const fs::path folder = save_checkpoint(run.path(), checkpoint_of(2));
  for (const char* file : all_files) {
    const std::string intact = file_bytes(folder / file);
    for (size_t at = 0; at < intact.size(); ++at) {
      std::string damaged = intact;
      damaged[at] ^= 1;
      fs::remove(folder / file);
      write_bytes(folder / file, damaged);
      std::vector<std::string> skipped;
      const auto newest = newest_checkpoint(run.path(), &skipped);
      CAPTURE(at);
      REQUIRE(newest == run / "step-00000001");
      REQUIRE(skipped.size() == 1);
      REQUIRE(contains(skipped[0], folder.string()));
      REQUIRE(!contains(skipped[0], "\n"));
    }
    CHECK(error_of([&] { load_checkpoint(folder); }) != "");
    CHECK(load_checkpoint(run.path()).step == 1);
    write_bytes(folder / file, intact);
    CHECK(newest_name(run.path()) == "step-00000002");
  }
}

TEST_CASE("train/checkpoint: cut and missing files are noticed and named") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(1));
  const fs::path folder = save_checkpoint(run.path(), checkpoint_of(2));
  for (const char* file : all_files) {
    const std::string intact = file_bytes(folder / file), path = (folder / file).string();
    for (size_t bytes = 0; bytes + 2 <= intact.size();
         bytes += 1 + bytes / 8) {  // without the newline it is whole
      cut(folder / file, bytes);
      CHECK(newest_name(run.path()) == "step-00000001");
      CHECK(contains(error_of([&] { load_checkpoint(folder); }), path));
      write_bytes(folder / file, intact);
    }
    fs::remove(folder / file);
    CHECK(newest_name(run.path()) == "step-00000001");
    CHECK(error_of([&] { load_checkpoint(folder); }) ==
          "[file] can't read " + path + ": No such file or directory");
    write_bytes(folder / file, intact);
  }
  cut(folder / "state.json", 3);
  CHECK(contains(error_of([&] { load_checkpoint(folder); }), "state.json: truncated or extended: expected "));
}

TEST_CASE("train/checkpoint: a manifest that says something else is refused") {
  const ScratchFolder run;
  const fs::path folder = save_checkpoint(run.path(), checkpoint_of(2));
  const fs::path path = folder / "manifest.json";
  const auto intact = nlohmann::json::parse(file_bytes(path));
  const auto refusal = [&](const char* pointer, const nlohmann::json& value) {
    auto manifest = intact;
    manifest[nlohmann::json::json_pointer(pointer)] = value;
    write_bytes(path, manifest.dump());
    return error_of([&] { load_checkpoint(run.path()); });
  };
  CHECK(refusal("/step", "2") == "");
  CHECK(contains(refusal("/step", "3"), "of step 3, other than the folder's name says"));
  for (const char* step : {"", "-2", "2x", " 2", "99999999999999999999"}) {
    CHECK(contains(refusal("/step", step), "the step is not a number"));
  }
  CHECK(contains(refusal("/step", 2), "not a checkpoint's manifest"));
  CHECK(contains(refusal("/format", "mixgrad-checkpoint-2"), "format mixgrad-checkpoint-2; known: "));
  CHECK(contains(refusal("/files", nlohmann::json::array()), "not a checkpoint's manifest"));
  CHECK(contains(refusal("/files/state.json/bytes", 5), "not a checkpoint's manifest"));
  CHECK(contains(refusal("/files/state.json/crc32", "00000000"), "state.json: damaged: its CRC-32 is "));
  write_bytes(path, std::string(1'000'000, '['));
  CHECK(contains(error_of([&] { load_checkpoint(folder); }), "not valid JSON"));

  // A folder renamed by hand does not pass for another step.
  write_bytes(path, intact.dump());
  fs::rename(folder, run / "step-00000009");
  CHECK(newest_name(run.path()) == "none");
}

TEST_CASE("train/checkpoint: a folder without checkpoints is reported") {
  const ScratchFolder run;
  const std::string path = run.path().string();
  CHECK(error_of([&] { load_checkpoint(run.path()); }) ==
        "[checkpoint] " + path + ": there is no checkpoint");
  CHECK(error_of([&] { load_checkpoint(run / "missing"); }) ==
        "[checkpoint] " + path + "/missing: there is no checkpoint");
  CHECK(contains(error_of([&] { load_checkpoint(run / "step-00000001"); }),
                 "step-00000001/manifest.json: No such file"));
  write_bytes(run / "plain", "x");
  CHECK(contains(error_of([&] { load_checkpoint(run / "plain"); }), "plain: Not a directory"));
}

TEST_CASE("train/checkpoint: a save that fails says why and leaves the one before") {
  const ScratchFolder run;
  save_checkpoint(run.path(), checkpoint_of(1));
  Checkpoint large = checkpoint_of(2);
  large.model.emplace_back("large", Tensor::zeros({100'000}, DType::float32));
  const std::string message = [&] {
    const DiskLimit limit(100'000);
    return error_of([&] { save_checkpoint(run.path(), large); });
  }();
  CHECK(contains(message, "step-00000002.tmp/model.safetensors: File too large"));
  CHECK(names_in(run.path()) == std::vector<std::string>{"step-00000001"});
  CHECK(is_consistent(load_checkpoint(run.path())));
  save_checkpoint(run.path(), large);
  CHECK(load_checkpoint(run.path()).step == 2);

  Checkpoint bad_text = checkpoint_of(3);
  bad_text.state["text"] = "\xFF";
  CHECK(contains(error_of([&] { save_checkpoint(run.path(), bad_text); }),
                 "state.json: a text in it is not valid UTF-8"));
  CHECK(contains(error_of([&] { save_checkpoint(run.path(), {-1, {}, {}, {}}); }), "a step of -1"));
  write_bytes(run / "plain", "x");
  CHECK(contains(error_of([&] { save_checkpoint(run / "plain", checkpoint_of(1)); }), "Not a directory"));
  CHECK(contains(error_of([&] { save_checkpoint(run / "plain/run", checkpoint_of(1)); }), "Not a directory"));
  CHECK(newest_name(run.path()) == "step-00000002");
}

/// What the child of the next test does until it is killed: each step is saved twice, so that replacing is
/// interrupted too.
[[noreturn]] void save_forever(const fs::path& run_dir, int64_t step) noexcept {
  for (;; ++step) {
    save_checkpoint(run_dir, checkpoint_of(step));
    save_checkpoint(run_dir, checkpoint_of(step, 0.5));
  }
}

TEST_CASE("train/checkpoint: a kill at any moment leaves a whole checkpoint") {
  const ScratchFolder run;
  const auto start = std::chrono::steady_clock::now();
  for (int save = 0; save < 3; ++save) save_checkpoint(run.path(), checkpoint_of(0));
  const std::chrono::duration<double, std::micro> three_saves = std::chrono::steady_clock::now() - start;
  Generator generator(3);
  int64_t step = 0;
  int interrupted = 0;
  // And more, on a machine that has less time for the child than it had for the three saves.
  for (int round = 0; round < 50 || (step == 0 && round < 1000); ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) save_forever(run.path(), step);  // first replaces the newest
    // Up to nine saves, of which the third makes progress.
    ::usleep(static_cast<useconds_t>(1000 + generator.uniform() * 3 * three_saves.count()));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGKILL);  // it did not end by an error of its own

    const std::vector<std::string> names = names_in(run.path());
    interrupted += std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.ends_with(".tmp") || name.ends_with(".old");
    });
    const Checkpoint loaded = load_checkpoint(run.path());
    CAPTURE(round);
    CHECK(is_consistent(loaded));
    // Deleting the old one before the rename, rather than moving it aside, loses a finished save in some
    // 5 of the 50 rounds; moving it aside loses none.
    CHECK(loaded.step >= step);
    step = loaded.step;
  }
  CHECK(step > 0);         // saves were finished,
  CHECK(interrupted > 0);  // and others cut short
  save_checkpoint(run.path(), checkpoint_of(step + 1));
  CHECK(names_in(run.path()).size() == 2);
}

TEST_CASE("train/checkpoint: parameters are copied by name") {
  Tensor a = Tensor::zeros({2, 3}, DType::float32), b = Tensor::zeros({}, DType::float64);
  NamedTensors wanted = {{"a", a}, {"b", b}};
  load_parameters(
      {{"b", Tensor::full({}, 7, DType::float64)}, {"a", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})}},
      wanted);
  CHECK(a.to_vector() == std::vector<double>{1, 2, 3, 4, 5, 6});  // into the storage that was there
  CHECK(b.item() == 7);
}

TEST_CASE("train/checkpoint: parameters that do not fit are all named and nothing is changed") {
  NamedTensors wanted = {{"a", Tensor::zeros({2}, DType::float32)},
                         {"b", Tensor::zeros({3}, DType::float32)},
                         {"c", Tensor::zeros({4}, DType::float32)},
                         {"d", Tensor::zeros({5}, DType::float32)}};
  const NamedTensors saved = {{"a", Tensor::full({2}, 1, DType::float32)},
                              {"b", Tensor::full({3, 1}, 1, DType::float32)},
                              {"c", Tensor::full({4}, 1, DType::float64)},
                              {"e", Tensor::full({6}, 1, DType::float32)}};
  CHECK(error_of([&] { load_parameters(saved, wanted); }) ==
        "[checkpoint] the saved parameters don't fit the model: b is float32 (3, 1) but float32 (3) is "
        "wanted; c is "
        "float64 (4) but float32 (4) is wanted; d (5) is missing; e (6) is not wanted");
  CHECK(wanted[0].second.to_vector() == std::vector<double>{0, 0});

  NamedTensors many;
  for (int i = 0; i < 100; ++i)
    many.emplace_back("w" + std::to_string(i), Tensor::zeros({1}, DType::float32));
  const std::string message = error_of([&] { load_parameters({}, many); });
  CHECK(contains(message, "w7 (1) is missing; and 92 more"));
  CHECK(!contains(message, "w8 "));
}

}  // namespace
}  // namespace mixgrad
