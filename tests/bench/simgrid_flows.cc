#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/flows.h"

namespace refit {
namespace {

namespace sg = simgrid::s4u;

void make_platform(const Traffic& traffic, std::vector<sg::Host*>& hosts) {
  sg::NetZone* zone = sg::create_full_zone("cluster");
  std::vector<sg::Link*> links;
  for (const Link& link : traffic.fabric.links)
    links.push_back(zone->create_link(link.name, link.rate)->set_latency(link.latency)->seal());
  for (size_t gpu = 0; gpu < traffic.fabric.gpus.size(); ++gpu)
    hosts.push_back(zone->create_host("gpu" + std::to_string(gpu), 1e9)->seal());
  std::set<std::pair<int32_t, int32_t>> joined;
  for (const Flow& flow : traffic.flows) {
    if (!joined.emplace(flow.from, flow.to).second) continue;
    std::vector<sg::LinkInRoute> path;
    for (const int32_t link : route(traffic.fabric, flow.from, flow.to))
      path.emplace_back(links[static_cast<size_t>(link)]);
    zone->add_route(hosts[static_cast<size_t>(flow.from)]->get_netpoint(),
                    hosts[static_cast<size_t>(flow.to)]->get_netpoint(), nullptr, nullptr, path,
                    false);
  }
  zone->seal();
}

}  // namespace

Measured run_simgrid(const Traffic& traffic) {
  std::vector<std::string> words = {"bench", "--log=root.threshold:warning"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  int argc = static_cast<int>(argv.size());
  sg::Engine engine(&argc, argv.data());
  // Full is its fastest setting on many flows at once. Its default precision, a nanosecond, moves
  // the makespan by up to 0.2 %; ours is about the new one.
  for (const char* setting : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                              "network/optim:Full", "surf/precision:1e-12"})
    sg::Engine::set_config(setting);
  std::vector<sg::Host*> hosts;
  make_platform(traffic, hosts);

  std::vector<std::vector<const Flow*>> of_gpu(hosts.size());
  for (const Flow& flow : traffic.flows) of_gpu[static_cast<size_t>(flow.from)].push_back(&flow);
  const size_t window = traffic.window > 0 ? static_cast<size_t>(traffic.window) : SIZE_MAX;
  for (size_t gpu = 0; gpu < hosts.size(); ++gpu) {
    sg::Actor::create("sender", hosts[gpu], [&hosts, &flows = of_gpu[gpu], window] {
      std::vector<sg::CommPtr> pending;
      for (const Flow* flow : flows) {
        if (pending.size() == window) pending.erase(pending.begin() + sg::Comm::wait_any(pending));
        pending.push_back(sg::Comm::sendto_async(hosts[static_cast<size_t>(flow->from)],
                                                 hosts[static_cast<size_t>(flow->to)],
                                                 static_cast<uint64_t>(flow->bytes)));
      }
      sg::Comm::wait_all(pending);
    });
  }
  const double begin = cpu_seconds();
  engine.run();
  return {cpu_seconds() - begin, sg::Engine::get_clock()};
}

}  // namespace refit
