// The recurrence on a GPU: the phases in their order. Products of tokens, states and pairs of tokens are
// tiles, each the work of one block, so that every size is allowed and the shared memory of a block is the
// same for all, see tile.cuh. The matrices of pairs of tokens of a chunk, [C, C], are in global memory, where
// a phase leaves them for the next; for the chunks of 64 tokens that mixers use, they are as large as heads
// 64 wide.
//
// Scratch memory, in numbers for each token and head, C being the longest chunk:
//   forward     C; with the delta rule dk more
//   backward    2 C + dk dv / C; with the delta rule 2 C + dk + dv more; with a gate dk / 32, or, if each
//               channel has its own, 4.1 dk
// and, in both, a double for each log decay.
#include "tensor/kernels/recurrence.h"

#include "cuda/kernels/map.cuh"
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

/// The operands of a call, with the plan and the cumulative log decays in device memory.
template <class T>
class DeviceRecurrence {
 public:
  DeviceRecurrence(const Cuda& device, const RecurrenceShape& s, const ChunkPlan& plan,
                   const RecurrenceInputs<T>& in, const Heads<const T>& residuals = {})
      : chunks_(static_cast<int64_t>(plan.chunks.size()), device),
        row_begin_(static_cast<int64_t>(plan.row_begin.size()), device),
        b_(device, in.log_decay != nullptr, s, s.gate_channels) {
    upload(device, plan.chunks, chunks_.data());
    upload(device, plan.row_begin, row_begin_.data());
    r_.s = s;
    r_.in = in;
    r_.residuals = residuals;
    r_.b = b_.rows();
    r_.chunks = chunks_.data();
    r_.row_begin = row_begin_.data();
    r_.chunk_count = static_cast<int64_t>(plan.chunks.size());
    r_.longest = plan.longest;
    if (in.log_decay != nullptr) cumulate_decays(device, r_, b_.rows());
  }

  const ChunkedRecurrence<T>& kernel_operands() const { return r_; }

 private:
  template <class U>
  static void upload(const Cuda& device, const std::vector<U>& values, U* to) {
    if (values.empty() || measuring()) return;
    cuda::copy_to_device(device, to, values.data(), static_cast<int64_t>(values.size() * sizeof(U)));
  }

  Scratch<Chunk> chunks_;
  Scratch<int64_t> row_begin_;
  TokenScratch<double> b_;
  ChunkedRecurrence<T> r_{};
};

/// Scratch memory of a backward pass for GateTerms, none without a gate.
template <class T>
class GateScratch {
 public:
  GateScratch(const Cuda& device, bool gated, const RecurrenceShape& s)
      : by_channel_(gated && s.gate_channels > 1),
        size_(by_channel_ ? s.key_dim : tiles_of(s.key_dim)),
        later_(device, gated, s, size_),
        earlier_(device, gated, s, size_),
        rows_(device, by_channel_, s, s.key_dim),
        columns_(device, by_channel_, s, s.key_dim) {}

  GateTerms<T> terms() const {
    GateTerms<T> terms{};
    terms.later = later_.rows();
    terms.earlier = earlier_.rows();
    terms.rows = rows_.rows();
    terms.columns = columns_.rows();
    return terms;
  }

 private:
  bool by_channel_;
  int64_t size_;
  TokenScratch<T> later_, earlier_, rows_, columns_;
};

/// 0 for the gradients of initial states of rows that begin with a document: nobody has read them.
template <class T>
void clear_unread(const Cuda& device, const ChunkedRecurrence<T>& r, const StateRows<T>& dbefore) {
  if (dbefore.ends == nullptr) return;
  const int64_t row_size = r.s.heads * dbefore.size;
  map(device, r.s.batch * row_size, [=] __device__(int64_t i) {
    if (!r.chunks[r.row_begin[i / row_size]].first) dbefore.ends[i] = 0;
  });
}

/// inverse and dden of OutputGradients, which are absent unless normalised.
template <class T>
class RatioScratch {
 public:
  RatioScratch(const Cuda& device, const RecurrenceShape& s, const Heads<const T>& o, const T* denominators,
               const Heads<const T>& d_o)
      : inverse_(s.normalise ? s.batch * s.queries * s.heads : 0, device),
        dden_(s.normalise ? s.batch * s.queries * s.heads : 0, device),
        gradients_{d_o, inverse_.data(), dden_.data()} {
    if (s.normalise) ratio_gradients(device, s, o, d_o, denominators, inverse_.data(), dden_.data());
  }

  const OutputGradients<T>& gradients() const { return gradients_; }

 private:
  Scratch<T> inverse_, dden_;
  OutputGradients<T> gradients_;
};

}  // namespace

