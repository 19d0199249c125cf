#include "autograd/ops/recurrence.h"

#include "autograd/documents.h"
#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/recurrence.h"

namespace mixgrad {

namespace {

/// An operand whose heads lie side by side in each token; a copy if they don't.
Tensor addressable(const Tensor& x) {
  return x.stride(3) == 1 && x.stride(2) == x.shape()[3] ? x : x.contiguous();
}

/// A gradient, or zeros where none arrived.
Tensor or_zeros(const Tensor& gradient, const Shape& shape, const Tensor& like) {
  return gradient.defined() ? gradient : Tensor::zeros(shape, like.dtype(), like.device());
}

Shape state_shape(const RecurrenceShape& s) { return {s.batch, s.heads, s.key_dim, s.value_dim}; }
Shape normaliser_shape(const RecurrenceShape& s) { return {s.batch, s.heads, s.key_dim}; }
Shape output_shape(const RecurrenceShape& s) { return {s.batch, s.queries, s.heads, s.value_dim}; }

template <class T>
Heads<const T> heads_or_null(const Tensor& x) {
  return x.defined() ? heads<T>(x) : Heads<const T>{};
}

/// The causal form, chunk by chunk. Its equations are in tensor/kernels/recurrence.h. Gradients, for one head
/// and chunk, with G and Gz those of S and z after the chunk, D_ij = e^{b_i - b_j}, (.) elementwise, and dnum
/// = do / den, dden = -(do . o) / den (or dnum = do, dden = 0 where nothing is divided):
///   dA = lower triangle of dnum V^T + dden 1^T
///   dV = A^T dnum + (K e^{b_C - b}) G
///   dQ = scale (dA (.) D) K + scale e^b (dnum S^T + dden z)
///   dK = scale (dA (.) D)^T Q + e^{b_C - b} (V G^T + Gz)
///   dS = e^{b_C} G + scale (Q e^b)^T dnum, dz = e^{b_C} Gz + scale (Q e^b)^T dden
/// and dg_t collects the gradients of all exponents that g_t is part of.
///
/// The delta rule has U = diag(beta) R in the place of V, with (I + N diag(beta)) R = V - (K e^b) S. Then dU
/// is what dV is above, and
///   Y = (I + diag(beta) N)^-T dU, dV = diag(beta) Y, dbeta_t = Y_t . R_t
///   dN = -(strictly lower triangle of dV U^T), of which K gets both sides, (dN (.) D + its transpose) K
///   dK -= e^b (dV S^T), dS -= (K e^b)^T dV
/// Saved: the inputs but the delta rule's v, S and z between chunks, R, o and the denominators where divided.
struct CausalRecurrence {
  static constexpr std::string_view name = "recurrence";
  RecurrenceShape shape;
  ChunkPlan plan;
  bool final_state;

  Tensors forward(Context& context, const Tensor& q_given, const Tensor& k_given, const Tensor& v_given,
                  const Tensor& log_decay, const Tensor& beta, const Tensor& initial_state,
                  const Tensor& initial_normaliser) const {
    const RecurrenceShape& s = shape;
    const Tensor q = addressable(q_given), k = addressable(k_given), v = addressable(v_given);
    Tensor o = empty_if(true, output_shape(s), q);
    Tensor state = empty_if(final_state, state_shape(s), q);
    Tensor normaliser = empty_if(final_state && s.normalise, normaliser_shape(s), q);
    Tensor denominators = empty_if(s.normalise, {s.batch, s.queries, s.heads}, q);
    Tensor states = empty_if(true, {plan.states, s.heads, s.key_dim, s.value_dim}, q);
    Tensor normalisers = empty_if(s.normalise, {plan.states, s.heads, s.key_dim}, q);
    Tensor residuals = empty_if(beta.defined(), output_shape(s), q);
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      const RecurrenceInputs<T> in{heads<T>(q),
                                   heads<T>(k),
                                   heads<T>(v),
                                   log_decay.data_or_null<T>(),
                                   beta.data_or_null<T>(),
                                   initial_state.data_or_null<T>(),
                                   initial_normaliser.data_or_null<T>()};
      const RecurrenceOutputs<T> out{heads<T>(o),
                                     state.data_or_null<T>(),
                                     normaliser.data_or_null<T>(),
                                     denominators.data_or_null<T>(),
                                     states.data<T>(),
                                     normalisers.data_or_null<T>(),
                                     residuals.defined() ? heads<T>(residuals) : Heads<T>{}};
      recurrence_forward<T>(device, s, plan, in, out);
    });
    const Tensor saved_v = beta.defined() ? Tensor() : v, saved_o = s.normalise ? o : Tensor();
    for (const Tensor& tensor : {q, k, saved_v, log_decay, beta, initial_state, initial_normaliser, saved_o,
                                 denominators, states, normalisers, residuals}) {
      context.save(tensor);
    }
    Tensors outputs = {o};
    if (state.defined()) outputs.push_back(state);
    if (normaliser.defined()) outputs.push_back(normaliser);
    return outputs;
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const RecurrenceShape& s = shape;
    const Tensor &q = context.saved(0), &k = context.saved(1), &v = context.saved(2);
    const Tensor &log_decay = context.saved(3), &beta = context.saved(4), &initial_state = context.saved(5);
    const Tensor &initial_normaliser = context.saved(6), &o = context.saved(7);
    const Tensor &denominators = context.saved(8), &states = context.saved(9);
    const Tensor &normalisers = context.saved(10), &residuals = context.saved(11);

