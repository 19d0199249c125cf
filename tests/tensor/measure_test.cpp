// Measuring memory: the right figure, and nothing of it is real.
#include "tensor/measure.h"

#include <doctest/doctest.h>

#include "tensor/allocator.h"
#include "tensor/parallel.h"
#include "tensor/tensor.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

TEST_CASE("tensor/measure: counts as the real run would and touches nothing") {
  Allocator& memory = Allocator::of(Device{});
  const auto work = [] {
    const Tensor kept = Tensor::zeros({1000}, DType::float32);
    for (int round = 0; round < 3; ++round) {
      const Scratch<double> scratch(5000);
      const Tensor copy = kept.clone();
    }
  };
  const MemoryStats before = memory.stats();
  const int64_t foreseen = measure_peak_bytes(work);
  const MemoryStats after = memory.stats();
  CHECK(after.peak_bytes == before.peak_bytes);
  CHECK(after.live_bytes == before.live_bytes);
  CHECK(after.system_allocations == before.system_allocations);

  memory.reset_peak();
  work();
  CHECK(foreseen == memory.stats().peak_bytes - before.live_bytes);
  CHECK(measure_peak_bytes(work) == foreseen);
}

TEST_CASE("tensor/measure: there is room for more than any machine has") {
  const int64_t bytes = measure_peak_bytes([] {
    Tensor values = Tensor::full({int64_t{1} << 42}, 1, DType::float32);  // 16 TiB
    CHECK(values.narrow(0, 12'345, 1).item() == 0);
    parallel_tasks(5, [](int64_t) { FAIL("a loop ran"); });
  });
  CHECK(bytes == int64_t{1} << 44);
}

TEST_CASE("tensor/measure: ends with an error and leaves real tensors real") {
  Tensor real = Tensor::full({3}, 2, DType::float32);
  const Tensor same = real;
  CHECK(error_of([&] {
          measure_peak_bytes([&] {
            CHECK(measuring());
            real = Tensor();
            throw Error("enough");
          });
        }) == "enough");
  CHECK_FALSE(measuring());
  CHECK(same.to_vector() == std::vector<double>{2, 2, 2});
}

}  // namespace mixgrad
