#include "sim/simulator/step_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "sim/cost/nccl.h"
#include "sim/simulator/host_work.h"

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

std::span<const Message> sends_of(const Program& program, const Step& step) {
  return {program.messages.data() + step.first_send,
          static_cast<size_t>(step.first_recv - step.first_send)};
}

std::span<const Message> recvs_of(const Program& program, const Step& step) {
  return {program.messages.data() + step.first_recv,
          static_cast<size_t>(step.last_message - step.first_recv)};
}

bool same_domain(const Fabric& fabric, int32_t a, int32_t b) {
  return fabric.gpus[static_cast<size_t>(a)].domain == fabric.gpus[static_cast<size_t>(b)].domain;
}

/// The GPU of a rank.
int32_t find_gpu(const Plan& plan, const Fabric& fabric, int32_t rank) {
  const int32_t gpu = plan.ranks[static_cast<size_t>(rank)].gpu;
  if (gpu < 0 || static_cast<size_t>(gpu) >= fabric.gpus.size()) {
    fail(fmt::format("rank {}", rank), fmt::format("GPU {}", gpu),
         fmt::format("one of the {} GPUs of fabric {}", fabric.gpus.size(), fabric.name));
  }
  return gpu;
}

class Builder {
 public:
  Builder(const Plan& plan, const Fabric& fabric, const CostModel& cost,
          std::span<const Straggler> stragglers)
      : plan_(plan), fabric_(fabric), cost_(cost), stragglers_(stragglers) {}

  StepGraph build() {
    add_resources();
    for (const Straggler& straggler : stragglers_) slow_down(straggler);
    add_nodes();
    find_communicators();
    add_transfers();
    graph_.next = Rows(graph_.nodes.size(), next_);
    graph_.transfers_of = Rows(graph_.nodes.size(), transfers_of_);
    for (const Path& path : graph_.paths) {
      for (const Path::Way& way : path.ways)
        graph_.width = std::max(graph_.width, way.resources.size());
    }
    return std::move(graph_);
  }

 private:
  void add_resources() {
    graph_.capacity = link_rates(fabric_, cost_);
    for (size_t link = 0; link < fabric_.links.size(); ++link) {
      double& rate = graph_.capacity[link];
      if (is_down(static_cast<int32_t>(link))) rate = 1;
      if (rate > 0 && rate < kInfinity) continue;
      fail(fmt::format("fabric {}, link {}", fabric_.name, fabric_.links[link].name),
           fmt::format("rate {}", rate), "a finite rate, 0 (down) or more");
    }
    const size_t gpus = fabric_.gpus.size();
    if (cost_.gpu_rate > 0) {
      graph_.first_gpu = static_cast<int32_t>(graph_.capacity.size());
      graph_.capacity.insert(graph_.capacity.end(), 2 * gpus, cost_.gpu_rate);
    }
    if (cost_.memory_rate > 0) {
      graph_.first_memory = static_cast<int32_t>(graph_.capacity.size());
      graph_.capacity.insert(graph_.capacity.end(), gpus, cost_.memory_rate);
    }
  }

  bool is_down(int32_t link) const { return fabric_.links[static_cast<size_t>(link)].rate == 0; }

  void slow_down(const Straggler& straggler) {
    const auto ranks = static_cast<int32_t>(plan_.ranks.size());
    const std::string place = fmt::format("straggler, rank {}", straggler.rank);
    if (straggler.rank < 0 || straggler.rank >= ranks)
      fail("straggler", fmt::format("rank {}", straggler.rank), fmt::format("0..{}", ranks - 1));
    if (!(straggler.speed > 0 && straggler.speed <= 1))
      fail(place, fmt::format("speed {:g}", straggler.speed), "above 0, at most 1");
    const auto same = [&](const Straggler& other) { return other.rank == straggler.rank; };
    if (std::ranges::count_if(stragglers_, same) > 1) fail(place, "it more than once", "it once");

    const int32_t id = find_gpu(plan_, fabric_, straggler.rank);
    const Gpu& gpu = fabric_.gpus[static_cast<size_t>(id)];
    const auto slow = [&](int32_t resource) {
      if (resource >= 0) graph_.capacity[static_cast<size_t>(resource)] *= straggler.speed;
    };
    slow(gpu.nvlink_out);
    slow(gpu.nvlink_in);
    for (const int32_t nic : gpu.nics) {
      slow(fabric_.nics[static_cast<size_t>(nic)].out);
      slow(fabric_.nics[static_cast<size_t>(nic)].in);
    }
    if (graph_.first_gpu >= 0) {
      slow(graph_.first_gpu + id);
      slow(graph_.first_gpu + static_cast<int32_t>(fabric_.gpus.size()) + id);
    }
    if (graph_.first_memory >= 0) slow(graph_.first_memory + id);
  }

