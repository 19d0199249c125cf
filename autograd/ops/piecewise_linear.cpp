#include "autograd/ops/piecewise_linear.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

namespace {

/// Pieces of one length in every sequence, which one batch of products computes.
struct Pieces {
  int64_t first, count, length;
};

/// The full pieces, and the last if it is shorter.
std::vector<Pieces> pieces_of(int64_t tokens, int64_t piece) {
  const int64_t full = tokens / piece, rest = tokens % piece;
  std::vector<Pieces> pieces;
  if (full > 0) pieces.push_back({0, full, piece});
  if (rest > 0) pieces.push_back({full, 1, rest});
  return pieces;
}

/// y = x W^T, dx = dy W, dW = dy^T x, for each piece with its own W.
struct PiecewiseLinear {
  static constexpr std::string_view name = "piecewise_linear";
  int64_t piece;

  Tensor forward(Context& context, const Tensor& x, const Tensor& weight) const {
    context.save(x);
    context.save(weight);
    const Shape& s = x.shape();
    const int64_t in = s[2], out = weight.shape()[2], matrix = out * in;
    Tensor y = Tensor::empty({s[0], s[1], out}, x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      for (const Pieces& p : pieces_of(s[1], piece)) {
        gemm_batched(device, {.m = p.length, .n = out, .k = in, .b = Transpose::yes},
                     {.outer = s[0],
                      .inner = p.count,
                      .a_outer = s[1] * in,
                      .a_inner = piece * in,
                      .b_outer = weight.shape()[1] * matrix,
                      .b_inner = matrix,
                      .c_outer = s[1] * out,
                      .c_inner = piece * out},
                     T(1), x.data<T>() + p.first * piece * in, weight.data<T>() + p.first * matrix, T(0),
                     y.data<T>() + p.first * piece * out);
      }
    });
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& weight = context.saved(1);
    const Shape& s = x.shape();
    const int64_t in = s[2], out = weight.shape()[2], matrix = out * in;
    Tensor dx = context.wants(0) ? empty_like(x) : Tensor();
    Tensor dweight = context.wants(1) ? empty_like(weight) : Tensor();
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      for (const Pieces& p : pieces_of(s[1], piece)) {
        const T* const dy_pieces = dy.data<T>() + p.first * piece * out;
        if (dx.defined()) {
          gemm_batched(device, {.m = p.length, .n = in, .k = out},
                       {.outer = s[0],
                        .inner = p.count,
                        .a_outer = s[1] * out,
                        .a_inner = piece * out,
                        .b_outer = weight.shape()[1] * matrix,
                        .b_inner = matrix,
                        .c_outer = s[1] * in,
                        .c_inner = piece * in},
                       T(1), dy_pieces, weight.data<T>() + p.first * matrix, T(0),
                       dx.data<T>() + p.first * piece * in);
        }
        if (dweight.defined()) {
          gemm_batched(device, {.m = out, .n = in, .k = p.length, .a = Transpose::yes},
                       {.outer = s[0],
                        .inner = p.count,
                        .a_outer = s[1] * out,
                        .a_inner = piece * out,
                        .b_outer = s[1] * in,
                        .b_inner = piece * in,
                        .c_outer = weight.shape()[1] * matrix,
                        .c_inner = matrix},
                       T(1), dy_pieces, x.data<T>() + p.first * piece * in, T(0),
                       dweight.data<T>() + p.first * matrix);
        }
      }
    });
    return {dx, dweight};
  }
};

}  // namespace

Variable piecewise_linear(const Variable& x, const Variable& weight, int64_t piece) {
  check(piece >= 1, "[piecewise_linear] pieces of ", piece, " tokens; allowed: 1 or more");
  const Shape &s = x.shape(), &w = weight.shape();
  check(s.rank() == 3 && w.rank() == 4 && w[0] == s[0] && w[1] == (s[1] + piece - 1) / piece && w[3] == s[2],
        "[piecewise_linear] x ", s, " and weight ", w, " in pieces of ", piece,
        " tokens: x must be [B, T, in] and weight [B, pieces of T, out, in]");
  return apply(PiecewiseLinear{piece}, x, weight);
}

std::vector<GradCase> piecewise_linear_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto make = [&](std::string name, int64_t length, int64_t pieces, int64_t piece) {
    return GradCase{std::move(name),
                    {inputs.normal("x", {2, length, 3}), inputs.normal("weight", {2, pieces, 4, 3})},
                    [piece](Inputs in) { return std::vector{piecewise_linear(in[0], in[1], piece)}; }};
  };
  return {make("piecewise_linear, full pieces", 6, 2, 3),
          make("piecewise_linear, a shorter last one", 7, 3, 3),
          make("piecewise_linear, one piece", 3, 1, 5)};
}

}  // namespace mixgrad
