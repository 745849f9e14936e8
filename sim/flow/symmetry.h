#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/flow/multicast.h"

namespace refit {

/// Colours of links, 0 to n-1: links of different colours differ in their rate, in what is needed
/// of the GPUs that use them, or in the links and GPUs around them. Links that a symmetry of graph
/// and classes maps onto each other have one colour. Colour refinement (Weisfeiler & Leman 1968) of
/// GPUs, domains, sites and classes, a few rounds of it, by hashes; O(sum of holders and needers).
std::vector<int32_t> colour_links(const HopGraph& graph, std::span<const Multicast> items);

}  // namespace refit
