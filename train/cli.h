// What every program's main shares: parsing, error lines, exit codes.
#pragma once

#include <CLI/CLI.hpp>

namespace mixgrad {

/// Parses the command line and the config file that it names (a file of key = value lines, # comments; the
/// command line wins). Every complaint becomes a UsageError of one line; an unknown option or key is answered
/// with the nearest known one. Returns false when --help or --version was asked for and printed.
bool parse(CLI::App& app, int argc, char** argv);

/// No line of a help is longer.
inline constexpr size_t help_columns = 100;
/// A text that begins in the column `indent`, broken at spaces into lines that begin there too.
std::string folded(const std::string& text, size_t indent);
/// Makes the app's help keep to help_columns; parse() does so.
void format_help(CLI::App& app);

/// The parts of a list with commas between them.
std::vector<std::string> split_list(const std::string& list);
/// Whole numbers with commas between them. Throws UsageError that names the option, for anything else, for a
/// number out of range and for an empty list.
std::vector<int64_t> parse_numbers(const std::string& option, const std::string& text, int64_t least,
                                   int64_t most);

/// Adds --version, which prints the version, compiler, and libraries of this build.
void add_version(CLI::App& app);

/// Runs a program's body, with /dev/null for those standard streams that are closed. What it throws is
/// printed as one line on stderr; returns the exit code: the body's own, 2 for a UsageError, 1 for any other
/// failure, also when standard output could not be written.
int run_program(int argc, char** argv, int (*body)(int argc, char** argv));

}  // namespace mixgrad
