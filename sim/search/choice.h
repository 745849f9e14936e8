#pragma once

#include <map>
#include <string>

#include "sim/search/strategies.h"

namespace refit {

/// A strategy as a user writes it: NAME[+misc][:key=value,...].
struct Choice {
  const Strategy* strategy = nullptr;
  bool misc = false;  // what is no FFN or expert weight follows the bulk, by packed broadcast
  std::map<std::string, std::string> options;  // all of the strategy's, defaults filled in
};

/// Fails with the list of what is known: names, options, values.
Choice parse_choice(const std::string& text);

}  // namespace refit