    const Tensor dout = or_zeros(gradients[0], output_shape(s), q);
    Tensor dstate = final_state ? gradients[1] : Tensor();
    Tensor dnormaliser = final_state && s.normalise ? gradients[2] : Tensor();
    if (s.normalise && (dstate.defined() || dnormaliser.defined())) {
      dstate = or_zeros(dstate, state_shape(s), q);
      dnormaliser = or_zeros(dnormaliser, normaliser_shape(s), q);
    }
    const bool initial_wanted = context.wants(5) || context.wants(6);
    Tensor dq = empty_if(true, q.shape(), q);
    Tensor dk = empty_if(true, k.shape(), q);
    Tensor dv = empty_if(true, output_shape(s), q);
    Tensor dlog_decay = empty_if(log_decay.defined(), log_decay.shape(), q);
    Tensor dbeta = empty_if(beta.defined(), beta.shape(), q);
    Tensor dinitial_state = empty_if(initial_wanted, state_shape(s), q);
    Tensor dinitial_normaliser = empty_if(initial_wanted && s.normalise, normaliser_shape(s), q);
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      const RecurrenceInputs<T> in{heads<T>(q),
                                   heads<T>(k),
                                   heads_or_null<T>(v),
                                   log_decay.data_or_null<T>(),
                                   beta.data_or_null<T>(),
                                   initial_state.data_or_null<T>(),
                                   initial_normaliser.data_or_null<T>()};
      const RecurrenceOutputs<const T> out{heads_or_null<T>(o),
                                           nullptr,
                                           nullptr,
                                           denominators.data_or_null<T>(),
                                           states.data<T>(),
                                           normalisers.data_or_null<T>(),
                                           heads_or_null<T>(residuals)};
      recurrence_backward<T>(
          device, s, plan, in, out, {heads<T>(dout), dstate.data_or_null<T>(), dnormaliser.data_or_null<T>()},
          {heads<T>(dq), heads<T>(dk), heads<T>(dv), dlog_decay.data_or_null<T>(), dbeta.data_or_null<T>(),
           dinitial_state.data_or_null<T>(), dinitial_normaliser.data_or_null<T>()});
    });
    return {dq, dk, dv, dlog_decay, dbeta, dinitial_state, dinitial_normaliser};
  }
};

/// S = S0 + sum over t of k_t^T v_t and z = z0 + sum of k_t. dk_t = dS v_t + dz, dv_t = dS^T k_t. Saved: k,
/// v.
struct StateWrite {
  static constexpr std::string_view name = "state_write";
  RecurrenceShape shape;

