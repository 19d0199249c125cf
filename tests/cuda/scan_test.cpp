// The selective scan on the GPU against that on the CPU.
#include "tensor/kernels/scan.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums in another order: float errs by 1e-6, double by 1e-15. A state or channel left out of a sum changes it
// by 0.01 and more.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

constexpr ScanShape shapes[] = {
    {1, 0, 3, 2},    {0, 3, 2, 2},   {2, 1, 1, 1},      {1, 5, 9, 17},
    {2, 130, 10, 3}, {1, 64, 8, 16}, {2, 66, 20, 3, 2}, {1, 70, 18, 17, 2, ScanDecay::written}};

/// offset + factor waves
template <class T>
std::vector<T> numbers(int64_t count, double phase, T offset, T factor) {
  std::vector<T> values = waves<T>(count, phase);
  for (T& value : values) value = offset + factor * value;
  return values;
}

/// The operands, without D, the initial state and documents if they are to be absent.
template <class T, class Operands>
ScanInputs<T> inputs(const ScanShape& s, bool all, Operands& operands) {
  const int64_t n = s.batch * s.length * s.channels;
  const int64_t token_states = s.batch * s.length * s.groups * s.states;
  ScanInputs<T> in{};
  in.u = operands.in(waves<T>(n));
  in.delta = operands.in(numbers<T>(n, 1, 0.5, 0.4));
  const bool has_A = s.decay == ScanDecay::exponential;
  if (has_A) in.A = operands.in(numbers<T>(s.channels * s.states, 2, -1, 0.9));
  in.B = operands.in(waves<T>(token_states, 3));
  in.C = operands.in(waves<T>(token_states, 4));
  if (!all) return in;
  std::vector<int32_t> documents(s.batch * s.length);
  for (size_t i = 0; i < documents.size(); ++i) documents[i] = i % 31 == 3 ? 1 : 0;
  in.documents = operands.in(documents);
  in.D = operands.in(waves<T>(s.channels, 5));
  in.initial_state = operands.in(waves<T>(s.batch * s.channels * s.states, 6));
  return in;
}

template <class T, class Operands>
ScanGradients<T> gradients(const ScanShape& s, bool all, Operands& operands) {
  const int64_t n = s.batch * s.length * s.channels;
  const int64_t token_states = s.batch * s.length * s.groups * s.states;
  ScanGradients<T> out{};
  out.du = operands.template out<T>(n);
  out.ddelta = operands.template out<T>(n);
  if (s.decay == ScanDecay::exponential) out.dA = operands.template out<T>(s.channels * s.states);
  out.dB = operands.template out<T>(token_states);
  out.dC = operands.template out<T>(token_states);
  if (!all) return out;
  out.dD = operands.template out<T>(s.channels);
  out.dinitial_state = operands.template out<T>(s.batch * s.channels * s.states);
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/scan: with and without states and D and documents", T, float, double) {
  for (const ScanShape& s : shapes) {
    for (const bool all : {true, false}) {
      CAPTURE(s.length);
      CAPTURE(all);
      const int64_t n = s.batch * s.length * s.channels;
      const int64_t states = s.batch * s.channels * s.states;
      check_same(tolerance<T>, [&](auto device, auto& operands) {
        const ScanInputs<T> in = inputs<T>(s, all, operands);
        T* const checkpoints = operands.template out<T>(s.batch * s.chunks() * s.channels * s.states);
        selective_scan_forward(device, s, in, operands.template out<T>(n),
                               all ? operands.template out<T>(states) : nullptr, checkpoints);
        const T* dfinal_state = all ? operands.in(waves<T>(states, 8)) : nullptr;
        selective_scan_backward(device, s, in, static_cast<const T*>(checkpoints),
                                operands.in(waves<T>(n, 7)), dfinal_state, gradients<T>(s, all, operands));
      });
    }
  }
  check_ran("scan_backward");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/scan: a final state alone has a gradient and checkpoints may be absent", T, float,
                   double) {
  const ScanShape s{1, 70, 3, 2};
  check_same(tolerance<T>, [&](auto device, auto& operands) {
    const ScanInputs<T> in = inputs<T>(s, true, operands);
    T* const unwanted = nullptr;
    const T* const none = nullptr;
    T* const checkpoints = operands.template out<T>(2 * 3 * 2);
    selective_scan_forward(device, s, in, operands.template out<T>(70 * 3), unwanted, unwanted);
    selective_scan_forward(device, s, in, operands.template out<T>(70 * 3), unwanted, checkpoints);
    selective_scan_backward(device, s, in, static_cast<const T*>(checkpoints), none,
                            operands.in(waves<T>(3 * 2, 8)), gradients<T>(s, true, operands));
  });
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
