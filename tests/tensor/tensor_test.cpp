// Shapes, tensors and their views, devices by name, and the words of errors.
#include "tensor/tensor.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "tensor/dispatch.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

/// 0, 1, 2, ... in the given shape.
Tensor counting(const Shape& shape, DType dtype = DType::float32) {
  Values values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return Tensor::from(values, shape).to(dtype);
}

TEST_CASE("tensor/shape: sizes and their products") {
  const Shape shape{2, 3, 4};
  CHECK(shape.rank() == 3);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 4);
  CHECK(shape.elements() == 24);
  CHECK(shape.rows() == 6);
  CHECK(shape.columns() == 4);
  CHECK(shape.drop_last() == Shape{2, 3});
  CHECK(shape != Shape{2, 3});
  CHECK(shape != Shape{2, 3, 5});
  CHECK(str(shape) == "(2, 3, 4)");

  const Shape scalar;
  CHECK(scalar.elements() == 1);
  CHECK(scalar.rows() == 1);
  CHECK(scalar.columns() == 1);
  CHECK(str(scalar) == "()");
  CHECK(Shape{5, 0, 7}.elements() == 0);
}

TEST_CASE("tensor/shape: axes and sizes that can not be are refused") {
  CHECK(error_of([] { Shape{2, -1}; }) == "[shape] axis 1 has size -1; sizes are 0 or more");
  CHECK(error_of([] { Shape{1, 1, 1, 1, 1, 1, 1}; }) == "[shape] at most 6 axes are supported");
  CHECK(error_of([] { Shape{2, 3}[2]; }) == "[shape] axis 2 of (2, 3): it has 2 axes");
  CHECK(error_of([] { Shape{2, 3}[-3]; }) == "[shape] axis -3 of (2, 3): it has 2 axes");
}

TEST_CASE("tensor/tensor: sizes beyond 64 bits are refused rather than wrapped to small ones") {
  const int64_t huge = int64_t{1} << 32;
  CHECK(error_of([&] {
          Tensor::empty({huge, huge}, DType::float32);
        }) == "[tensor] a tensor of shape (4294967296, 4294967296) is too large for any memory");
  CHECK(contains(error_of([&] { Tensor::zeros({huge / 2, huge / 2}, DType::float32); }), "too large"));
  CHECK(contains(error_of([&] { Tensor::zeros({0, huge, huge}, DType::float32); }), "too large"));
  CHECK(byte_size({huge / 4, huge / 4}, DType::float32) == int64_t{1} << 62);
  CHECK(byte_size({huge, 0}, DType::float64) == 0);
  CHECK(byte_size({}, DType::bfloat16) == 2);
}

TEST_CASE("tensor/tensor: makers give shape and values and type") {
  CHECK(Tensor::zeros({2, 2}, DType::int64).to_vector() == Values{0, 0, 0, 0});
  CHECK(Tensor::full({3}, -1.5, DType::float64).to_vector() == Values{-1.5, -1.5, -1.5});
  CHECK(Tensor::full({}, 7, DType::int32).item() == 7);
  CHECK(Tensor::from<int32_t>({1, 2, 3}, {3, 1}).shape() == Shape{3, 1});
  CHECK(Tensor::empty({3, 4}, DType::bfloat16).bytes() == 24);
  const Tensor none = Tensor::zeros({2, 0}, DType::float32);
  CHECK(none.defined());
  CHECK(none.to_vector().empty());
  CHECK(none.clone().shape() == Shape{2, 0});
  CHECK(zeros_like(none.reshape({0, 9})).shape() == Shape{0, 9});
  CHECK(contains(error_of([] { Tensor::from<float>({1, 2, 3}, {2, 2}); }), "3 values for shape (2, 2)"));
}