  const LinkCost& lane_cost(int32_t gpu, int32_t peer_gpu) const {
    return same_domain(fabric_, gpu, peer_gpu) ? cost_.nvlink : cost_.net;
  }

  void add_nodes() {
    if (plan_.ranks.size() != plan_.programs.size()) {
      fail("plan", fmt::format("programs of {} ranks", plan_.programs.size()),
           fmt::format("{}", plan_.ranks.size()));
    }
    const auto ranks = static_cast<int32_t>(plan_.programs.size());
    gpu_.assign(plan_.programs.size(), -1);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Program& program = plan_.programs[static_cast<size_t>(rank)];
      first_node_.push_back(static_cast<int32_t>(graph_.nodes.size()));
      if (program.steps.empty()) continue;
      gpu_[static_cast<size_t>(rank)] = find_gpu(plan_, fabric_, rank);
      for (size_t index = 0; index < program.steps.size(); ++index) {
        add_node(rank, static_cast<int32_t>(index));
      }
    }
  }

  void add_node(int32_t rank, int32_t index) {
    const Program& program = plan_.programs[static_cast<size_t>(rank)];
    const Step& step = program.steps[static_cast<size_t>(index)];
    const auto node_id = static_cast<int32_t>(graph_.nodes.size());
    const int32_t first = first_node_.back();
    StepNode node{.rank = rank, .index = index};
    if (index > 0 && program.steps[static_cast<size_t>(index - 1)].channel == step.channel) {
      ++node.before;
      next_.emplace_back(node_id - 1, node_id);
    }
    for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
      const Wait& wait = program.waits[static_cast<size_t>(w)];
      const int32_t waited = find_step(program, wait.channel, wait.step);
      ++node.before;
      if (waited >= 0) next_.emplace_back(first + waited, node_id);
    }

    const auto add_end = [&](const Message& message, int32_t& count, int64_t& packed) {
      if (message.peer < 0 || static_cast<size_t>(message.peer) >= plan_.programs.size()) {
        fail(fmt::format("rank {}, channel {}, step {}", rank, step.channel, step.id),
             fmt::format("peer {}", message.peer), fmt::format("0..{}", plan_.programs.size() - 1));
      }
      const int32_t peer_gpu = find_gpu(plan_, fabric_, message.peer);
      const int32_t gpu = gpu_[static_cast<size_t>(rank)];
      ++count;
      if (needs_packing(plan_, rank, message)) packed += packed_bytes(plan_, rank, message);
      node.start_up = std::max(node.start_up, lane_cost(gpu, peer_gpu).step_start);
    };
    for (const Message& send : sends_of(program, step)) {
      if (send.peer != rank) {
        add_end(send, node.sends, node.pack_bytes);
      } else {
        ++node.copies;
        node.copy_bytes += packed_bytes(plan_, rank, send);
      }
    }
    for (const Message& recv : recvs_of(program, step)) {
      if (recv.peer != rank) {
        add_end(recv, node.recvs, node.unpack_bytes);
      } else {  // what a cast adds there
        node.copy_bytes += packed_bytes(plan_, rank, recv) - message_bytes(program, recv);
      }
    }
    graph_.nodes.push_back(node);
  }

  void add_transfers() {
    for (int32_t id = 0; id < static_cast<int32_t>(graph_.nodes.size()); ++id) {
      const StepNode& node = graph_.nodes[static_cast<size_t>(id)];
      const Program& program = plan_.programs[static_cast<size_t>(node.rank)];
      const Step& step = program.steps[static_cast<size_t>(node.index)];
      for (const Message& send : sends_of(program, step)) {
        if (send.peer != node.rank) add_transfer(id, step, send);
      }
      // A receive that nobody sends: only so that its step never ends and is named.
      for (const Message& recv : recvs_of(program, step)) {
        if (recv.peer == node.rank || peer_node(recv.peer, step, node.rank, true) >= 0) continue;
        transfers_of_.emplace_back(id, static_cast<int32_t>(graph_.transfers.size()));
        graph_.transfers.push_back({.from = recv.peer, .to = node.rank, .receiver = id});
      }
    }
  }

  /// The node in which `peer` sends to (else receives from) `rank` under this channel and id, or
  /// -1.
  int32_t peer_node(int32_t peer, const Step& step, int32_t rank, bool peer_sends) const {
    const Program& program = plan_.programs[static_cast<size_t>(peer)];
    const int32_t index = find_step(program, step.channel, step.id);
    if (index < 0) return -1;
    const Step& other = program.steps[static_cast<size_t>(index)];
    const Message* message =
        peer_sends ? find_send(program, other, rank) : find_recv(program, other, rank);
    return message == nullptr ? -1 : first_node_[static_cast<size_t>(peer)] + index;
  }

  void add_transfer(int32_t sender, const Step& step, const Message& send) {
    const int32_t from = graph_.nodes[static_cast<size_t>(sender)].rank;
    const auto id = static_cast<int32_t>(graph_.transfers.size());
    Transfer transfer{.from = from, .to = send.peer, .sender = sender};
    transfers_of_.emplace_back(sender, id);
    transfer.receiver = peer_node(send.peer, step, from, false);
    if (transfer.receiver >= 0) {
      transfers_of_.emplace_back(transfer.receiver, id);
      const int32_t from_gpu = gpu_[static_cast<size_t>(from)];
      const int32_t to_gpu = gpu_[static_cast<size_t>(send.peer)];
      const LinkCost& lane = lane_cost(from_gpu, to_gpu);
      transfer.bytes = message_bytes(plan_.programs[static_cast<size_t>(from)], send);
      transfer.path = find_path(from_gpu, to_gpu);
      expect_up(transfer, step);
      transfer.start_up =
          lane.message_start + graph_.paths[static_cast<size_t>(transfer.path)].latency;
      transfer.cap = lane.flow_rate > 0 ? lane.flow_rate : kInfinity;
      if (cost_.nccl.channels > 0 && from_gpu != to_gpu && transfer.bytes > 0)
        cut_into_channels(transfer, step, from_gpu, to_gpu);
    }
    graph_.transfers.push_back(transfer);
  }

  void cut_into_channels(Transfer& transfer, const Step& step, int32_t from_gpu, int32_t to_gpu) {
    const Path& path = graph_.paths[static_cast<size_t>(transfer.path)];
    const auto channel = static_cast<size_t>(step.channel);
    const bool by_domain = plan_.channels[channel].lane == Lane::kNvlink;
    const int32_t domain = fabric_.gpus[static_cast<size_t>(from_gpu)].domain;
    const Communicator& communicator =
        by_domain ? of_domain_[channel][static_cast<size_t>(domain)] : of_all_[channel];
    const bool nvlink = same_domain(fabric_, from_gpu, to_gpu);
    const int32_t together = std::max(graph_.nodes[static_cast<size_t>(transfer.sender)].sends,
                                      graph_.nodes[static_cast<size_t>(transfer.receiver)].recvs);
    const MessageShape shape =
        shape_message(cost_.nccl, communicator, nvlink ? LinkKind::kNvlink : LinkKind::kNic,
                      transfer.bytes, together, path_rate(graph_, path));
    transfer.start_up += shape.fill_s;
    transfer.cap = std::min(transfer.cap, shape.rate);
  }

  /// Every channel of the plan is a communicator: of all ranks that have messages on it, or on a
  /// lane of NVLink one for each domain.
  void find_communicators() {
    if (cost_.nccl.channels == 0) return;
    const size_t channels = plan_.channels.size();
    of_all_.resize(channels);
    of_domain_.assign(channels, std::vector<Communicator>(fabric_.domains.size()));
    for (size_t channel = 0; channel < channels; ++channel) {
      for (size_t rank = 0; rank < plan_.programs.size(); ++rank) {
        const Program& program = plan_.programs[rank];
        const bool there = std::any_of(
            program.steps.begin(), program.steps.end(),
            [&](const Step& step) { return step.channel == static_cast<int32_t>(channel); });
        if (!there) continue;
        const int32_t domain = fabric_.gpus[static_cast<size_t>(gpu_[rank])].domain;
        Communicator& here = of_domain_[channel][static_cast<size_t>(domain)];
        here.nvlink = ++here.ranks > 1;
      }
      Communicator& all = of_all_[channel];
      for (const Communicator& domain : of_domain_[channel]) {
        all.nvlink = all.nvlink || domain.nvlink;
        all.network = all.network || (all.ranks > 0 && domain.ranks > 0);
        all.ranks += domain.ranks;
      }
    }
  }

  void expect_up(const Transfer& transfer, const Step& step) const {
    const Path& path = graph_.paths[static_cast<size_t>(transfer.path)];
    for (const int32_t link : path.links) {
      if (!is_down(link)) continue;
      throw Error(fmt::format("rank {} to {}, channel {}, step {}: needs link {}, which is down",
                              transfer.from, transfer.to, step.channel, step.id,
                              fabric_.links[static_cast<size_t>(link)].name),
                  ErrorKind::kWork);
    }
  }

  /// PXN: to another rail by NVLink to the GPU of the node that owns a NIC on it, then by that NIC.
  std::vector<int32_t> route_message(int32_t from, int32_t to, int32_t way) {
    if (!cost_.nccl.pxn || same_domain(fabric_, from, to)) return route(fabric_, from, to, way);
    const auto rail_of = [&](int32_t gpu) {
      const std::vector<int32_t>& own = fabric_.gpus[static_cast<size_t>(gpu)].nics;
      if (own.empty()) return -1;
      return fabric_.nics[static_cast<size_t>(own[static_cast<size_t>(way) % own.size()])].rail;
    };
    const int32_t rail = rail_of(to);
    const Gpu& sender = fabric_.gpus[static_cast<size_t>(from)];
    if (rail < 0 || rail_of(from) == rail || sender.nvlink_out < 0)
      return route(fabric_, from, to, way);
    for (const int32_t gpu : fabric_.nodes[static_cast<size_t>(sender.node)].gpus) {
      if (rail_of(gpu) != rail) continue;
      std::vector<int32_t> links = route(fabric_, from, gpu, way);
      const std::vector<int32_t> rest = route(fabric_, gpu, to, way);
      links.insert(links.end(), rest.begin(), rest.end());
      return links;
    }
    return route(fabric_, from, to, way);
  }

  int32_t find_path(int32_t from, int32_t to) {
    const auto gpus = static_cast<int64_t>(fabric_.gpus.size());
    const int64_t key = from * gpus + to;
    const auto [found, added] =
        path_of_.try_emplace(key, static_cast<int32_t>(graph_.paths.size()));
    if (!added) return found->second;
    Path path;
    path.ways.resize(static_cast<size_t>(count_ways(fabric_, from, to)));
    for (int32_t number = 0; number < std::ssize(path.ways); ++number) {
      Path::Way& way = path.ways[static_cast<size_t>(number)];
      way.resources = route_message(from, to, number);
      way.links = way.resources.size();
      double latency = 0;
      for (const int32_t link : way.resources) {
        latency += fabric_.links[static_cast<size_t>(link)].latency;
        if (std::ranges::count(path.links, link) == 0) path.links.push_back(link);
      }
      path.latency = std::max(path.latency, latency);
      if (from == to) {
        if (graph_.first_memory >= 0) way.resources.push_back(graph_.first_memory + from);
      } else if (graph_.first_gpu >= 0) {
        way.resources.push_back(graph_.first_gpu + from);
        way.resources.push_back(graph_.first_gpu + static_cast<int32_t>(gpus) + to);
      }
    }
    graph_.paths.push_back(std::move(path));
    return found->second;
  }

  const Plan& plan_;
  const Fabric& fabric_;
  const CostModel& cost_;
  const std::span<const Straggler> stragglers_;
  StepGraph graph_;
  std::vector<int32_t> gpu_;                          // by rank
  std::vector<int32_t> first_node_;                   // by rank
  std::vector<Communicator> of_all_;                  // by channel
  std::vector<std::vector<Communicator>> of_domain_;  // by channel and NVLink domain
  Pairs next_, transfers_of_;
  std::unordered_map<int64_t, int32_t> path_of_;  // looked up only, never walked
};

}  // namespace

