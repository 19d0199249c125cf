// Gaussian mixtures on the GPU against those on the CPU.
#include "tensor/kernels/gmm.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums in another order. The gradients of the parameters are sums over all rows, of some 10 times the size of
// their terms: float errs by 1e-5, double by 1e-14. A row or component left out shows as 1e-2.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 5e-5 : 1e-12;

/// Rows that end within a warp's and a block's; components and dimensions that are no multiples of anything;
/// the last two with moments, and with the mixture too, outside shared memory in double.
constexpr GmmShape shapes[] = {{0, 1, 3, 2},    {1, 1, 1, 1},   {7, 2, 5, 3},   {170, 3, 33, 4},
                               {35, 1, 64, 16}, {9, 1, 96, 40}, {5, 2, 300, 24}};

template <class T>
struct Values {
  explicit Values(const GmmShape& s)
      : scores(s.rows * s.heads * s.components),
        x(waves<T>(s.rows * s.heads * s.dim)),
        mean(waves<T>(s.heads * s.components * s.dim, 1)),
        variance(waves<T>(s.heads * s.components * s.dim, 2)),
        log_prior(waves<T>(s.heads * s.components, 3)),
        dscore(waves<T>(scores, 4)) {
    for (T& value : variance) value = T(1.5) + value;
    if (s.components > 2) log_prior[2] = -std::numeric_limits<T>::infinity();
  }
  int64_t scores;
  std::vector<T> x, mean, variance, log_prior, dscore;
};

}  // namespace

TEST_CASE_TEMPLATE("cuda/gmm: log densities and their gradients", T, float, double) {
  for (const GmmShape& s : shapes) {
    CAPTURE(s.components);
    const Values<T> v(s);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(v.x);
      const T* mean = operands.in(v.mean);
      const T* variance = operands.in(v.variance);
      gmm_log_density_forward(device, s, x, mean, variance, operands.template out<T>(v.scores));
      gmm_log_density_backward(device, s, x, mean, variance, operands.in(v.dscore),
                               operands.template out<T>(v.x.size()), operands.template out<T>(v.mean.size()),
                               operands.template out<T>(v.mean.size()));
    });
  }
  check_ran("forward_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/gmm: responsibilities and their gradients", T, float, double) {
  for (const GmmShape& s : shapes) {
    CAPTURE(s.components);
    const Values<T> v(s);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* x = operands.in(v.x);
      const T* mean = operands.in(v.mean);
      const T* variance = operands.in(v.variance);
      T* gamma = operands.template out<T>(v.scores);
      gmm_responsibilities_forward(device, s, x, mean, variance, operands.in(v.log_prior), gamma);
      gmm_responsibilities_backward(
          device, s, x, mean, variance, static_cast<const T*>(gamma), operands.in(v.dscore),
          operands.template out<T>(v.x.size()), operands.template out<T>(v.mean.size()),
          operands.template out<T>(v.mean.size()), operands.template out<T>(v.log_prior.size()));
    });
  }
  check_ran("backward_kernel");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
