// `bench`: how times become figures, when a set is thrown away, what a peer may print, and that nothing is
// left out. No time is asserted but to be above 0.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "nn/mixer.h"
#include "tests/train/programs.h"
#include "train/bench/conditions.h"
#include "train/bench/decode.h"
#include "train/bench/gemm.h"
#include "train/bench/kernels.h"
#include "train/bench/mixers.h"
#include "train/bench/openblas.h"
#include "train/bench/peer.h"
#include "train/bench/step.h"

namespace mixgrad {
namespace {

const Measuring briefly{0, [](const std::string&) { return true; }};

Measuring briefly_on(Device device) {
  Measuring measuring = briefly;
  measuring.device = device;
  return measuring;
}

Peaks peaks_of(double flops_s, double copy_bytes_s) {
  return {1, flops_s, {{"L2", 1000, 0, 10 * copy_bytes_s}, {"memory", 1000000, 0, copy_bytes_s}}};
}

Figure figure_of(const std::string& name, std::vector<double> seconds) {
  Figure figure;
  figure.name = name;
  figure.seconds = std::move(seconds);
  return figure;
}

std::set<std::string> names_of(const std::vector<Figure>& figures) {
  std::set<std::string> names;
  for (const Figure& figure : figures) names.insert(figure.name);
  return names;
}

std::set<std::string> names_of(const std::vector<Derived>& derived) {
  std::set<std::string> names;
  for (const Derived& each : derived) names.insert(each.name);
  return names;
}

/// The value of this name, which must be there.
double value_of(const std::vector<Derived>& derived, const std::string& name) {
  const auto found =
      std::find_if(derived.begin(), derived.end(), [&](const Derived& each) { return each.name == name; });
  REQUIRE_MESSAGE(found != derived.end(), name);
  return found->value;
}

void check_times(const std::vector<Figure>& figures) {
  for (const Figure& figure : figures) {
    INFO(figure.name);
    CHECK(figure.seconds.size() >= 3);
    CHECK(*std::max_element(figure.seconds.begin(), figure.seconds.end()) > 0);
  }
}

/// Instruments with given readings, one after the other; the machine has one processor.
class Readings {
 public:
  Readings(std::vector<Peaks> peaks, std::vector<double> all, std::vector<double> own)
      : peaks_(std::move(peaks)), all_(std::move(all)), own_(std::move(own)) {}

  Instruments instruments() {
    return {[this] { return peaks_.at(peak_++); }, [this] { return all_.at(all_read_++); },
            [this] { return own_.at(own_read_++); }, [this] { return 10.0 * wall_read_++; }, 1};
  }

 private:
  std::vector<Peaks> peaks_;
  std::vector<double> all_, own_;
  size_t peak_ = 0, all_read_ = 0, own_read_ = 0, wall_read_ = 0;
};

Measured measure_with(Readings readings, int attempts, std::vector<std::string>& thrown_away) {
  double call = 0;
  return measure_undisturbed(
      readings.instruments(), attempts,
      [&] {
        return Findings{{figure_of("x", {++call})}, {}};
      },
      [&](const std::string& disturbance) { thrown_away.push_back(disturbance); });
}

/// A shell script in a folder of its own, as a command.
class Script {
 public:
  explicit Script(const std::string& text) { write_bytes(folder_ / "peer.sh", text); }
  std::string command() const { return "sh " + (folder_ / "peer.sh").string(); }

 private:
  ScratchFolder folder_;
};

Outcome bench(const std::vector<std::string>& arguments) { return run("bench", arguments); }

const std::vector<std::string> small_step = {"step",        "--layers=1",  "--width=16",   "--heads=2",
                                             "--context=8", "--batch=2",   "--device=cpu", "--threads=1",
                                             "--seconds=0", "--attempts=1"};

}  // namespace

TEST_CASE("train/bench figures: median and extremes of odd and even counts") {
  CHECK(spread_of({3, 1, 2}).median == 2);
  CHECK(spread_of({4, 1, 2, 3}).median == 2.5);
  CHECK(spread_of({3, 1, 2}).min == 1);
  CHECK(spread_of({3, 1, 2}).max == 3);
  CHECK_THROWS_AS(spread_of({}), Error);
}

TEST_CASE("train/bench figures: a share is held against arithmetic or memory whichever bounds it") {
  Figure figure = figure_of("x", {2, 1, 2});
  const Peaks peaks = peaks_of(100, 50);
  CHECK(share_of_peak(figure, peaks) == 0);
  figure.flops = 120;
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(0.6));
  figure.bytes = 500000;  // in memory: 10000 s
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(5000));
  figure.bytes = 1000;  // in L2: 2 s
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(1));
}

