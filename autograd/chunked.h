// Ops that read a sequence chunk by chunk, each of which turns a state into the next one.
//
// A core says what happens in one chunk of m tokens:
//
//   struct Core {
//     static constexpr std::string_view name = "...";
//     static constexpr int token_inputs = 4;  // the op's first inputs: [B, T, H, d], or [B, T, H] for d = 1
//     static constexpr int parameters = 3;    // the next ones, the same in all chunks; the rest is the state
//
//     // What forward computes, as far as backward needs it: output [B, H, n, d] and state at least. in: the
//     // chunk's tokens [B, H, m, d], then the parameters. The first input, the queries, may be of the last n
//     // of the m tokens alone.
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

/// The op: its output [B, T, H, d], then the state behind the last token. Saved: the inputs and every eighth
/// state; backward computes a stretch of eight chunks again before it walks back through it.
template <class Core>
struct Chunked {
  static constexpr std::string_view name = Core::name;
  static constexpr int64_t chunks_of_stretch = 8;
  static constexpr int first_of_state = Core::token_inputs + Core::parameters;
  Core core;
  int64_t chunk;  // tokens

  template <class... Inputs>
  Tensors forward(Context& context, const Inputs&... inputs) const {
    const Tensors all = {inputs...};
    for (const Tensor& input : all) context.save(input);
    Tensor output = empty_like(all[0]);
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
    const Tensor doutput = gradients[0].defined() ? gradients[0] : zeros_like(all[0]);
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

}  // namespace mixgrad
