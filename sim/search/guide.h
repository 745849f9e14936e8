#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/search/search.h"

namespace refit {

/// By which rank atoms enter an NVLink domain. Atoms with the same holders and needers are of one
/// class; the guide gives every class of a domain as few entries as it can while all ranks of the
/// domain let in the same number of seconds, and rather the entry that the class' first holder
/// sends to anyhow. What many need has more entries, since each passes it on to all. So few pairs
/// of ranks carry much each: few connections, long messages.
class EntryGuide {
 public:
  struct Class {
    std::vector<int32_t> holders;
    std::map<int32_t, std::vector<int32_t>> needers;  // that are no holders, by domain
    int64_t bytes = 0;                                // that enter each domain
    int64_t copies = 0;                               // ranks that need it
  };

  EntryGuide(const Problem& problem, const std::vector<Class>& classes);

  /// The entry for `bytes` more of a class: the one that is furthest behind its share.
  int32_t take(int32_t of_class, int32_t domain, int64_t bytes);
  void give_back(int32_t of_class, int32_t domain, int32_t entry, int64_t bytes);

 private:
  struct Share {
    int32_t entry = -1;
    int64_t bytes = 0;  // not yet taken; below 0 where atoms do not divide well
  };
  std::map<std::pair<int32_t, int32_t>, std::vector<Share>> shares_;  // by domain and class
};

}  // namespace refit