TEST_CASE("train/bench figures: the slowest are those of the least share") {
  const Peaks peaks = peaks_of(100, 50);
  const auto with_flops = [](const char* name, double flops, double seconds) {
    Figure figure = figure_of(name, {seconds});
    figure.flops = flops;
    return figure;
  };
  // Shares: 0.5, none, 0.2, 0.8, 0.2. The longest time isn't the least share.
  const std::vector<Figure> figures = {with_flops("half", 5000, 100), with_flops("uncounted", 0, 1000),
                                       with_flops("fifth", 20, 1), with_flops("most", 80, 1),
                                       with_flops("another fifth", 40, 2)};
  const auto names = [&](size_t count) {
    std::vector<std::string> result;
    for (const Figure& figure : slowest_by_share(figures, peaks, count)) result.push_back(figure.name);
    return result;
  };
  CHECK(names(0).empty());
  CHECK(names(3) == std::vector<std::string>{"fifth", "another fifth", "half"});
  CHECK(names(9) == std::vector<std::string>{"fifth", "another fifth", "half", "most"});
}

TEST_CASE("train/bench figures: the slope of a power is its exponent") {
  CHECK(log_log_slope({1, 2, 4, 8}, {3, 12, 48, 192}) == doctest::Approx(2));
  CHECK(log_log_slope({256, 8192}, {1, 32}) == doctest::Approx(1));
  CHECK_THROWS_AS(log_log_slope({1}, {1}), Error);
}

TEST_CASE("train/bench figures: rounds add up by name") {
  Findings all;
  all.append({{figure_of("a", {1}), figure_of("b", {2})}, {{"ratio", 1, ""}}});
  all.append({{figure_of("b", {3}), figure_of("c", {4})}, {{"ratio", 2, ""}}});
  REQUIRE(all.figures.size() == 3);
  CHECK(all.figures[1].seconds == std::vector<double>{2, 3});
  CHECK(all.figures[2].seconds == std::vector<double>{4});
  CHECK(all.derived.at(0).value == 2);
}

TEST_CASE("train/bench step: parts add up to the step that they belong to") {
  PartTimes parts;
  parts.add("linear", Phase::forward, 1);
  parts.add("linear", Phase::backward, 3);
  parts.add("linear", Phase::forward, 2);
  parts.end_step(8);
  parts.add("linear", Phase::forward, 4);
  parts.add("adamw", Phase::update, 0.5);
  parts.end_step(5);
  CHECK(parts.sums() == std::vector<double>{6, 4.5});
  CHECK(parts.share_of_step() == doctest::Approx((6.0 / 8 + 4.5 / 5) / 2));
  const std::vector<Figure> figures = parts.figures();
  REQUIRE(figures.size() == 3);
  CHECK(figures[0].name == "linear, forward");
  CHECK(figures[0].seconds == std::vector<double>{3, 4});
  CHECK(figures[1].name == "linear, backward");
  CHECK(figures[1].seconds == std::vector<double>{3, 0});
  CHECK(figures[2].name == "adamw, update");
  CHECK(figures[2].seconds == std::vector<double>{0, 0.5});
}

