#include <fmt/core.h>

#include "base/error.h"
#include "sim/fabric/fabric.h"

namespace refit {

std::vector<int32_t> route(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu, int32_t way) {
  const auto count = static_cast<int32_t>(fabric.gpus.size());
  REFIT_CHECK(from_gpu >= 0 && from_gpu < count && to_gpu >= 0 && to_gpu < count && way >= 0);
  if (from_gpu == to_gpu) return {};
  const Gpu& from = fabric.gpus[static_cast<size_t>(from_gpu)];
  const Gpu& to = fabric.gpus[static_cast<size_t>(to_gpu)];
  if (from.domain == to.domain) return {from.nvlink_out, to.nvlink_in};

  const auto own_nic = [&](const Gpu& gpu) -> const Nic& {
    const size_t own = static_cast<size_t>(way) % gpu.nics.size();
    return fabric.nics[static_cast<size_t>(gpu.nics[own])];
  };
  const auto leaf_of = [&](int32_t vertex) -> const Leaf& {
    return fabric.leaves[static_cast<size_t>(fabric.vertices[static_cast<size_t>(vertex)].index)];
  };
  const Nic& sender = own_nic(from);
  const Nic& receiver = own_nic(to);
  const Leaf& first = leaf_of(fabric.links[static_cast<size_t>(sender.out)].to);
  const Leaf& last = leaf_of(fabric.links[static_cast<size_t>(receiver.in)].from);
  if (first.vertex == last.vertex) return {sender.out, receiver.in};
  if (fabric.spine < 0)
    fail(fmt::format("fabric {}", fabric.name),
         fmt::format("no path from {} (rail {}) to {} (rail {}): nothing joins the rails; relay "
                     "through a GPU of the same NVLink domain",
                     fabric.vertices[static_cast<size_t>(from.vertex)].name, sender.rail,
                     fabric.vertices[static_cast<size_t>(to.vertex)].name, receiver.rail));
  std::vector<int32_t> links = {sender.out};
  if (first.up >= 0) links.push_back(first.up);
  if (last.down >= 0) links.push_back(last.down);
  links.push_back(receiver.in);
  return links;
}

}  // namespace refit
