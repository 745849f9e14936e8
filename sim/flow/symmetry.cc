#include "sim/flow/symmetry.h"

#include <algorithm>
#include <bit>

namespace refit {
namespace {

constexpr int kRounds = 3;

size_t at(int32_t index) { return static_cast<size_t>(index); }

/// Splitmix64: a hash of both, in this order.
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::vector<int32_t> colour_links(const HopGraph& graph, std::span<const Multicast> items) {
  // Sums of hashes: of sets whose order does not matter.
  const auto rate = [&](int32_t link) { return std::bit_cast<uint64_t>(graph.rates[at(link)]); };
  const size_t gpus = graph.domains.of.size();
  std::vector<uint64_t> colour(gpus, 0), site(graph.plane.size(), 0),
      domain(graph.domains.members.size());
  for (const GpuPort& port : graph.ports) {
    uint64_t of_port = static_cast<uint64_t>(graph.kind[at(port.site)]);
    for (const int32_t link : port.out) of_port = mix(of_port, rate(link));
    for (const int32_t link : port.in) of_port = mix(of_port, rate(link));
    colour[at(port.gpu)] += mix(of_port, 1);
  }
  for (int round = 0; round < kRounds; ++round) {
    std::ranges::fill(domain, 0);
    std::ranges::fill(site, 0);
    for (size_t gpu = 0; gpu < gpus; ++gpu)
      domain[at(graph.domains.of[gpu])] += mix(colour[gpu], 2);
    for (const GpuPort& port : graph.ports) site[at(port.site)] += mix(colour[at(port.gpu)], 3);
    std::vector<uint64_t> next(gpus, 0);
    for (const Multicast& item : items) {
      uint64_t of_item = std::bit_cast<uint64_t>(item.bytes);
      for (const int32_t gpu : item.holders) of_item += mix(colour[at(gpu)], 4);
      for (const int32_t gpu : item.needers) of_item += mix(colour[at(gpu)], 5);
      for (const int32_t gpu : item.holders) next[at(gpu)] += mix(of_item, 6);
      for (const int32_t gpu : item.needers) next[at(gpu)] += mix(of_item, 7);
    }
    for (const GpuPort& port : graph.ports) next[at(port.gpu)] += mix(site[at(port.site)], 8);
    for (size_t gpu = 0; gpu < gpus; ++gpu)
      colour[gpu] = mix(colour[gpu], next[gpu] + mix(domain[at(graph.domains.of[gpu])], 9));
  }
  std::vector<uint64_t> hashes(graph.rates.size(), 0);
  for (size_t link = 0; link < hashes.size(); ++link)
    hashes[link] = rate(static_cast<int32_t>(link));
  for (const GpuPort& port : graph.ports) {
    for (const int32_t link : port.out) hashes[at(link)] += mix(colour[at(port.gpu)], 10);
    for (const int32_t link : port.in) hashes[at(link)] += mix(colour[at(port.gpu)], 11);
  }
  for (const std::vector<int32_t>& sites : graph.planes)
    for (const int32_t from : sites)
      for (const int32_t to : sites)
        for (const int32_t link : graph.way(from, to).links)
          hashes[at(link)] += mix(mix(site[at(from)], site[at(to)]), 12);
  std::vector<uint64_t> distinct = hashes;
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<int32_t> colours;
  for (const uint64_t hash : hashes)
    colours.push_back(
        static_cast<int32_t>(std::ranges::lower_bound(distinct, hash) - distinct.begin()));
  return colours;
}

}  // namespace refit