TEST_CASE("train/bench step: the figures of a small model") {
  StepOptions options;
  options.model = {.vocabulary = 11, .layers = 2, .heads = 2, .width = 16, .context = 8, .pattern = "sdpa"};
  options.batch = 2;
  options.accumulate = 2;
  for (const Device device : available_devices()) {
    CAPTURE(device);
    const Findings findings = measure_step(options, briefly_on(device));
    check_times(findings.figures);
    const std::set<std::string> names = names_of(findings.figures);
    for (const char* name :
         {"step", "sum of parts", "linear, forward", "linear, backward", "attention, forward",
          "adamw, update", "gradient norm, update", "batch, update"}) {
      CHECK_MESSAGE(names.contains(name), name);
    }
    const Figure& step = findings.figures[0];
    CHECK(step.tokens == 32);
    CHECK(step.peak_bytes > 0);
    // Of a token: four projections and two MLP matrices a layer, the head; attention to itself and those
    // before.
    const double matrices = 2 * (2 * (4 * 16 * 16 + 2 * 16 * 64) + 11 * 16), attention = 2 * 4 * 16 * 4.5;
    CHECK(step.flops == doctest::Approx(3 * 32 * (matrices + attention)));
    double sum = 0;
    for (size_t i = 2; i < findings.figures.size(); ++i) sum += findings.figures[i].seconds[0];
    CHECK(sum == doctest::Approx(findings.figures[1].seconds[0]));
    const double share = value_of(findings.derived, "the same within each watched step");
    CHECK(share > 0.2);  // a model this small spends much between its ops; 0.995 in a real one
    CHECK(share <= 1);
  }
}

TEST_CASE("train/bench conditions: an undisturbed set is taken as it is") {
  std::vector<std::string> thrown_away;
  const Measured measured =
      measure_with({{peaks_of(100, 50), peaks_of(96, 45)}, {0, 9.4}, {0, 9}}, 3, thrown_away);
  CHECK(thrown_away.empty());
  CHECK(measured.conditions.attempts == 1);
  CHECK(measured.conditions.disturbance.empty());
  CHECK(measured.conditions.others_share == doctest::Approx(0.04));
  CHECK(measured.findings.figures.at(0).seconds == std::vector<double>{1});
}

TEST_CASE("train/bench conditions: a disturbed set is thrown away and measured again") {
  std::vector<std::string> thrown_away;
  const Measured measured =
      measure_with({{peaks_of(100, 50), peaks_of(90, 50), peaks_of(100, 50), peaks_of(100, 40),
                     peaks_of(90, 50), peaks_of(90, 50), peaks_of(90, 50), peaks_of(90, 50)},
                    {0, 9, 10, 19, 20, 29, 30, 31},
                    {0, 9, 10, 19, 20, 28, 30, 31}},
                   5, thrown_away);
  REQUIRE(thrown_away.size() == 3);
  CHECK(thrown_away[0] == "the peak of arithmetic changed by 10 %");
  CHECK(thrown_away[1] == "the copy rate changed by 20 %");
  CHECK(thrown_away[2] == "other processes took 10 % of the machine");
  CHECK(measured.conditions.attempts == 4);
  CHECK(measured.conditions.disturbance.empty());
  CHECK(measured.findings.figures.at(0).seconds == std::vector<double>{4});
}

TEST_CASE("train/bench conditions: what stays disturbed says so") {
  std::vector<std::string> thrown_away;
  const Measured measured =
      measure_with({{peaks_of(100, 50), peaks_of(50, 50), peaks_of(100, 50), peaks_of(50, 50)},
                    {0, 0, 0, 0},
                    {0, 0, 0, 0}},
                   2, thrown_away);
  CHECK(thrown_away.size() == 1);
  CHECK(measured.conditions.attempts == 2);
  CHECK(measured.conditions.disturbance == "the peak of arithmetic changed by 50 %");
  std::ostringstream shown;
  print_set(shown, {"set", measured, {}});
  CHECK(contains(shown.str(), "DISTURBED in each of 2 attempts: the peak of arithmetic changed by 50 %"));
}

