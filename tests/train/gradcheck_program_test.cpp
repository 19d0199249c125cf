// The program `gradcheck` as its user meets it: what it lists, checks and refuses, and its exit codes.
#include <doctest/doctest.h>

#include <algorithm>

#include "tensor/safetensors.h"
#include "tests/train/programs.h"

namespace mixgrad {
namespace {

Outcome gradcheck(const std::vector<std::string>& arguments) { return run("gradcheck", arguments); }

const std::string golden = std::string(MIXGRAD_SOURCE_DIR) + "/tests/golden";

}  // namespace

TEST_CASE("train/gradcheck program: the cases of one op are checked with a line each") {
  for (const std::string dtype : {"f64", "f32"}) {
    const Outcome outcome = gradcheck({"--filter", "^gelu_tanh$", "--dtype", dtype, "--seed", "7"});
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.out, "ok      elementwise/gelu_tanh"));
    CHECK(contains(outcome.out, "\n1 cases, 0 failed\n"));
    CHECK(outcome.err.empty());
  }
}

TEST_CASE("train/gradcheck program: the filter finds cases by their name and by the ops that they reach") {
  CHECK(
      contains(gradcheck({"--list", "--filter", "linear/linear with bias"}).out, "linear/linear with bias"));
  const std::string listed = gradcheck({"--list", "--filter", "^mask_rows$"}).out;
  CHECK(contains(listed, "elementwise/mask_rows"));
  CHECK_FALSE(contains(listed, "linear/"));
}

TEST_CASE("train/gradcheck program: the self-test counts what it tried and caught") {
  const Outcome outcome = gradcheck({"--self-test", "--filter", "^linear/|/sum$"});
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, "no change  sum, input 0: rolled by one\n"));
  CHECK(contains(outcome.out,
                 "2 ops with 4 inputs x 7 corruptions = 28 trials: 27 caught, 0 missed, 1 without change"));
}

TEST_CASE("train/gradcheck program: csv has a header and a row a case") {
  const Outcome outcome = gradcheck({"--csv", "--filter", "^linear/linear with bias$"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("case,device,dtype,derivatives,error,tolerance,passed,message\n"
                         "\"linear/linear with bias\",cpu,float64,54,") == 0);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 2);
}

TEST_CASE(
    "train/gradcheck program: golden vectors of ops that are not ours exit with 3 and failures with 1") {
  const Outcome ours = gradcheck({"--golden", golden, "--filter", "^softmax/"});
  CHECK(ours.code == 0);
  CHECK(contains(ours.out, "7 files of 1 ops checked, 0 failures\n"));

  const ScratchFolder folder;
  std::filesystem::copy(golden + "/softmax/small.safetensors", folder / "a.safetensors");
  write_safetensors(folder / "b.safetensors", {{"out.y", Tensor::zeros({2}, DType::float64)}},
                    {{"op", "entmax"}, {"case", "small"}});
  const Outcome others = gradcheck({"--golden", folder.path().string()});
  CHECK(others.code == 3);
  CHECK(contains(others.out, "not covered: entmax (1)\n1 files of 1 ops checked, 0 failures\n"));

  write_safetensors(folder / "c.safetensors", {{"out.y", Tensor::zeros({2}, DType::float64)}},
                    {{"op", "softmax"}, {"case", "without input"}});
  const Outcome failing = gradcheck({"--golden", folder.path().string()});
  CHECK(failing.code == 1);
  CHECK(contains(failing.out, "FAILED  softmax/without input, float64: "));
}

TEST_CASE("train/gradcheck program: what can't be done is one line and exit code 2") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--filter", "("}, "bad regular expression '('"},
      {{"--filter", "no such op"}, "no case or op matches 'no such op'"},
      {{"--device", "gpu"}, "unknown device 'gpu'"},
      {{"--dtype", "f16"}, "unknown dtype 'f16'; allowed: f64, f32"},
      {{"--seed", "-1"}, "seed -1"},
      {{"--seed", "1x"}, "--seed"},
      {{"--filtr", "linear"}, "did you mean"},
      {{"--list", "--self-test"}, "only one of"},
      {{"--golden", "/no/such/folder"}, "no folder '/no/such/folder'"},
      {{"--golden", golden, "--filter", "no such op"}, "is selected"},
  };
  for (const auto& [arguments, part] : refused) {
    const Outcome outcome = gradcheck(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(is_one_line(outcome.err));
    CHECK(contains(outcome.err, part));
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("train/gradcheck program: help and version are no errors") {
  CHECK(contains(gradcheck({"--help"}).out, "--self-test"));
  CHECK(gradcheck({"--help"}).code == 0);
  CHECK(contains(gradcheck({"--version"}).out, "mixgrad "));
}

}  // namespace mixgrad