  Tensors forward(Context& context, const Tensor& k_given, const Tensor& v_given, const Tensor& initial_state,
                  const Tensor& initial_normaliser) const {
    const Tensor k = addressable(k_given), v = addressable(v_given);
    Tensor state = empty_if(true, state_shape(shape), k);
    Tensor normaliser = empty_if(shape.normalise, normaliser_shape(shape), k);
    dispatch(k, [&](auto device, auto type) {
      using T = decltype(type);
      state_write_forward<T>(device, shape, heads<T>(k), heads<T>(v), initial_state.data_or_null<T>(),
                             initial_normaliser.data_or_null<T>(), state.data<T>(),
                             normaliser.data_or_null<T>());
    });
    context.save(k);
    context.save(v);
    return shape.normalise ? Tensors{state, normaliser} : Tensors{state};
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const Tensor &k = context.saved(0), &v = context.saved(1);
    const Tensor dstate = or_zeros(gradients[0], state_shape(shape), k);
    const Tensor dnormaliser =
        shape.normalise ? or_zeros(gradients[1], normaliser_shape(shape), k) : Tensor();
    Tensor dk = empty_if(true, k.shape(), k);
    Tensor dv = empty_if(true, v.shape(), v);
    dispatch(k, [&](auto device, auto type) {
      using T = decltype(type);
      state_write_backward<T>(device, shape, heads<T>(k), heads<T>(v), dstate.data<T>(),
                              dnormaliser.data_or_null<T>(), heads<T>(dk), heads<T>(dv));
    });
    return {dk, dv, dstate, dnormaliser};
  }
};

/// num_t = scale q_t S, den_t = scale q_t . z + eps, o_t = num_t / den_t (or num_t where nothing is divided).
/// dq_t = scale (S dnum_t + dden_t z), dS = scale sum over t of q_t^T dnum_t, dz = scale sum of dden_t q_t.
/// Saved: the inputs, o and den where divided.
struct StateRead {
  static constexpr std::string_view name = "state_read";
  RecurrenceShape shape;

  Tensor forward(Context& context, const Tensor& q_given, const Tensor& state,
                 const Tensor& normaliser) const {
    const Tensor q = addressable(q_given);
    Tensor o = empty_if(true, output_shape(shape), q);
    Tensor denominators = empty_if(shape.normalise, {shape.batch, shape.queries, shape.heads}, q);
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      state_read_forward<T>(device, shape, heads<T>(q), state.data<T>(), normaliser.data_or_null<T>(),
                            heads<T>(o), denominators.data_or_null<T>());
    });
    for (const Tensor& tensor : {q, state, normaliser, shape.normalise ? o : Tensor(), denominators}) {
      context.save(tensor);
    }
    return o;
  }

  Tensors backward(const Context& context, const Tensor& dout) const {
    const Tensor &q = context.saved(0), &state = context.saved(1), &normaliser = context.saved(2);
    const Tensor &o = context.saved(3), &denominators = context.saved(4);
    Tensor dq = empty_if(true, q.shape(), q);
    Tensor dstate = empty_if(true, state_shape(shape), q);
    Tensor dnormaliser = empty_if(shape.normalise, normaliser_shape(shape), q);
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      state_read_backward<T>(device, shape, heads<T>(q), state.data<T>(), normaliser.data_or_null<T>(),
                             heads_or_null<T>(o), denominators.data_or_null<T>(), heads<T>(dout),
                             heads<T>(dq), dstate.data<T>(), dnormaliser.data_or_null<T>());
    });
    return {dq, dstate, dnormaliser};
  }
};

RecurrenceShape checked_shape(const Shape& q, const Shape& k, const Shape& v,
                              const RecurrenceOptions& options) {
  check(q.rank() == 4 && k.rank() == 4 && v.rank() == 4, "[recurrence] q ", q, ", k ", k, ", v ", v,
        ": they must be [B, T, Hk, dk], [B, Tk, Hk, dk] and [B, Tk, H, dv]");
  check(q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && q[2] == k[2] && q[3] == k[3], "[recurrence] q ", q,
        ", k ", k, ", v ", v,
        " do not go together: they must be [B, T, Hk, dk], [B, Tk, Hk, dk] and [B, Tk, H, dv]");
  check(k[2] > 0 && v[2] % k[2] == 0, "[recurrence] ", k[2], " key heads for ", v[2],
        " value heads: they must divide them");
  check(!options.causal || q[1] == k[1], "[recurrence] ", q[1], " queries and ", k[1],
        " keys: the causal form needs as many of both");
  check_usage(options.chunk > 0, "[recurrence] chunk ", options.chunk, "; allowed: 1 or more");
  check_documents("recurrence", options.documents, q[0], q[1]);
  return {.batch = q[0],
          .queries = q[1],
          .keys = k[1],
          .heads = v[2],
          .key_heads = k[2],
          .key_dim = k[3],
          .value_dim = v[3],
          .scale = options.scale,
          .normalise = options.normalise,
          .eps = options.eps};
}

