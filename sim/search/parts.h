#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

/// Hops from one rank to another, in the order in which they leave.
struct PairLoad {
  int32_t from = -1, to = -1;
  int64_t bytes = 0;
  std::vector<int32_t> hops = {};
};

/// Groups the hops by (from, to), in that order; the order of `hops` is kept within a pair.
std::vector<PairLoad> group_pairs(const Problem& problem, const Routing& routing,
                                  std::span<const int32_t> hops);

/// Bytes of a box of a tensor.
int64_t box_bytes(const Problem& problem, int32_t tensor, const Box& box);

/// The NVLink domain of a rank that has a GPU.
int32_t domain_of(const Problem& problem, int32_t rank);

/// Rate of a rank's own NICs, of which the slowest holds up the others; 0: it has none.
struct PortRate {
  double out = 0, in = 0;
};
std::vector<PortRate> port_rates(const Problem& problem);

/// By rank: the one whose port it uses, of those that share a NIC the first. A rank without NICs uses
/// those of a peer.
std::vector<int32_t> find_hosts(const Problem& problem);

/// Bytes/s of the fastest link of a kind; 0 where there is none.
double rate_of(const Problem& problem, LinkKind kind);

/// A part of a hop that travels in one message.
struct HopPart {
  int32_t hop = -1;
  Box box;
};

/// The load in messages of the given sizes, which add up to it: exact to 1/64 of a message where
/// rows allow.
std::vector<std::vector<HopPart>> fill_messages(const Problem& problem, const Routing& routing,
                                                const PairLoad& load,
                                                std::span<const int64_t> sizes);

}  // namespace refit
