#include "sim/search/choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace refit {
namespace {

constexpr const char* kPlace = "--strategy";

}  // namespace

Choice parse_choice(const std::string& text) {
  const size_t colon = text.find(':');
  std::string name = text.substr(0, colon);
  Choice choice;
  if (const size_t plus = name.find('+'); plus != std::string::npos) {
    if (name.substr(plus) != "+misc") fail(kPlace, quote(name.substr(plus)), "+misc or nothing");
    choice.misc = true;
    name.resize(plus);
  }
  std::string known;
  for (const Strategy& strategy : all_strategies()) {
    if (name == strategy.name) choice.strategy = &strategy;
    known += (known.empty() ? "" : ", ") + std::string(strategy.name);
  }
  if (choice.strategy == nullptr) fail(kPlace, quote(name), "one of " + known);
  const std::string option = choice.strategy->option;
  if (choice.misc && !choice.strategy->baseline) {
    fail(kPlace, quote(text), fmt::format("{} without +misc, which is for baselines", name));
  }
  std::string key;
  std::vector<std::string_view> values;
  if (!option.empty()) {
    key = option.substr(0, option.find('='));
    values = split_text(std::string_view(option).substr(key.size() + 1), '|');
    choice.options[key] = values.front();
  }
  if (colon == std::string::npos) return choice;
  bool given = false;
  for (const std::string_view setting : split_text(std::string_view(text).substr(colon + 1), ',')) {
    const size_t equals = setting.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? "" : setting.substr(equals + 1);
    if (key.empty()) fail(kPlace, quote(setting), fmt::format("no options for {}", name));
    if (setting.substr(0, equals) != key || given ||
        std::find(values.begin(), values.end(), value) == values.end()) {
      fail(kPlace, quote(setting), fmt::format("{} for {}, once", option, name));
    }
    choice.options[key] = value;
    given = true;
  }
  return choice;
}

}  // namespace refit
