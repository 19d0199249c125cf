// The form of the recurrence in which every query sees all keys: one sum, then one product. A task is a block
// of tokens of one head.
#include <algorithm>

#include "tensor/allocator.h"
#include "tensor/cpu/chunks.h"
#include "tensor/cpu/tiles.h"
#include "tensor/kernels/recurrence.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Tokens of a task, and of a partial sum, of the form that sees all keys.
constexpr int64_t block_tokens = 256;

/// Calls body(chunk, head) for blocks of all tokens, in parallel.
template <class Body>
void for_each_block(int64_t batch, int64_t tokens, int64_t heads, const Body& body) {
  const ChunkPlan plan = chunk_plan(batch, tokens, block_tokens);
  parallel_tasks(static_cast<int64_t>(plan.chunks.size()) * heads,
                 [&](int64_t task) { body(plan.chunks[task / heads], task % heads); });
}

/// total = initial + a sum over all tokens of a row; [B, H, size]. part_of(chunk, head, part) writes a
/// block's part of the sum. initial may be null: zero.
template <class T, class PartOf>
void sum_over_tokens(const RecurrenceShape& s, int64_t tokens, int64_t size, const T* initial, T* total,
                     const PartOf& part_of) {
  const ChunkPlan plan = chunk_plan(s.batch, tokens, block_tokens);
  Scratch<T> between(plan.states * s.heads * size);
  const StateAfter<T> after{plan, s.heads, size, between.data(), total};
  parallel_tasks(static_cast<int64_t>(plan.chunks.size()) * s.heads, [&](int64_t task) {
    const int64_t c = task / s.heads, head = task % s.heads;
    part_of(plan.chunks[c], head, after.at(c, head));
  });
  const StateBefore<const T> before{plan, s.heads, size, initial, between.data()};
  scan_chunks(plan, s.heads, false,
              [&](int64_t c, int64_t head) { carry({}, before.at(c, head), after.at(c, head), size); });
}

}  // namespace

template <class T>
void state_write_forward(Cpu, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v,
                         const T* initial_state, const T* initial_normaliser, T* state, T* normaliser) {
  const int64_t group = s.heads / s.key_heads;
  sum_over_tokens(s, s.keys, s.key_dim * s.value_dim, initial_state, state,
                  [&](const Chunk& chunk, int64_t head, T* part) {
                    multiply_at<T>(s.key_dim, s.value_dim, chunk.length, 1, rows_of(k, chunk, head / group),
                                   rows_of(v, chunk, head), 0, {part, s.value_dim});
                  });
  if (!s.normalise) return;
  sum_over_tokens(s, s.keys, s.key_dim, initial_normaliser, normaliser,
                  [&](const Chunk& chunk, int64_t head, T* part) {
                    std::fill_n(part, s.key_dim, T(0));
                    const Rows<const T> keys = rows_of(k, chunk, head / group);
                    for (int64_t j = 0; j < chunk.length; ++j) add_scaled<T>(s.key_dim, 1, keys[j], part);
                  });
}

template <class T>
void state_write_backward(Cpu, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v, const T* dstate,
                          const T* dnormaliser, Heads<T> dk, Heads<T> dv) {
  const int64_t group = s.heads / s.key_heads;
  for_each_block(s.batch, s.keys, s.key_heads, [&](const Chunk& chunk, int64_t key_head) {
    const Rows<T> dk_rows = rows_of(dk, chunk, key_head);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int64_t sequence = chunk.row * s.heads + head;
      const Rows<const T> ds{dstate + sequence * s.key_dim * s.value_dim, s.value_dim};
      multiply<T>(chunk.length, s.value_dim, s.key_dim, 1, rows_of(k, chunk, key_head), ds, 0,
                  rows_of(dv, chunk, head));
      multiply_bt<T>(chunk.length, s.key_dim, s.value_dim, 1, rows_of(v, chunk, head), ds,
                     head == key_head * group ? 0 : 1, dk_rows);
      if (dnormaliser == nullptr) continue;
      for (int64_t j = 0; j < chunk.length; ++j) {
        add_scaled<T>(s.key_dim, 1, dnormaliser + sequence * s.key_dim, dk_rows[j]);
      }
    }
  });
}

