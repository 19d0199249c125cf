#include "autograd/ops/attention.h"

#include <cmath>

#include "autograd/documents.h"
#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/attention.h"

namespace mixgrad {

namespace {

/// o = softmax(scale q k^T + decays, over what is visible) v; formulas of the gradients in
/// tensor/kernels/attention.h. Saved: q, k, v, o, each row's largest score and sum of exponentials, and the
/// running sums of log decays.
struct Attention {
  static constexpr std::string_view name = "attention";
  AttentionShape shape;
  Tensor key_mask;
  Tensor begins;  // int64 [B, Tk], where each token's document begins, or undefined

  /// The shape with what it points to.
  AttentionShape with(const Tensor& decay) const {
    AttentionShape s = shape;
    s.begins = begins.data_or_null<int64_t>();
    s.decay = decay.data_or_null<double>();
    return s;
  }

  Tensor forward(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& log_decay) const {
    Tensor o =
        Tensor::empty({shape.batch, shape.queries, shape.heads, shape.value_dim}, q.dtype(), q.device());
    Tensor maximum = Tensor::empty({shape.batch, shape.heads, shape.queries}, q.dtype(), q.device());
    Tensor sum = empty_like(maximum);
    Tensor decay;
    if (log_decay.defined()) {
      decay = Tensor::empty({shape.batch, shape.heads, shape.keys}, DType::float64, q.device());
    }
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      if (decay.defined()) {
        attention_decay_forward(device, shape.batch, shape.keys, shape.heads, log_decay.data<T>(),
                                begins.data_or_null<int64_t>(), decay.data<double>());
      }
      attention_forward(device, with(decay), heads<T>(q), heads<T>(k), heads<T>(v),
                        key_mask.data_or_null<int32_t>(), heads<T>(o), maximum.data<T>(), sum.data<T>());
    });
    for (const Tensor& tensor : {q, k, v, o, maximum, sum, decay}) context.save(tensor);
    return o;
  }

  Tensors backward(const Context& context, const Tensor& d_o) const {
    const Tensor &q = context.saved(0), &k = context.saved(1), &v = context.saved(2), &o = context.saved(3);
    const Tensor &maximum = context.saved(4), &sum = context.saved(5), &decay = context.saved(6);
    Tensor dq = empty_like(q), dk = empty_like(k), dv = empty_like(v);
    Tensor score_sums, dlog_decay;
    if (decay.defined()) {
      score_sums = empty_like(decay);
      dlog_decay = Tensor::empty({shape.batch, shape.keys, shape.heads}, q.dtype(), q.device());
    }
    dispatch(q, [&](auto device, auto type) {
      using T = decltype(type);
      attention_backward(device, with(decay), heads<T>(q), heads<T>(k), heads<T>(v),
                         key_mask.data_or_null<int32_t>(), heads<T>(o), maximum.data<T>(), sum.data<T>(),
                         heads<T>(d_o), heads<T>(dq), heads<T>(dk), heads<T>(dv),
                         score_sums.data_or_null<double>());
      if (!decay.defined()) return;
      attention_decay_backward(device, shape.batch, shape.keys, shape.heads, score_sums.data<double>(),
                               begins.data_or_null<int64_t>(), dlog_decay.data<T>());
    });
    return {dq, dk, dv, dlog_decay};
  }
};

/// Where each token's document begins: int64 [B, Tk], undefined where all are of one.
Tensor begins_of(const AttentionShape& s, const Tensor& given, Device where) {
  if (!given.defined()) return {};
  const Tensor documents = given.contiguous().to(where);
  Tensor begins = Tensor::empty({s.batch, s.keys}, DType::int64, documents.device());
  with_device(documents.device(), [&](auto device) {
    document_begins(device, s.batch, s.keys, documents.data<int32_t>(), begins.data<int64_t>());
  });
  return begins;
}

