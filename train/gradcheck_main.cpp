// gradcheck: checks the gradients of ops and mixers against numeric derivatives, itself, and golden vectors.
#include <iomanip>
#include <iostream>
#include <regex>

#include "autograd/gradcheck.h"
#include "autograd/gradcheck_self_test.h"
#include "nn/mixer_cases.h"
#include "train/cli.h"
#include "train/golden.h"

namespace mixgrad {

namespace {

/// What the command line asks for.
struct Request {
  bool list = false;
  bool self_test = false;
  bool csv = false;
  std::string filter;
  std::string device = "cpu";
  std::string dtype = "f64";
  std::string golden;
  int64_t seed = 1;
};

DType parse_dtype(const std::string& text) {
  check_usage(text == "f64" || text == "f32", "[gradcheck] unknown dtype '", text, "'; allowed: f64, f32");
  return text == "f64" ? DType::float64 : DType::float32;
}

std::regex parse_filter(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw UsageError(str("[gradcheck] bad regular expression '", text, "': ", error.what()));
  }
}

std::vector<GradCaseGroup> all_cases(uint64_t seed) {
  std::vector<GradCaseGroup> groups = all_op_cases(seed);
  for (GradCaseGroup& group : all_mixer_cases(seed)) groups.push_back(std::move(group));
  return groups;
}

std::string label(const GradCaseGroup& group, const GradCase& grad_case) {
  return group.name + "/" + grad_case.name;
}

/// The cases whose label, or one of whose ops, the filter is found in.
std::vector<GradCaseGroup> select(const std::vector<GradCaseGroup>& groups, const std::string& filter) {
  const std::regex pattern = parse_filter(filter);
  const auto wanted = [&](const GradCaseGroup& group, const GradCase& grad_case) {
    if (std::regex_search(label(group, grad_case), pattern)) return true;
    const std::set<std::string> ops = ops_reached(grad_case);
    return std::any_of(ops.begin(), ops.end(),
                       [&](const std::string& op) { return std::regex_search(op, pattern); });
  };
  std::vector<GradCaseGroup> selected;
  for (const GradCaseGroup& group : groups) {
    GradCaseGroup kept{group.name, {}};
    for (const GradCase& grad_case : group.cases) {
      if (wanted(group, grad_case)) kept.cases.push_back(grad_case);
    }
    if (!kept.cases.empty()) selected.push_back(std::move(kept));
  }
  check_usage(!selected.empty(), "[gradcheck] no case or op matches '", filter, "'; see --list");
  return selected;
}

int list_cases(const std::vector<GradCaseGroup>& groups) {
  for (const GradCaseGroup& group : groups) {
    for (const GradCase& grad_case : group.cases) {
      const std::set<std::string> ops = ops_reached(grad_case);
      std::cout << std::left << std::setw(60) << label(group, grad_case) << ' '
                << join({ops.begin(), ops.end()}) << '\n';
    }
  }
  return 0;
}

/// A field of a csv line.
std::string quoted(const std::string& text) {
  return '"' + std::regex_replace(text, std::regex("\""), "\"\"") + '"';
}

/// A case that can't be computed has failed, and the others are checked all the same.
GradCheckResult checked(const std::string& name, const GradCase& grad_case, const GradCheckOptions& options) {
  try {
    return check_gradients(name, grad_case, options);
  } catch (const std::exception& error) {
    GradCheckResult result;
    result.failures.push_back(error.what());
    return result;
  }
}

int check_cases(const std::vector<GradCaseGroup>& groups, const GradCheckOptions& options, bool csv) {
  int64_t cases = 0, failed = 0;
  if (csv) std::cout << "case,device,dtype,derivatives,error,tolerance,passed,message\n";
  for (const GradCaseGroup& group : groups) {
    for (const GradCase& grad_case : group.cases) {
      const std::string name = label(group, grad_case);
      const GradCheckResult result = checked(name, grad_case, options);
      const bool passed = result.failures.empty();
      ++cases;
      failed += !passed;
      if (csv) {
        std::cout << quoted(name) << ',' << options.device << ',' << options.dtype << ','
                  << result.derivatives << ',' << result.error << ',' << gradcheck_tolerance(options.dtype)
                  << ',' << passed << ',' << quoted(join(result.failures, "; ")) << '\n';
        continue;
      }
      std::cout << (passed ? "ok      " : "FAILED  ") << std::left << std::setw(60) << name << " error "
                << std::setprecision(2) << std::setw(8) << result.error << " in " << result.derivatives
                << " derivatives\n";
      for (const std::string& failure : result.failures) std::cout << "        " << failure << '\n';
    }
  }
  if (!csv) std::cout << cases << " cases, " << failed << " failed\n";
  return failed == 0 ? 0 : 1;
}

int run_self_test(const std::vector<GradCaseGroup>& groups, const GradCheckOptions& options) {
  const SelfTestResult result = self_test(groups, options);
  for (const std::string& trial : result.missed) std::cout << "MISSED     " << trial << '\n';
  for (const std::string& trial : result.unchanged) std::cout << "no change  " << trial << '\n';
  std::cout << result.ops << " ops with " << result.inputs << " inputs x " << corruptions().size()
            << " corruptions = " << result.trials << " trials: " << result.caught << " caught, "
            << result.missed.size() << " missed, " << result.unchanged.size()
            << " without change; the mildest erred by " << std::setprecision(2) << result.mildest_error
            << ", tolerance " << gradcheck_tolerance(options.dtype) << '\n';
  return result.missed.empty() ? 0 : 1;
}

int run_golden(const std::string& folder, const GoldenOptions& options) {
  const GoldenResult result = check_golden(folder, options);
  int64_t files = 0;
  for (const auto& [name, op] : result.ops) {
    files += op.files;
    std::cout << std::left << std::setw(24) << name << std::right << std::setw(4) << op.files
              << " files, of the tolerance used:" << std::setprecision(2);
    for (const auto& [dtype, used] : op.tolerance_used) std::cout << ' ' << used << " in " << dtype;
    std::cout << '\n';
  }
  for (const std::string& failure : result.failures) std::cout << "FAILED  " << failure << '\n';
  std::vector<std::string> not_covered;
  for (const auto& [name, count] : result.not_covered) not_covered.push_back(str(name, " (", count, ")"));
  if (!not_covered.empty()) std::cout << "not covered: " << join(not_covered) << '\n';
  std::cout << files << " files of " << result.ops.size() << " ops checked, " << result.failures.size()
            << " failures\n";
  check(files > 0, "[golden] no file in '", folder, "' is of an op that is ours");
  return !result.failures.empty() ? 1 : !result.not_covered.empty() ? 3 : 0;
}

int gradcheck(int argc, char** argv) {
  CLI::App app(
      "Checks gradients against numeric derivatives (float64, central differences).\n"
      "Exit code: 0 all passed, 1 something failed, 2 a usage error,\n"
      "3 all passed but some golden ops are not ours.");
  Request request;
  app.add_flag("--list", request.list, "Print the cases and the ops that each reaches");
  app.add_option("--filter", request.filter,
                 "Only cases with this regular expression in their name or an op's");
  app.add_option("--device", request.device, "Where to compute: cpu, cuda, cuda:N, auto")
      ->capture_default_str();
  app.add_option("--dtype", request.dtype, "Of the gradients under test: f64, f32")->capture_default_str();
  app.add_option("--seed", request.seed, "Of the inputs and the cotangents")->capture_default_str();
  app.add_flag("--self-test", request.self_test,
               "Corrupt each op's backward in seven ways; all must be noticed");
  app.add_option(
      "--golden", request.golden,
      "Check against the golden vectors in this folder instead, in both dtypes unless --dtype is given");
  app.add_flag("--csv", request.csv, "Machine-readable output");
  add_version(app);
  if (!parse(app, argc, argv)) return 0;

  check_usage(request.list + request.self_test + request.csv + !request.golden.empty() <= 1,
              "[gradcheck] only one of --list, --self-test, --csv and --golden at a time");
  check_usage(request.seed >= 0, "[gradcheck] seed ", request.seed, "; allowed: 0 or more");
  const GradCheckOptions options{.device = parse_device(request.device),
                                 .dtype = parse_dtype(request.dtype),
                                 .seed = static_cast<uint64_t>(request.seed)};
  if (!request.golden.empty()) {
    GoldenOptions golden{.device = options.device};
    if (app.count("--dtype") > 0) golden.dtypes = {options.dtype};
    golden.wanted = [pattern = parse_filter(request.filter)](const std::string& name) {
      return std::regex_search(name, pattern);
    };
    return run_golden(request.golden, golden);
  }
  const std::vector<GradCaseGroup> groups = select(all_cases(options.seed), request.filter);
  if (request.list) return list_cases(groups);
  if (request.self_test) return run_self_test(groups, options);
  return check_cases(groups, options, request.csv);
}

}  // namespace

}  // namespace mixgrad

int main(int argc, char** argv) { return mixgrad::run_program(argc, argv, mixgrad::gradcheck); }
