// Titans: a network that learns what to remember while it reads, with momentum, and forgets. Derivation in
// titans.md.
#include "autograd/ops/titans.h"

#include <cmath>

#include "autograd/learning/chunked.h"
#include "nn/mixers/titans/memory_mixer.h"

namespace mixgrad {

namespace {

/// Decodes with two numbers for each weight of the memory, and the tokens of a chunk.
class TitansMixer final : public MemoryMixer {
 public:
  TitansMixer(const MixerConfig& config, Initialiser& initialiser)
      : MemoryMixer(config, "titans", config.width / config.heads, initialiser),
        hidden_(config.integer_option("expansion") * head_size_) {
    const double in_deviation = hidden_ > 0 ? 2 / std::sqrt(static_cast<double>(hidden_)) : 0;
    weights_.reserve(2);  // declare() keeps their addresses
    if (hidden_ > 0) {
      weights_.push_back(initialiser.normal({heads_, head_size_, hidden_}, in_deviation));
      declare("weight1", weights_[0], Decay::no);
    }
    weights_.push_back(initialiser.normal({heads_, hidden_ > 0 ? hidden_ : head_size_, head_size_}, 0.02));
    declare(hidden_ > 0 ? "weight2" : "weight", weights_.back(), Decay::no);
  }

  double flops_per_token(int64_t) const override {
    const auto d = static_cast<double>(head_size_), hidden = static_cast<double>(hidden_);
    const auto chunk = static_cast<double>(chunk_);
    // For each layer: the answer to the key, the read of weights and momentum, the write of both; Gram matrix
    // and errors of a chunk. For two layers the errors backwards too. The coefficients of a chunk.
    const double layers =
        hidden_ > 0 ? 22 * d * hidden + 4 * chunk * (d + hidden) : 10 * d * d + 4 * chunk * d;
    return flops_of_convolutions() + static_cast<double>(heads_) * (layers + 2 * chunk * chunk);
  }

 protected:
  Variable read(const Tokens& t) override {
    TitansMemory memory;
    for (const Variable& weight : weights_) {
      memory.weights.push_back(repeated(weight, t.q.shape()[0]));
      memory.momentum.push_back(Variable(zeros_like(memory.weights.back().value())));
    }
    return titans(t.q, t.k, t.v, {t.rate, t.log_keep, t.log_momentum}, memory, {.chunk = chunk_}).output;
  }

  Tensor read_on(const Tokens& t, int64_t position, Tensors& memory) override {
    return titans_read_on(t.q.value(), t.k.value(), t.v.value(), t.rate.value(), t.log_keep.value(),
                          t.log_momentum.value(), {.chunk = chunk_}, position, memory);
  }

  Tensors first_memory(int64_t batch) const override {
    Tensors memory;
    for (const Variable& weight : weights_) memory.push_back(repeated(weight, batch).value());
    for (size_t i = 0; i < weights_.size(); ++i) memory.push_back(zeros_like(memory[i]));
    const Shape held{batch, chunk_, heads_, head_size_}, gate = held.drop_last();
    for (const Shape& shape : {held, held, gate, gate, gate}) memory.push_back(zeros(shape));
    return memory;
  }

 private:
  const int64_t hidden_;           // F; 0: the memory is one matrix
  std::vector<Variable> weights_;  // before the first token
};

std::vector<MixerOption> options() {
  std::vector<MixerOption> all = memory_options();
  all.push_back({"expansion", 2, 0, 64, true,
                 "hidden units of the memory for each number of a head; 0: one layer, a matrix"});
  return all;
}

}  // namespace

MixerKind titans_mixer() {
  return {.name = "titans",
          .summary = "Titans: a memory that learns while it reads, by gradient descent with momentum",
          .forms = {.causal = true},
          .options = options(),
          .check_options = "chunk=4,expansion=2",
          .make = construct<TitansMixer>};
}

}  // namespace mixgrad
