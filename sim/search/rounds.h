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

/// How rounds are cut.
struct RoundShape {
  int64_t message = 0;  // bytes that a port carries in the largest round
  int32_t lag = 1;      // rounds from the arrival of a part to its departure; channels in use
  // Sizes of rounds differ, all ports alike. Rounds in flight share a port fairly, so that equal
  // ones come to begin and end together, and their start-ups hide behind nothing; unequal ones
  // stay apart. Worth it where a start-up is long beside a message.
  bool uneven = false;
};

/// Bytes that a port carries in a round at most; the first `lag` rounds are smaller and grow, so
/// that of the channels only one is between messages at a time.
int64_t round_bytes(const RoundShape& shape, int32_t round);

/// Packs network hops into rounds. In a round every port (a rank's way out, and its way in) carries
/// one message, and all are of one size, so that no port has to wait for one that has more to do.
/// Receivers with the most left to receive choose first, each a sender that empties slots, then one
/// it has had nothing of yet, then the one that has the most left to send; then augmenting paths
/// make that a largest matching. When most ports would have none, messages of the round are halved,
/// twice; then whatever is left goes, to at most eight peers of a port. Where ports have different
/// rates they carry their shares of a round, and parts of messages fill them up. A hop whose
/// parent is a network hop too may leave `lag` rounds after the part of its parent that carries its
/// rows.
///
/// `hops` are those without a network parent, in order of urgency; `children` of every hop of the
/// routing lists its network children. Parts come in order of rounds. O(rounds x pairs).
std::vector<RoundPart> pack_rounds(const Problem& problem, const Routing& routing,
                                   std::span<const int32_t> hops,
                                   std::span<const std::vector<int32_t>> children,
                                   const RoundShape& shape);

}  // namespace refit