TEST_CASE("train/bench peer: figures are the lines behind the header") {
  const std::vector<PeerFigure> figures = parse_peer(
      "warming up, please wait\nfigure,ms,best_ms,peak_bytes\nstep,12.5,12,1000\r\nnote: done\n"
      "core gma T=64,2,1,2000\n");
  REQUIRE(figures.size() == 2);
  CHECK(figures[0].name == "step");
  CHECK(figures[0].ms == 12.5);
  CHECK(figures[0].peak_bytes == 1000);
  CHECK(figures[1].name == "core gma T=64");
  CHECK(parse_peer("figure,ms\nstep,3\n").at(0).peak_bytes == 0);
  CHECK(parse_peer("step,12.5,12,1000\n").empty());
  for (const char* bad : {"figure,ms\nstep,fast\n", "figure,ms\nstep,-1\n", "figure,ms\nstep,1x\n"}) {
    CHECK(contains(error_of([&] { parse_peer(bad); }), "allowed: a number above 0"));
  }
}

TEST_CASE("train/bench peer: a command that fails or measures nothing is told with its last line") {
  const Script failing("echo one; echo the reason; exit 3");
  CHECK(contains(error_of([&] { run_peer(failing.command()); }),
                 "failed with exit code 3; its last line: the reason"));
  const Script silent("true");
  CHECK(contains(error_of([&] { run_peer(silent.command()); }), "printed no line of CSV"));
  CHECK(contains(error_of([] { run_peer("no_such_command_at_all"); }), "exit code 127"));
}

TEST_CASE("train/bench peer: the ratio is the median of the rounds with its extremes") {
  Rounds rounds;
  rounds.add({{figure_of("step", {1, 1, 1}), figure_of("other", {9})}, {}}, {{"step", 1500, 0}, {"x", 1, 0}});
  rounds.add({{figure_of("step", {2, 2, 2})}, {}}, {{"step", 2000, 0}});
  rounds.add({{figure_of("step", {1, 2, 3})}, {}}, {{"step", 4000, 7}});
  REQUIRE(rounds.comparisons().size() == 1);
  const Comparison& comparison = rounds.comparisons()[0];
  CHECK(comparison.ratio().median == 1.5);
  CHECK(comparison.ratio().min == 1);
  CHECK(comparison.ratio().max == 2);
  CHECK(comparison.peer_peak_bytes == 7);
  const std::string error = error_of([&] { rounds.add({{figure_of("a", {1})}, {}}, {{"b", 1, 0}}); });
  CHECK(contains(error, "its: 'b'; ours: 'a'"));
}

TEST_CASE("train/bench gemm: both implementations and their ratio in all forms") {
  GemmOptions options;
  options.shape = "5,4,3";
  const Findings findings = measure_gemm(options, briefly);
  check_times(findings.figures);
  CHECK(names_of(findings.figures) ==
        std::set<std::string>{"product NN 5x4x3, ours", "product NN 5x4x3, OpenBLAS",
                              "product NT 5x4x3, ours", "product NT 5x4x3, OpenBLAS",
                              "product TN 5x4x3, ours", "product TN 5x4x3, OpenBLAS",
                              "product TT 5x4x3, ours", "product TT 5x4x3, OpenBLAS"});
  CHECK(findings.figures[0].flops == 120);
  CHECK(findings.derived.size() == 4);
  GemmOptions model;
  model.batch = 1;
  model.context = 4;
  model.width = 8;
  model.heads = 2;
  CHECK(measure_gemm(model, briefly).figures.size() == 2 * (4 * 3 + 3));
}

TEST_CASE("train/bench gemm: OpenBLAS gives the product that ours is held against") {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12};
  std::vector<float> c(4), c_transposed(4);
  openblas_gemm({.m = 2, .n = 2, .k = 3}, a.data(), b.data(), c.data());
  CHECK(c == std::vector<float>{58, 64, 139, 154});
  openblas_gemm({.m = 2, .n = 2, .k = 3, .a = Transpose::yes, .b = Transpose::yes}, a.data(), b.data(),
                c_transposed.data());
  CHECK(c_transposed == std::vector<float>{76, 103, 100, 136});
}