void check_decay(const AttentionShape& s, const Variable& log_decay) {
  if (!log_decay.defined()) return;
  const Shape wanted{s.batch, s.keys, s.heads};
  check(log_decay.shape() == wanted, "[attention] log_decay ", log_decay.shape(), "; allowed: ", wanted);
  check_usage(s.causal, "[attention] log decays without causal; they lie between a key and a later query");
  check(s.queries <= s.keys, "[attention] log decays with ", s.queries, " queries and ", s.keys,
        " keys; allowed: no more queries than keys");
}

AttentionShape checked_shape(const Variable& q, const Variable& k, const Variable& v,
                             const AttentionOptions& options, const Tensor& key_mask) {
  check(q.defined() && k.defined() && v.defined(), "[attention] q, k and v must all be given");
  const Shape &qs = q.shape(), &ks = k.shape(), &vs = v.shape();
  check(qs.rank() == 4 && ks.rank() == 4 && vs.rank() == 4 && qs[0] == ks[0] && qs[3] == ks[3] &&
            ks[0] == vs[0] && ks[1] == vs[1] && ks[2] == vs[2],
        "[attention] q ", qs, ", k ", ks, " and v ", vs,
        "; allowed: q [B, Tq, H, dk], k [B, Tk, Hkv, dk] and v [B, Tk, Hkv, dv]");
  check(q.dtype() == k.dtype() && q.dtype() == v.dtype(), "[attention] q is ", q.dtype(), ", k ", k.dtype(),
        ", v ", v.dtype(), "; allowed: one type");
  check(!key_mask.defined() || (key_mask.shape() == Shape{ks[0], ks[1]} && key_mask.dtype() == DType::int32),
        "[attention] key_mask ", key_mask.dtype(), ' ', key_mask.shape(), " for k ", ks,
        "; allowed: int32 [B, Tk]");
  check_usage(ks[2] > 0 && qs[2] % ks[2] == 0, "[attention] ", qs[2], " heads and ", ks[2],
              " key heads; allowed: a number of key heads that divides the number of heads");
  check_usage(qs[3] > 0, "[attention] a key head size of 0; allowed: 1 or more");
  check_usage(options.window >= 0, "[attention] window ", options.window, "; allowed: 0 (all) or more");
  check_usage(options.window == 0 || options.causal, "[attention] window ", options.window,
              " without causal; a window is the newest keys of those up to the query");
  check_usage(!options.documents.defined() || options.causal,
              "[attention] documents without causal; nothing keeps their tokens apart");
  check_documents("attention", options.documents, ks[0], ks[1]);
  check_usage(std::isfinite(options.scale), "[attention] scale ", options.scale,
              "; allowed: a finite number");
  return {.batch = qs[0],
          .queries = qs[1],
          .keys = ks[1],
          .heads = qs[2],
          .key_heads = ks[2],
          .key_dim = qs[3],
          .value_dim = vs[3],
          .causal = options.causal,
          .window = options.window,
          .scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(qs[3]))};
}

}  // namespace

Variable attention(const Variable& q, const Variable& k, const Variable& v, const AttentionOptions& options,
                   const Tensor& key_mask, const Variable& log_decay) {
  const AttentionShape shape = checked_shape(q, k, v, options, key_mask);
  check_decay(shape, log_decay);
  const Device device = q.value().device();
  const Tensor mask = key_mask.defined() ? key_mask.contiguous().to(device) : key_mask;
  return apply(Attention{shape, mask, begins_of(shape, options.documents, device)}, q, k, v, log_decay);
}

