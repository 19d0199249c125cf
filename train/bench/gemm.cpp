#include "train/bench/gemm.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>

#include "tensor/cpu_info.h"
#include "tensor/dispatch.h"
#include "tensor/error.h"
#include "tensor/parallel.h"
#include "tensor/tensor.h"
#include "train/bench/openblas.h"
#include "train/options.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

/// One product, or many of one shape, one after the other in memory.
struct Product {
  std::string name;
  GemmShape shape;
  int64_t count = 1;

  std::string title() const {
    const auto letter = [](Transpose t) { return t == Transpose::yes ? 'T' : 'N'; };
    return str(name, ' ', letter(shape.a), letter(shape.b), ' ', count > 1 ? str(count, "x ") : "", shape.m,
               'x', shape.n, 'x', shape.k);
  }
  double flops() const {
    return 2.0 * static_cast<double>(count) * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
           static_cast<double>(shape.k);
  }
};

/// The three products of y [rows, out] = x [rows, in] W^T, W [out, in]: the output, and the gradients of x
/// and W.
void add_linear(std::vector<Product>& products, const std::string& name, int64_t rows, int64_t out,
                int64_t in) {
  products.push_back({name + " forward", {.m = rows, .n = out, .k = in, .b = Transpose::yes}});
  products.push_back({name + " dX", {.m = rows, .n = in, .k = out}});
  products.push_back({name + " dW", {.m = out, .n = in, .k = rows, .a = Transpose::yes}});
}

std::vector<Product> products_of_model(const GemmOptions& o) {
  std::vector<Product> products;
  const int64_t rows = o.batch * o.context, hidden = o.hidden > 0 ? o.hidden : 4 * o.width;
  add_linear(products, "projection", rows, o.width, o.width);
  add_linear(products, "mlp up", rows, hidden, o.width);
  add_linear(products, "mlp down", rows, o.width, hidden);
  add_linear(products, "head", rows, o.vocabulary, o.width);
  const int64_t T = o.context, d = o.width / o.heads, count = o.batch * o.heads;
  products.push_back({"attention scores", {.m = T, .n = T, .k = d, .b = Transpose::yes}, count});
  products.push_back({"attention output", {.m = T, .n = d, .k = T}, count});
  products.push_back({"attention dV", {.m = T, .n = d, .k = T, .a = Transpose::yes}, count});
  return products;
}

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> sizes;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    const bool whole = error == std::errc{} && end == word.data() + word.size();
    sizes.push_back(whole && size >= 1 && size <= 1 << 20 ? size : 0);
  }
  check_usage(sizes.size() == 3 && sizes[0] * sizes[1] * sizes[2] > 0, "[options] --shape: '", text,
              "'; allowed: M,N,K, each from 1 to ", 1 << 20);
  return sizes;
}

std::vector<Product> products_of_shape(const std::string& text) {
  const std::vector<int64_t> s = parse_shape(text);
  std::vector<Product> products;
  for (const Transpose a : {Transpose::no, Transpose::yes}) {
    for (const Transpose b : {Transpose::no, Transpose::yes}) {
      products.push_back({"product", {.m = s[0], .n = s[1], .k = s[2], .a = a, .b = b}});
    }
  }
  return products;
}

