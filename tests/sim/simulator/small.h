#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"

namespace refit {

/// Nodes of two GPUs and one NVLink domain each, on one switch. In bytes per second, to be followed
/// by hand: NVLink 100, NIC 10.
struct SmallCluster {
  double nvlink = 100, nic = 10;
  double nvlink_latency = 0, nic_latency = 0;
  int32_t nics_per_gpu = 1;

  Fabric make(int32_t nodes) const {
    Fabric fabric;
    fabric.name = "small";
    fabric.vertices.push_back({VertexKind::kLeaf, "leaf", 0});
    fabric.leaves.push_back({.vertex = 0});
    const auto vertex = [&](VertexKind kind, const std::string& name, size_t index) {
      fabric.vertices.push_back({kind, name, static_cast<int32_t>(index)});
      return static_cast<int32_t>(fabric.vertices.size() - 1);
    };
    const auto link = [&](const std::string& name, LinkKind kind, int32_t from, int32_t to) {
      const bool nv = kind == LinkKind::kNvlink;
      fabric.links.push_back(
          {name, kind, from, to, nv ? nvlink : nic, nv ? nvlink_latency : nic_latency});
      return static_cast<int32_t>(fabric.links.size() - 1);
    };
    for (int32_t node = 0; node < nodes; ++node) {
      const std::string n = fmt::format("n{}", node);
      fabric.nodes.emplace_back();
      fabric.nodes.back().name = n;
      fabric.domains.emplace_back();
      fabric.domain_names.push_back(n);
      const int32_t nvswitch = vertex(VertexKind::kNvswitch, n, static_cast<size_t>(node));
      for (int32_t device = 0; device < 2; ++device) {
        const std::string g = fmt::format("{}.gpu{}", n, device);
        Gpu gpu;
        gpu.node = gpu.domain = node;
        gpu.device = device;
        gpu.vertex = vertex(VertexKind::kGpu, g, fabric.gpus.size());
        gpu.nvlink_out = link(g + ".out", LinkKind::kNvlink, gpu.vertex, nvswitch);
        gpu.nvlink_in = link(g + ".in", LinkKind::kNvlink, nvswitch, gpu.vertex);
        for (int32_t own = 0; own < nics_per_gpu; ++own) {
          const std::string name = fmt::format("{}.nic{}", g, own);
          Nic part{.node = node, .rail = device * nics_per_gpu + own};
          part.vertex = vertex(VertexKind::kNic, name, fabric.nics.size());
          part.out = link(name + ".out", LinkKind::kNic, part.vertex, 0);
          part.in = link(name + ".in", LinkKind::kNic, 0, part.vertex);
          gpu.nics.push_back(static_cast<int32_t>(fabric.nics.size()));
          fabric.nodes.back().nics.push_back(static_cast<int32_t>(fabric.nics.size()));
          fabric.nics.push_back(part);
        }
        fabric.domains.back().push_back(static_cast<int32_t>(fabric.gpus.size()));
        fabric.nodes.back().gpus.push_back(static_cast<int32_t>(fabric.gpus.size()));
        fabric.gpus.push_back(gpu);
      }
    }
    fabric.rails = 2 * nics_per_gpu;
    return fabric;
  }
};

/// Writes programs of single bytes: rank r runs on GPU r and holds one big tensor, contiguous, on
/// both sides.
class PlanWriter {
 public:
  PlanWriter(int32_t ranks, int32_t channels) {
    plan_.channels.resize(static_cast<size_t>(channels));
    plan_.ranks.resize(static_cast<size_t>(ranks));
    plan_.programs.resize(static_cast<size_t>(ranks));
    PlanTensor tensor;
    tensor.name = "w";
    tensor.shape = Dims{int64_t{1} << 40};
    tensor.train_map = tensor.gen_map = 0;
    tensor.train_dtype = tensor.gen_dtype = Dtype::kUint8;
    plan_.tensors.push_back(tensor);
    plan_.maps.resize(1);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      plan_.ranks[static_cast<size_t>(rank)].gpu = rank;
      plan_.ranks[static_cast<size_t>(rank)].node = fmt::format("n{}", rank / 2);
      plan_.maps[0].shards.push_back({rank, {{whole(tensor.shape), 0, Dims{1}}}});
    }
    steps_.resize(static_cast<size_t>(ranks));
  }

  /// Messages of one piece need no packing, of two they do.
  void send(int32_t from, int32_t to, int32_t channel, int32_t step, int64_t bytes,
            int pieces_sent = 1, int pieces_received = 1) {
    half(from, to, channel, step, bytes, pieces_sent, true);
    half(to, from, channel, step, bytes, pieces_received, false);
  }

  /// One end of a transfer.
  void half(int32_t rank, int32_t peer, int32_t channel, int32_t step, int64_t bytes, int pieces,
            bool sends) {
    Draft& draft = steps_[static_cast<size_t>(rank)][{channel, step}];
    (sends ? draft.sends : draft.recvs)[peer] = {bytes, pieces};
  }

  void wait(int32_t rank, int32_t channel, int32_t step, int32_t on_channel, int32_t on_step) {
    steps_[static_cast<size_t>(rank)][{channel, step}].waits.push_back({on_channel, on_step});
  }

  Plan write() const {
    Plan plan = plan_;
    for (size_t rank = 0; rank < steps_.size(); ++rank) {
      Program& program = plan.programs[rank];
      for (const auto& [key, draft] : steps_[rank]) {
        Step step{.id = key.second, .channel = key.first};
        step.first_send = count(program.messages);
        for (const auto& [peer, size] : draft.sends) add(program, peer, size);
        step.first_recv = count(program.messages);
        for (const auto& [peer, size] : draft.recvs) add(program, peer, size);
        step.last_message = count(program.messages);
        step.first_wait = count(program.waits);
        program.waits.insert(program.waits.end(), draft.waits.begin(), draft.waits.end());
        step.last_wait = count(program.waits);
        program.steps.push_back(step);
      }
    }
    return plan;
  }

 private:
  struct Size {
    int64_t bytes = 0;
    int pieces = 1;
  };
  struct Draft {
    std::map<int32_t, Size> sends, recvs;
    std::vector<Wait> waits;
  };

  template <typename T>
  static int32_t count(const std::vector<T>& items) {
    return static_cast<int32_t>(items.size());
  }

  static void add(Program& program, int32_t peer, const Size& size) {
    Message message{.peer = peer, .first_piece = count(program.pieces)};
    int64_t lo = 0;
    for (int piece = 0; piece < size.pieces; ++piece) {
      const int64_t hi = piece + 1 == size.pieces ? size.bytes : lo + size.bytes / size.pieces;
      program.pieces.push_back(
          {.tensor = 0, .box = count(program.boxes), .area = 0, .wire = Dtype::kUint8});
      program.boxes.push_back({Dims{lo}, Dims{hi}});
      lo = hi;
    }
    message.last_piece = count(program.pieces);
    program.messages.push_back(message);
  }

  Plan plan_;
  std::vector<std::map<std::pair<int32_t, int32_t>, Draft>> steps_;  // by rank: (channel, id)
};

/// Rates of the fabric, no start-ups, free memory.
inline CostModel free_cost() {
  CostModel cost;
  cost.name = "free";
  return cost;
}

}  // namespace refit
