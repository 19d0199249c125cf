// Philox against its authors' vectors, and the distributions drawn from it.
#include "tensor/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "tensor/tensor.h"

namespace mixgrad {
namespace {

using Words = std::array<uint32_t, 4>;

TEST_CASE("tensor/random: philox gives the published words") {
  // Random123, kat_vectors, philox4x32 10.
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
        Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST_CASE("tensor/random: a generator is philox of its position and stream under its seed") {
  const Generator generator(0x1122334455667788, Stream::sampling);
  CHECK(generator.block(0xAABBCCDDEEFF0011) ==
        philox4x32({0xEEFF0011, 0xAABBCCDD, 3, 0}, {0x55667788, 0x11223344}));
  CHECK(Generator(0).block(0) == Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
}

TEST_CASE("tensor/random: drawing one by one and reserving at once agree") {
  Generator one(7, Stream::data), many(7, Stream::data);
  std::vector<Words> drawn;
  for (int i = 0; i < 10; ++i) drawn.push_back(one.next());
  CHECK(many.next() == drawn[0]);
  const uint64_t first = many.reserve(8);
  CHECK(first == 1);
  for (uint64_t i = 0; i < 8; ++i) CHECK(many.block(first + i) == drawn[1 + i]);
  CHECK(many.position() == 9);
  CHECK(many.next() == drawn[9]);
  CHECK(Generator(one.seed(), one.stream(), 4).next() == drawn[4]);  // resumed from its state
  const uint64_t before = one.position();
  one.block(1234);
  CHECK(one.position() == before);
}

TEST_CASE("tensor/random: streams and seeds and positions never give the same block") {
  std::set<Words> seen;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (Stream stream : {Stream::parameters, Stream::data, Stream::dropout, Stream::sampling}) {
      for (uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        seen.insert(Generator(seed, stream).block(position));
      }
    }
  }
  CHECK(seen.size() == 3 * 4 * 3);
}

TEST_CASE("tensor/random: a word becomes a float above 0 and up to 1") {
  CHECK(uniform_from_word(0) == 0x1p-33f);
  CHECK(uniform_from_word(~0u) == 1.0f);
  CHECK(uniform_from_word(1u << 31) == 0.5f);
  CHECK(uniform_from_word(1) == 0x1.8p-32f);
}

TEST_CASE("tensor/random: uniform doubles lie in their interval and have its moments") {
  Generator generator(5);
  const int count = 100'000;
  double sum = 0, lowest = 1, highest = 0;
  for (int i = 0; i < count; ++i) {
    const double value = generator.uniform();
    sum += value;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  CHECK(lowest >= 0);
  CHECK(highest < 1);
  // Standard deviation of the mean: sqrt(1/12/n) = 9.1e-4; four of them. Without the top bit: off by 0.25.
  CHECK(std::abs(sum / count - 0.5) < 4 * std::sqrt(1.0 / 12 / count));

  const std::vector<double> scaled = uniform({1000}, -3, 5, generator, DType::float64).to_vector();
  for (double value : scaled) CHECK((value >= -3 && value < 5));
  CHECK(generator.position() == count + 1000);
}

TEST_CASE("tensor/random: normals have mean 0 and the deviation that was asked for") {
  Generator generator(11);
  const double count = 100'000, deviation = 0.5;
  const std::vector<double> values =
      normal({int64_t{100'000}}, deviation, generator, DType::float64).to_vector();
  double sum = 0, squares = 0, fourths = 0, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] / deviation;
    sum += z;
    squares += z * z;
    fourths += z * z * z * z;
    if (i > 0) neighbours += z * values[i - 1] / deviation;
  }
  // Four standard errors of each: of z 1, of z^2 sqrt(2), of z^4 sqrt(96), of neighbours' products 1, over
  // sqrt(n).
  CHECK(std::abs(sum / count) < 4 / std::sqrt(count));               // 0.0127
  CHECK(std::abs(squares / count - 1) < 4 * std::sqrt(2 / count));   // 0.0179; log2 for log: 0.44
  CHECK(std::abs(fourths / count - 3) < 4 * std::sqrt(96 / count));  // 0.124; uniform noise: 1.2
  CHECK(std::abs(neighbours / count) < 4 / std::sqrt(count));        // sine and cosine are independent
  CHECK(*std::max_element(values.begin(), values.end()) / deviation > 3.5);  // the tails are there
}

TEST_CASE("tensor/random: a float tensor of normals holds the rounded doubles") {
  Generator wide(3), narrow(3);
  const std::vector<double> doubles = normal({3, 5}, 1, wide, DType::float64).to_vector();
  const std::vector<double> floats = normal({3, 5}, 1, narrow, DType::float32).to_vector();
  for (size_t i = 0; i < doubles.size(); ++i)
    CHECK(floats[i] == static_cast<double>(static_cast<float>(doubles[i])));
  CHECK(wide.position() == narrow.position());
  CHECK(wide.position() == 16);  // a block a uniform, two uniforms a pair, 15 values
  CHECK(normal({0, 4}, 1, wide, DType::float32).elements() == 0);
  CHECK(wide.position() == 16);
}

}  // namespace
}  // namespace mixgrad