/// Seconds of one call.
template <class Call>
double timed(const Call& call) {
  const Clock::time_point start = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run_ours(const Product& product, const Tensor& a, const Tensor& b, Tensor& c) {
  const GemmShape& s = product.shape;
  const GemmBatch batch{
      .outer = product.count, .a_outer = s.m * s.k, .b_outer = s.k * s.n, .c_outer = s.m * s.n};
  dispatch(c, [&](auto device, auto type) {
    using T = decltype(type);
    if (product.count == 1)
      gemm(device, s, T(1), a.data<T>(), b.data<T>(), T(0), c.data<T>());
    else
      gemm_batched(device, s, batch, T(1), a.data<T>(), b.data<T>(), T(0), c.data<T>());
  });
}

/// Many products are shared out among the threads, one is computed by all of them: what suits OpenBLAS.
void run_openblas(const Product& product, const Tensor& left, const Tensor& right, Tensor& result) {
  const GemmShape& s = product.shape;
  const float* a = left.data<float>();
  const float* b = right.data<float>();
  float* c = result.data<float>();
  const OpenblasThreads threads(product.count > 1 ? 1 : thread_count());
  if (product.count == 1) return openblas_gemm(s, a, b, c);
  parallel_tasks(product.count, [&](int64_t i) {
    openblas_gemm(s, a + i * s.m * s.k, b + i * s.k * s.n, c + i * s.m * s.n);
  });
}

void measure_product(const Product& product, const Measuring& measuring, Findings& findings) {
  const std::string ours = product.title() + ", ours", openblas = product.title() + ", OpenBLAS";
  const bool compares = measuring.device == Device{};
  if (!measuring.wanted(ours) && !(compares && measuring.wanted(openblas))) return;
  const GemmShape& s = product.shape;
  Generator generator(1);
  const Tensor a = uniform({product.count, s.m * s.k}, -1, 1, generator, DType::float32, measuring.device);
  const Tensor b = uniform({product.count, s.k * s.n}, -1, 1, generator, DType::float32, measuring.device);
  Tensor c = Tensor::empty({product.count, s.m * s.n}, DType::float32, measuring.device);
  const auto add = [&](const std::string& name, const std::vector<double>& seconds) {
    Figure figure;
    figure.name = name;
    figure.seconds = seconds;
    figure.flops = product.flops();
    if (measuring.wanted(name)) findings.figures.push_back(std::move(figure));
  };
  if (!compares)
    return add(ours, time_calls(measuring.seconds, measuring.device, [&] { run_ours(product, a, b, c); }));
  const auto times = time_parts(measuring.seconds, [&]() -> std::vector<double> {
    return {timed([&] { run_ours(product, a, b, c); }), timed([&] { run_openblas(product, a, b, c); })};
  });
  std::vector<double> ratios;
  for (size_t i = 0; i < times[0].size(); ++i) ratios.push_back(times[1][i] / times[0][i]);
  add(ours, times[0]);
  add(openblas, times[1]);
  findings.derived.push_back({product.title() + ", OpenBLAS over ours", spread_of(ratios).median, ""});
}

}  // namespace

void GemmOptions::validate() const {
  check_count("batch", batch, 1, 1 << 20);
  check_count("context", context, 1, 1 << 20);
  check_count("width", width, 1, 1 << 20);
  check_count("heads", heads, 1, 1 << 20);
  check_count("hidden", hidden, 0, 1 << 20);
  check_count("vocabulary", vocabulary, 1, 1 << 20);
  check_usage(width % heads == 0, "[options] --heads: ", heads, "; allowed: the divisors of --width ", width);
  if (!shape.empty()) parse_shape(shape);
}

void declare_gemm_options(CLI::App& app, GemmOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto group = [&](auto* option) { option->group("Shapes"); };
  group(app.add_option("--batch", o.batch, "Sequences in a forward pass"));
  group(app.add_option("--context", o.context, "Tokens in a training sequence"));
  group(app.add_option("--width", o.width, "Width of the residual stream"));
  group(app.add_option("--heads", o.heads, "Heads of the attention's products"));
  group(app.add_option("--hidden", o.hidden, "Hidden size of the MLPs; 0: four times the width"));
  group(app.add_option("--vocabulary", o.vocabulary, "Rows of the head"));
  group(app.add_option("--shape", o.shape,
                       "M,N,K: C [M, N] = op(A) op(B) over K, with and without transposes, instead"));
}

Findings measure_gemm(const GemmOptions& options, const Measuring& measuring) {
  Findings findings;
  const std::vector<Product> products =
      options.shape.empty() ? products_of_model(options) : products_of_shape(options.shape);
  for (const Product& product : products) {
    findings.attempt(product.title(), [&] { measure_product(product, measuring, findings); });
  }
  return findings;
}

}  // namespace mixgrad
