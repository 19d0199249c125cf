#include "train/recall.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "autograd/tape.h"
#include "nn/optimizer.h"
#include "tensor/measure.h"
#include "train/memory.h"
#include "train/options.h"
#include "train/progress.h"

namespace mixgrad {

namespace {

int64_t below(int64_t limit, Generator& generator) {
  return static_cast<int64_t>(generator.uniform() * static_cast<double>(limit));
}

/// `count` distinct numbers below `limit`, in random order (Fisher and Yates).
std::vector<int32_t> distinct(int64_t count, int64_t limit, Generator& generator) {
  std::vector<int32_t> numbers(limit);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int64_t i = 0; i < count; ++i) std::swap(numbers[i], numbers[i + below(limit - i, generator)]);
  numbers.resize(count);
  return numbers;
}

Tensor tensor_of(const std::vector<int32_t>& ids, const Batch& batch) {
  return Tensor::from(ids, {batch.rows, batch.length});
}

/// The share of the queries whose value is the most probable token.
double accuracy(LanguageModel& model, const Batch& batch) {
  const NoGrad no_grad;
  const Tensor logits = model.logits(tensor_of(batch.inputs, batch)).value();
  const std::vector<double> values = logits.to_vector();
  const int64_t vocabulary = logits.shape()[2];
  int64_t right = 0;
  for (size_t place = 0; place < batch.targets.size(); ++place) {
    if (batch.targets[place] == ignored_target) continue;
    const auto row = values.begin() + static_cast<int64_t>(place) * vocabulary;
    right += std::max_element(row, row + vocabulary) - row == batch.targets[place];
  }
  return static_cast<double>(right) / static_cast<double>(batch.target_tokens());
}

ModelConfig model_config(const RecallOptions& options, const MixerChoice& mixer) {
  ModelConfig config = options.model;
  config.vocabulary = options.task.vocabulary();
  config.context = options.task.length(*std::max_element(options.pairs.begin(), options.pairs.end()));
  config.pattern = mixer.text();
  return config;
}

int64_t state_bytes(LanguageModel& model, int64_t length) {
  const NoGrad no_grad;
  LanguageModelState state = model.initial_state(1, length);
  model.logits(Tensor::zeros({1, length}, DType::int32), &state);
  return state.bytes();
}

}  // namespace

Batch draw_recall(const RecallTask& task, int64_t pairs, int64_t rows, Generator& generator) {
  check_usage(pairs >= 1 && pairs <= task.keys, "[recall] ", pairs, " pairs; allowed: 1 to ", task.keys,
              ", the number of keys");
  check_usage(task.values >= 1, "[recall] ", task.values, " values; allowed: 1 or more");
  check_usage(task.tellings >= 1, "[recall] ", task.tellings, " tellings; allowed: 1 or more");
  Batch batch{.inputs = {}, .targets = {}, .rows = rows, .length = task.length(pairs)};
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t> keys = distinct(pairs, task.keys, generator);
    std::vector<int32_t> values(pairs);
    for (int64_t telling = 0; telling < task.tellings; ++telling) {
      for (const int32_t i : distinct(pairs, pairs, generator)) {
        values[i] = static_cast<int32_t>(task.keys + below(task.values, generator));
        batch.inputs.insert(batch.inputs.end(), {keys[i], values[i]});
        batch.targets.insert(batch.targets.end(), {ignored_target, ignored_target});
      }
    }
    for (const int32_t i : distinct(pairs, pairs, generator)) {
      batch.inputs.push_back(keys[i]);
      batch.targets.push_back(values[i]);
    }
  }
  return batch;
}

std::vector<int32_t> solve_recall(const RecallTask& task, const Batch& batch) {
  std::vector<int32_t> answers;
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::map<int32_t, int32_t> value_of;
    const int32_t* ids = batch.inputs.data() + row * batch.length;
    for (int64_t t = 0; t < batch.length; ++t) {
      const bool is_key = ids[t] < task.keys;
      const bool is_told = is_key && t + 1 < batch.length && ids[t + 1] >= task.keys;
      const bool known = is_key && !is_told && value_of.contains(ids[t]);
      answers.push_back(known ? value_of.at(ids[t]) : ignored_target);
      if (is_told) value_of[ids[t]] = ids[t + 1];
    }
  }
  return answers;
}