/// Checks the shape of a gate, and lets the kernels know how many channels it has.
void check_gate(const Variable& log_decay, RecurrenceShape& s) {
  if (!log_decay.defined()) return;
  const Shape by_head{s.batch, s.keys, s.heads}, by_channel{s.batch, s.keys, s.heads, s.key_dim};
  check(log_decay.shape() == by_head || log_decay.shape() == by_channel, "[recurrence] log_decay ",
        log_decay.shape(), "; allowed: ", by_head, " or ", by_channel);
  if (log_decay.shape() == by_head) return;
  check(s.key_dim > 0, "[recurrence] log_decay for each of 0 key channels; allowed: ", by_head);
  s.gate_channels = s.key_dim;
}

void check_optional(const char* name, const Variable& given, const Shape& wanted) {
  check(!given.defined() || given.shape() == wanted, "[recurrence] ", name, " ", given.shape(),
        "; allowed: ", wanted);
}

/// beta undefined: the additive recurrence.
Recurrence causal_recurrence(const RecurrenceShape& shape, const RecurrenceOptions& options,
                             const Variable& q, const Variable& k, const Variable& v,
                             const Variable& log_decay, const Variable& beta, const Variable& initial_state,
                             const Variable& initial_normaliser) {
  const Tensor documents = options.documents.to(Device{});
  const ChunkPlan plan =
      chunk_plan(shape.batch, shape.keys, options.chunk, documents.data_or_null<int32_t>());
  const auto outputs = apply(CausalRecurrence{shape, plan, options.final_state}, q, k, v, log_decay, beta,
                             initial_state, initial_normaliser);
  return {.output = outputs[0],
          .state = options.final_state ? outputs[1] : Variable(),
          .normaliser = options.final_state && options.normalise ? outputs[2] : Variable()};
}

}  // namespace

Recurrence recurrence(const Variable& q, const Variable& k, const Variable& v,
                      const RecurrenceOptions& options, const Variable& log_decay,
                      const Variable& initial_state, const Variable& initial_normaliser) {
  RecurrenceShape shape = checked_shape(q.shape(), k.shape(), v.shape(), options);
  check_gate(log_decay, shape);
  check_optional("initial_state", initial_state, state_shape(shape));
  check_optional("initial_normaliser", initial_normaliser, normaliser_shape(shape));
  check(initial_normaliser.defined() == (initial_state.defined() && options.normalise),
        "[recurrence] a normalised recurrence takes an initial normaliser with its initial state, and no "
        "other does");

  if (options.causal) {
    return causal_recurrence(shape, options, q, k, v, log_decay, {}, initial_state, initial_normaliser);
  }
  check(!log_decay.defined(), "[recurrence] log_decay is for the causal form only");
  check(!options.documents.defined(), "[recurrence] documents are for the causal form only");
  const auto written = apply(StateWrite{shape}, k, v, initial_state, initial_normaliser);
  const Variable normaliser = options.normalise ? written[1] : Variable();
  return {.output = apply(StateRead{shape}, q, written[0], normaliser),
          .state = options.final_state ? written[0] : Variable(),
          .normaliser = options.final_state ? normaliser : Variable()};
}

Recurrence delta_rule(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                      const DeltaRuleOptions& options, const Variable& log_decay,
                      const Variable& initial_state) {
  const RecurrenceOptions causal{.scale = options.scale,
                                 .chunk = options.chunk,
                                 .final_state = options.final_state,
                                 .documents = options.documents};
  RecurrenceShape shape = checked_shape(q.shape(), k.shape(), v.shape(), causal);
  const Shape gate{shape.batch, shape.keys, shape.heads};
  check(beta.defined(), "[delta_rule] beta is missing; allowed: ", gate);
  check(beta.shape() == gate, "[delta_rule] beta ", beta.shape(), "; allowed: ", gate);
  check_gate(log_decay, shape);
  check_optional("initial_state", initial_state, state_shape(shape));
  return causal_recurrence(shape, causal, q, k, v, log_decay, beta, initial_state, {});
}

