#include "sim/simulator/step_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "plans/meetings.h"
#include "sim/cost/nccl.h"
#include "sim/simulator/host_work.h"
#include "sim/simulator/replay.h"

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

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

/// Where not, packing moves what is on the wire.
bool has_casts(const Plan& plan) {
  return std::ranges::any_of(plan.tensors, [](const PlanTensor& tensor) {
    return tensor.source >= 0 || tensor.train_dtype != tensor.gen_dtype;
  });
}

/// What lies between two GPUs, as for a Transfer; places are those in `crossed`.
struct Path {
  std::vector<int32_t> crossed;
  std::vector<Way> ways;
  int32_t first_link = 0, last_link = 0;
  double latency = 0;  // seconds, of the slowest way
};

struct MessageSize {
  int64_t bytes = 0;
  int32_t path = -1;  // of those that are sent
};

class Builder {
 public:
  Builder(const Plan& plan, const Fabric& fabric, const CostModel& cost,
          std::span<const Straggler> stragglers)
      : plan_(plan),
        fabric_(fabric),
        cost_(cost),
        stragglers_(stragglers),
        meetings_(plan),
        has_casts_(has_casts(plan)) {}

  StepGraph build() {
    add_resources();
    for (const Straggler& straggler : stragglers_) slow_down(straggler);
    add_nodes();
    find_communicators();
    add_transfers();
    graph_.next = Rows(graph_.nodes.size(), next_);
    graph_.transfers_of = Rows(graph_.nodes.size(), transfers_of_);
    for (const Way& way : graph_.ways)
      graph_.width = std::max(graph_.width, static_cast<size_t>(way.last - way.first));
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
    gpu_.assign(plan_.programs.size(), -1);
    for (int32_t rank = 0; rank <= meetings_.ranks(); ++rank)
      graph_.first_number.push_back(meetings_.first_group(rank));
    for (int32_t rank = 0; rank < meetings_.ranks(); ++rank) {
      const size_t r = static_cast<size_t>(rank);
      if (!plan_.programs[r].steps.empty()) gpu_[r] = find_gpu(plan_, fabric_, rank);
    }
    const std::span<const int32_t> order = meetings_.in_order();
    graph_.node_of.resize(order.size());
    for (size_t n = 0; n < order.size(); ++n)
      graph_.node_of[static_cast<size_t>(order[n])] = static_cast<int32_t>(n);
    graph_.nodes.resize(order.size());
    next_.reserve(order.size());
    messages_.resize(meetings_.first_message(meetings_.groups()));
    for (int32_t rank = 0; rank < meetings_.ranks(); ++rank) add_nodes(rank);
  }

  void add_nodes(int32_t rank) {
    const Program& program = plan_.programs[static_cast<size_t>(rank)];
    volume_.clear();
    for (const Box& box : program.boxes) volume_.push_back(box.volume());
    path_to_.assign(fabric_.gpus.size(), -1);
    for (int32_t index = 0; index < std::ssize(program.steps); ++index) add_node(rank, index);
  }

