#pragma once

#include <cstdint>

#include "plans/plan.h"
#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

// From a routing to a plan: chunks, messages, steps, channels, waits.

/// How schedule_rounds cuts rounds and uses channels; the simulator tells what is best.
struct RoundTuning {
  int64_t message = 0;  // bytes of the largest round; 0: PortLoad::message
  bool uneven = false;  // RoundShape
  // Channels of the fan-out inside domains; 0: none of its own, it runs on those of the network,
  // between rounds, so that there is one more of them; -1: one, or two if they have much to do.
  int32_t fan_channels = -1;
  int64_t fan_message = 0;  // bytes that a pair has to fan out before it does; 0: usual
  double fan_peers = 0;     // PortLoad::peers
};

/// What the busiest ports carry: bytes over the network, and inside domains after it.
struct PortLoad {
  int64_t network = 0, fan_out = 0;
  int64_t message = 0;                  // bytes of rounds that fit it
  double network_s = 0, fan_out_s = 0;  // at the rate of the fastest NIC, and NVLink
  double peers = 0;  // over which a rank's fan-out is spread: as many as with equal parts
};
PortLoad busiest_port(const Problem& problem, const Routing& routing);

/// Seconds of fan-out by messages of this size: NCCL gives few channels to small messages of many
/// ranks, so that they may not reach the rate of a port.
double fan_out_seconds(const Problem& problem, const PortLoad& load, int64_t message);

/// The size of messages of the fan-out where RoundTuning names none, with rounds of `message`: the
/// smallest with which it keeps up with the network.
int64_t usual_fan_message(const Problem& problem, const PortLoad& load, int64_t message);

/// Free order, for routings whose trees run from domain to domain over the network and fan out over
/// NVLink in each.
///
/// Network hops are packed into rounds of equal messages (rounds.h), cut at row borders where they do
/// not fit; what goes on to many ranks of a domain comes first. Rounds take turns on the network
/// channels, so that one starts up or packs while others flow. The fan-out leaves over NVLink when
/// the rounds that brought it have ended (fan_out.h). Transfers inside a domain and local copies
/// have a channel of their own. What relays pass on is in slots until it has left; a relay beside a
/// holder gets it over NVLink before its round.
///
/// Rounds become smaller where packing would not stay within the staging bound.
Plan schedule_rounds(const Problem& problem, const Routing& routing, const SearchOptions& options,
                     const RoundTuning& tuning = {});

}  // namespace refit
