// Short causal convolution on the GPU against that on the CPU.
#include "tensor/kernels/conv.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Float errs by 1e-6 in sums over up to 600 tokens. A tap that reads the token beside its own changes values
// by 0.3.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

constexpr ConvShape shapes[] = {{0, 3, 2, 4, true}, {2, 0, 3, 3, true},   {1, 1, 1, 1, false},
                                {2, 2, 5, 4, true}, {3, 200, 7, 4, true}, {2, 9, 130, 3, false}};

}  // namespace

TEST_CASE_TEMPLATE("cuda/conv: with states and bias", T, float, double) {
  for (const ConvShape& s : shapes) {
    CAPTURE(s.length);
    const int64_t n = s.batch * s.length * s.channels;
    const int64_t states = s.batch * (s.taps - 1) * s.channels;
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(waves<T>(n));
      const T* weight = operands.in(waves<T>(s.channels * s.taps, 1));
      const T* bias = operands.in(waves<T>(s.channels, 2));
      const T* state = operands.in(waves<T>(states, 3));
      causal_conv1d_forward(device, s, x, weight, bias, state, operands.template out<T>(n),
                            operands.template out<T>(states));
      causal_conv1d_backward(device, s, x, weight, bias, state, operands.in(waves<T>(n, 4)),
                             operands.in(waves<T>(states, 5)), operands.template out<T>(n),
                             operands.template out<T>(s.channels * s.taps),
                             operands.template out<T>(s.channels), operands.template out<T>(states));
    });
  }
  check_ran("weight_sums");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/conv: without states and bias, gradients unwanted or absent", T, float, double) {
  for (const ConvShape& s : shapes) {
    CAPTURE(s.length);
    const int64_t n = s.batch * s.length * s.channels;
    const int64_t states = s.batch * (s.taps - 1) * s.channels;
    const T* const none = nullptr;
    T* const unwanted = nullptr;
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(waves<T>(n));
      const T* weight = operands.in(waves<T>(s.channels * s.taps, 1));
      causal_conv1d_forward(device, s, x, weight, none, none, operands.template out<T>(n), unwanted);
      causal_conv1d_backward(device, s, x, weight, none, none, operands.in(waves<T>(n, 4)), none,
                             operands.template out<T>(n), unwanted, unwanted, unwanted);
      causal_conv1d_backward(device, s, x, weight, none, none, none, operands.in(waves<T>(states, 5)),
                             operands.template out<T>(n), operands.template out<T>(s.channels * s.taps),
                             unwanted, operands.template out<T>(states));
    });
  }
  check_barriers();
}

TEST_CASE_TEMPLATE("cuda/conv: documents that do not see each other", T, float, double) {
  for (const ConvShape& s : shapes) {
    for (const int64_t distance : {1, 2, 5, 150}) {
      CAPTURE(s.length);
      CAPTURE(distance);
      const int64_t n = s.batch * s.length * s.channels;
      const int64_t states = s.batch * (s.taps - 1) * s.channels;
      std::vector<int32_t> begins(s.batch * s.length, 0);
      for (int64_t i = 1; i < static_cast<int64_t>(begins.size()); i += distance) begins[i] = 1;
      check_same(tolerance<T>, [&](auto device, auto& operands) {
        const int32_t* documents = operands.in(begins);
        const T* x = operands.in(waves<T>(n));
        const T* weight = operands.in(waves<T>(s.channels * s.taps, 1));
        const T* bias = operands.in(waves<T>(s.channels, 2));
        const T* state = operands.in(waves<T>(states, 3));
        causal_conv1d_forward(device, s, x, weight, bias, state, operands.template out<T>(n),
                              operands.template out<T>(states), documents);
        causal_conv1d_backward(
            device, s, x, weight, bias, state, operands.in(waves<T>(n, 4)), operands.in(waves<T>(states, 5)),
            operands.template out<T>(n), operands.template out<T>(s.channels * s.taps),
            operands.template out<T>(s.channels), operands.template out<T>(states), documents);
      });
    }
  }
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