TEST_CASE("train/bench kernels: every family has a case") {
  std::set<std::string> families;
  for (const std::string& name : kernel_names()) families.insert(name.substr(0, name.find('/')));
  const std::set<std::string> no_kernels = {"heads", "scalar", "vector_math"};
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MIXGRAD_SOURCE_DIR) + "/tensor/kernels")) {
    const std::string family = entry.path().stem().string();
    if (no_kernels.contains(family)) continue;
    CHECK_MESSAGE(families.contains(family), "no case of ", family, " in train/bench/kernels.cpp");
  }
}

TEST_CASE("train/bench kernels: each case has its figures forward and backward") {
  const KernelsOptions options{
      .batch = 2, .context = 5, .width = 8, .heads = 2, .components = 3, .routing = 2, .vocabulary = 7};
  for (const Device device : available_devices()) {
    CAPTURE(device);
    const Findings findings = measure_kernels(options, briefly_on(device));
    check_times(findings.figures);
    const std::vector<std::string> cases = kernel_names();
    CHECK(std::set<std::string>(cases.begin(), cases.end()).size() == cases.size());
    CHECK(findings.figures.size() == 2 * (cases.size() - 3) + 3);  // copies and the optimiser have one pass
    for (const Figure& figure : findings.figures) CHECK_MESSAGE(figure.bytes > 0, figure.name);
  }
}

TEST_CASE("train/bench mixers: every mixer and core appears with its slope") {
  MixersOptions options;
  options.lengths = "6,12";
  options.heads = 2;
  options.head_size = 4;
  options.components = 3;
  options.chunk = 4;
  options.one_by_one = 9;
  const Findings findings = measure_mixers(options, briefly);
  check_times(findings.figures);
  const std::set<std::string> figures = names_of(findings.figures), derived = names_of(findings.derived);
  for (const std::string& core : core_names()) {
    for (const char* pass : {"", ", forward", ", backward"}) {
      CHECK_MESSAGE(figures.contains(str("core ", core, " T=12", pass)), core, pass);
    }
    CHECK_MESSAGE(derived.contains(str("core ", core, ", log-log slope over T")), core);
    if (core == "sdpa") continue;
    CHECK_MESSAGE(derived.contains(str("core ", core, " T=9, tokens one by one over chunks")), core);
  }
  for (const MixerKind& kind : mixer_kinds()) {
    const bool there = std::any_of(figures.begin(), figures.end(), [&](const std::string& name) {
      return name.starts_with("mixer " + kind.name) && name.ends_with(" T=6");
    });
    CHECK_MESSAGE(there == kind.forms.causal, kind.name);
  }
}

TEST_CASE("train/bench mixers: a list of mixers with options and only what the filter wants") {
  MixersOptions options;
  options.lengths = "6";
  options.heads = 2;
  options.head_size = 4;
  options.cores = "none";
  options.mixers = "sdpa,gma(components=3,routing=2)";
  const Measuring backward_only{0, [](const std::string& name) { return name.ends_with("backward"); }};
  const std::set<std::string> names = names_of(measure_mixers(options, backward_only).figures);
  CHECK(names ==
        std::set<std::string>{"mixer sdpa T=6, backward", "mixer gma(components=3,routing=2) T=6, backward"});
}

TEST_CASE("train/bench decode: every mixer appears and only the state of attention grows") {
  DecodeOptions options;
  options.lengths = "40,10";
  options.model.heads = 2;
  options.model.width = 8;
  options.model.layers = 1;
  options.mixers = "all";
  const Findings findings = measure_decode(options, briefly);
  check_times(findings.figures);
  const std::set<std::string> figures = names_of(findings.figures), derived = names_of(findings.derived);
  for (const MixerKind& kind : mixer_kinds()) {
    const std::string title = "mixer " + kind.name;
    CAPTURE(title);
    CHECK(figures.contains(title + " after 10 tokens") == kind.forms.causal);
    CHECK(figures.contains(title + " after 40 tokens") == kind.forms.causal);
    CHECK(derived.contains(title + ", time at T=40 over T=10") == kind.forms.causal);
    CHECK(derived.contains(title + ", state") == (kind.forms.causal && kind.name != "sdpa"));
  }
  CHECK(value_of(findings.derived, "mixer gma, state") == 2 * 64 * (4 + 1) * 4);  // H K (d + 1) floats
  CHECK(value_of(findings.derived, "mixer sdpa, state after 10 tokens") == 10 * 2 * 8 * 4);  // keys, values
  CHECK(value_of(findings.derived, "mixer sdpa, state after 40 tokens") == 40 * 2 * 8 * 4);
  CHECK(value_of(findings.derived, "mixer sdpa, parameters") == 4 * 8 * 8);
}

