#pragma once

#include <map>
#include <string>

namespace CLI {
class App;
}

namespace refit {

// What a shell and `man` know of a program, made from the one table of its options: nothing is said
// twice.

/// Words that complete the value of an option, by the option's name: {"--fabric", "dgx-h100 ..."}.
/// Other values complete as file names.
using ValueWords = std::map<std::string, std::string>;

/// A completion script for bash: commands, their options, values.
std::string bash_completion(const CLI::App& app, const ValueWords& words);

/// A manual page of section 1, as man(7) source. `version`: "MAJOR.MINOR.PATCH".
std::string manual_page(const CLI::App& app, const std::string& version);

/// Adds `--completion` and `--man`, which print the above and end the program; both are left out of
/// --help.
void add_usage_options(CLI::App& app, const ValueWords& words, const std::string& version);

}  // namespace refit