TEST_CASE("tensor/tensor: an undefined tensor stands for nothing") {
  Tensor none;
  CHECK(!none.defined());
  CHECK(none.data_or_null<float>() == nullptr);
  CHECK(contains(error_of([&] { none.data<float>(); }), "undefined tensor"));
  CHECK(contains(error_of([&] { none.item(); }), "undefined tensor"));
}

TEST_CASE("tensor/tensor: values are only given out as what they are") {
  Tensor floats = Tensor::zeros({2}, DType::float32);
  CHECK(floats.data<float>() == floats.raw_data());
  CHECK(floats.data_or_null<float>() == floats.raw_data());
  CHECK(error_of([&] { floats.data<double>(); }) == "[tensor] holds float32 but float64 was expected");
  CHECK(contains(error_of([&] { floats.item(); }), "the only element of a tensor of shape (2)"));
}

TEST_CASE("tensor/tensor: copies of a handle share the values and clones do not") {
  Tensor a = counting({2, 2});
  CHECK(a.is_sole_owner());
  Tensor same = a;
  const Tensor copy = a.clone();
  CHECK(!a.is_sole_owner());
  same.data<float>()[0] = 9;
  CHECK(a.to_vector() == Values{9, 1, 2, 3});
  CHECK(copy.to_vector() == Values{0, 1, 2, 3});
}

TEST_CASE("tensor/tensor: reshape is a view of as many elements") {
  Tensor a = counting({2, 3});
  Tensor b = a.reshape({3, 2});
  b.data<float>()[5] = 50;
  CHECK(a.to_vector() == Values{0, 1, 2, 3, 4, 50});
  CHECK(b.stride(0) == 2);
  CHECK(a.reshape({1, 6, 1}).shape() == Shape{1, 6, 1});
  CHECK(error_of([&] { a.reshape({4}); }) == "[tensor] reshape of (2, 3) to (4): 6 elements are not 4");
  CHECK(contains(error_of([&] { a.narrow(1, 0, 2).reshape({4}); }), "isn't contiguous"));
}

