// Matrix products: each set of micro-kernels that this CPU has, against plain loops in double.
#include "tensor/kernels/gemm.h"

#include <bit>
#include <limits>

#include "tensor/cpu/bf16_gemm.h"
#include "tensor/cpu/packed_gemm.h"
#include "tensor/cpu/tile_gemm.h"
#include "tensor/kernels/scalar.h"
#include "tests/tensor/emulated_bf16.h"
#include "tests/tensor/fixtures.h"

using namespace mixgrad;

namespace {

std::vector<const MicroKernels*> all_kernels() {
  std::vector<const MicroKernels*> kernels;
  for (const MicroKernels* set : {avx512_kernels(), avx2_kernels(), portable_kernels()}) {
    if (set != nullptr) kernels.push_back(set);
  }
  return kernels;
}

/// Calls f with each set of micro-kernels in use.
template <class F>
void for_each_kernels(const F& f) {
  const MicroKernels& before = micro_kernels();
  for (const MicroKernels* set : all_kernels()) {
    CAPTURE(set->name);
    use_micro_kernels(*set);
    f();
  }
  use_micro_kernels(before);
}

template <class T>
std::vector<T> values(int64_t count) {
  const std::vector<double> all = waves(count);
  return {all.begin(), all.end()};
}

constexpr double scale = 0.5;  // alpha
constexpr double gap = 77;     // what stands between the rows of C

/// A product with operands; distances between rows are given.
template <class T>
struct Case {
  GemmShape s;
  T beta;
  std::vector<T> a, b, c;

  Case(const GemmShape& shape, T beta)
      : s(shape),
        beta(beta),
        a(values<T>((s.a == Transpose::yes ? s.k : s.m) * s.lda)),
        b(values<T>((s.b == Transpose::yes ? s.n : s.k) * s.ldb)),
        c(s.m * s.ldc, T(gap)) {
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) c[i * s.ldc + j] = before(i, j);
    }
  }

  /// What C holds first: with beta = 0 nothing that may be looked at.
  T before(int64_t i, int64_t j) const {
    return beta == 0 ? std::numeric_limits<T>::quiet_NaN() : T(0.25) * static_cast<T>((i + 2 * j) % 7);
  }
  /// C's element, and the sum of the sizes of what is added up to it.
  std::pair<double, double> product(int64_t i, int64_t j) const {
    double sum = beta == 0 ? 0.0 : double{beta} * before(i, j), size = std::abs(sum);
    for (int64_t p = 0; p < s.k; ++p) {
      const double term = scale * double{s.a == Transpose::yes ? a[p * s.lda + i] : a[i * s.lda + p]} *
                          double{s.b == Transpose::yes ? b[j * s.ldb + p] : b[p * s.ldb + j]};
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
  /// Largest error, relative to what was added up; infinite where something else than C was written.
  double error() const {
    double worst = 0;
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        const auto [right, size] = product(i, j);
        worst = worse(worst, std::abs(c[i * s.ldc + j] - right) / (1 + size));
      }
      for (int64_t j = s.n; j < s.ldc; ++j) {
        if (c[i * s.ldc + j] != T(gap)) worst = std::numeric_limits<double>::infinity();
      }
    }
    return worst;
  }
};

/// Sizes around the kernels' own, and strides with and without gaps, at which rows conflict in a cache.
std::vector<GemmShape> shapes() {
  std::vector<GemmShape> all;
  for (const auto [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1},     {1, 40, 9},     {1, 70, 131},  {2, 129, 64},  {3, 3, 35},     {3, 300, 770},
           {4, 32, 0},    {5, 7, 3},      {6, 141, 20},  {7, 64, 17},   {13, 31, 17},   {14, 32, 16},
           {15, 33, 65},  {64, 64, 64},   {29, 96, 385}, {131, 70, 37}, {45, 100, 128}, {112, 64, 129},
           {113, 64, 30}, {300, 260, 20}, {70, 288, 770}}) {
    for (const Transpose a : {Transpose::no, Transpose::yes}) {
      for (const Transpose b : {Transpose::no, Transpose::yes}) {
        for (const int64_t extra : {0, 3}) {
          GemmShape s{.m = m, .n = n, .k = k, .a = a, .b = b};
          s.lda = std::max<int64_t>(1, (a == Transpose::yes ? m : k) + extra);
          s.ldb = std::max<int64_t>(1, (b == Transpose::yes ? k : n) + extra);
          s.ldc = n + extra;
          all.push_back(s);
        }
      }
    }
  }
  all.push_back({.m = 20, .n = 64, .k = 24, .lda = 1024, .ldb = 1024, .ldc = 1024});
  all.push_back({.m = 60,
                 .n = 96,
                 .k = 24,
                 .a = Transpose::yes,
                 .b = Transpose::yes,
                 .lda = 1024,
                 .ldb = 2048,
                 .ldc = 96});
  return all;
}

}  // namespace

