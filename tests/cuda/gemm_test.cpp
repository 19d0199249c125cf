// Matrix products on the GPU against those on the CPU.
#include "tensor/kernels/gemm.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

// Sums of up to 70 terms in another order: float errs by 1e-6, double by 1e-15. A term left out changes a sum
// by 0.01 and more.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

struct Size {
  int64_t m, n, k;
};
constexpr Size sizes[] = {{0, 5, 3},   {4, 0, 3},    {3, 5, 0},   {1, 1, 1},
                          {65, 3, 17}, {7, 130, 33}, {70, 66, 70}};

constexpr Transpose both[] = {Transpose::no, Transpose::yes};

}  // namespace

TEST_CASE_TEMPLATE("cuda/gemm: transposed or not and with rows apart", T, float, double) {
  for (const Size& size : sizes) {
    for (const Transpose a_transpose : both) {
      for (const Transpose b_transpose : both) {
        CAPTURE(size.n);
        GemmShape s{size.m, size.n, size.k, a_transpose, b_transpose};
        s.lda = (a_transpose == Transpose::yes ? s.m : s.k) + 2;
        s.ldb = (b_transpose == Transpose::yes ? s.k : s.n) + 1;
        s.ldc = s.n + 3;
        const int64_t a_rows = a_transpose == Transpose::yes ? s.k : s.m;
        const int64_t b_rows = b_transpose == Transpose::yes ? s.n : s.k;
        check_same(tolerance<T>, [&](auto device, auto& operands) {
          const T* a = operands.in(waves<T>(a_rows * s.lda));
          const T* b = operands.in(waves<T>(b_rows * s.ldb, 1));
          T* c = operands.in_out(waves<T>(s.m * s.ldc, 2));
          gemm(device, s, T(0.5), a, b, T(-2), c);
        });
      }
    }
  }
  check_ran("product_kernel");
  check_barriers();
  check_stores();
}

namespace {

/// Values that bfloat16 holds.
std::vector<float> short_waves(int64_t count, double phase = 0) {
  std::vector<float> values = waves<float>(count, phase);
  for (float& x : values) x = std::round(64 * x) / 64;
  return values;
}

}  // namespace

TEST_CASE("cuda/gemm: in bfloat16 the products of the rounded operands") {
  const InBf16 in_bf16;
  for (const Size& size : sizes) {
    for (const Transpose a_transpose : both) {
      for (const Transpose b_transpose : both) {
        CAPTURE(size.n);
        GemmShape s{size.m, size.n, size.k, a_transpose, b_transpose};
        s.lda = (a_transpose == Transpose::yes ? s.m : s.k) + 2;
        s.ldb = (b_transpose == Transpose::yes ? s.k : s.n) + 1;
        s.ldc = s.n + 3;
        const int64_t a_rows = a_transpose == Transpose::yes ? s.k : s.m;
        const int64_t b_rows = b_transpose == Transpose::yes ? s.n : s.k;
        // Nothing is lost by rounding here: as exact as in float.
        check_same(tolerance<float>, [&](auto device, auto& operands) {
          const float* a = operands.in(short_waves(a_rows * s.lda));
          const float* b = operands.in(short_waves(b_rows * s.ldb, 1));
          const float* bias = operands.in(waves<float>(s.n, 4));
          float* c = operands.in_out(waves<float>(s.m * s.ldc, 2));
          gemm(device, s, 0.5f, a, b, -2.0f, c, {.bias = bias});
        });
      }
    }
  }
  check_ran("bf16_product_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/gemm: in bfloat16 operands are rounded and double is left alone") {
  if (cuda::device_count() == 0) {
    MESSAGE("not run: ", cuda::why_unavailable());
    return;
  }
  const auto product = [](auto device, auto& operands) {
    const int64_t n = 32;
    gemm(device, {n, n, n}, 1.0f, operands.in(waves<float>(n * n)), operands.in(waves<float>(n * n, 1)), 0.0f,
         operands.template out<float>(n * n));
    gemm(device, {n, n, n}, 1.0, operands.in(waves<double>(n * n)), operands.in(waves<double>(n * n, 1)), 0.0,
         operands.template out<double>(n * n));
  };
  const Results exact = results_of<Cuda>(product);
  const InBf16 in_bf16;
  const Results rounded = results_of<Cuda>(product);
  CHECK(difference({rounded[0]}, {exact[0]}) > 1e-3);  // 0.014; of operands as they are, 1e-6
  CHECK(difference({rounded[0]}, {exact[0]}) < 0.03);
  CHECK(difference({rounded[1]}, {exact[1]}) == 0);
}

TEST_CASE_TEMPLATE("cuda/gemm: without beta C may hold nothing", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.n);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* a = operands.in(waves<T>(size.m * size.k));
      const T* b = operands.in(waves<T>(size.k * size.n, 1));
      gemm(device, {size.m, size.n, size.k}, T(1), a, b, T(0), operands.template out<T>(size.m * size.n));
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/gemm: epilogues", T, float, double) {
  for (const Size& size : sizes) {
    CAPTURE(size.n);
    const int64_t n = size.m * size.n;
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* a = operands.in(waves<T>(size.m * size.k));
      const T* b = operands.in(waves<T>(size.k * size.n, 1));
      const T* bias = operands.in(waves<T>(size.n, 2));
      const T* gelu_input = operands.in(waves<T>(n, 4));
      T* gelu = operands.template out<T>(n);
      const GemmShape s{size.m, size.n, size.k};
      const auto with = [&](const Epilogue<T>& epilogue) {
        gemm(device, s, T(1), a, b, T(0), operands.template out<T>(n), epilogue);
      };
      with({.bias = bias});
      with({.bias = bias, .gelu = gelu, .gelu_input = gelu_input});
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/gemm: many products with strides between them", T, float, double) {
  // Heads side by side in the rows of A and B; each product of C by itself.
  const int64_t batch = 2, heads = 3, length = 9, width = 5;
  for (const int64_t outer : {batch, int64_t{0}}) {
    GemmShape s{length, length, width, Transpose::no, Transpose::yes, heads * width, heads * width, 0};
    const GemmBatch strides{.outer = outer,
                            .inner = heads,
                            .a_outer = length * heads * width,
                            .a_inner = width,
                            .b_outer = length * heads * width,
                            .b_inner = width,
                            .c_outer = heads * length * length,
                            .c_inner = length * length};
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      const T* a = operands.in(waves<T>(batch * length * heads * width));
      const T* b = operands.in(waves<T>(batch * length * heads * width, 1));
      T* c = operands.template out<T>(outer * heads * length * length);
      gemm_batched(device, s, strides, T(2), a, b, T(0), c);
    });
  }
  check_barriers();
  check_stores();
}

TEST_CASE_TEMPLATE("cuda/gemm: gradient of the bias", T, float, double) {
  for (const Size& size : {Size{0, 5, 0}, Size{1, 1, 0}, Size{700, 3, 0}, Size{5, 130, 0}}) {
    CAPTURE(size.m);
    check_same(tolerance<T>, [&](auto device, auto& operands) {
      bias_backward(device, size.m, size.n, operands.in(waves<T>(size.m * size.n)),
                    operands.template out<T>(size.n));
    });
  }
  check_ran("bias_sums");
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
