// Ops that read a sequence chunk by chunk, each of which turns a state into the next one.
//
// A core says what happens in one chunk of m tokens:
//
//   struct Core {
//     static constexpr std::string_view name = "...";
//     // The op's first inputs: queries, keys, values [B, T, H, d] and others like them, or [B, T, H] for d
//     = 1. static constexpr int token_inputs = 4; static constexpr int parameters = 3;    // the next ones,
//     the same in all chunks; the rest is the state
//
//     // What forward computes, as far as backward needs it: output [B, H, n, dv] and state at least. in: the
//     // chunk's tokens [B, H, m, d], then the parameters. The queries may be those of the last n of the m
//     // tokens alone.
//     struct Pass { Tensor output; Tensors state; ... };
//     Pass forward(const Tensors& in, const Tensors& state) const;
//
//     // The gradients of in, for n = m. dstate is that of pass.state, and becomes that of state.
//     Tensors backward(const Tensors& in, const Tensors& state, const Pass& pass, const Tensor& doutput,
//                      Tensors& dstate) const;
//   };
#pragma once

#include <algorithm>
#include <vector>

#include "autograd/arithmetic.h"
#include "autograd/op.h"

namespace mixgrad {

/// Tokens start to start + count of x [B, T, H, d] or, d = 1, [B, T, H], head by head: [B, H, count, d].
Tensor tokens_by_head(const Tensor& x, int64_t start, int64_t count);
/// Writes tokens from start on into x.
void put_tokens(const Tensor& by_head, int64_t start, Tensor& x);

/// A state [H, ...] that all sequences begin with, repeated for each of them: [B, H, ...].
Variable repeated(const Variable& state, int64_t batch);

/// The op: its output [B, T, H, dv], like the values, then the state behind the last token. Saved: the inputs
/// and every eighth state; backward computes a stretch of eight chunks again before it walks back through it.
template <class Core>
struct Chunked {
  static constexpr std::string_view name = Core::name;
  static constexpr int64_t chunks_of_stretch = 8;
  static constexpr int values = 2;
  static constexpr int first_of_state = Core::token_inputs + Core::parameters;
  Core core;
  int64_t chunk;  // tokens

  template <class... Inputs>
  Tensors forward(Context& context, const Inputs&... inputs) const {
    const Tensors all = {inputs...};
    for (const Tensor& input : all) context.save(input);
    Tensor output = empty_like(all[values]);
    Tensors state(all.begin() + first_of_state, all.end());
    for (int64_t start = 0; start < output.shape()[1]; start += chunk) {
      if (start % stretch() == 0) {
        for (const Tensor& tensor : state) context.save(tensor);
      }
      auto pass = core.forward(inputs_of(all, start), state);
      put_tokens(pass.output, start, output);
      state = std::move(pass.state);
    }
    state.insert(state.begin(), output);
    return state;
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const auto states = static_cast<int>(gradients.size()) - 1;
    Tensors all, dall, dstate;
    for (int i = 0; i < first_of_state + states; ++i) all.push_back(context.saved(i));
    for (int i = 0; i < first_of_state; ++i) {
      const bool tokens = i < Core::token_inputs;  // of which every element will be written
      dall.push_back(tokens ? empty_like(all[i]) : zeros_like(all[i]));
    }
    const Tensor doutput = gradients[0].defined() ? gradients[0] : zeros_like(all[values]);
    for (int i = 0; i < states; ++i) {
      const Tensor& gradient = gradients[1 + i];
      dstate.push_back(gradient.defined() ? gradient.clone() : zeros_like(all[first_of_state + i]));
    }
    const int64_t length = all[0].shape()[1];
    for (int64_t start = (length - 1) / stretch() * stretch(); start >= 0 && length > 0; start -= stretch()) {
      Tensors state;
      for (int i = 0; i < states; ++i) {
        state.push_back(
            context.saved(static_cast<int>(first_of_state + states * (1 + start / stretch()) + i)));
      }
      back_through(start, std::min(start + stretch(), length), all, state, doutput, dall, dstate);
    }
    dall.insert(dall.end(), dstate.begin(), dstate.end());
    return dall;
  }

 private:
  int64_t stretch() const { return chunks_of_stretch * chunk; }

  /// The tokens of the chunk that begins with token start, and the parameters.
  Tensors inputs_of(const Tensors& all, int64_t start) const {
    const int64_t count = std::min(chunk, all[0].shape()[1] - start);
    Tensors in;
    for (int i = 0; i < Core::token_inputs; ++i) in.push_back(tokens_by_head(all[i], start, count));
    in.insert(in.end(), all.begin() + Core::token_inputs, all.begin() + first_of_state);
    return in;
  }

  /// Computes the chunks of tokens begin to end again, and walks back through them.
  void back_through(int64_t begin, int64_t end, const Tensors& all, Tensors state, const Tensor& doutput,
                    Tensors& dall, Tensors& dstate) const {
    std::vector<Tensors> inputs, states;
    std::vector<typename Core::Pass> passes;
    for (int64_t start = begin; start < end; start += chunk) {
      inputs.push_back(inputs_of(all, start));
      states.push_back(std::move(state));
      passes.push_back(core.forward(inputs.back(), states.back()));
      state = passes.back().state;
    }
    while (!passes.empty()) {
      const int64_t start = begin + chunk * static_cast<int64_t>(passes.size() - 1);
      const Tensor dchunk = tokens_by_head(doutput, start, std::min(chunk, end - start));
      const Tensors din = core.backward(inputs.back(), states.back(), passes.back(), dchunk, dstate);
      for (int i = 0; i < Core::token_inputs; ++i) put_tokens(din[i], start, dall[i]);
      for (int i = Core::token_inputs; i < first_of_state; ++i) dall[i] = plus(dall[i], din[i]);
      inputs.pop_back();
      states.pop_back();
      passes.pop_back();
    }
  }
};

/// Reads on where `position` tokens have been read, without gradients, in pieces of any length: what comes
/// out is what the op gives for all tokens at once, up to rounding. inputs: of the op, but for the state.
/// memory is the state before the chunk that is being read, then this chunk's tokens so far, [B, chunk, H,
/// ...] of each token input but the first. A chunk's tokens are looked at again with each piece of it.
template <class Core>
Tensor read_on(const Core& core, int64_t chunk, const Tensors& inputs, int64_t position, Tensors& memory) {
  const auto states = static_cast<int64_t>(memory.size()) - (Core::token_inputs - 1);
  Tensors state(memory.begin(), memory.begin() + states);
  Tensor output = empty_like(inputs[2]);  // as the values
  const int64_t length = output.shape()[1];
  for (int64_t at = 0, count = 0; at < length; at += count) {
    const int64_t held = (position + at) % chunk;
    count = std::min(chunk - held, length - at);
    Tensors in = {tokens_by_head(inputs[0], at, count)};
    for (int i = 1; i < Core::token_inputs; ++i) {
      Tensor& tokens = memory[states + i - 1];
      tokens.narrow(1, held, count).copy_from(inputs[i].narrow(1, at, count));
      in.push_back(tokens_by_head(tokens, 0, held + count));
    }
    in.insert(in.end(), inputs.begin() + Core::token_inputs, inputs.end());
    auto pass = core.forward(in, state);
    put_tokens(pass.output, at, output);
    if (held + count == chunk) state = std::move(pass.state);
  }
  std::copy(state.begin(), state.end(), memory.begin());
  return output;
}

}  // namespace mixgrad
