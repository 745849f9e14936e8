#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <cmath>

#include "base/error.h"
#include "sim/fabric/fabric.h"

namespace refit {
namespace {

// Flows are integers, for an exact and finite algorithm. Rates are scaled by the power of two that
// brings their sum just below 2^53: integral rates stay exact, and the others lose no more than a
// double does.
constexpr int kFlowBits = 53;
constexpr int64_t kUnlimited = int64_t{1} << (kFlowBits + 1);

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Graph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<
        boost::edge_capacity_t, int64_t,
        boost::property<boost::edge_residual_capacity_t, int64_t,
                        boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

void add_edge(Graph& graph, size_t from, size_t to, int64_t capacity) {
  const auto forward = boost::add_edge(from, to, graph).first;
  const auto backward = boost::add_edge(to, from, graph).first;
  boost::put(boost::edge_capacity, graph, forward, capacity);
  boost::put(boost::edge_capacity, graph, backward, int64_t{0});
  boost::put(boost::edge_reverse, graph, forward, backward);
  boost::put(boost::edge_reverse, graph, backward, forward);
}

}  // namespace

// All GPUs that send are one vertex, all that receive another: what is inside either never limits
// the flow. A NIC is used by its own GPUs only, so that its links start and end there too. Switches
// are what remains between the two.
double cut_capacity(const Fabric& fabric, std::span<const int32_t> inside, bool into,
                    std::span<const double> link_rate) {
  REFIT_CHECK(link_rate.size() == fabric.links.size());
  std::vector<char> sends(fabric.gpus.size(), into ? 1 : 0);
  for (const int32_t gpu : inside) sends[static_cast<size_t>(gpu)] = into ? 0 : 1;
  std::vector<char> nic_sends(fabric.nics.size(), 0), nic_receives(fabric.nics.size(), 0);
  for (size_t gpu = 0; gpu < fabric.gpus.size(); ++gpu)
    for (const int32_t nic : fabric.gpus[gpu].nics)
      (sends[gpu] ? nic_sends : nic_receives)[static_cast<size_t>(nic)] = 1;

  double total = 0;
  for (const double rate : link_rate) total += rate;
  if (!(total > 0)) return 0;
  int exponent = 0;
  std::frexp(total, &exponent);

  const size_t source = 0, sink = 1, first_switch = 2;
  const size_t spine = first_switch + fabric.domains.size() + fabric.leaves.size();
  std::vector<int64_t> from_source(spine + 1, 0), to_sink(spine + 1, 0);
  const auto switch_of = [&](int32_t vertex) -> size_t {
    const Vertex& v = fabric.vertices[static_cast<size_t>(vertex)];
    if (v.kind == VertexKind::kSpine) return spine;
    const size_t index = static_cast<size_t>(v.index);
    return v.kind == VertexKind::kLeaf ? first_switch + fabric.domains.size() + index
                                       : first_switch + index;
  };
  const auto is_switch = [&](const Vertex& v) {
    return v.kind != VertexKind::kGpu && v.kind != VertexKind::kNic;
  };
  const auto may_send = [&](const Vertex& v) {
    return (v.kind == VertexKind::kGpu ? sends : nic_sends)[static_cast<size_t>(v.index)] != 0;
  };
  const auto may_receive = [&](const Vertex& v) {
    return v.kind == VertexKind::kGpu ? sends[static_cast<size_t>(v.index)] == 0
                                      : nic_receives[static_cast<size_t>(v.index)] != 0;
  };

  Graph graph(spine + 1);
  for (size_t id = 0; id < fabric.links.size(); ++id) {
    const Link& link = fabric.links[id];
    const Vertex& from = fabric.vertices[static_cast<size_t>(link.from)];
    const Vertex& to = fabric.vertices[static_cast<size_t>(link.to)];
    const int64_t capacity = std::llround(std::ldexp(link_rate[id], kFlowBits - exponent));
    if (is_switch(from) && is_switch(to))
      add_edge(graph, switch_of(link.from), switch_of(link.to), capacity);
    else if (is_switch(to) && may_send(from))
      from_source[switch_of(link.to)] += capacity;
    else if (is_switch(from) && may_receive(to))
      to_sink[switch_of(link.from)] += capacity;
  }
  for (size_t v = first_switch; v <= spine; ++v) {
    if (from_source[v] > 0) add_edge(graph, source, v, from_source[v]);
    if (to_sink[v] > 0) add_edge(graph, v, sink, to_sink[v]);
  }
  if (fabric.spine >= 0)
    for (const Leaf& leaf : fabric.leaves) {
      if (leaf.up < 0) add_edge(graph, switch_of(leaf.vertex), spine, kUnlimited);
      if (leaf.down < 0) add_edge(graph, spine, switch_of(leaf.vertex), kUnlimited);
    }
  const int64_t flow = boost::push_relabel_max_flow(graph, source, sink);
  return std::ldexp(static_cast<double>(flow), exponent - kFlowBits);
}

}  // namespace refit
