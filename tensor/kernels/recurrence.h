// Recurrences over matrix states: the additive one, which is linear attention, retention, attention with a
// scalar gate, and Gaussian Mixture Attention,
//
//   S_t = e^{g_t} S_{t-1} + k_t^T v_t      o_t = scale q_t S_t
//   z_t = e^{g_t} z_{t-1} + k_t            o_t = scale q_t S_t / (scale q_t . z_t + eps)   when normalised
//
// and the delta rule, which writes beta_t times the residual r_t, what is left of v_t after subtracting what
// the decayed state already answers to k_t:
//
//   r_t = v_t - k_t e^{g_t} S_{t-1}        S_t = e^{g_t} S_{t-1} + k_t^T beta_t r_t
//
// Computed chunk by chunk. With S the state before a chunk of C tokens and b_i = g_1 + ... + g_i inside it,
//
//   O  = scale (Q e^b) S + A V             A_ij = scale q_i . k_j e^{b_i - b_j} for j <= i, else 0
//   S' = e^{b_C} S + (K e^{b_C - b})^T V   (rows i of Q and K scaled)
//
// in three phases: what each chunk adds to the state, in parallel; the states, one after the other; the
// outputs, in parallel. (On the CPU, with sequences enough for all threads, each of them chunk by chunk
// through all three.) For the delta rule diag(beta) R stands for V, and the residuals of a chunk depend on
// each other and on S:
//
//   (I + N diag(beta)) R = V - (K e^b) S   N_ij = k_i . k_j e^{b_i - b_j} for j < i, else 0
//
// so the first phase solves the triangular system for both terms on the right, R = U - W S, and the second
// computes R on its way.
//
// A gate may also be a log decay for each key channel, one for each row of S and entry of z: g_t, b and the
// exponents are then vectors [dk], and exponentials that multiply keys or queries do so channel by channel.
//
// A row may hold several documents, one after the other. The first chunk of each starts from a state of zero,
// and the last one's state goes nowhere, so that nothing passes from one to the next.
//
// Matrix states are [dk, dv], key first. A value head h reads key head floor(h / (H / Hk)).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/device.h"
#include "tensor/kernels/heads.h"

