#include "train/cli.h"

#include <zlib.h>

#include <iostream>
#include <new>

#include "tensor/cpu_info.h"
#include "tensor/error.h"

namespace mixgrad {

namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// "unknown option '--learning_rte'; did you mean '--lr'?"
std::string unknown_option(const CLI::App& app, const std::string& given) {
  const std::string word = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  const std::string name = word.substr(0, word.find('='));
  const std::string likely = nearest(name, option_names(app));
  return str("[options] unknown option '", given, "'",
             likely.empty() ? "; see --help" : str("; did you mean '", likely, "'?"));
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

}  // namespace

bool parse(CLI::App& app, int argc, char** argv) {
  // Captured rather than refused by CLI11, so that a misspelt config key meets the same answer as an option.
  app.allow_config_extras(CLI::config_extras_mode::capture);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    app.exit(done);
    return false;
  } catch (const CLI::ExtrasError&) {
    throw UsageError(unknown_option(app, app.remaining().at(0)));
  } catch (const CLI::ParseError& error) {
    throw UsageError(str("[options] ", one_line(error.what())));
  }
  return true;
}

void add_version(CLI::App& app) {
  app.set_version_flag("--version", str("mixgrad ", MIXGRAD_VERSION, "\ncompiler  ", __VERSION__, "\nBLAS      ",
                                        blas_description(), "\nOpenMP    ", _OPENMP, "\nzlib      ", zlibVersion(),
                                        "\nCUDA      no\nCPU       ", cpu_description()));
}

int run_program(int argc, char** argv, int (*body)(int argc, char** argv)) {
  try {
    return body(argc, argv);
  } catch (const UsageError& error) {
    std::cerr << one_line(error.what()) << std::endl;
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "[memory] out of memory" << std::endl;
  } catch (const std::exception& error) {
    std::cerr << one_line(error.what()) << std::endl;
  }
  return 1;
}

}  // namespace mixgrad
