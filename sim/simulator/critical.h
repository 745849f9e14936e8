#pragma once

#include <cstdint>
#include <vector>

#include "sim/simulator/replay.h"

namespace refit {

// Why a simulation took as long as it did: the chain of parts, each of which had to be over before
// the next began, from the barrier to the end of a step. It is found backwards, from each part to
// the one that ended last of those it waited for (ties: the first of them). Shorten what is neither
// in it nor shares a link with it, and the time stays.

/// What a part of the chain is.
enum class PartKind : uint8_t {
  kStart,    // start-up of a step
  kPack,     // launch and packing
  kMessage,  // start-up of a message, latencies
  kWire,     // bytes flow
  kUnpack,   // launch and unpacking
  kCopy,     // launch and copies within a rank
};

/// Why it did not begin earlier.
enum class Cause : uint8_t {
  kBarrier,  // it begins with the refit
  kFollows,  // the part before it, of the same step
  kLane,     // its channel ran the step before
  kData,     // a wait: what it sends had to arrive first
  kSlot,     // a wait: the staging memory that it fills was in use
  kPeer,     // the other end was ready first
};

const char* part_name(PartKind part);
const char* cause_name(Cause cause);

struct ChainPart {
  PartKind part = PartKind::kStart;
  Cause cause = Cause::kBarrier;
  double from = 0, to = 0;
  int32_t node = -1;      // of the step graph
  int32_t transfer = -1;  // of it: kMessage, kWire
  double seconds() const { return to - from; }
};

/// In order of time; without gaps from 0 to the end of the last part.
std::vector<ChainPart> critical_chain(const Plan& plan, const Replay& replay, int32_t node);

/// The same to the arrival of the last byte of a transfer.
std::vector<ChainPart> critical_chain_to(const Plan& plan, const Replay& replay, int32_t transfer);

/// The node that ends last, of a rank or (-1) of all; ties: the first. -1: there is none.
int32_t last_node(const Replay& replay, int32_t rank = -1);

/// Why a step began when it did: of what it had to wait for, what ended last.
struct Begin {
  Cause cause = Cause::kBarrier;
  int32_t after = -1;  // node
};
Begin begin_of(const Plan& plan, const Replay& replay, int32_t node);

/// Why the bytes of a transfer did not flow earlier: that of the step at the end that was ready
/// last.
Begin begin_of_transfer(const Plan& plan, const Replay& replay, int32_t transfer);

/// How long the bytes of a transfer would flow with nothing else on the way.
double alone_s(const Replay& replay, int32_t transfer);

}  // namespace refit