std::vector<GradCase> attention_cases(CaseInputs& inputs) {
  // [B, Tq, H, dk] against [B, Tk, Hkv, dk] and [B, Tk, Hkv, dv]
  struct Sizes {
    int64_t batch, queries, keys, heads, key_heads, key_dim, value_dim;
  };
  const auto make = [&](std::string name, Sizes s, AttentionOptions options,
                        const std::vector<int32_t>& mask = {}) {
    const Tensor key_mask = mask.empty() ? Tensor() : Tensor::from(mask, {s.batch, s.keys});
    return GradCase{std::move(name),
                    {inputs.normal("q", {s.batch, s.queries, s.heads, s.key_dim}),
                     inputs.normal("k", {s.batch, s.keys, s.key_heads, s.key_dim}),
                     inputs.normal("v", {s.batch, s.keys, s.key_heads, s.value_dim})},
                    [=](const std::vector<Variable>& in) {
                      return std::vector{attention(in[0], in[1], in[2], options, key_mask)};
                    }};
  };
  const auto make_gated = [&](std::string name, Sizes s, AttentionOptions options,
                              const std::vector<int32_t>& mask = {}) {
    GradCase result = make(std::move(name), s, options, mask);
    result.inputs.push_back(inputs.uniform("log_decay", {s.batch, s.keys, s.heads}, -1, -0.1));
    const Tensor key_mask = mask.empty() ? Tensor() : Tensor::from(mask, {s.batch, s.keys});
    result.function = [=](const std::vector<Variable>& in) {
      return std::vector{attention(in[0], in[1], in[2], options, key_mask, in[3])};
    };
    return result;
  };
  const Tensor documents = Tensor::from(std::vector<int32_t>{0, 0, 1, 0, 0, 1, 0, 0, 0, 1}, {2, 5});
  return {
      make("attention, documents", {2, 5, 5, 2, 1, 3, 2}, {.causal = true, .documents = documents}),
      make("attention, documents, cached and masked keys", {2, 3, 5, 2, 2, 2, 3},
           {.causal = true, .window = 3, .documents = documents}, {1, 0, 1, 1, 1, 1, 1, 0, 1, 1}),
      make_gated("attention, log decays", {2, 5, 5, 2, 2, 3, 4}, {.causal = true}),
      make_gated("attention, log decays, grouped heads, window, masked", {2, 5, 5, 4, 2, 3, 2},
                 {.causal = true, .window = 4}, {1, 0, 1, 1, 1, 1, 1, 1, 0, 1}),
      make_gated("attention, log decays, documents, cached keys", {2, 4, 5, 2, 1, 3, 2},
                 {.causal = true, .documents = documents}),
      make_gated("attention, log decays, several tiles", {1, 67, 67, 1, 1, 1, 1}, {.causal = true}),
      make("attention, causal", {2, 5, 5, 2, 2, 3, 4}, {.causal = true}),
      make("attention, bidirectional", {2, 5, 5, 2, 2, 3, 3}, {}),
      make("attention, own scale", {1, 4, 4, 1, 1, 3, 2}, {.causal = true, .scale = 0.3}),
      make("attention, grouped heads", {1, 4, 4, 4, 2, 3, 2}, {.causal = true}),
      make("attention, multi-query", {1, 4, 4, 3, 1, 2, 3}, {}),
      make("attention, window 3", {1, 7, 7, 2, 1, 3, 2}, {.causal = true, .window = 3}),
      make("attention, cached keys", {2, 2, 6, 2, 2, 3, 2}, {.causal = true}),
      make("attention, cached keys, window 2", {1, 3, 6, 2, 1, 3, 2}, {.causal = true, .window = 2}),
      make("attention, cross", {2, 3, 5, 2, 2, 2, 3}, {}),
      make("attention, first queries see nothing", {1, 5, 3, 1, 1, 2, 2}, {.causal = true}),
      make("attention, masked keys, a sample without any", {3, 3, 4, 2, 1, 2, 3}, {},
           {1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0}),
      make("attention, causal, masked keys", {2, 5, 5, 2, 2, 2, 3}, {.causal = true},
           {0, 1, 0, 1, 1, 1, 1, 1, 0, 0}),
      make("attention, several tiles", {1, 67, 67, 1, 1, 1, 1}, {.causal = true}),
      make("attention, several tiles, window 64", {1, 66, 131, 1, 1, 1, 1}, {.causal = true, .window = 64}),
      make("attention, several tiles, grouped heads", {1, 65, 66, 2, 1, 1, 1}, {}),
  };
}

}  // namespace mixgrad