TEST_CASE("tensor/gemm: every shape and layout gives the sum of products with every set of kernels") {
  // The right kernels are within 3.4e-7 (float) and 2e-15 (double); one of 770 products left out is 1e-3, and
  // one column too many written is infinite.
  const auto check = [](auto type, double tolerance) {
    using T = decltype(type);
    for (const GemmShape& s : shapes()) {
      CAPTURE(s.m);
      CAPTURE(s.n);
      CAPTURE(s.k);
      CAPTURE(s.lda);
      for (const T beta : {T(0), T(1), T(-0.5)}) {
        Case<T> whole(s, beta), tile(s, beta);
        gemm(Cpu{}, s, T(scale), whole.a.data(), whole.b.data(), beta, whole.c.data());
        CHECK(whole.error() <= tolerance);
        tile_gemm(s, T(scale), tile.a.data(), tile.b.data(), beta, tile.c.data());
        CHECK(tile.error() <= tolerance);
      }
    }
  };
  for_each_kernels([&] { check(float{}, 1e-6); });
  check(double{}, 1e-14);
}

TEST_CASE("tensor/gemm: small products do not fall back where our kernels are meant") {
  // The same shapes straight through our packed kernels, which gemm() leaves to others where rows are few.
  for_each_kernels([] {
    for (const GemmShape& s : shapes()) {
      Case<float> tile(s, 0.0f);
      packed_tile_gemm(s, float(scale), tile.a.data(), tile.b.data(), 0.0f, tile.c.data());
      CHECK(tile.error() <= 1e-6);
    }
  });
}

TEST_CASE("tensor/gemm: the epilogue comes after the whole sum and once") {
  const auto check = [](auto type, double tolerance) {
    using T = decltype(type);
    // One depth block and several, one task and several.
    for (const auto [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{3, 5, 2}, {5, 300, 500}, {100, 130, 800}, {17, 1600, 30}}) {
      CAPTURE(m);
      Case<T> plain({.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n}, T(0));
      gemm(Cpu{}, plain.s, T(1), plain.a.data(), plain.b.data(), T(0), plain.c.data());
      const std::vector<T> bias = values<T>(n), x = values<T>(2 * m * n);
      std::vector<T> c(m * n), activated(m * n), slope(m * n);
      gemm(Cpu{}, plain.s, T(1), plain.a.data(), plain.b.data(), T(0), c.data(),
           {.bias = bias.data(), .gelu = activated.data()});
      gemm(Cpu{}, plain.s, T(1), plain.a.data(), plain.b.data(), T(0), slope.data(),
           {.gelu_input = x.data()});
      double worst = 0;
      for (int64_t i = 0; i < m * n; ++i) {
        const double sum = double{plain.c[i]} + bias[i % n];
        worst = worse(worst, std::abs(c[i] - sum));
        worst = worse(worst, std::abs(activated[i] - GeluTanh::value(sum)));
        worst = worse(worst, std::abs(slope[i] - plain.c[i] * GeluTanh::slope(double{x[i]})));
      }
      // Right: 4e-6 and 7e-15. Applied twice, or before the last part of the sum: above 0.1.
      CHECK(worst <= tolerance);
    }
  };
  for_each_kernels([&] { check(float{}, 5e-5); });
  check(double{}, 1e-12);
}

TEST_CASE("tensor/gemm: any number of threads gives the same bits") {
  for_each_kernels([] {
    check_same_with_any_threads([] {
      std::vector<double> all;
      const auto add = [&](const GemmShape& s) {
        Case<float> product(s, 0.0f);
        gemm(Cpu{}, s, 1.0f, product.a.data(), product.b.data(), 0.0f, product.c.data());
        all.insert(all.end(), product.c.begin(), product.c.end());
      };
      for (const Transpose t : {Transpose::no, Transpose::yes}) {
        add({.m = 333, .n = 129, .k = 500, .a = t, .lda = 500, .ldb = 129, .ldc = 129});
        add({.m = 5, .n = 450, .k = 500, .b = t, .lda = 500, .ldb = 500, .ldc = 450});
      }
      return all;
    });
  });
}