namespace mixgrad {

/// A piece of a sequence that is computed at once.
struct Chunk {
  int64_t row;    // of the batch
  int64_t start;  // its first token
  int64_t length;
  bool first;     // it starts from the row's initial state
  bool last;      // it ends with the row's final state
  int64_t state;  // which of the states between chunks it starts from; -1: of none, as the first, or as one
                  // that begins a document, whose state is zero
};

/// The only loop domain of the kernels.
struct ChunkPlan {
  std::vector<Chunk> chunks;       // row by row, in the order of time
  std::vector<int64_t> row_begin;  // row r has the chunks row_begin[r] to row_begin[r + 1]
  int64_t states = 0;              // how many states lie between chunks
  int64_t longest = 0;             // tokens of the longest chunk
};

/// Every row cut into chunks of `chunk` tokens, and before each token that begins a document, so that the
/// last chunk of a row or document may be shorter. A row without tokens has one empty chunk, which carries
/// its initial state to its end. documents [batch, length]: not 0 where a document begins; null: nowhere.
inline ChunkPlan chunk_plan(int64_t batch, int64_t length, int64_t chunk,
                            const int32_t* documents = nullptr) {
  ChunkPlan plan;
  for (int64_t row = 0; row < batch; ++row) {
    plan.row_begin.push_back(static_cast<int64_t>(plan.chunks.size()));
    const auto begins_document = [&](int64_t t) {
      return documents != nullptr && t < length && documents[row * length + t] != 0;
    };
    int64_t start = 0;
    do {
      const int64_t limit = std::min(start + chunk, length);
      int64_t end = std::min(start + 1, length);
      while (end < limit && !begins_document(end)) ++end;
      const bool first = start == 0 && !begins_document(0);
      const bool reads_on = start > 0 && !begins_document(start);
      plan.chunks.push_back({.row = row,
                             .start = start,
                             .length = end - start,
                             .first = first,
                             .last = end == length,
                             .state = reads_on ? plan.states++ : -1});
      plan.longest = std::max(plan.longest, end - start);
      start = end;
    } while (start < length);
  }
  plan.row_begin.push_back(static_cast<int64_t>(plan.chunks.size()));
  return plan;
}

struct RecurrenceShape {
  int64_t batch;              // B
  int64_t queries;            // T, of q and o
  int64_t keys;               // of k and v; as many as queries in the causal form
  int64_t heads;              // H, of v and o
  int64_t key_heads;          // Hk, of q and k; divides H
  int64_t key_dim;            // dk
  int64_t value_dim;          // dv
  int64_t gate_channels = 1;  // 1: a log decay for all key channels; dk: one for each
  double scale = 1;
  bool normalise = false;
  double eps = 0;
};

/// A single log decay is limited to this: e^-100 is nothing beside anything. Its gradient is 0 below.
constexpr double least_log_decay = -100;

template <class T>
struct RecurrenceInputs {
  Heads<const T> q, k;  // [B, T, Hk, dk]
  Heads<const T> v;     // [B, T, H, dv]
  const T* log_decay;   // g <= 0, [B, T, H, gate_channels]; null: no gate
  const T* beta;        // [B, T, H], of the delta rule; null: additive
  const T* state;       // initial S [B, H, dk, dv]; null: zero
  const T* normaliser;  // initial z [B, H, dk]; null: zero
};

/// Written by forward, all but the first three for backward to read (then T is const).
template <class T>
struct RecurrenceOutputs {
  Heads<T> o;          // [B, T, H, dv]
  T* state;            // final S [B, H, dk, dv]; null: not wanted
  T* normaliser;       // final z [B, H, dk]; null: not wanted
  T* denominators;     // scale q_t . z_t + eps, [B, T, H]; null unless normalised
  T* states;           // S between chunks, [plan.states, H, dk, dv]
  T* normalisers;      // z between chunks, [plan.states, H, dk]; null unless normalised
  Heads<T> residuals;  // r, [B, T, H, dv]; of the delta rule only
};

/// Gradients of forward's outputs.
template <class T>
struct RecurrenceOutputGradients {
  Heads<const T> o;
  const T* state;       // null: zero
  const T* normaliser;  // null: zero
};

/// Gradients of forward's inputs, to be written.
template <class T>
struct RecurrenceInputGradients {
  Heads<T> q, k, v;
  T* log_decay;   // null where the input is
  T* beta;        // likewise
  T* state;       // null: not wanted; 0 for a row whose first token begins a document
  T* normaliser;  // likewise
};

/// The causal form. The delta rule is not normalised, and its backward pass does not read v.
template <class T>
void recurrence_forward(Cpu, const RecurrenceShape& shape, const ChunkPlan& plan,
                        const RecurrenceInputs<T>& in, const RecurrenceOutputs<T>& out);
template <class T>
void recurrence_backward(Cpu, const RecurrenceShape& shape, const ChunkPlan& plan,
                         const RecurrenceInputs<T>& in, const RecurrenceOutputs<const T>& out,
                         const RecurrenceOutputGradients<T>& dout, const RecurrenceInputGradients<T>& din);

/// The form in which every query sees all keys, in two halves. Writing: S = S0 + sum over t of k_t^T v_t and,
/// where normaliser isn't null, z = z0 + sum of k_t. Initial values may be null: zero.
template <class T>
void state_write_forward(Cpu, const RecurrenceShape& shape, Heads<const T> k, Heads<const T> v,
                         const T* initial_state, const T* initial_normaliser, T* state, T* normaliser);
/// dk_t = dS v_t + dz, dv_t = dS^T k_t; the initial values' gradients are dS and dz. dz may be null.
template <class T>
void state_write_backward(Cpu, const RecurrenceShape& shape, Heads<const T> k, Heads<const T> v,
                          const T* dstate, const T* dnormaliser, Heads<T> dk, Heads<T> dv);

/// Reading: o_t = scale q_t S, divided, where normalised, by the denominators scale q_t . z + eps. normaliser
/// and denominators [B, T, H] are null unless normalised.
template <class T>
void state_read_forward(Cpu, const RecurrenceShape& shape, Heads<const T> q, const T* state,
                        const T* normaliser, Heads<T> o, T* denominators);
template <class T>
void state_read_backward(Cpu, const RecurrenceShape& shape, Heads<const T> q, const T* state,
                         const T* normaliser, Heads<const T> o, const T* denominators, Heads<const T> dout,
                         Heads<T> dq, T* dstate, T* dnormaliser);

// On a GPU: cuda/kernels/recurrence.cu. All pointers are to device memory, but the plan, which the host
// holds.
template <class T>
void recurrence_forward(Cuda, const RecurrenceShape& shape, const ChunkPlan& plan,
                        const RecurrenceInputs<T>& in, const RecurrenceOutputs<T>& out);
template <class T>
void recurrence_backward(Cuda, const RecurrenceShape& shape, const ChunkPlan& plan,
                         const RecurrenceInputs<T>& in, const RecurrenceOutputs<const T>& out,
                         const RecurrenceOutputGradients<T>& dout, const RecurrenceInputGradients<T>& din);
template <class T>
void state_write_forward(Cuda, const RecurrenceShape& shape, Heads<const T> k, Heads<const T> v,
                         const T* initial_state, const T* initial_normaliser, T* state, T* normaliser);
template <class T>
void state_write_backward(Cuda, const RecurrenceShape& shape, Heads<const T> k, Heads<const T> v,
                          const T* dstate, const T* dnormaliser, Heads<T> dk, Heads<T> dv);
template <class T>
void state_read_forward(Cuda, const RecurrenceShape& shape, Heads<const T> q, const T* state,
                        const T* normaliser, Heads<T> o, T* denominators);
template <class T>
void state_read_backward(Cuda, const RecurrenceShape& shape, Heads<const T> q, const T* state,
                         const T* normaliser, Heads<const T> o, const T* denominators, Heads<const T> dout,
                         Heads<T> dq, T* dstate, T* dnormaliser);

}  // namespace mixgrad