TEST_CASE("train/bench decode: work of a token and only what the filter wants") {
  DecodeOptions options;
  options.batch = 3;
  options.lengths = "10,600";
  options.model.heads = 2;
  options.model.width = 8;
  options.mixers = "sdpa,sdpa(window=5)";
  const Measuring later{0, [](const std::string& name) {
                          return name.starts_with("mixer") && name.ends_with("after 600 tokens");
                        }};
  const Findings findings = measure_decode(options, later);
  REQUIRE(findings.figures.size() == 2);
  CHECK(names_of(findings.figures) ==
        std::set<std::string>{"mixer sdpa after 600 tokens", "mixer sdpa(window=5) after 600 tokens"});
  const Figure &all = findings.figures[0], &window = findings.figures[1];
  CHECK(all.tokens == 3);
  // Of a token: four projections; scores and sums over itself and those before, 632.5 on average of 64.
  CHECK(all.flops == doctest::Approx(3 * (2 * 4 * 8 * 8 + 4 * 8 * 632.5)));
  CHECK(window.flops == doctest::Approx(3 * (2 * 4 * 8 * 8 + 4 * 8 * 5)));
  // Parameters, and the keys and values of three sequences: of all tokens, or of two windows.
  CHECK(all.bytes == 4 * (4 * 8 * 8 + 3 * 600 * 2 * 8));
  CHECK(window.bytes == 4 * (4 * 8 * 8 + 3 * 10 * 2 * 8));
  CHECK(names_of(findings.derived) == std::set<std::string>{"mixer sdpa, state after 600 tokens",
                                                            "mixer sdpa, parameters",
                                                            "mixer sdpa(window=5), state after 600 tokens",
                                                            "mixer sdpa(window=5), parameters"});
}

TEST_CASE("train/bench decode: a model reads its parameters and its state for every token") {
  DecodeOptions options;
  options.batch = 2;
  options.lengths = "5,12";
  options.mixers = "none";
  options.model.layers = 2;
  options.model.heads = 2;
  options.model.width = 8;
  options.model.vocabulary = 11;
  for (const std::string positions : {"none", "learned"}) {
    options.model.positions = positions;
    options.model.pattern = "sdpa,gma";
    const Findings findings = measure_decode(options, briefly);
    check_times(findings.figures);
    CHECK(names_of(findings.figures) ==
          std::set<std::string>{"model sdpa,gma after 5 tokens", "model sdpa,gma after 12 tokens"});
    const double parameters = value_of(findings.derived, "model sdpa,gma, parameters");
    const double state = value_of(findings.derived, "model sdpa,gma, state after 12 tokens");
    CHECK(state == 4 * 2 * (12 * 2 * 8 + 2 * 64 * (4 + 1)));  // keys and values; H K (d + 1) of each text
    CHECK(findings.figures.back().bytes == 4 * parameters + state);
    CHECK(findings.figures.back().tokens == 2);
  }
  options.model.pattern = "gma(components=3,routing=2)";
  options.model.layers = 1;
  options.model.ttt_tokens = 4;  // a model that learns while it reads decodes, too
  CHECK(measure_decode(options, briefly).figures.size() == 2);
}

TEST_CASE("train/bench figure: bytes that are only read are held against the rate of reading") {
  Peaks peaks;
  peaks.flops_s = 1e9;
  peaks.levels = {{"L2", 1000, 400, 200}, {"memory", 1 << 20, 100, 50}};
  Figure figure;
  figure.seconds = {10};
  figure.bytes = 1000;
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(0.5));
  figure.only_reads = true;
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(0.25));
  figure.bytes = 4000;
  CHECK(share_of_peak(figure, peaks) == doctest::Approx(4));
}

