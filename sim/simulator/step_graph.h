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

// A plan on a fabric, flattened for the replay: nodes are the steps of all ranks, numbered through
// in order of (rank, channel, id); edges are the order of a channel and the waits; every transfer
// joins two nodes and knows its way through the fabric. Nothing here depends on time.

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
  int32_t rank = -1;
  int32_t index = -1;            // in the rank's program
  int32_t before = 0;            // steps that have to end first; one that does not exist counts
  int32_t sends = 0, recvs = 0;  // over wires
  int32_t copies = 0;            // to oneself
  int64_t pack_bytes = 0, unpack_bytes = 0, copy_bytes = 0;
  double start_up = 0;  // seconds
};

struct Transfer {
  int32_t from = -1, to = -1;          // ranks
  int32_t sender = -1, receiver = -1;  // nodes; -1: that end does not exist
  int64_t bytes = 0;
  int32_t path = -1;    // of StepGraph::paths; -1 where an end is missing
  double start_up = 0;  // seconds: message and links
  double cap = 0;       // bytes/s; infinite when there is none
};

/// Where a transfer flows: an equal part of it on each way, most often one.
struct Path {
  struct Way {
    std::vector<int32_t> resources;  // links of the fabric first, of equal number
    size_t links = 0;                // how many of them are
  };
  std::vector<Way> ways;
  std::vector<int32_t> links;  // of all ways, each once
  double latency = 0;          // seconds, of the slowest way
};

struct StepGraph {
  std::vector<StepNode> nodes;
  std::vector<Transfer> transfers;
  std::vector<Path> paths;
  Rows next;          // by node: the nodes that wait for it
  Rows transfers_of;  // by node: transfers it takes part in

  // Resources, bytes/s: the links (one that is down: any number, nothing crosses it), then the GPUs
  // as senders and as receivers when they have a rate, then their memories when these have.
  std::vector<double> capacity;
  size_t width = 1;           // most resources on a way
  int32_t first_gpu = -1;     // GPU 0 as a sender; -1: GPUs have no rate of their own
  int32_t first_memory = -1;  // memory of GPU 0; -1: memory is free
};

/// Rate of a message that is alone on its path, bytes/s; infinite where it crosses nothing.
double path_rate(const StepGraph& graph, const Path& path);

/// "n0.nic1.out", "n0.gpu3 as sender", "n0.gpu3 as receiver", "memory of n0.gpu3"; -1 is the cap of
/// one connection.
std::string resource_name(const StepGraph& graph, const Fabric& fabric, int32_t resource);

/// Fails as `simulate` does; a program with ends that do not pair up is accepted, and its steps
/// never end.
StepGraph make_step_graph(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                          std::span<const Straggler> stragglers = {});

}  // namespace refit