namespace {

/// A case whose inputs are q, k, v and, as they are there, beta, log_decay, state and normaliser.
struct CaseParts {
  bool delta = false;
  bool gate = false;
  bool channel_gate = false;
  bool state = false;
  RecurrenceOptions options;
  int64_t batch = 2, queries = 7, keys = 7, heads = 2, key_heads = 2, key_dim = 3, value_dim = 2;
};

GradCase recurrence_case(std::string name, CaseInputs& inputs, const CaseParts& parts) {
  const bool normalise = parts.options.normalise;
  const Shape q{parts.batch, parts.queries, parts.key_heads, parts.key_dim};
  const Shape k{parts.batch, parts.keys, parts.key_heads, parts.key_dim};
  const Shape v{parts.batch, parts.keys, parts.heads, parts.value_dim};
  // Where they are divided by, sums of q . k must stay away from 0.
  const auto features = [&](std::string input, const Shape& shape) {
    return normalise ? inputs.uniform(std::move(input), shape, 0.2, 1)
                     : inputs.normal(std::move(input), shape);
  };
  GradCase result{std::move(name), {features("q", q), features("k", k), inputs.normal("v", v)}, {}};
  if (parts.delta)
    result.inputs.push_back(inputs.uniform("beta", {parts.batch, parts.keys, parts.heads}, 0, 1));
  if (parts.gate) {
    result.inputs.push_back(inputs.uniform("log_decay", {parts.batch, parts.keys, parts.heads}, -2, -0.1));
  }
  if (parts.channel_gate) {
    const Shape channels{parts.batch, parts.keys, parts.heads, parts.key_dim};
    result.inputs.push_back(inputs.uniform("log_decay", channels, -2, -0.1));
  }
  if (parts.state) {
    const Shape state{parts.batch, parts.heads, parts.key_dim, parts.value_dim};
    result.inputs.push_back(inputs.normal("initial_state", state));
    if (normalise) result.inputs.push_back(inputs.uniform("initial_normaliser", state.drop_last(), 0.2, 1));
  }
  result.function = [parts, normalise](const std::vector<Variable>& in) {
    size_t next = 3;
    const Variable beta = parts.delta ? in[next++] : Variable();
    const Variable log_decay = parts.gate || parts.channel_gate ? in[next++] : Variable();
    const Variable state = parts.state ? in[next++] : Variable();
    const Variable normaliser = parts.state && normalise ? in[next++] : Variable();
    const DeltaRuleOptions delta{.scale = parts.options.scale,
                                 .chunk = parts.options.chunk,
                                 .final_state = parts.options.final_state,
                                 .documents = parts.options.documents};
    const Recurrence r = parts.delta
                             ? delta_rule(in[0], in[1], in[2], beta, delta, log_decay, state)
                             : recurrence(in[0], in[1], in[2], parts.options, log_decay, state, normaliser);
    std::vector<Variable> outputs = {r.output};
    if (r.state.defined()) outputs.push_back(r.state);
    if (r.normaliser.defined()) outputs.push_back(r.normaliser);
    return outputs;
  };
  return result;
}

}  // namespace

