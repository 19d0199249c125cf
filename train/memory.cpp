#include "train/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "models/generate.h"
#include "nn/optimizer.h"
#include "tensor/cpu_info.h"
#include "tensor/measure.h"

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

}  // namespace

int64_t available_memory_bytes(Device device) {
  if (device != Device{}) return free_device_bytes(device);
  const auto available = kernel_figure("/proc/meminfo", "MemAvailable:");
  if (!available) return unlimited;
  const int64_t swap = kernel_figure("/proc/meminfo", "SwapFree:").value_or(0);
  const int64_t held = kernel_figure("/proc/self/status", "VmRSS:").value_or(0);
  const int64_t addressed = kernel_figure("/proc/self/status", "VmSize:").value_or(0);
  const int64_t limits = std::min(container_limit() - held, address_limit_bytes() - addressed);
  return std::min(*available + swap, std::max<int64_t>(0, limits));
}

double least_training_bytes(const ModelConfig& config, int64_t B) {
  const auto width = static_cast<double>(config.width);
  const auto layers = static_cast<double>(config.layers);
  const auto tables =
      static_cast<double>(config.vocabulary + (config.positions == "learned" ? config.context : 0));
  const double matrices = width * (tables + 2 * layers * static_cast<double>(config.mlp_hidden));
  const double activations = static_cast<double>(B) * static_cast<double>(config.context) * width * layers;
  return sizeof(float) * (4 * matrices + activations);
}

int64_t measure_training_bytes(const ModelConfig& config, StepBatches batches, bool resumes, Device device) {
  batches.accumulate =
      std::min<int64_t>(batches.accumulate, 2);  // the second meets the gradients of the first
  return measure_peak_bytes([&] {
    Generator generator(0);
    Initialiser initialiser(DType::float32, device, generator);
    LanguageModel model(config, initialiser);
    const std::vector<Parameter> parameters = model.parameters();
    AdamW optimizer(parameters, {});
    if (resumes) {
      Tensors checkpoint;  // what is read before it is copied: weights and two moments
      for (const Parameter& parameter : parameters) {
        for (int copy = 0; copy < 3; ++copy) checkpoint.push_back(empty_like(parameter.variable->value()));
      }
    }

    compute_gradients(model, batches, 0, &generator);
    gradient_norm(parameters);
    optimizer.step(0, 1);

    const Tensor ids = Tensor::zeros({batches.B, batches.T}, DType::int32);
    model.nats(ids, ids);
    generate(model, {0}, {.tokens = 2}, generator, [](int32_t) {});  // the state has room for more at once
  });
}

}  // namespace mixgrad
