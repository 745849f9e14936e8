#pragma once

#include <cstdint>
#include <vector>

#include "sim/search/load.h"
#include "sim/search/peers.h"

namespace refit {

/// How a box gets into an NVLink domain: from a source to a needer there, or over relays where that
/// way is slow, or there is none. Sources are holders, and passers: ranks in other domains that it
/// has been brought to.
struct Entry {
  int32_t from = -1, to = -1;  // over the network; -1: there is no way in
  // `to` is a relay: it does not need the box, and passes it on over NVLink.
  bool staged = false;
  // `from` is a relay: this holder gives it the box over NVLink; -1: `from` is a source.
  int32_t feeder = -1;
  double peak = 0;  // load of the fullest link on the way to every needer
};

/// Which ways are good enough.
struct EntryLimits {
  double track = 0;  // no link above this load, seconds
  // Relays beside holders, which cost a channel, also where there are other ways.
  bool feed = false;
  const PeerLinks* links = nullptr;  // pairs that may exchange messages; null: all
};

/// From a source to any rank of the domain, and on to all needers; and where that is not good
/// enough also over a rank beside a holder, to a needer or a rank on its rail. Of good ways those
/// on one rail come first, then those to a needer, then that of the pair that has carried most: few
/// pairs that carry much each pipeline well. Without a good way the least loaded.
/// O(sources x ranks of the two domains x needers).
Entry find_entry(LinkLoad& load, const std::vector<int32_t>& holders,
                 const std::vector<int32_t>& passers, const std::vector<int32_t>& needers,
                 int32_t domain, int64_t bytes, EntryLimits limits);

/// To this needer over a rank beside a holder: of those on track that which has sent it most, else
/// the least loaded. O(holders x ranks of their domains).
Entry find_feeder(LinkLoad& load, const std::vector<int32_t>& holders, int32_t to, int64_t bytes,
                  double track);

}  // namespace refit
