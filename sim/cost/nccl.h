#pragma once

#include <cstdint>

#include "sim/cost/cost_model.h"

namespace refit {

// What NCCL does to a message that is sent in a group of sends and receives (NVIDIA/nccl v2.30.7,
// src/graph/paths.cc, src/enqueue.cc, src/init.cc): it is cut into parts, one for each of several
// channels; a part moves in chunks through a ring of buffers; and how many channels there are
// depends on the communicator as a whole.
//
// Channels for a peer. What a pair of ranks could use is ChannelCost::channels of its class; a
// communicator gives every pair the *least* over all its pairs, so that one network peer throttles
// NVLink, too. If a pair needs the network, that number P is halved while
//
//     P * ceil(M / 8) > C
//
// with M peers at most (max_peers, or all ranks) and C channels in all (paths.cc).
//
// Channels of a message of b bytes. First p = P, halved while p * ranks > C (but not below 1). With
// the chunk c of the communicator (that of the network if a pair needs it), parts are to be between
//
//     c / 2 and c   if a pair needs the network,      c / 8 and 32 c   if none does:
//
//     p' = min(p, ceil(b / least)),     doubled while b / p' > most and 2 p' <= P.   (enqueue.cc)
//
// Group. A step's sends (its receives) start together, whatever the order in which they were given:
// NCCL orders the peers of a group by a schedule of its own. Up to eight run on a channel at once,
// so a step of up to eight peers never waits for a second batch. Those that share a channel share
// its rate: with k messages in the same direction each gets min(p', C / k) channels' worth.
//
// Chunks. Over the network a part below one chunk moves in quarters of a chunk, below eight in
// halves. The receiver copies a chunk out of the buffer when all of it is there, and so on at each
// buffer on the way: `fills` chunk times pass in which the pipe fills (none with registered
// buffers, which have no buffers on the way).
struct Communicator {
  int32_t ranks = 0;
  bool nvlink = false;   // some pair is joined by NVLink
  bool network = false;  // some pair is not
};

/// P above, 1 or more.
int32_t channels_per_peer(const NcclCost& nccl, const Communicator& communicator);

/// p' above, for `bytes` > 0.
int32_t channels_of_message(const NcclCost& nccl, const Communicator& communicator, int64_t bytes);

struct MessageShape {
  double rate = 0;    // cap of the message, bytes/s
  double fill_s = 0;  // seconds in which its pipe fills
};

/// `kind` is the class of the pair, `together` the number of messages of the step in the same
/// direction, `path_rate` that of the narrowest link.
MessageShape shape_message(const NcclCost& nccl, const Communicator& communicator, LinkKind kind,
                           int64_t bytes, int32_t together, double path_rate);

}  // namespace refit