template <class T>
void state_read_forward(Cpu, const RecurrenceShape& s, Heads<const T> q, const T* state, const T* normaliser,
                        Heads<T> o, T* denominators) {
  const int64_t group = s.heads / s.key_heads;
  for_each_block(s.batch, s.queries, s.heads, [&](const Chunk& chunk, int64_t head) {
    const int64_t sequence = chunk.row * s.heads + head;
    const Rows<const T> q_rows = rows_of(q, chunk, head / group);
    const Rows<T> o_rows = rows_of(o, chunk, head);
    multiply<T>(chunk.length, s.value_dim, s.key_dim, static_cast<T>(s.scale), q_rows,
                {state + sequence * s.key_dim * s.value_dim, s.value_dim}, 0, o_rows);
    if (!s.normalise) return;
    const Rows<T> denominator = scalars_of(denominators, s, chunk, head);
    for (int64_t i = 0; i < chunk.length; ++i) {
      const T mass = dot<T>(s.key_dim, q_rows[i], normaliser + sequence * s.key_dim);
      *denominator[i] = static_cast<T>(s.scale) * mass + static_cast<T>(s.eps);
      for (int64_t e = 0; e < s.value_dim; ++e) o_rows[i][e] /= *denominator[i];
    }
  });
}

template <class T>
void state_read_backward(Cpu, const RecurrenceShape& s, Heads<const T> q, const T* state, const T* normaliser,
                         Heads<const T> o, const T* denominators, Heads<const T> dout, Heads<T> dq, T* dstate,
                         T* dnormaliser) {
  const int64_t group = s.heads / s.key_heads;
  const int64_t outputs = s.batch * s.queries * s.heads;
  const T scale = static_cast<T>(s.scale);
  Scratch<T> numerators(s.normalise ? outputs * s.value_dim : 0);
  Scratch<T> dden(s.normalise ? outputs : 0);
  Heads<const T> dnum = dout;
  if (s.normalise) {
    const Heads<T> target{numerators.data(), s.queries * s.heads * s.value_dim, s.heads * s.value_dim,
                          s.value_dim};
    for_each_block(s.batch, s.queries, s.heads, [&](const Chunk& chunk, int64_t head) {
      ratio_backward<T>(chunk.length, s.value_dim, rows_of(o, chunk, head),
                        scalars_of(denominators, s, chunk, head), rows_of(dout, chunk, head),
                        rows_of(target, chunk, head), scalars_of(dden.data(), s, chunk, head));
    });
    dnum = target;
  }
  for_each_block(s.batch, s.queries, s.key_heads, [&](const Chunk& chunk, int64_t key_head) {
    const Rows<T> dq_rows = rows_of(dq, chunk, key_head);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int64_t sequence = chunk.row * s.heads + head;
      multiply_bt<T>(chunk.length, s.key_dim, s.value_dim, scale, rows_of(dnum, chunk, head),
                     {state + sequence * s.key_dim * s.value_dim, s.value_dim},
                     head == key_head * group ? 0 : 1, dq_rows);
      if (!s.normalise) continue;
      const Rows<const T> weight = scalars_of(dden.data(), s, chunk, head);
      for (int64_t i = 0; i < chunk.length; ++i) {
        add_scaled(s.key_dim, scale * *weight[i], normaliser + sequence * s.key_dim, dq_rows[i]);
      }
    }
  });
  const T* zero = nullptr;
  sum_over_tokens(
      s, s.queries, s.key_dim * s.value_dim, zero, dstate, [&](const Chunk& chunk, int64_t head, T* part) {
        multiply_at<T>(s.key_dim, s.value_dim, chunk.length, scale, rows_of(q, chunk, head / group),
                       rows_of(dnum, chunk, head), 0, {part, s.value_dim});
      });
  if (!s.normalise) return;
  sum_over_tokens(s, s.queries, s.key_dim, zero, dnormaliser, [&](const Chunk& chunk, int64_t head, T* part) {
    std::fill_n(part, s.key_dim, T(0));
    const Rows<const T> q_rows = rows_of(q, chunk, head / group);
    const Rows<const T> weight = scalars_of(dden.data(), s, chunk, head);
    for (int64_t i = 0; i < chunk.length; ++i) add_scaled(s.key_dim, scale * *weight[i], q_rows[i], part);
  });
}

#define INSTANTIATE(T)                                                                                  \
  template void state_write_forward<T>(Cpu, const RecurrenceShape&, Heads<const T>, Heads<const T>,     \
                                       const T*, const T*, T*, T*);                                     \
  template void state_write_backward<T>(Cpu, const RecurrenceShape&, Heads<const T>, Heads<const T>,    \
                                        const T*, const T*, Heads<T>, Heads<T>);                        \
  template void state_read_forward<T>(Cpu, const RecurrenceShape&, Heads<const T>, const T*, const T*,  \
                                      Heads<T>, T*);                                                    \
  template void state_read_backward<T>(Cpu, const RecurrenceShape&, Heads<const T>, const T*, const T*, \
                                       Heads<const T>, const T*, Heads<const T>, Heads<T>, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
