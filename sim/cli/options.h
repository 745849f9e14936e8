#pragma once

#include <functional>

#include "base/usage.h"
#include "sim/cli/commands.h"

namespace refit::cli {

/// What a command line comes to.
struct CommandLine {
  Common common;
  std::function<int()> run;  // the command that was given, with its options; returns the exit code
};

/// Adds every command with its options. `line` has to outlive `app`.
void add_commands(CLI::App& app, CommandLine& line);

/// Names of ours that a shell can complete.
ValueWords value_words();

}  // namespace refit::cli
