#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/search/parts.h"

namespace refit {

/// A part that goes on inside its domain when a round has brought it, or a step of the fan-out.
struct Brought {
  HopPart part;
  int32_t round = 0;
  int32_t ranks = 1;  // to which the round's part goes in all
  int32_t step = -1;  // that brought it; -1: the round
};

struct FanOutShape {
  int64_t message = 0;  // bytes from one rank to another that are worth a step
  double peers = 0;     // over which a rank's fan-out is spread
};

/// A step of the fan-out in one domain: after `round`, all that it carries.
struct FanOutStep {
  int32_t round = 0;
  bool goes_on = false;  // with a later step
  std::vector<Brought> parts;
};

/// Packs the fan-out into steps of at most eight messages to and from a rank. What a pair of ranks
/// has waits until it is worth a message, or is all there will be; and then until some rank has
/// enough for a step in which most ranks take part, towards the end with less, so that little is
/// left over when the network ends. What goes to about as many ranks goes together: what few need
/// comes all the time, what all need is an exchange of all with all.
///
/// `brought`, what rounds bring, in order of rounds, whose steps are returned in that order, too;
/// those of different domains have no rank in common. `children` of every hop of the routing lists
/// those inside its domain: what a step brings goes on with a later one.
std::vector<FanOutStep> pack_fan_out(const Problem& problem, const Routing& routing,
                                     std::span<const Brought> brought,
                                     std::span<const std::vector<int32_t>> children,
                                     const FanOutShape& shape);

}  // namespace refit
