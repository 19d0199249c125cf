// Table look-up on the GPU against that on the CPU.
#include "tensor/kernels/embedding.h"

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

/// Ids of which many repeat, also within a warp, and some rows have none; more than the 256 of one step.
std::vector<int32_t> some_ids(const EmbeddingShape& shape) {
  std::vector<int32_t> ids(shape.count);
  for (int64_t i = 0; i < shape.count; ++i) ids[i] = static_cast<int32_t>(i * i % 97 % shape.vocabulary);
  return ids;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda/embedding: rows of the table and their gradients", T, float, double) {
  for (const EmbeddingShape shape : {EmbeddingShape{0, 3, 4}, {1, 1, 1}, {700, 150, 5}, {70, 64, 300}}) {
    CAPTURE(shape.count);
    const std::vector<int32_t> ids = some_ids(shape);
    // Bit for bit: both add in the order of the ids. One id left out changes a sum by 0.5.
    check_same(0, [&](auto device, auto& operands) {
      const int32_t* on_device = operands.in(ids);
      embedding_forward(device, shape, on_device, operands.in(waves<T>(shape.vocabulary * shape.columns)),
                        operands.template out<T>(shape.count * shape.columns));
      embedding_backward(device, shape, on_device, operands.in(waves<T>(shape.count * shape.columns, 1)),
                         operands.template out<T>(shape.vocabulary * shape.columns));
    });
  }
  check_ran("embedding_backward_kernel");
  check_barriers();
  check_stores();
}

TEST_CASE("cuda/embedding: the first invalid id is found") {
  const EmbeddingShape shape{900, 10, 1};
  const std::vector<int32_t> valid(900, 9);
  std::vector<int32_t> bad = valid;
  bad[800] = 10;
  std::vector<int32_t> worse = bad;
  worse[37] = -1;
  check_same(0, [&](auto device, auto& operands) {
    operands.returned(first_invalid_id(device, shape, operands.in(valid)));  // -1
    operands.returned(first_invalid_id(device, shape, operands.in(bad)));    // 800
    operands.returned(first_invalid_id(device, shape, operands.in(worse)));  // 37
    operands.returned(first_invalid_id(device, EmbeddingShape{0, 10, 1}, operands.in(valid)));
  });
  check_barriers();
  check_stores();
}

}  // namespace mixgrad