void RecallOptions::validate() const {
  check_count("keys", task.keys, 1, 1 << 16);
  check_count("values", task.values, 1, 1 << 16);
  check_count("tellings", task.tellings, 1, 1 << 10);
  check_usage(!pairs.empty(), "[recall] no numbers of pairs are given");
  for (const int64_t count : pairs) {
    check_usage(count >= 1 && count <= task.keys, "[recall] ", count, " pairs; allowed: 1 to ", task.keys,
                ", the number of keys");
  }
  check_count("steps", steps, 1, most_steps);
  check_count("batch", batch, 1, 1 << 16);
  check_count("test-rows", test_rows, 1, 1 << 16);
  constexpr int64_t most_tokens = 1 << 24;
  const int64_t tokens =
      std::max(batch, test_rows) * task.length(*std::max_element(pairs.begin(), pairs.end()));
  check_usage(tokens <= most_tokens, "[recall] ", tokens, " tokens in a batch or test; allowed: up to ",
              most_tokens, ", by fewer rows, pairs or tellings");
  check_usage(learning_rate > 0 && std::isfinite(learning_rate), "[recall] learning rate ", learning_rate,
              "; allowed: finite, above 0");
}

void check_recall(const RecallOptions& options, const MixerChoice& mixer) {
  const ModelConfig config = model_config(options, mixer);
  config.validate();
  const int64_t needed = measure_peak_bytes([&] {
    Generator generator;
    Initialiser initialiser(DType::float32, options.device, generator);
    LanguageModel model(config, initialiser);
    const Tensor ids = Tensor::zeros({options.batch, config.context}, DType::int32);
    backward(model.loss(ids, ids));
  });
  const int64_t available = available_memory_bytes(options.device);
  check(needed <= available, "[recall] ", config.pattern, ": a step needs ",
        bytes_text(static_cast<double>(needed)), ", and ", bytes_text(static_cast<double>(available)),
        " are left; a smaller batch or fewer pairs need less");
}

RecallResult run_recall(const RecallOptions& options, const MixerChoice& mixer, uint64_t seed,
                        const std::function<void(int64_t step, double loss)>& progress) {
  options.validate();
  const auto start = std::chrono::steady_clock::now();
  const ModelConfig config = model_config(options, mixer);
  Generator parameters(seed, Stream::parameters), data(seed, Stream::data), test(seed, Stream::sampling);
  Initialiser initialiser(DType::float32, options.device, parameters);
  LanguageModel model(config, initialiser);
  AdamW optimizer(model.parameters(), {});
  const CosineSchedule schedule{options.learning_rate, options.learning_rate / 10,
                                std::max<int64_t>(1, options.steps / 20), options.steps};
  for (int64_t step = 0; step < options.steps; ++step) {
    const int64_t pairs = options.pairs[below(static_cast<int64_t>(options.pairs.size()), data)];
    const Batch batch = draw_recall(options.task, pairs, options.batch, data);
    model.zero_grad();
    const Variable loss = model.loss(tensor_of(batch.inputs, batch), tensor_of(batch.targets, batch));
    backward(loss);
    const double value = loss.value().item(), norm = gradient_norm(model.parameters());
    if (!std::isfinite(value) || !std::isfinite(norm)) {
      throw Diverged(str("[recall] ", config.pattern, ", seed ", seed, ", step ", step + 1, ": loss ", value,
                         ", gradient norm ", norm));
    }
    optimizer.step(schedule.rate(step), clip_scale(norm, 1));
    if (progress) progress(step + 1, value);
  }

  RecallResult result;
  for (const int64_t pairs : options.pairs) {
    const Batch batch = draw_recall(options.task, pairs, options.test_rows, test);
    result.accuracy.push_back(accuracy(model, batch));
  }
  result.parameters = model.parameter_count();
  result.state_bytes = state_bytes(model, config.context);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace mixgrad
