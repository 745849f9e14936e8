// refit: the planner's command line. Parses, dispatches, turns errors into exit codes; options and
// work are in sim/cli.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/console.h"
#include "base/error.h"
#include "base/usage.h"
#include "sim/cli/options.h"

namespace refit::cli {
namespace {

constexpr const char* kExamples = R"(
Example
  refit compare --model qwen3-4b --train megatron:dp=8 --gen vllm:tp=8 --fabric dgx-h100
  refit plan    --model qwen3-4b --train megatron:dp=8 --gen vllm:tp=8 --fabric dgx-h100 -o a.plan
  refit-exec a.plan --verify
Results on stdout, notes and progress on stderr.
Exit 0: done, 1: the work failed, 2: bad usage or input.)";

int run(int argc, char** argv) {
  CommandLine line;
  CLI::App app{
      "refit plans how a model's weights move from a trainer's layout to an inference engine's.",
      "refit"};
  app.set_version_flag("--version", std::string("refit ") + REFIT_VERSION);
  app.footer(kExamples);
  app.fallthrough();
  app.add_flag("--json", line.common.json, "results as JSON");
  app.add_flag("-q,--quiet", line.common.quiet, "no notes, no progress");
  add_commands(app, line);
  add_usage_options(app, value_words(), REFIT_VERSION);

  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> known;
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
    if (std::find(known.begin(), known.end(), argv[1]) == known.end()) {
      fail("command", quote(argv[1]), fmt::format("one of {}", fmt::join(known, ", ")));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text, text);
      fmt::print("{}", fit_columns(text.str()));
      return 0;
    }
    log_line(std::string("refit: ") + error.what() + " (see refit --help)");
    return 2;
  }
  return line.run();
}

}  // namespace
}  // namespace refit::cli

int main(int argc, char** argv) {
  try {
    const int code = refit::cli::run(argc, argv);
    refit::finish_output();
    return code;
  } catch (const refit::Error& error) {
    refit::log_line(std::string("refit: ") + error.what());
    return error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    refit::log_line(std::string("refit: ") + error.what());
    return 1;
  }
}