template <class T>
void recurrence_forward(Cuda device, const RecurrenceShape& s, const ChunkPlan& plan,
                        const RecurrenceInputs<T>& in, const RecurrenceOutputs<T>& out) {
  const DeviceRecurrence<T> operands(device, s, plan, in, out.residuals);
  const ChunkedRecurrence<T>& r = operands.kernel_operands();
  const States<const T> before(s, in.state, out.states, in.normaliser, out.normalisers);
  const States<T> after(s, out.state, out.states, out.normaliser, out.normalisers);
  TokenScratch<T> gram(device, true, s, plan.longest);
  if (in.beta != nullptr) {
    const TokenScratch<T> corrections(device, true, s, s.key_dim);
    decayed_gram<double>(device, r, in.k, T(1), gram.rows());
    solve_corrections(device, r, gram.rows(), corrections.rows(), out.residuals);
    correct_states(device, r, corrections.rows(), before, after, out.residuals);
  } else {
    write_states(device, r, after);
    pass_states(device, r, before, after);
  }
  decayed_gram<T>(device, r, in.q, static_cast<T>(s.scale), gram.rows());
  read_tokens(device, r, gram.rows(), before, out.o, out.denominators);
}

template <class T>
void recurrence_backward(Cuda device, const RecurrenceShape& s, const ChunkPlan& plan,
                         const RecurrenceInputs<T>& in, const RecurrenceOutputs<const T>& out,
                         const RecurrenceOutputGradients<T>& dout, const RecurrenceInputGradients<T>& din) {
  const bool gated = in.log_decay != nullptr, delta = in.beta != nullptr;
  const DeviceRecurrence<T> operands(device, s, plan, in, out.residuals);
  const ChunkedRecurrence<T>& r = operands.kernel_operands();
  const RatioScratch<T> ratio(device, s, out.o, out.denominators, dout.o);
  const OutputGradients<T>& d = ratio.gradients();
  Scratch<T> dmatrices(plan.states * s.heads * s.key_dim * s.value_dim, device);
  Scratch<T> dnormalisers(s.normalise ? plan.states * s.heads * s.key_dim : 0, device);
  const States<const T> before(s, in.state, out.states, in.normaliser, out.normalisers);
  const States<T> dbefore(s, din.state, dmatrices.data(), din.normaliser, dnormalisers.data());
  const States<const T> dafter(s, dout.state, dmatrices.data(), dout.normaliser, dnormalisers.data());
  const TokenScratch<T> A(device, true, s, plan.longest), dA(device, true, s, plan.longest);
  const TokenScratch<T> N(device, delta, s, plan.longest), dN(device, delta, s, plan.longest);
  const TokenScratch<T> corrections(device, delta, s, s.key_dim), dwritten(device, delta, s, s.value_dim);
  const Grams<T> grams{A.rows(), dA.rows(), N.rows(), dN.rows()};
  const GateScratch<T> gate_scratch(device, gated, s);
  const GateTerms<T> terms = gate_scratch.terms();

  decayed_gram<T>(device, r, in.q, static_cast<T>(s.scale), grams.reads);
  reads_backward(device, r, d, dbefore);
  if (delta) {
    value_gradients(device, r, d, grams.reads, {}, dwritten.rows());
    decayed_gram<double>(device, r, in.k, T(1), grams.keys);
    solve_corrections(device, r, grams.keys, corrections.rows(), {});
    correct_states_backward(device, r, corrections.rows(), dafter, dbefore, dwritten.rows());
    solve_backward(device, r, grams.keys, dwritten.rows(), din.v, din.beta);
    gram_gradient(device, r, {din.v, nullptr, nullptr}, T(-1), true, grams.dkeys);
  } else {
    pass_states_backward(device, r, dafter, dbefore);
    value_gradients(device, r, d, grams.reads, dafter, din.v);
  }
  clear_unread(device, r, dbefore.matrices);
  if (s.normalise) clear_unread(device, r, dbefore.normalisers);
  gram_gradient(device, r, d, T(1), false, grams.dreads);
  if (r.by_channel()) block_pairs_backward(device, r, grams, din.q, din.k, din.log_decay);
  query_gradients(device, r, d, grams, before, terms, din.q);
  key_gradients(device, r, grams, dafter, terms, din.k);
  if (delta) correcting_key_gradients(device, r, grams, din.v, before, terms, din.k);
  if (gated) log_decay_gradients(device, r, grams, before, dafter, terms, din.log_decay);
}

namespace {

/// Tokens of a partial sum of the form that sees all keys.
constexpr int64_t sum_tokens = 256;

template <class T>
RecurrenceInputs<T> operands_of(const Heads<const T>& q, const Heads<const T>& k, const Heads<const T>& v) {
  RecurrenceInputs<T> in{};
  in.q = q;
  in.k = k;
  in.v = v;
  return in;
}

/// Each row a chunk: every query sees the initial state, and the final one has seen every key.
ChunkPlan whole_rows(int64_t batch, int64_t tokens) {
  return chunk_plan(batch, tokens, std::max<int64_t>(tokens, 1));
}

}  // namespace

