#include "train/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "autograd/tape.h"
#include "tensor/allocator.h"
#include "tensor/cpu_info.h"

namespace mixgrad {

namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

/// A figure of /proc, "name:  1234 kB", in bytes.
std::optional<int64_t> kernel_figure(const char* path, const std::string& wanted) {
  std::ifstream file(path);
  for (std::string name, unit; file >> name;) {
    int64_t kib = 0;
    if (name == wanted && file >> kib) return kib * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

/// The memory limit of the container that this process is in, by control groups 2 or 1.
int64_t container_limit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes) return bytes;
  }
  return unlimited;
}

/// Peak of one pass beyond what was in use, on `rows` sequences of `length` tokens.
double measure_step(LanguageModel& model, int64_t rows, int64_t length) {
  Allocator& allocator = Allocator::of(model.parameters()[0].variable->value().device());
  const int64_t before = allocator.stats().live_bytes;
  allocator.reset_peak();
  Generator dropout(0, Stream::dropout);
  const Tensor ids = Tensor::zeros({rows, length}, DType::int32);
  backward({model.loss(ids, ids, &dropout)});
  model.zero_grad();
  const int64_t peak = allocator.stats().peak_bytes - before;
  allocator.trim();
  allocator.reset_peak();
  return static_cast<double>(peak);
}

}  // namespace

int64_t available_memory_bytes() {
  const auto available = kernel_figure("/proc/meminfo", "MemAvailable:");
  if (!available) return unlimited;
  const int64_t swap = kernel_figure("/proc/meminfo", "SwapFree:").value_or(0);
  const int64_t held = kernel_figure("/proc/self/status", "VmRSS:").value_or(0);
  return std::min(*available + swap, std::max<int64_t>(0, container_limit() - held));
}

double least_parameter_bytes(const ModelConfig& config) {
  const auto width = static_cast<double>(config.width);
  const auto tables =
      static_cast<double>(config.vocabulary + (config.positions == "learned" ? config.context : 0));
  const double mlps = 2.0 * static_cast<double>(config.layers) * static_cast<double>(config.mlp_hidden);
  return 4 * sizeof(float) * width * (tables + mlps);
}

double estimate_step_bytes(LanguageModel& model, int64_t B, int64_t T) {
  const int64_t length = std::min<int64_t>(T, 256);
  const double one = measure_step(model, 1, length);
  const double two = measure_step(model, 2, length);
  const double rows = static_cast<double>(B) * static_cast<double>(T) / static_cast<double>(length);
  return one + (two - one) * (rows - 1);
}

}  // namespace mixgrad
