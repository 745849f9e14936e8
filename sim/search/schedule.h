#pragma once

#include <cstdint>

#include "plans/plan.h"
#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

// From a routing to a plan: chunks, messages, steps, channels, waits.

/// Free order, for routings whose trees run from domain to domain over the network and fan out over
/// NVLink in each.
///
/// Network hops are packed into rounds of equal size per port (rounds.h), cut at row borders where
/// they do not fit. Rounds take turns on the network channels, so that one starts up or packs while
/// others flow. What has to go further goes first; its chunks leave on an NVLink channel as soon as
/// the round that brought them has ended, a window of rounds at a time. Transfers inside a domain
/// and local copies have a channel of their own.
///
/// The size of a round is the largest, at most 16 MiB, with which packing stays within the staging
/// bound.
Plan schedule_rounds(const Problem& problem, const Routing& routing, const SearchOptions& options);

/// Serial order, for baselines: each lane is a channel that runs its batches one after the other,
/// as collective calls on one communicator do. A batch is one group, split where a rank has more
/// than eight peers. Hops with a parent come in a later batch of the same lane.
Plan schedule_batches(const Problem& problem, const Routing& routing, const SearchOptions& options);

}  // namespace refit
