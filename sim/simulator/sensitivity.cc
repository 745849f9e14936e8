#include "sim/simulator/sensitivity.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace refit {
namespace {

struct World {
  std::string change;
  Fabric fabric;
  CostModel cost;
};

void speed_up(World& world, LinkKind kind) {
  for (Link& link : world.fabric.links) {
    if (link.kind == kind) link.rate *= 2;
  }
}

std::vector<World> make_worlds(const Fabric& fabric, const CostModel& cost) {
  std::vector<World> worlds;
  const auto add = [&](std::string change) -> World& {
    return worlds.emplace_back(World{std::move(change), fabric, cost});
  };
  const auto has = [&](LinkKind kind) {
    return std::any_of(fabric.links.begin(), fabric.links.end(),
                       [&](const Link& link) { return link.kind == kind && link.rate > 0; });
  };
  if (has(LinkKind::kNic)) {
    World& world = add("NICs twice as fast");
    speed_up(world, LinkKind::kNic);
    world.cost.net.flow_rate *= 2;
    world.cost.nccl.net.rate *= 2;
  }
  if (has(LinkKind::kNvlink)) {
    World& world = add("NVLink twice as fast");
    speed_up(world, LinkKind::kNvlink);
    world.cost.nvlink.flow_rate *= 2;
    world.cost.nccl.nvlink.rate *= 2;
  }
  if (has(LinkKind::kSpine)) speed_up(add("spine twice as fast"), LinkKind::kSpine);
  if (cost.gpu_rate > 0) add("GPUs' copying twice as fast").cost.gpu_rate *= 2;
  if (cost.memory_rate > 0) add("memory twice as fast").cost.memory_rate *= 2;
  if (cost.copy_start > 0 || cost.memory_rate > 0) {
    World& world = add("packing and copies free");
    world.cost.memory_rate = 0;
    world.cost.copy_start = 0;
  }
  const auto starts = [](const LinkCost& link) {
    return link.step_start > 0 || link.message_start > 0;
  };
  if (starts(cost.nvlink) || starts(cost.net) || cost.copy_start > 0) {
    World& world = add("no start-ups");
    for (LinkCost* link : {&world.cost.nvlink, &world.cost.net})
      link->step_start = link->message_start = 0;
    world.cost.copy_start = 0;
    world.cost.nccl.nvlink.fills = world.cost.nccl.net.fills = 0;
  }
  if (cost.nccl.channels > 0) add("messages not cut into channels").cost.nccl = NcclCost{};
  return worlds;
}

}  // namespace

std::vector<Sensitivity> sensitivities(const Plan& plan, const Fabric& fabric,
                                       const CostModel& cost, const SimulateOptions& options) {
  const std::vector<World> worlds = make_worlds(fabric, cost);
  std::vector<Sensitivity> found(worlds.size());
  std::vector<std::exception_ptr> failures(worlds.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < worlds.size(); i = next++) {
      try {
        const World& world = worlds[i];
        found[i] = {world.change, simulate(plan, world.fabric, world.cost, options).refit_s};
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  const size_t threads =
      std::min<size_t>(worlds.size(), std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> pool;
  for (size_t t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  std::stable_sort(found.begin(), found.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return a.refit_s < b.refit_s;
  });
  return found;
}

}  // namespace refit