Rows::Rows(size_t rows, std::span<const std::pair<int32_t, int32_t>> pairs)
    : first_(rows + 1), numbers_(pairs.size()) {
  for (const auto& [row, number] : pairs) ++first_[static_cast<size_t>(row) + 1];
  for (size_t row = 0; row < rows; ++row) first_[row + 1] += first_[row];
  std::vector<size_t> place = first_;
  for (const auto& [row, number] : pairs) numbers_[place[static_cast<size_t>(row)]++] = number;
}

double path_rate(const StepGraph& graph, const Path& path) {
  const auto ways = static_cast<double>(path.ways.size());
  std::map<int32_t, double> crossing;  // by resource: ways that do
  for (const Path::Way& way : path.ways) {
    for (const int32_t resource : way.resources) ++crossing[resource];
  }
  double rate = kInfinity;
  for (const auto& [resource, count] : crossing)
    rate = std::min(rate, graph.capacity[static_cast<size_t>(resource)] * ways / count);
  return rate;
}

std::string resource_name(const StepGraph& graph, const Fabric& fabric, int32_t resource) {
  if (resource < 0) return "its own cap";
  const auto links = static_cast<int32_t>(fabric.links.size());
  const auto gpus = static_cast<int32_t>(fabric.gpus.size());
  if (resource < links) return fabric.links[static_cast<size_t>(resource)].name;
  const auto gpu_name = [&](int32_t gpu) {
    const int32_t vertex = fabric.gpus[static_cast<size_t>(gpu)].vertex;
    return fabric.vertices[static_cast<size_t>(vertex)].name;
  };
  if (graph.first_memory >= 0 && resource >= graph.first_memory)
    return "memory of " + gpu_name(resource - graph.first_memory);
  const int32_t port = resource - graph.first_gpu;
  return gpu_name(port % gpus) + (port < gpus ? " as sender" : " as receiver");
}

StepGraph make_step_graph(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                          std::span<const Straggler> stragglers) {
  StepGraph graph = Builder(plan, fabric, cost, stragglers).build();
  add_host_work(plan, cost, graph);
  return graph;
}

}  // namespace refit
