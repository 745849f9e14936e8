#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"
#include "sim/simulator/simulator.h"

namespace refit {

// A plan on a fabric, flattened for the replay: nodes are the steps of all ranks; edges are the
// order of a channel and the waits; every transfer joins two nodes and knows its way through the
// fabric. Nothing here depends on time.
//
// Nodes stand in order of (channel, id, rank), transfers in order of their senders, and so what
// runs at about the same time lies side by side: a large plan does not fit into the cache, what
// happens in it at one time does. Where order matters (what is handled first at one instant) their
// `number` counts: the place in order of (rank, channel, id).

/// Rows of numbers of different length, one behind the other.
class Rows {
 public:
  /// `pairs` of (row, number); within a row their order is kept.
  Rows(size_t rows, std::span<const std::pair<int32_t, int32_t>> pairs);
  Rows() = default;
  std::span<const int32_t> operator[](int32_t row) const {
    const auto r = static_cast<size_t>(row);
    return {numbers_.data() + first_[r], first_[r + 1] - first_[r]};
  }

 private:
  std::vector<size_t> first_;
  std::vector<int32_t> numbers_;
};

struct StepNode {
  int32_t rank = -1, channel = -1;
  int32_t index = -1;  // in the rank's program
  int32_t number = -1;
  int32_t before = 0;            // steps that have to end first; one that does not exist counts
  int32_t sends = 0, recvs = 0;  // over wires
  int32_t copies = 0;            // to oneself
  int64_t pack_bytes = 0, unpack_bytes = 0, copy_bytes = 0;
  double start_up = 0;  // seconds
};

/// The resources StepGraph::crossed[first, last); those before last_link are links of the fabric,
/// of equal number.
struct Way {
  int32_t first = 0, last_link = 0, last = 0;
};

struct Transfer {
  int32_t number = -1;
  int32_t from = -1, to = -1;          // ranks
  int32_t sender = -1, receiver = -1;  // nodes; -1: that end does not exist
  // Where it flows: an equal part on each of StepGraph::ways[first_way, last_way), most often one;
  // the links of all, each once, are StepGraph::crossed[first_link, last_link). None where an end
  // is missing.
  int32_t first_way = 0, last_way = 0, first_link = 0, last_link = 0;
  int64_t bytes = 0;
  double start_up = 0;  // seconds: message and links
  double cap = 0;       // bytes/s; infinite when there is none
};

struct StepGraph {
  std::vector<StepNode> nodes;
  std::vector<Transfer> transfers;
  std::vector<Way> ways;              // by transfer
  std::vector<int32_t> crossed;       // resources, by transfer
  Rows next;                          // by node: the nodes that wait for it
  Rows transfers_of;                  // by node: transfers it takes part in
  std::vector<int32_t> first_number;  // by rank, one more at the end: of its nodes
  std::vector<int32_t> node_of;       // by number

  /// The nodes of a rank, as in its program.
  std::span<const int32_t> nodes_of(int32_t rank) const {
    const auto r = static_cast<size_t>(rank);
    return std::span(node_of).subspan(static_cast<size_t>(first_number[r]),
                                      static_cast<size_t>(first_number[r + 1] - first_number[r]));
  }
  std::span<const Way> ways_of(const Transfer& transfer) const {
    return {ways.data() + transfer.first_way,
            static_cast<size_t>(transfer.last_way - transfer.first_way)};
  }
  std::span<const int32_t> resources_of(const Way& way) const {
    return {crossed.data() + way.first, static_cast<size_t>(way.last - way.first)};
  }
  std::span<const int32_t> links_of(const Way& way) const {
    return {crossed.data() + way.first, static_cast<size_t>(way.last_link - way.first)};
  }
  /// Of all ways, each once.
  std::span<const int32_t> links_of(const Transfer& transfer) const {
    return {crossed.data() + transfer.first_link,
            static_cast<size_t>(transfer.last_link - transfer.first_link)};
  }

  // Resources, bytes/s: the links (one that is down: any number, nothing crosses it), then the GPUs
  // as senders and as receivers when they have a rate, then their memories when these have.
  std::vector<double> capacity;
  size_t width = 1;           // most resources on a way
  int32_t first_gpu = -1;     // GPU 0 as a sender; -1: GPUs have no rate of their own
  int32_t first_memory = -1;  // memory of GPU 0; -1: memory is free
};

/// Rate of a transfer that is alone on its ways, bytes/s; infinite where it crosses nothing.
double path_rate(const StepGraph& graph, const Transfer& transfer);

/// "n0.nic1.out", "n0.gpu3 as sender", "n0.gpu3 as receiver", "memory of n0.gpu3"; -1 is the cap of
/// one connection.
std::string resource_name(const StepGraph& graph, const Fabric& fabric, int32_t resource);

/// Fails as `simulate` does; a program with ends that do not pair up is accepted, and its steps
/// never end.
StepGraph make_step_graph(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                          std::span<const Straggler> stragglers = {});

}  // namespace refit