std::vector<GradCase> recurrence_cases(CaseInputs& inputs) {
  const RecurrenceOptions plain{.scale = 0.5, .chunk = 4};
  const RecurrenceOptions normalised{.normalise = true, .eps = 1e-3, .scale = 0.5, .chunk = 4};
  RecurrenceOptions output_only = normalised;
  output_only.final_state = false;
  RecurrenceOptions packed = plain, packed_normalised = normalised;
  packed.documents = Tensor::from(std::vector<int32_t>{0, 0, 1, 1, 0, 0, 0, 0, 0,   // from the initial state
                                                       1, 0, 0, 0, 0, 0, 1, 0, 0},  // from zero
                                  {2, 9});
  packed_normalised.documents = packed.documents;
  RecurrenceOptions all_keys = plain;
  all_keys.causal = false;
  RecurrenceOptions all_keys_normalised = normalised;
  all_keys_normalised.causal = false;
  const auto make = [&](std::string name, const CaseParts& parts) {
    return recurrence_case((parts.delta ? "delta rule, " : "recurrence, ") + std::move(name), inputs, parts);
  };
  return {
      make("plain", {.options = plain}),
      make("with states in and out", {.state = true, .options = plain}),
      make("gated", {.gate = true, .options = plain}),
      make("gated with states", {.gate = true, .state = true, .options = plain}),
      make("gated, chunks of one token",
           {.gate = true, .state = true, .options = {.chunk = 1}, .queries = 3, .keys = 3}),
      make("normalised, output alone", {.options = output_only}),
      make("normalised with states", {.state = true, .options = normalised}),
      make("normalised, gated, with states, grouped heads", {.gate = true,
                                                             .state = true,
                                                             .options = normalised,
                                                             .batch = 1,
                                                             .queries = 9,
                                                             .keys = 9,
                                                             .heads = 4}),
      make("plain, grouped heads",
           {.options = plain, .heads = 4, .key_heads = 1, .key_dim = 2, .value_dim = 3}),
      make("one token", {.gate = true, .state = true, .options = normalised, .queries = 1, .keys = 1}),
      make("more rows than a block of the Gram matrix", {.gate = true,
                                                         .state = true,
                                                         .options = {.chunk = 18},
                                                         .batch = 1,
                                                         .queries = 20,
                                                         .keys = 20,
                                                         .heads = 1,
                                                         .key_heads = 1}),
      make("documents, normalised, gated, with states",
           {.gate = true, .state = true, .options = packed_normalised, .queries = 9, .keys = 9}),
      make("documents, gate for each channel",
           {.channel_gate = true, .options = packed, .queries = 9, .keys = 9}),
      make("documents, gated, with states",
           {.delta = true, .gate = true, .state = true, .options = packed, .queries = 9, .keys = 9}),
      make("all keys", {.options = all_keys}),
      make("all keys of another sequence with states",
           {.state = true, .options = all_keys, .queries = 3, .keys = 5, .heads = 4}),
      make("all keys, normalised", {.options = all_keys_normalised, .queries = 5, .keys = 3}),
      make("all keys, normalised, with states, grouped heads",
           {.state = true, .options = all_keys_normalised, .queries = 3, .keys = 4, .heads = 4}),
      make("gate for each channel", {.channel_gate = true, .options = plain}),
      make("gate for each channel, normalised, with states, grouped heads",
           {.channel_gate = true, .state = true, .options = normalised, .batch = 1, .heads = 4}),
      make("gate for each channel, more rows than two blocks of the Gram matrix", {.channel_gate = true,
                                                                                   .state = true,
                                                                                   .options = {.chunk = 35},
                                                                                   .batch = 1,
                                                                                   .queries = 37,
                                                                                   .keys = 37,
                                                                                   .heads = 1,
                                                                                   .key_heads = 1}),
      make("gate for each channel, with states, grouped heads",
           {.delta = true, .channel_gate = true, .state = true, .options = plain, .batch = 1, .heads = 4}),
      make("gate for each channel, more rows than two blocks of the Gram matrix",
           {.delta = true,
            .channel_gate = true,
            .state = true,
            .options = {.scale = 0.5, .chunk = 35},
            .batch = 1,
            .queries = 37,
            .keys = 37,
            .heads = 1,
            .key_heads = 1}),
      make("plain", {.delta = true, .options = plain}),
      make("output alone", {.delta = true, .options = {.chunk = 3, .final_state = false}}),
      make("with states in and out", {.delta = true, .state = true, .options = plain}),
      make("gated", {.delta = true, .gate = true, .options = plain}),
      make("gated, with states, grouped heads",
           {.delta = true, .gate = true, .state = true, .options = plain, .batch = 1, .heads = 4}),
      make("one token",
           {.delta = true, .gate = true, .state = true, .options = plain, .queries = 1, .keys = 1}),
      make("more rows than a block of the Gram matrix", {.delta = true,
                                                         .gate = true,
                                                         .state = true,
                                                         .options = {.scale = 0.5, .chunk = 34},
                                                         .batch = 1,
                                                         .queries = 37,
                                                         .keys = 37,
                                                         .heads = 1,
                                                         .key_heads = 1}),
  };
}

}  // namespace mixgrad