template <class T>
void state_write_forward(Cuda device, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v,
                         const T* initial_state, const T* initial_normaliser, T* state, T* normaliser) {
  const ChunkPlan plan = chunk_plan(s.batch, s.keys, sum_tokens);
  const DeviceRecurrence<T> operands(device, s, plan, operands_of<T>({}, k, v));
  const ChunkedRecurrence<T>& r = operands.kernel_operands();
  Scratch<T> matrices(plan.states * s.heads * s.key_dim * s.value_dim, device);
  Scratch<T> normalisers(s.normalise ? plan.states * s.heads * s.key_dim : 0, device);
  const States<T> after(s, state, matrices.data(), normaliser, normalisers.data());
  write_states(device, r, after);
  pass_states(device, r, {s, initial_state, matrices.data(), initial_normaliser, normalisers.data()}, after);
}

template <class T>
void state_write_backward(Cuda device, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v,
                          const T* dstate, const T* dnormaliser, Heads<T> dk, Heads<T> dv) {
  const DeviceRecurrence<T> operands(device, s, whole_rows(s.batch, s.keys), operands_of<T>({}, k, v));
  const ChunkedRecurrence<T>& r = operands.kernel_operands();
  const States<const T> dafter(s, dstate, nullptr, dnormaliser, nullptr);
  value_gradients(device, r, {}, {}, dafter, dv);
  key_gradients(device, r, {}, dafter, {}, dk);
}

template <class T>
void state_read_forward(Cuda device, const RecurrenceShape& s, Heads<const T> q, const T* state,
                        const T* normaliser, Heads<T> o, T* denominators) {
  const DeviceRecurrence<T> operands(device, s, whole_rows(s.batch, s.queries), operands_of<T>(q, {}, {}));
  read_tokens(device, operands.kernel_operands(), {}, {s, state, nullptr, normaliser, nullptr}, o,
              denominators);
}

template <class T>
void state_read_backward(Cuda device, const RecurrenceShape& s, Heads<const T> q, const T* state,
                         const T* normaliser, Heads<const T> o, const T* denominators, Heads<const T> dout,
                         Heads<T> dq, T* dstate, T* dnormaliser) {
  const RatioScratch<T> ratio(device, s, o, denominators, dout);
  const DeviceRecurrence<T> rows(device, s, whole_rows(s.batch, s.queries), operands_of<T>(q, {}, {}));
  query_gradients(device, rows.kernel_operands(), ratio.gradients(), {},
                  {s, state, nullptr, normaliser, nullptr}, {}, dq);

  const ChunkPlan plan = chunk_plan(s.batch, s.queries, sum_tokens);
  const DeviceRecurrence<T> pieces(device, s, plan, operands_of<T>(q, {}, {}));
  Scratch<T> dmatrices(plan.states * s.heads * s.key_dim * s.value_dim, device);
  Scratch<T> dnormalisers(s.normalise ? plan.states * s.heads * s.key_dim : 0, device);
  const States<T> dbefore(s, dstate, dmatrices.data(), dnormaliser, dnormalisers.data());
  reads_backward(device, pieces.kernel_operands(), ratio.gradients(), dbefore);
  pass_states_backward(device, pieces.kernel_operands(),
                       {s, nullptr, dmatrices.data(), nullptr, dnormalisers.data()}, dbefore);
}

#define INSTANTIATE(T)                                                                                   \
  template void recurrence_forward<T>(Cuda, const RecurrenceShape&, const ChunkPlan&,                    \
                                      const RecurrenceInputs<T>&, const RecurrenceOutputs<T>&);          \
  template void recurrence_backward<T>(Cuda, const RecurrenceShape&, const ChunkPlan&,                   \
                                       const RecurrenceInputs<T>&, const RecurrenceOutputs<const T>&,    \
                                       const RecurrenceOutputGradients<T>&,                              \
                                       const RecurrenceInputGradients<T>&);                              \
  template void state_write_forward<T>(Cuda, const RecurrenceShape&, Heads<const T>, Heads<const T>,     \
                                       const T*, const T*, T*, T*);                                      \
  template void state_write_backward<T>(Cuda, const RecurrenceShape&, Heads<const T>, Heads<const T>,    \
                                        const T*, const T*, Heads<T>, Heads<T>);                         \
  template void state_read_forward<T>(Cuda, const RecurrenceShape&, Heads<const T>, const T*, const T*,  \
                                      Heads<T>, T*);                                                     \
  template void state_read_backward<T>(Cuda, const RecurrenceShape&, Heads<const T>, const T*, const T*, \
                                       Heads<const T>, const T*, Heads<const T>, Heads<T>, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