TEST_CASE("tensor/gemm: what is not finite stays in its row and column") {
  for (const int64_t m : {5, 20}) {
    Case<float> product({.m = m, .n = 40, .k = 50, .lda = 50, .ldb = 40, .ldc = 40}, 0.0f);
    product.a[3 * 50 + 7] = std::numeric_limits<float>::infinity();
    product.b[9 * 40 + 33] = std::numeric_limits<float>::quiet_NaN();
    for_each_kernels([&] {
      gemm(Cpu{}, product.s, 1.0f, product.a.data(), product.b.data(), 0.0f, product.c.data());
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < 40; ++j) CHECK(std::isfinite(product.c[i * 40 + j]) == (i != 3 && j != 33));
      }
    });
  }
}

namespace {

/// Computes with operands in bfloat16 while it lives.
struct InBf16 {
  InBf16() { set_matrix_precision(MatrixPrecision::bfloat16); }
  ~InBf16() { set_matrix_precision(MatrixPrecision::float32); }
};

/// x as bfloat16 holds it.
float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

void check_bf16_product(const Bf16Kernels& kernels, const GemmShape& s, float beta) {
  CAPTURE(std::string(kernels.name));
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  Case<float> product(s, beta);
  bf16_gemm(kernels, s, float(scale), product.a.data(), product.b.data(), beta, product.c.data(), {});
  for (float& x : product.a) x = rounded(x);
  for (float& x : product.b) x = rounded(x);
  // Right: 7.9e-7, the order of the sums. Operands that are truncated instead: 7e-3.
  CHECK(product.error() <= 2e-6);
}

}  // namespace

TEST_CASE("tensor/gemm: bfloat16 products are those of the rounded operands") {
  for (const Bf16Kernels* kernels : {amx_kernels(), avx512_bf16_kernels()}) {
    if (kernels == nullptr) continue;
    for (const GemmShape& s : shapes()) {
      for (const float beta : {0.0f, 1.0f, -0.5f}) check_bf16_product(*kernels, s, beta);
    }
  }
}

TEST_CASE("tensor/gemm: bfloat16 products by emulated kernels") {
  for (const Bf16Kernels* kernels : {&emulated::amx_kernels, &emulated::avx512_kernels}) {
    for (const GemmShape& s : shapes()) {
      if (s.m * s.n * s.k < 2'000'000) check_bf16_product(*kernels, s, -0.5f);
    }
    check_bf16_product(*kernels, {.m = 70, .n = 33, .k = 770, .lda = 770, .ldb = 33, .ldc = 33}, 0.0f);
  }
  CHECK(emulated::take_fault() == "");
  CHECK(emulated::threads_with_tiles == 0);
}

TEST_CASE("tensor/gemm: bfloat16 is for all of gemm or refused by name") {
  if (bf16_kernels() == nullptr) {
    CHECK(error_of([] { set_matrix_precision(MatrixPrecision::bfloat16); }).find("AVX512_BF16") !=
          std::string::npos);
    return;
  }
  const InBf16 in_bf16;
  const auto product = [] {
    Case<float> wide({.m = 100, .n = 130, .k = 800, .lda = 800, .ldb = 130, .ldc = 130}, 0.0f);
    gemm(Cpu{}, wide.s, 1.0f, wide.a.data(), wide.b.data(), 0.0f, wide.c.data());
    return std::vector<double>(wide.c.begin(), wide.c.end());
  };
  check_same_with_any_threads(product);
  Case<float> exact({.m = 100, .n = 130, .k = 800, .lda = 800, .ldb = 130, .ldc = 130}, 0.0f);
  packed_gemm(exact.s, 1.0f, exact.a.data(), exact.b.data(), 0.0f, exact.c.data(), {});
  const std::vector<double> in_bf16_now = product();
  double worst = 0;
  for (size_t i = 0; i < in_bf16_now.size(); ++i) worst = worse(worst, std::abs(in_bf16_now[i] - exact.c[i]));
  CHECK(worst > 1e-4);  // float would be within 3e-6
  CHECK(worst < 0.2);   // of sums of 800 products of numbers up to 1: measured 0.05
}
