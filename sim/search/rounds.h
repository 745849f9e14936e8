#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/search/parts.h"

namespace refit {

/// A part of a network hop in the round in which it travels.
struct RoundPart {
  HopPart part;
  int32_t round = 0;
  int32_t after = -1;  // round that brought the box to the sender; -1: it held it from the start
};

/// Packs network hops into rounds. In a round every port (a rank's way out, and its way in) carries
/// at most `message` bytes and talks to at most eight peers; so rounds take equally long and no
/// port has to wait for one that has more to do. List scheduling: receivers with the most left to
/// receive choose first, each the sender that has the most left to send. A hop whose parent is a
/// network hop too may leave `lag` rounds after the part of its parent that carries its rows.
///
/// `hops` are those without a network parent, in order of urgency; `children` of every hop of the
/// routing lists its network children. Parts come in order of rounds. O(rounds x pairs).
std::vector<RoundPart> pack_rounds(const Problem& problem, const Routing& routing,
                                   std::span<const int32_t> hops,
                                   std::span<const std::vector<int32_t>> children, int64_t message,
                                   int32_t lag);

}  // namespace refit
