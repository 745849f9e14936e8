#include "base/usage.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

namespace refit {
namespace {

/// Options that --help shows, in order.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  std::vector<const CLI::Option*> shown;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) shown.push_back(option);
  }
  return shown;
}

std::vector<const CLI::App*> commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

/// "-o --output", as typed.
std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string option_words(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : shown_options(app)) {
    for (const std::string& name : spellings(*option)) words += (words.empty() ? "" : " ") + name;
  }
  return words;
}

/// Text of a manual page: a backslash is an escape there, and a line that begins with a dot or a
/// quote is a request.
std::string roff(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_begins = c == '\n';
  }
  return out;
}

std::string option_entries(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : shown_options(app)) {
    std::string names = option->get_positional() ? option->get_name(true, false) : "";
    for (const std::string& name : spellings(*option)) names += (names.empty() ? "" : ", ") + name;
    const std::string value = option->get_items_expected_max() > 0 && !option->get_positional()
                                  ? option->get_type_name()
                                  : "";
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    out += fmt::format(".TP\n\\fB{}\\fR{}\n", roff(names),
                       value.empty() ? "" : " \\fI" + roff(value) + "\\fR");
    // One line of the help is one line of the page.
    std::string lines = roff(text);
    for (size_t at = lines.find('\n'); at != std::string::npos; at = lines.find('\n', at + 5)) {
      lines.replace(at, 1, "\n.br\n");
    }
    out += lines + "\n";
  }
  return out;
}

}  // namespace

std::string bash_completion(const CLI::App& app, const ValueWords& words) {
  const std::string name = app.get_name();
  std::string function = "_" + name;
  std::replace(function.begin(), function.end(), '-', '_');
  std::string options = fmt::format("    *) options='{}' ;;\n", option_words(app));
  std::string names;
  for (const CLI::App* command : commands(app)) {
    names += (names.empty() ? "" : " ") + command->get_name();
    options = fmt::format("    {}) options='{} {}' ;;\n", command->get_name(),
                          option_words(*command), option_words(app)) +
              options;
  }
  std::string values;
  for (const auto& [option, list] : words) {
    values += fmt::format(
        "    {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")"
        " $(compgen -f -- \"$word\")); return ;;\n",
        option, list);
  }
  return fmt::format(R"(# bash completion of {0}; made by `{0} --completion`.
{1}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options
  case "$before" in
{2}  esac
  case "${{COMP_WORDS[1]}}" in
{3}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ $COMP_CWORD -eq 1 && -n '{4}' ]]; then
    COMPREPLY=($(compgen -W '{4}' -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F {1} {0}
)",
                     name, function, values, options, names);
}

std::string manual_page(const CLI::App& app, const std::string& version) {
  const std::string name = app.get_name();
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const std::vector<const CLI::App*> parts = commands(app);
  std::string out = fmt::format(".TH {} 1 \"\" \"{} {}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
                                upper, name, version, roff(name), roff(app.get_description()));
  out += parts.empty() ? fmt::format("\\fB{}\\fR [\\fIOPTIONS\\fR] \\fIPLAN\\fR\n", roff(name))
                       : fmt::format("\\fB{}\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n", roff(name));
  out += ".SH OPTIONS\n" + option_entries(app);
  if (!parts.empty()) out += ".SH COMMANDS\n";
  for (const CLI::App* part : parts) {
    out += fmt::format(".SS {} {}\n{}\n{}", roff(name), roff(part->get_name()),
                       roff(part->get_description()), option_entries(*part));
    for (const CLI::App* command : commands(*part)) {
      out += fmt::format(".SS {} {} {}\n{}\n{}", roff(name), roff(part->get_name()),
                         roff(command->get_name()), roff(command->get_description()),
                         option_entries(*command));
    }
  }
  out += ".SH NOTES\n.nf\n" + roff(app.get_footer()) + "\n.fi\n";
  return out;
}

void add_usage_options(CLI::App& app, const ValueWords& words, const std::string& version) {
  const auto print = [](const std::string& text) {
    fmt::print("{}", text);
    throw CLI::Success();
  };
  app.add_flag_callback("--completion",
                        [&app, words, print] { print(bash_completion(app, words)); })
      ->group("");
  app.add_flag_callback("--man", [&app, version, print] { print(manual_page(app, version)); })
      ->group("");
}

}  // namespace refit