TEST_CASE("tensor/tensor: narrow is a view along any axis") {
  const Tensor a = counting({2, 3, 4});
  CHECK(a.narrow(0, 1, 1).to_vector() == Values{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(a.narrow(0, 1, 1).is_contiguous());
  const Tensor middle = a.narrow(1, 1, 2), last = a.narrow(-1, 2, 2);
  CHECK(!middle.is_contiguous());
  CHECK(middle.to_vector() == Values{4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(last.shape() == Shape{2, 3, 2});
  CHECK(last.stride(-2) == 4);
  CHECK(last.to_vector() == Values{2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23});
  CHECK(last.narrow(1, 2, 1).narrow(2, 1, 1).to_vector() == Values{11, 23});
  CHECK(a.narrow(1, 3, 0).elements() == 0);
  CHECK(contains(error_of([&] { middle.data<float>(); }), "isn't contiguous: use contiguous()"));
  CHECK(middle.strided_data<float>() == a.data<float>() + 4);
  CHECK(last.contiguous().is_contiguous());
  CHECK(last.contiguous().to_vector() == last.to_vector());
  CHECK(last.strided_data<float>()[0] == 2);  // the view's first element
  CHECK(contains(error_of([&] { a.narrow(1, 2, 2); }), "[tensor] entries 2 to 4 of axis 1 of (2, 3, 4)"));
  CHECK(contains(error_of([&] { a.narrow(1, -1, 2); }), "[tensor] entries -1 to 1"));
  CHECK(contains(error_of([&] { a.narrow(3, 0, 1); }), "[shape] axis 3"));
}

TEST_CASE("tensor/tensor: values are copied into a tensor or a view of one") {
  Tensor a = Tensor::zeros({2, 3}, DType::float32);
  a.copy_from(counting({3, 4}).narrow(0, 1, 2).narrow(1, 1, 3));
  CHECK(a.to_vector() == Values{5, 6, 7, 9, 10, 11});
  Tensor column = a.narrow(1, 2, 1);
  column.copy_from(Tensor::from<float>({-1, -2}, {2, 1}));
  CHECK(a.to_vector() == Values{5, 6, -1, 9, 10, -2});
  CHECK(contains(error_of([&] {
                   a.copy_from(counting({3, 2}));
                 }),
                 "copy of (3, 2) float32 into (2, 3) float32"));
  CHECK(contains(error_of([&] {
                   a.copy_from(counting({2, 3}, DType::float64));
                 }),
                 "float64 into (2, 3) float32"));
  CHECK(contains(error_of([&] { column.fill(0); }), "isn't contiguous"));
}

TEST_CASE("tensor/tensor: values are converted between element types") {
  const Tensor doubles = Tensor::from<double>({1.0 + 1e-12, -2.75, 3e38}, {3});
  CHECK(doubles.to(DType::float32).to_vector() == Values{1, -2.75, static_cast<double>(3e38f)});
  CHECK(Tensor::from<double>({2.9, -2.9}, {2}).to(DType::int32).to_vector() == Values{2, -2});
  CHECK(counting({2, 3}).narrow(1, 1, 2).to(DType::int64).to_vector() == Values{1, 2, 4, 5});
  Tensor same = doubles.to(DType::float64);
  CHECK(same.raw_data() == doubles.raw_data());
  CHECK(contains(error_of([&] { doubles.to(DType::bfloat16); }),
                 "bfloat16 can be stored but not computed with"));
  CHECK(contains(error_of([&] { dispatch(Tensor::zeros({1}, DType::int32), [](auto, auto) {}); }),
                 "element type int32"));
}

TEST_CASE("tensor/tensor: values go to every device and back") {
  for (const Device device : available_devices()) {
    CAPTURE(device);
    const Tensor a = counting({2, 3, 4}).to(device);
    CHECK(a.device() == device);
    CHECK(a.to(device).raw_data() == a.raw_data());
    CHECK(a.to_vector() == counting({2, 3, 4}).to_vector());
    CHECK(a.narrow(1, 1, 2).to_vector() == counting({2, 3, 4}).narrow(1, 1, 2).to_vector());
    CHECK(a.narrow(2, 1, 1).narrow(0, 1, 1).to_vector() == Values{13, 17, 21});
    CHECK(a.narrow(0, 1, 1).to(Device{}).to_vector() == a.narrow(0, 1, 1).to_vector());
    CHECK(a.to(DType::int64).device() == device);
    CHECK(a.to(DType::int64).to_vector() == a.to_vector());
    CHECK(Tensor::full({3}, -1.5, DType::float64, device).to_vector() == Values{-1.5, -1.5, -1.5});
    CHECK(Tensor::zeros({0, 3}, DType::int32, device).to_vector().empty());
    Tensor b = Tensor::full({2, 3}, 7, DType::int32, device);
    b.narrow(1, 1, 1).copy_from(Tensor::from<int32_t>({1, 2}, {2, 1}));
    CHECK(b.to_vector() == Values{7, 1, 7, 7, 2, 7});
    Generator generator(1), same(1);
    CHECK(normal({5}, 2, generator, DType::float32, device).to_vector() ==
          normal({5}, 2, same, DType::float32).to_vector());
  }
  CHECK(!Tensor().to(available_devices().back()).defined());
}

TEST_CASE("tensor/device: names of devices") {
  CHECK(parse_device("cpu") == Device{});
  CHECK(str(parse_device("cpu")) == "cpu");
  CHECK(str(Device{Device::Kind::cuda, 1}) == "cuda:1");
  for (const char* name : {"tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1", ""}) {
    CHECK_THROWS_AS(parse_device(name), UsageError);
    CHECK(error_of([&] { parse_device(name); }) ==
          str("[device] unknown device '", name, "'; known: auto, cpu, cuda, cuda:N"));
  }
}

TEST_CASE("tensor/device: auto means a real GPU or the CPU") {
  const bool has_gpu = why_no_gpu().empty();
  CHECK(parse_device("auto") == (has_gpu ? Device{Device::Kind::cuda, 0} : Device{}));
}

TEST_CASE("tensor/device: a GPU that is not there is refused with the reason") {
  const std::vector<Device> devices = available_devices();
  REQUIRE(devices[0] == Device{});
  if (devices.size() == 1) {
    CHECK_THROWS_AS(parse_device("cuda"), UsageError);
    CHECK(error_of([] { parse_device("cuda"); }) ==
          str("[device] 'cuda' is not available: ", why_no_gpu(), "; use cpu"));
  } else {
    CHECK(parse_device("cuda") == Device{Device::Kind::cuda, 0});
    CHECK(parse_device("cuda:0") == Device{Device::Kind::cuda, 0});
    CHECK_THROWS_AS(parse_device("cuda:99"), UsageError);
    CHECK(contains(error_of([] { parse_device("cuda:99"); }), "'cuda:99' is not available: there are "));
  }
}

TEST_CASE("tensor/error: checks throw the kind and the words that they are given") {
  CHECK_NOTHROW(check(true, "fine"));
  CHECK_THROWS_AS(check_usage(false, "no"), UsageError);
  try {
    check(false, "width ", 7, " of ", Shape{1, 2});
    FAIL("check(false) returned");
  } catch (const UsageError&) {
    FAIL("check threw a UsageError");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "width 7 of (1, 2)");
  }
  CHECK(join({"a", "b", "c"}) == "a, b, c");
  CHECK(join({}) == "");
}

TEST_CASE("tensor/tensor: a stamp changes with every way to write and with nothing else") {
  for (const Device device : available_devices()) {
    Tensor x = Tensor::zeros({2, 3}, DType::float32, device);
    const Tensor source = Tensor::full({2, 3}, 1, DType::float32);
    uint64_t before = x.stamp();
    const auto changed = [&](const Tensor& tensor) {
      const bool is_new = tensor.stamp() != before;
      before = tensor.stamp();
      return is_new;
    };
    Tensor other = x, view = x.narrow(0, 1, 1), flat = x.reshape({6});
    CHECK_FALSE(changed(x));
    x.data<float>();
    CHECK(changed(x));
    x.data_or_null<float>();
    CHECK(changed(x));
    x.raw_data();
    CHECK(changed(x));
    x.fill(2);
    CHECK(changed(x));
    x.copy_from(source);
    CHECK(changed(x));
    x.narrow(1, 0, 2).copy_from(source.narrow(1, 0, 2));  // with strides
    CHECK(changed(x));
    other.fill(3);
    CHECK(changed(x));
    view.data<float>();
    CHECK(changed(x));
    flat.raw_data();
    CHECK(changed(x));
    const Tensor& read = x;
    read.data<float>();
    read.raw_data();
    read.strided_data<float>();
    read.to_vector();
    read.clone();
    CHECK_FALSE(changed(x));
    CHECK(changed(x.clone()));
    const uint64_t freed = Tensor::zeros({2, 3}, DType::float32, device).stamp();
    CHECK(Tensor::zeros({2, 3}, DType::float32, device).stamp() != freed);  // in the same memory
  }
  CHECK_THROWS_AS(Tensor().stamp(), Error);
}

TEST_CASE("tensor/error: the nearest word is a likely typo or none") {
  const std::vector<std::string> words = {"learning_rate", "batch", "context", "width"};
  CHECK(nearest("learning_rte", words) == "learning_rate");
  CHECK(nearest("lerning-rate", words) == "learning_rate");
  CHECK(nearest("bacth", words) == "batch");
  CHECK(nearest("width", words) == "width");
  CHECK(nearest("temperature", words) == "");
  CHECK(nearest("", words) == "");
  CHECK(nearest("width", {}) == "");
}

}  // namespace
}  // namespace mixgrad