  void add_node(int32_t rank, int32_t index) {
    const Program& program = plan_.programs[static_cast<size_t>(rank)];
    const Step& step = program.steps[static_cast<size_t>(index)];
    const std::span<const int32_t> own = graph_.nodes_of(rank);
    const int32_t id = own[static_cast<size_t>(index)];
    StepNode& node = graph_.nodes[static_cast<size_t>(id)];
    node = {.rank = rank,
            .channel = step.channel,
            .index = index,
            .number = meetings_.group(rank, index)};
    if (index > 0 && program.steps[static_cast<size_t>(index - 1)].channel == step.channel) {
      ++node.before;
      next_.emplace_back(own[static_cast<size_t>(index - 1)], id);
    }
    for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
      const Wait& wait = program.waits[static_cast<size_t>(w)];
      const int32_t waited = find_step(program, wait.channel, wait.step);
      ++node.before;
      if (waited >= 0) next_.emplace_back(own[static_cast<size_t>(waited)], id);
    }
    size_t number = meetings_.first_message(node.number);
    for (int32_t m = step.first_send; m < step.last_message; ++m, ++number) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      const int64_t bytes = bytes_of(program, message);
      messages_[number].bytes = bytes;
      const bool sends = m < step.first_recv;
      if (message.peer == rank) {
        node.copies += sends ? 1 : 0;
        // Where the rank receives: what a cast adds there.
        node.copy_bytes += packed_bytes(plan_, rank, message) - (sends ? 0 : bytes);
        continue;
      }
      ++(sends ? node.sends : node.recvs);
      const int32_t gpu = gpu_[static_cast<size_t>(rank)];
      const int32_t peer_gpu = peer_gpu_of(node, step, message.peer);
      node.start_up = std::max(node.start_up, lane_cost(gpu, peer_gpu).step_start);
      if (sends) messages_[number].path = find_path(gpu, peer_gpu);
      if (!needs_packing(plan_, rank, message)) continue;
      (sends ? node.pack_bytes : node.unpack_bytes) +=
          has_casts_ ? packed_bytes(plan_, rank, message) : bytes;
    }
  }

  int32_t peer_gpu_of(const StepNode& node, const Step& step, int32_t peer) const {
    if (peer >= 0 && peer < meetings_.ranks()) return find_gpu(plan_, fabric_, peer);
    fail(fmt::format("rank {}, channel {}, step {}", node.rank, step.channel, step.id),
         fmt::format("peer {}", peer), fmt::format("0..{}", meetings_.ranks() - 1));
  }

  /// message_bytes, with the volumes of the program's boxes at hand.
  int64_t bytes_of(const Program& program, const Message& message) const {
    int64_t bytes = 0;
    for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
      const Piece& piece = program.pieces[static_cast<size_t>(p)];
      bytes += dtype_bytes(piece.wire, volume_[static_cast<size_t>(piece.box)]);
    }
    return bytes;
  }

  void add_transfers() {
    transfers_of_.reserve(messages_.size());
    for (int32_t id = 0; id < static_cast<int32_t>(graph_.nodes.size()); ++id) {
      const StepNode& node = graph_.nodes[static_cast<size_t>(id)];
      const std::span<const Meetings::Partner> partners = meetings_.partners(node.number);
      const auto first = static_cast<int32_t>(meetings_.first_message(node.number));
      const auto count = static_cast<int32_t>(std::ssize(partners));
      const int32_t sends = node.sends + node.copies;
      for (int32_t m = 0; m < count; ++m) {
        const Meetings::Partner& partner = partners[static_cast<size_t>(m)];
        if (partner.group == node.number) continue;  // to itself
        const int32_t other =
            partner.message < 0 ? -1 : graph_.node_of[static_cast<size_t>(partner.group)];
        if (other < 0) {
          add_half(id, first + m, m);
        } else if (m < sends) {
          add_transfer(id, first + m, other);
        }
      }
    }
  }

  void add_transfer(int32_t sender, int32_t message, int32_t receiver) {
    const StepNode& node = graph_.nodes[static_cast<size_t>(sender)];
    const auto id = static_cast<int32_t>(graph_.transfers.size());
    transfers_of_.emplace_back(sender, id);
    transfers_of_.emplace_back(receiver, id);
    const int32_t to = graph_.nodes[static_cast<size_t>(receiver)].rank;
    const int32_t from_gpu = gpu_[static_cast<size_t>(node.rank)];
    const int32_t to_gpu = gpu_[static_cast<size_t>(to)];
    const LinkCost& lane = lane_cost(from_gpu, to_gpu);
    const auto [bytes, path_id] = messages_[static_cast<size_t>(message)];
    const Path& path = paths_[static_cast<size_t>(path_id)];
    Transfer transfer{.number = message,
                      .from = node.rank,
                      .to = to,
                      .sender = sender,
                      .receiver = receiver,
                      .bytes = bytes,
                      .start_up = lane.message_start + path.latency,
                      .cap = lane.flow_rate > 0 ? lane.flow_rate : kInfinity};
    add_path(transfer, path);
    expect_up(transfer);
    if (cost_.nccl.channels > 0 && from_gpu != to_gpu && transfer.bytes > 0)
      cut_into_channels(transfer, node.channel, from_gpu, to_gpu);
    graph_.transfers.push_back(transfer);
  }

  void add_path(Transfer& transfer, const Path& path) {
    const auto first = static_cast<int32_t>(graph_.crossed.size());
    graph_.crossed.insert(graph_.crossed.end(), path.crossed.begin(), path.crossed.end());
    transfer.first_way = static_cast<int32_t>(graph_.ways.size());
    for (const Way& way : path.ways)
      graph_.ways.push_back({first + way.first, first + way.last_link, first + way.last});
    transfer.last_way = static_cast<int32_t>(graph_.ways.size());
    transfer.first_link = first + path.first_link;
    transfer.last_link = first + path.last_link;
  }

  /// A message without another end: only so that its step never ends and is named.
  void add_half(int32_t id, int32_t message, int32_t in_step) {
    const StepNode& node = graph_.nodes[static_cast<size_t>(id)];
    const Program& program = plan_.programs[static_cast<size_t>(node.rank)];
    const Step& step = program.steps[static_cast<size_t>(node.index)];
    const int32_t m = step.first_send + in_step;
    const int32_t peer = program.messages[static_cast<size_t>(m)].peer;
    transfers_of_.emplace_back(id, static_cast<int32_t>(graph_.transfers.size()));
    if (m < step.first_recv) {
      graph_.transfers.push_back({.number = message, .from = node.rank, .to = peer, .sender = id});
    } else {
      graph_.transfers.push_back(
          {.number = message, .from = peer, .to = node.rank, .receiver = id});
    }
  }

  void cut_into_channels(Transfer& transfer, int32_t on_channel, int32_t from_gpu, int32_t to_gpu) {
    const auto channel = static_cast<size_t>(on_channel);
    const bool by_domain = plan_.channels[channel].lane == Lane::kNvlink;
    const int32_t domain = fabric_.gpus[static_cast<size_t>(from_gpu)].domain;
    const Communicator& communicator =
        by_domain ? of_domain_[channel][static_cast<size_t>(domain)] : of_all_[channel];
    const bool nvlink = same_domain(fabric_, from_gpu, to_gpu);
    const int32_t together = std::max(graph_.nodes[static_cast<size_t>(transfer.sender)].sends,
                                      graph_.nodes[static_cast<size_t>(transfer.receiver)].recvs);
    const MessageShape shape =
        shape_message(cost_.nccl, communicator, nvlink ? LinkKind::kNvlink : LinkKind::kNic,
                      transfer.bytes, together, path_rate(graph_, transfer));
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
        const bool there = std::ranges::binary_search(program.steps, static_cast<int32_t>(channel),
                                                      {}, &Step::channel);
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

  void expect_up(const Transfer& transfer) const {
    for (const int32_t link : graph_.links_of(transfer)) {
      if (!is_down(link)) continue;
      const Step& step = step_of(plan_, graph_.nodes[static_cast<size_t>(transfer.sender)]);
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

  /// From the GPU of the rank at hand.
  int32_t find_path(int32_t from, int32_t to) {
    int32_t& found = path_to_[static_cast<size_t>(to)];
    if (found >= 0) return found;
    found = static_cast<int32_t>(paths_.size());
    Path& path = paths_.emplace_back();
    const int32_t ways = count_ways(fabric_, from, to);
    for (int32_t way = 0; way < ways; ++way) add_way(path, from, to, route_message(from, to, way));
    join_links(path);
    return found;
  }

  void add_way(Path& path, int32_t from, int32_t to, const std::vector<int32_t>& links) {
    std::vector<int32_t>& crossed = path.crossed;
    Way way{.first = static_cast<int32_t>(crossed.size())};
    crossed.insert(crossed.end(), links.begin(), links.end());
    way.last_link = static_cast<int32_t>(crossed.size());
    if (from == to) {
      if (graph_.first_memory >= 0) crossed.push_back(graph_.first_memory + from);
    } else if (graph_.first_gpu >= 0) {
      crossed.push_back(graph_.first_gpu + from);
      crossed.push_back(graph_.first_gpu + static_cast<int32_t>(fabric_.gpus.size()) + to);
    }
    way.last = static_cast<int32_t>(crossed.size());
    path.ways.push_back(way);
    double latency = 0;
    for (const int32_t link : links) latency += fabric_.links[static_cast<size_t>(link)].latency;
    path.latency = std::max(path.latency, latency);
  }

  /// Finds the links of all ways, each once: those of the only one, or a list of their own.
  static void join_links(Path& path) {
    const Way& only = path.ways.front();
    path.first_link = only.first;
    path.last_link = only.last_link;
    if (path.ways.size() == 1) return;
    std::vector<int32_t> links;
    for (const Way& way : path.ways) {
      for (int32_t i = way.first; i < way.last_link; ++i) {
        const int32_t link = path.crossed[static_cast<size_t>(i)];
        if (std::ranges::count(links, link) == 0) links.push_back(link);
      }
    }
    path.first_link = static_cast<int32_t>(path.crossed.size());
    path.crossed.insert(path.crossed.end(), links.begin(), links.end());
    path.last_link = static_cast<int32_t>(path.crossed.size());
  }

  const Plan& plan_;
  const Fabric& fabric_;
  const CostModel& cost_;
  const std::span<const Straggler> stragglers_;
  const Meetings meetings_;
  const bool has_casts_;
  StepGraph graph_;
  std::vector<int32_t> gpu_;  // by rank
  std::vector<MessageSize> messages_;
  std::vector<int64_t> volume_;                       // by box of the rank at hand
  std::vector<Communicator> of_all_;                  // by channel
  std::vector<std::vector<Communicator>> of_domain_;  // by channel and NVLink domain
  Pairs next_, transfers_of_;
  std::vector<Path> paths_;
  std::vector<int32_t> path_to_;  // from the rank at hand, by GPU
};

}  // namespace

Rows::Rows(size_t rows, std::span<const std::pair<int32_t, int32_t>> pairs)
    : first_(rows + 1), numbers_(pairs.size()) {
  for (const auto& [row, number] : pairs) ++first_[static_cast<size_t>(row) + 1];
  for (size_t row = 0; row < rows; ++row) first_[row + 1] += first_[row];
  std::vector<size_t> place = first_;
  for (const auto& [row, number] : pairs) numbers_[place[static_cast<size_t>(row)]++] = number;
}

double path_rate(const StepGraph& graph, const Transfer& transfer) {
  const std::span<const Way> ways = graph.ways_of(transfer);
  const auto count = static_cast<double>(ways.size());
  double rate = kInfinity;
  for (const Way& way : ways) {
    for (const int32_t resource : graph.resources_of(way)) {
      double crossing = 0;  // ways that do
      for (const Way& other : ways)
        crossing += static_cast<double>(std::ranges::count(graph.resources_of(other), resource));
      rate = std::min(rate, graph.capacity[static_cast<size_t>(resource)] * count / crossing);
    }
  }
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
