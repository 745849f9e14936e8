#pragma once

#include <cstdint>

#include "plans/plan.h"
#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

// From a routing to a plan: chunks, messages, steps, channels, waits.

/// Free order, for routings whose trees enter a domain by the network and fan out over NVLink
/// (depth at most two).
///
/// Hops of one pair of ranks are packed into messages of equal size, cut at row borders. Network
/// messages are edges of a bipartite graph of ports; colouring it gives the fewest stages in which
/// no port sends or receives two (colouring.h). Stages alternate over two network channels, so that
/// one starts up or packs while the other flows. What has to fan out goes first; its chunks leave
/// on an NVLink channel as soon as the stage that brought them has ended. Transfers inside a domain
/// and local copies have a channel of their own.
///
/// The message size is the largest (at most 16 MiB) with which packing stays within the staging
/// bound.
Plan schedule_stages(const Problem& problem, const Routing& routing, const SearchOptions& options);

/// Serial order, for baselines: each lane is a channel that runs its batches one after the other,
/// as collective calls on one communicator do. A batch is one group, split where a rank has more
/// than eight peers. Hops with a parent come in a later batch of the same lane.
Plan schedule_batches(const Problem& problem, const Routing& routing, const SearchOptions& options);

}  // namespace refit