TEST_CASE("train/bench program: json holds machine and figures and the comparison with a peer") {
  const Script peer("echo figure,ms,peak_bytes; echo step,1000,123456789");
  const ScratchFolder folder;
  const std::string json_path = (folder / "out.json").string();
  const Outcome outcome =
      bench(small_step + std::vector<std::string>{"--json", json_path, "--against", peer.command(),
                                                  "--rounds", "2", "--filter", "^mlp"});
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, "peer/ours"));
  CHECK(contains(outcome.out, "peak memory of the process"));
  const nlohmann::json json = nlohmann::json::parse(file_bytes(json_path));
  CHECK(json.at("machine").at("threads") == 1);
  const nlohmann::json& set = json.at("sets").at(0);
  CHECK(set.at("name") == "step");
  CHECK(set.at("peaks_before").at("flops_s").get<double>() > 0);
  CHECK(set.at("figures").at(0).at("share_of_peak").get<double>() > 0);
  CHECK(set.at("figures").size() == 4);  // step, sum, mlp forward and backward
  CHECK(set.at("against").at(0).at("ratio").at("median").get<double>() > 0);
  CHECK(set.at("against").at(0).at("peer_peak_bytes") == 123456789);
}

TEST_CASE("train/bench program: kernels end with the five slowest by share of the peak") {
  const ScratchFolder folder;
  const std::string json_path = (folder / "out.json").string();
  const Outcome outcome =
      bench({"kernels", "--batch",    "1",        "--context", "2",         "--width", "8",
             "--heads", "2",          "--device", "cpu",       "--threads", "1",       "--seconds",
             "0",       "--attempts", "1",        "--filter",  "^norm/",    "--json",  json_path});
  CHECK(outcome.code == 0);
  const nlohmann::json slowest = nlohmann::json::parse(file_bytes(json_path)).at("sets").at(0).at("slowest");
  REQUIRE(slowest.size() == 5);
  const size_t heading = outcome.out.find("slowest by share of the peak:");
  REQUIRE(heading != std::string::npos);
  double last = 0;
  for (const nlohmann::json& figure : slowest) {
    CHECK(outcome.out.find(figure.at("name").get<std::string>(), heading) != std::string::npos);
    CHECK(figure.at("share_of_peak").get<double>() >= last);
    last = figure.at("share_of_peak").get<double>();
  }
}

TEST_CASE("train/bench program: the peaks of one thread") {
  const Outcome outcome =
      bench({"peaks", "--device", "cpu", "--threads", "1", "--seconds", "0", "--attempts", "1"});
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, "fp32 multiply-adds, 1 thread: "));
  CHECK(contains(outcome.out, "memory, copy, 1 thread: "));
}

