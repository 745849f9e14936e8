#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <boost/range/iterator_range.hpp>
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

/// Vertices to which more could still flow from `start`, or from which it could flow there.
std::vector<char> reach_residual(const Graph& graph, size_t start, bool forward) {
  std::vector<char> reached(boost::num_vertices(graph), 0);
  std::vector<size_t> queue = {start};
  reached[start] = 1;
  for (size_t next = 0; next < queue.size(); ++next)
    for (const auto& edge : boost::make_iterator_range(boost::out_edges(queue[next], graph))) {
      const size_t to = boost::target(edge, graph);
      const auto along = forward ? edge : boost::get(boost::edge_reverse, graph, edge);
      if (reached[to] || boost::get(boost::edge_residual_capacity, graph, along) == 0) continue;
      reached[to] = 1;
      queue.push_back(to);
    }
  return reached;
}

}  // namespace

// All GPUs that send are one vertex, all that receive another: what is inside either never limits
// the flow. Where PCIe never binds, a NIC is used by its own GPUs only, so that its links start and
// end there too. Switches are what remains between the two, and NICs that hang from PCIe.
FabricCut minimum_cut(const Fabric& fabric, std::span<const int32_t> inside, bool into,
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
  if (!(total > 0)) return {};
  int exponent = 0;
  std::frexp(total, &exponent);

  constexpr size_t kSource = 0, kSink = 1;
  const size_t first_between = 2, nowhere = fabric.vertices.size() + first_between;
  size_t count = first_between;
  std::vector<size_t> place_from(fabric.vertices.size()), place_to(fabric.vertices.size());
  for (size_t v = 0; v < fabric.vertices.size(); ++v) {
    const Vertex& vertex = fabric.vertices[v];
    const auto index = static_cast<size_t>(vertex.index);
    if (vertex.kind == VertexKind::kGpu) {
      place_from[v] = place_to[v] = sends[index] ? kSource : kSink;
    } else if (vertex.kind == VertexKind::kNic && fabric.nics[index].hub < 0) {
      place_from[v] = nic_sends[index] ? kSource : nowhere;
      place_to[v] = nic_receives[index] ? kSink : nowhere;
    } else {
      place_from[v] = place_to[v] = count++;
    }
  }

  Graph graph(count);
  std::vector<int64_t> from_source(count, 0), to_sink(count, 0);
  for (size_t id = 0; id < fabric.links.size(); ++id) {
    const size_t from = place_from[static_cast<size_t>(fabric.links[id].from)];
    const size_t to = place_to[static_cast<size_t>(fabric.links[id].to)];
    const int64_t capacity = std::llround(std::ldexp(link_rate[id], kFlowBits - exponent));
    if (from == nowhere || to == nowhere || from == kSink || to == kSource || capacity == 0)
      continue;
    if (from == kSource)
      from_source[to] += capacity;
    else if (to == kSink)
      to_sink[from] += capacity;
    else
      add_edge(graph, from, to, capacity);
  }
  for (size_t v = kSink; v < count; ++v) {
    if (from_source[v] > 0) add_edge(graph, kSource, v, from_source[v]);
    if (to_sink[v] > 0) add_edge(graph, v, kSink, to_sink[v]);
  }
  const auto place = [&](int32_t vertex) { return place_from[static_cast<size_t>(vertex)]; };
  for (const Switch& leaf : fabric.leaves) {
    const int32_t parent =
        leaf.parent >= 0 ? fabric.leaves[static_cast<size_t>(leaf.parent)].vertex : fabric.spine;
    if (parent < 0) continue;
    if (leaf.up < 0) add_edge(graph, place(leaf.vertex), place(parent), kUnlimited);
    if (leaf.down < 0) add_edge(graph, place(parent), place(leaf.vertex), kUnlimited);
  }
  for (const Nic& nic : fabric.nics) {
    if (nic.hub < 0) continue;
    const int32_t hub = fabric.hubs[static_cast<size_t>(nic.hub)].vertex;
    add_edge(graph, place(nic.vertex), place(hub), kUnlimited);
    add_edge(graph, place(hub), place(nic.vertex), kUnlimited);
  }
  const int64_t flow = boost::push_relabel_max_flow(graph, kSource, kSink);

  // The sides of the cut: what the senders still reach, or what still reaches the receivers.
  std::vector<char> sending = reach_residual(graph, into ? kSink : kSource, !into);
  if (into)
    for (char& side : sending) side = side == 0;
  FabricCut cut = {std::ldexp(static_cast<double>(flow), exponent - kFlowBits), {}};
  for (size_t id = 0; id < fabric.links.size(); ++id) {
    const size_t from = place_from[static_cast<size_t>(fabric.links[id].from)];
    const size_t to = place_to[static_cast<size_t>(fabric.links[id].to)];
    if (from != nowhere && to != nowhere && sending[from] && !sending[to] && link_rate[id] > 0)
      cut.links.push_back(static_cast<int32_t>(id));
  }
  return cut;
}

}  // namespace refit
