// How good fluid routings are, and how fast: refit_bench_flow [--full]. Seconds are of CPU, since
// the machine may be shared.
//
// All-gathers among H100s on 8 rails that nothing joins: algbw of the routing against the optimum
// that ForestColl finds (sim/flow tests), within 0.5 %. Then 20,000 blocks of different sizes (log
// normal, 1 TB in all) from 256 to 128 GPUs, each held by one and needed by one GPU in every 16:
// the gap of the routing to the cut around a node at most 0.5 %, in at most 1 s. A row that misses
// is marked and fails the run. --full adds 1,024 to 1,024 GPUs with 50,000 blocks.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "sim/flow/multicast.h"
#include "tests/bench/process.h"

namespace refit {
namespace {

std::vector<double> nominal_rates(const Fabric& fabric) {
  std::vector<double> rates;
  for (const Link& link : fabric.links) rates.push_back(link.rate);
  return rates;
}

bool run_all_gather(int32_t gpus) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100-rail-only"), gpus / 8);
  std::vector<Multicast> items(static_cast<size_t>(gpus));
  for (int32_t gpu = 0; gpu < gpus; ++gpu) {
    Multicast& item = items[static_cast<size_t>(gpu)];
    item.holders = {gpu};
    item.bytes = 1e9;
    for (int32_t other = 0; other < gpus; ++other)
      if (other != gpu) item.needers.push_back(other);
  }
  const double n = gpus;
  const double best =
      gpus == 8 ? 450 * n / (n - 1) : std::min(500 * n / (n - 1), 400 * n / (n - 8));
  const double start = cpu_seconds();
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const FluidRouting fluid = route_fluid(graph, items);
  const double took = cpu_seconds() - start;
  const double reached = n / fluid.seconds, bound = n / fluid.bound;
  const bool met = reached >= best * 0.995;
  fmt::print("{:>4} GPUs {:>14.2f} {:>9.2f} {:>9.4f} {:>12.2f} {:>8.2f}{}\n", gpus, best, reached,
             best / reached, bound, took, met ? "" : "  BELOW");
  return met;
}

bool run_blocks(int32_t from, int32_t to, int blocks, double most) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), (from + to) / 8);
  std::mt19937_64 random(1);
  std::vector<Multicast> items(static_cast<size_t>(blocks));
  double total = 0;
  for (Multicast& item : items) {
    // Sums of uniform numbers, the same on every machine.
    double normal = -6;
    for (int i = 0; i < 12; ++i) normal += static_cast<double>(random() % 1000000) * 1e-6;
    item.bytes = std::exp(normal);
    total += item.bytes;
    item.holders = {static_cast<int32_t>(random() % static_cast<uint64_t>(from))};
    const auto first = static_cast<int32_t>(random() % 16);
    for (int32_t gpu = first; gpu < to; gpu += 16) item.needers.push_back(from + gpu);
  }
  for (Multicast& item : items) item.bytes *= 1e12 / total;
  // Into a node goes what its eight GPUs need; out of one what its eight hold.
  std::vector<double> into(static_cast<size_t>((from + to) / 8), 0);
  for (const Multicast& item : items) {
    into[static_cast<size_t>(item.holders[0] / 8)] += item.bytes;
    for (const int32_t gpu : item.needers) into[static_cast<size_t>(gpu / 8)] += item.bytes;
  }
  const double bound = *std::ranges::max_element(into) / 400e9;
  const double start = cpu_seconds();
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const FluidRouting fluid = route_fluid(graph, items, {.gap = 5e-3, .at_least = bound});
  const double took = cpu_seconds() - start;
  const double gap = fluid.seconds / bound - 1;
  const bool met = gap <= 5e-3 && (most == 0 || took <= most);
  fmt::print(
      "{:>5} to {:>4} GPUs, {:>6} blocks, {:>8} deliveries: bound {:.4f} s, gap {:.2f} %, "
      "{:.2f} s of CPU{}\n",
      from, to, blocks, static_cast<int64_t>(blocks) * (to / 16), bound, 100 * gap, took,
      met ? "" : "  MISSED");
  return met;
}

int run(bool full) {
  fmt::print("all-gather    optimum GB/s   reached     ratio   bound GB/s    cpu s\n");
  bool met = true;
  for (const int32_t gpus : {8, 16, 32, 64, 128, 256}) met &= run_all_gather(gpus);
  fmt::print("\n");
  met &= run_blocks(256, 128, 20000, 1);
  if (full) met &= run_blocks(1024, 1024, 50000, 0);
  return met ? 0 : 1;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  return refit::run(argc > 1 && std::strcmp(argv[1], "--full") == 0);
}
