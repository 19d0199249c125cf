// Table look-up: repeated and unused ids, messages, repeatability.
#include "autograd/ops/embedding.h"

#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

}  // namespace

TEST_CASE("tensor/embedding: gradients of repeated ids add up and those of unused rows are 0") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable weight = leaf({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}, device, dtype);
    const Tensor ids = Tensor::from(std::vector<int32_t>{2, 0, 2, 2, 3, 0}, {2, 3}, device);
    const Variable y = embedding(ids, weight);
    CHECK(y.shape() == Shape{2, 3, 2});
    CHECK(y.value().to_vector() == Values{5, 6, 1, 2, 5, 6, 5, 6, 7, 8, 1, 2});
    const Values dy = {1, 10, 2, 20, 4, 40, 8, 80, 16, 160, 32, 320};
    backward({y}, {Tensor::from(dy, {2, 3, 2}, device).to(dtype)});
    CHECK(weight.grad().to_vector() == Values{34, 340, 0, 0, 13, 130, 16, 160});
  });
}

TEST_CASE("tensor/embedding: wide rows are looked up and added up whole") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t count = 500, vocabulary = 7, columns = 131;
    std::vector<int32_t> ids(count);
    Values dy(count * columns), want(vocabulary * columns, 0), table(vocabulary * columns);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<double>(i);
    for (int64_t i = 0; i < count; ++i) {
      ids[i] = static_cast<int32_t>(i * i % vocabulary);  // 0, 1, 2 and 4: quadratic residues
      for (int64_t j = 0; j < columns; ++j) {
        dy[i * columns + j] = static_cast<double>((i * 31 + j * 17) % 64);  // whole numbers: sums are exact
        want[ids[i] * columns + j] += dy[i * columns + j];
      }
    }
    const Variable weight = leaf(table, {vocabulary, columns}, device, dtype);
    const Variable y = embedding(Tensor::from(ids, {count}, device), weight);
    const Values values = y.value().to_vector();
    for (int64_t i = 0; i < count; ++i) {
      CHECK(values[i * columns + columns - 1] == ids[i] * columns + columns - 1);
    }
    backward({y}, {Tensor::from(dy, {count, columns}, device).to(dtype)});
    CHECK(weight.grad().to_vector() == want);
  });
}

TEST_CASE("tensor/embedding: an id outside the vocabulary is named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable weight(Tensor::zeros({5, 2}, dtype, device));
    const auto error = [&](const std::vector<int32_t>& ids) {
      return error_of([&] { embedding(Tensor::from(ids, {2, 2}, device), weight); });
    };
    CHECK(error({0, 4, 5, -1}) == "[embedding] id 5 at position 2 of ids (2, 2); allowed: 0 to 4 (V = 5)");
    CHECK(error({0, -1, 5, 4}).find("id -1 at position 1") != std::string::npos);
    CHECK(error({0, 4, 4, 0}) == "");
    const Variable vector(Tensor::zeros({5}, dtype, device));
    CHECK(error_of([&] { embedding(Tensor::from(std::vector<int32_t>{0}, {1}, device), vector); }) ==
          "[embedding] weight (5); it must be [V, D]");
  });
}

TEST_CASE("tensor/embedding: ids and columns may be none") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable weight(Tensor::full({3, 2}, 1, dtype, device), true);
    const Variable nothing = embedding(Tensor::zeros({0, 4}, DType::int32, device), weight);
    CHECK(nothing.shape() == Shape{0, 4, 2});
    backward({nothing}, {nothing.value()});
    CHECK(weight.grad().to_vector() == Values(6, 0));

    const Variable narrow(Tensor::zeros({3, 0}, dtype, device), true);
    const Variable y = embedding(Tensor::zeros({4}, DType::int32, device), narrow);
    CHECK(y.shape() == Shape{4, 0});
    backward({y}, {y.value()});
    CHECK(narrow.grad().shape() == Shape{3, 0});
  });
}

TEST_CASE("tensor/embedding: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const int64_t count = 3000, vocabulary = 11, columns = 200;
    std::vector<int32_t> ids(count);
    for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i * i % 1009 % vocabulary);
    const Values dy = waves(count * columns);
    check_same_with_any_threads([&] {
      const Variable weight(Tensor::zeros({vocabulary, columns}, dtype, device), true);
      const Variable y = embedding(Tensor::from(ids, {count}, device), weight);
      backward({y}, {Tensor::from(dy, {count, columns}, device).to(dtype)});
      return weight.grad().to_vector();
    });
  });
}

}  // namespace mixgrad