TEST_CASE("train/bench program: what can't be done is one line and exit code 2") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{}, "allowed: peaks, gemm, kernels, mixers, decode, step, all"},
      {{"stp"}, "did you mean 'step'?"},
      {{"step", "--layer", "1"}, "did you mean '--layers'?"},
      {{"step", "--mixer", "gmma"}, "unknown mixer 'gmma'"},
      {{"step", "--batch", "0"}, "--batch: 0"},
      {{"step", "--width", "10", "--heads", "3"}, "width 10"},
      {{"step", "--filter", "("}, "bad regular expression '('"},
      {{"peaks", "--filter", "no such figure", "--seconds", "0"}, "no figure of 'peaks' matches"},
      {{"all", "--filter", "no such figure", "--seconds", "0"}, "no figure of 'peaks' matches"},
      {{"peaks", "--json", "/dev/full"}, "'/dev/full' is there and no regular file"},
      {{"peaks", "--json", "no/such/folder/out.json"}, "there is no folder 'no/such/folder'"},
      {{"peaks", "--threads", "-1"}, "--threads: -1"},
      {{"peaks", "--device", "gpu"}, "'gpu'"},
      {{"peaks", "--seconds", "-1"}, "--seconds: -1"},
      {{"peaks", "--rounds", "0"}, "--rounds: 0"},
      {{"peaks", "--attempts", "0"}, "--attempts: 0"},
      {{"gemm", "--shape", "4,5"}, "--shape: '4,5'; allowed: M,N,K"},
      {{"gemm", "--shape", "4,5,x"}, "--shape: '4,5,x'"},
      {{"kernels", "--heads", "7"}, "--heads: 7"},
      {{"mixers", "--lengths", "256,x"}, "--lengths: 'x'"},
      {{"mixers", "--lengths", ""}, "--lengths"},
      {{"mixers", "--cores", "foo"}, "unknown core 'foo'; known: sdpa, gma"},
      {{"mixers", "--mixers", "gma(foo=1)"}, "foo"},
      {{"mixers", "--cores", "none", "--mixers", "none"}, "neither a core nor a mixer"},
      {{"decode", "--lengths", "0"}, "--lengths: '0'"},
      {{"decode", "--heads", "0"}, "heads 0"},
      {{"decode", "--mixers", "linformer"}, "mixer linformer has no causal form"},
      {{"decode", "--mixer", "none"}, "unknown mixer 'none'"},
      {{"decode", "--mixers", "sdpa", "--filter", "no such figure", "--seconds", "0"},
       "no figure of 'decode' matches 'no such figure'"},
      {small_step + std::vector<std::string>{"--filter", "no such figure"},
       "no figure of 'step' matches 'no such figure'"},
      {{"all", "--layers", "1"}, "unknown option '--layers'"},
  };
  for (const auto& [arguments, part] : refused) {
    const Outcome outcome = bench(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(is_one_line(outcome.err));
    CHECK(contains(outcome.err, part));
  }
}

TEST_CASE("train/bench program: a peer that fails is one line and exit code 1") {
  for (const char* script : {"echo the reason; exit 1", "echo no figures"}) {
    const Script peer(script);
    const Outcome outcome = bench(small_step + std::vector<std::string>{"--against", peer.command()});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 1);
    CHECK(is_one_line(outcome.err));
    CHECK(contains(outcome.err, "its last line: "));
  }
}

TEST_CASE("train/bench program: help and version are no errors") {
  const Outcome help = bench({"--help"});
  CHECK(help.code == 0);
  for (const char* option : {"--against", "--shape", "--lengths", "--components", "--vocabulary", "--json"}) {
    CHECK_MESSAGE(contains(help.out, option), option);
  }
  CHECK(contains(bench({"step", "--help"}).out, "--accumulate"));
  CHECK(contains(bench({"--version"}).out, "mixgrad "));
}

TEST_CASE("train/bench program: what one member of a set can't do spares the others") {
  const Outcome outcome =
      bench({"mixers", "--cores=sdpa,linear", "--mixers=none", "--lengths=8,16777216", "--batch=4096",
             "--heads=1", "--head-size=64", "--one-by-one=0", "--device=cpu", "--threads=1", "--seconds=0",
             "--attempts=1", "--filter=T=[0-9]+$"});
  CAPTURE(outcome.out);
  CHECK(outcome.code == 1);
  for (const char* part : {"core sdpa T=8 ", "core linear T=8 ", "FAILED  core sdpa T=16777216: [memory]",
                           "FAILED  core linear T=16777216: [memory]"}) {
    CAPTURE(part);
    CHECK(contains(outcome.out, part));
  }
}

TEST_CASE("train/bench figures: what failed in any round is told once") {
  Findings all;
  for (int round = 0; round < 2; ++round) {
    Findings findings;
    findings.attempt("good", [&] { findings.figures.push_back(figure_of("a", {1})); });
    findings.attempt("bad", [] { throw Error("no"); });
    all.append(std::move(findings));
  }
  CHECK(all.figures.at(0).seconds.size() == 2);
  CHECK(all.failures == std::vector<std::string>{"bad: no"});
  CHECK_THROWS_AS(all.attempt("x", [] { throw UsageError("a mistake"); }), UsageError);
}

}  // namespace mixgrad
