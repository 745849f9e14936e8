#include "sim/search/parts.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "sim/search/chunk.h"

namespace refit {

int64_t box_bytes(const Problem& problem, int32_t tensor, const Box& box) {
  return dtype_bytes(problem.model.tensors[static_cast<size_t>(tensor)].dtype, box.volume());
}

int32_t domain_of(const Problem& problem, int32_t rank) {
  const int32_t gpu = problem.gpu_of_rank[static_cast<size_t>(rank)];
  return problem.fabric.gpus[static_cast<size_t>(gpu)].domain;
}

std::vector<PortRate> port_rates(const Problem& problem) {
  const std::vector<double> rates = link_rates(problem.fabric, problem.cost);
  const auto rate = [&](int32_t link) { return rates[static_cast<size_t>(link)]; };
  std::vector<PortRate> ports;
  for (const int32_t gpu : problem.gpu_of_rank) {
    PortRate& port = ports.emplace_back();
    if (gpu < 0) continue;
    const std::vector<int32_t>& nics = problem.fabric.gpus[static_cast<size_t>(gpu)].nics;
    const auto count = static_cast<double>(nics.size());
    for (const int32_t id : nics) {
      const Nic& nic = problem.fabric.nics[static_cast<size_t>(id)];
      const bool first = port.out == 0;
      port.out = first ? count * rate(nic.out) : std::min(port.out, count * rate(nic.out));
      port.in = first ? count * rate(nic.in) : std::min(port.in, count * rate(nic.in));
    }
  }
  return ports;
}

std::vector<PairLoad> group_pairs(const Problem& problem, const Routing& routing,
                                  std::span<const int32_t> hops) {
  const auto hop = [&](int32_t index) -> const Hop& {
    return routing.hops[static_cast<size_t>(index)];
  };
  std::vector<int32_t> order(hops.begin(), hops.end());
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair(hop(a).from, hop(a).to) < std::pair(hop(b).from, hop(b).to);
  });
  std::vector<PairLoad> pairs;
  for (const int32_t index : order) {
    const Hop& h = hop(index);
    if (pairs.empty() || pairs.back().from != h.from || pairs.back().to != h.to) {
      pairs.push_back({.from = h.from, .to = h.to});
    }
    pairs.back().hops.push_back(index);
    pairs.back().bytes += box_bytes(problem, h.tensor, routing.boxes[static_cast<size_t>(h.box)]);
  }
  return pairs;
}

std::vector<std::vector<HopPart>> fill_messages(const Problem& problem, const Routing& routing,
                                                const PairLoad& load,
                                                std::span<const int64_t> sizes) {
  std::vector<std::vector<HopPart>> messages(sizes.size());
  size_t message = 0;
  int64_t room = sizes[0];  // what is missing or too much is made up for by the next message
  std::vector<Box> todo;
  for (const int32_t index : load.hops) {
    const Hop& hop = routing.hops[static_cast<size_t>(index)];
    const Dtype dtype = problem.model.tensors[static_cast<size_t>(hop.tensor)].dtype;
    const int64_t bits = dtype_bits(dtype);
    todo.assign(1, routing.boxes[static_cast<size_t>(hop.box)]);
    while (!todo.empty()) {
      const Box box = todo.back();
      todo.pop_back();
      while (room <= sizes[message] / 64 && message + 1 < sizes.size()) room += sizes[++message];
      const bool last = message + 1 == sizes.size();
      const int64_t bytes = dtype_bytes(dtype, box.volume());
      if (bytes <= room + sizes[message] / 64 || last) {
        messages[message].push_back({index, box});
        room -= bytes;
        continue;
      }
      const Cutting cutting = cut_box(box, room * 8 / bits, bits == 4);
      for (const Box& taken : cutting.taken) {
        messages[message].push_back({index, taken});
        room -= dtype_bytes(dtype, taken.volume());
      }
      todo.insert(todo.end(), cutting.left.rbegin(), cutting.left.rend());
    }
  }
  return messages;
}

std::vector<int32_t> find_hosts(const Problem& problem) {
  const Fabric& fabric = problem.fabric;
  const auto gpu_of = [&](int32_t rank) { return problem.gpu_of_rank[static_cast<size_t>(rank)]; };
  const auto nics_of = [&](int32_t gpu) -> const std::vector<int32_t>& {
    return fabric.gpus[static_cast<size_t>(gpu)].nics;
  };
  const auto ranks = static_cast<int32_t>(problem.gpu_of_rank.size());
  std::map<int32_t, int32_t> rank_into;  // by link into a NIC: the first rank that has it first
  std::vector<int32_t> hosts(problem.gpu_of_rank.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (gpu_of(rank) < 0 || nics_of(gpu_of(rank)).empty()) continue;
    const int32_t first = nics_of(gpu_of(rank)).front();
    const int32_t in = fabric.nics[static_cast<size_t>(first)].in;
    hosts[static_cast<size_t>(rank)] = rank_into.try_emplace(in, rank).first->second;
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (gpu_of(rank) < 0 || !nics_of(gpu_of(rank)).empty()) continue;
    for (int32_t other = 0; other < ranks; ++other) {
      if (gpu_of(other) < 0 || domain_of(problem, other) == domain_of(problem, rank)) continue;
      const auto links = find_route(fabric, gpu_of(other), gpu_of(rank));
      if (!links) continue;
      for (const int32_t link : *links)
        if (rank_into.contains(link)) hosts[static_cast<size_t>(rank)] = rank_into.at(link);
      break;
    }
  }
  return hosts;
}

double rate_of(const Problem& problem, LinkKind kind) {
  double rate = 0;
  const std::vector<double> rates = link_rates(problem.fabric, problem.cost);
  for (size_t link = 0; link < rates.size(); ++link) {
    if (problem.fabric.links[link].kind == kind) rate = std::max(rate, rates[link]);
  }
  return rate;
}

}  // namespace refit
