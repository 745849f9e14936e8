// Speed of the simulator, side by side with SimGrid on the same flows: the cases of its published
// comparisons, cross-node traffic on DGX H100 nodes, sizes log-uniform from 1 to 256 MB. SimGrid's
// seconds are those of its main loop alone, in its fastest setting; ours are all. CPU time, so that
// what else the machine does counts for neither. SimGrid is stopped after kLimit: ratios are then
// at least what is printed. Last come replays of whole plans.

#include <fmt/core.h>
#include <sys/resource.h>

#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "plans/check.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "sim/simulator/fluid.h"
#include "sim/simulator/simulator.h"
#include "tests/bench/flows.h"
#include "tests/sim/simulator/apart.h"
#include "tests/sim/simulator/small.h"

namespace refit {
namespace {

constexpr double kError = 1e-3;
constexpr double kLimit = 900;  // seconds of CPU

Traffic make_traffic(int32_t gpus, int32_t flows, int32_t window) {
  std::mt19937_64 random(1);
  Traffic traffic{.fabric = make_fabric(load_fabric_source("dgx-h100"), gpus / 8),
                  .flows = {},
                  .window = window};
  const auto draw = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(gpus)); };
  for (int32_t n = 0; n < flows; ++n) {
    Flow flow{.from = n % gpus, .to = draw()};
    while (flow.to / 8 == flow.from / 8) flow.to = draw();
    const double part = static_cast<double>(random() >> 11) * 0x1p-53;
    flow.bytes = static_cast<int64_t>(1e6 * std::pow(256, part));
    traffic.flows.push_back(flow);
  }
  return traffic;
}

Measured run_ours(const Traffic& traffic, double error) {
  const double begin = cpu_seconds();
  std::vector<double> capacity;
  for (const Link& link : traffic.fabric.links) capacity.push_back(link.rate);
  constexpr int32_t kLongestRoute = 2;  // NIC out, NIC in
  Fluid fluid(capacity, kLongestRoute, error);

  std::vector<std::deque<const Flow*>> of_gpu(traffic.fabric.gpus.size());
  for (const Flow& flow : traffic.flows) of_gpu[static_cast<size_t>(flow.from)].push_back(&flow);
  // Routes are equally long: what is launched first starts first.
  std::deque<std::pair<double, const Flow*>> launched;
  double now = 0;
  const auto launch = [&](std::deque<const Flow*>& flows) {
    if (flows.empty()) return;
    double latency = 0;
    for (const int32_t link : route(traffic.fabric, flows.front()->from, flows.front()->to))
      latency += traffic.fabric.links[static_cast<size_t>(link)].latency;
    launched.emplace_back(now + latency, flows.front());
    flows.pop_front();
  };
  for (auto& flows : of_gpu) {
    const size_t count = traffic.window > 0 ? static_cast<size_t>(traffic.window) : flows.size();
    for (size_t n = 0; n < count; ++n) launch(flows);
  }

  std::vector<int32_t> source, ended;  // GPU by flow
  while (true) {
    while (!launched.empty() && launched.front().first <= now) {
      const Flow& flow = *launched.front().second;
      const auto id = static_cast<size_t>(fluid.start(static_cast<double>(flow.bytes),
                                                      route(traffic.fabric, flow.from, flow.to),
                                                      MaxMin::kInfinity));
      if (id >= source.size()) source.resize(id + 1);
      source[id] = flow.from;
      launched.pop_front();
    }
    fluid.settle(now);
    const double next =
        std::min(fluid.next_end(), launched.empty() ? MaxMin::kInfinity : launched.front().first);
    if (next == MaxMin::kInfinity) break;
    now = next;
    ended.clear();
    fluid.finish(now, ended);
    for (const int32_t flow : ended)
      launch(of_gpu[static_cast<size_t>(source[static_cast<size_t>(flow)])]);
  }
  return {cpu_seconds() - begin, now};
}

struct Theirs {
  Measured measured;
  bool stopped = false;
};

std::optional<Theirs> run_theirs([[maybe_unused]] const Traffic& traffic) {
#ifdef REFIT_SIMGRID
  const auto seconds_of_children = [] {
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  };
  const double before = seconds_of_children();
  const auto numbers = run_apart<2>([&] {
    constexpr auto kSeconds = static_cast<rlim_t>(kLimit);
    const rlimit limit{kSeconds, kSeconds};
    setrlimit(RLIMIT_CPU, &limit);
    const Measured measured = run_simgrid(traffic);
    return std::array{measured.seconds, measured.makespan};
  });
  if (numbers) return Theirs{{(*numbers)[0], (*numbers)[1]}};
  if (seconds_of_children() - before >= kLimit - 1) return Theirs{{kLimit, 0}, true};
#endif
  return std::nullopt;
}

void compare(int32_t gpus, int32_t count, int32_t window) {
  const Traffic traffic = make_traffic(gpus, count, window);
  const Measured exact = run_ours(traffic, 0), batched = run_ours(traffic, kError);
  fmt::print("{} GPUs, {} flows, {}\n", gpus, count,
             window > 0 ? fmt::format("{} at a time from each GPU", window) : "all at once");
  fmt::print("  exact    {:8.3f} s, {:9.0f} flows/s, simulated {:.6f} s\n", exact.seconds,
             count / exact.seconds, exact.makespan);
  fmt::print("  batched  {:8.3f} s, {:9.0f} flows/s, simulated {:+.1e} (error {:g})\n",
             batched.seconds, count / batched.seconds, batched.makespan / exact.makespan - 1,
             kError);
  std::fflush(stdout);
  const std::optional<Theirs> theirs = run_theirs(traffic);
  if (!theirs) return;
  const Measured& measured = theirs->measured;
  if (theirs->stopped) {
    fmt::print("  SimGrid  not done after {:.0f} s\n", measured.seconds);
  } else {
    fmt::print("  SimGrid  {:8.3f} s, {:9.0f} flows/s, simulated {:+.1e}\n", measured.seconds,
               count / measured.seconds, measured.makespan / exact.makespan - 1);
  }
  fmt::print("  ratio    {}{:.1f}x exact, {:.1f}x batched\n", theirs->stopped ? "at least " : "",
             measured.seconds / exact.seconds, measured.seconds / batched.seconds);
  std::fflush(stdout);
}

/// In each step on two channels every rank sends to four others, in its node on channel 0 and
/// beyond on channel 1.
Plan make_plan(int32_t ranks, int32_t steps) {
  std::mt19937_64 random(2);
  PlanWriter writer(ranks, 2);
  for (int32_t step = 0; step < steps; ++step) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const auto bytes = [&] {
        return static_cast<int64_t>(1e6 + static_cast<double>(random() % 63'000'000));
      };
      for (int32_t n = 0; n < 4; ++n) {
        const int32_t inside = rank / 8 * 8 + (rank + 1 + (step + n) % 7) % 8;
        const int32_t beyond = (rank + 8 * (1 + (4 * step + n) % (ranks / 8 - 1))) % ranks;
        writer.send(rank, inside, 0, step, bytes());
        writer.send(rank, beyond, 1, step, bytes());
      }
    }
  }
  return writer.write();
}

void replay_plan(const std::string& name, const Plan& plan, const Fabric& fabric,
                 const CostModel& cost) {
  const double begin = cpu_seconds();
  const Timeline exact = simulate(plan, fabric, cost);
  const double exact_s = cpu_seconds() - begin;
  const double again = cpu_seconds();
  const Timeline batched = simulate(plan, fabric, cost, {.error = kError});
  const double batched_s = cpu_seconds() - again;
  const auto transfers = static_cast<double>(plan_totals(plan).transfers);
  fmt::print("plan of {}, {} transfers\n", name, transfers);
  fmt::print("  exact    {:8.3f} s, {:9.0f} transfers/s, {:9.0f} events/s, simulated {:.6f} s\n",
             exact_s, transfers / exact_s, static_cast<double>(exact.events) / exact_s,
             exact.refit_s);
  fmt::print(
      "  batched  {:8.3f} s, {:9.0f} transfers/s, {:9.0f} events/s, simulated {:+.1e} "
      "(error {:g})\n",
      batched_s, transfers / batched_s, static_cast<double>(batched.events) / batched_s,
      batched.refit_s / exact.refit_s - 1, kError);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("  memory   {:.2f} GiB at most so far, the plan included\n",
             static_cast<double>(usage.ru_maxrss) / (1 << 20));
  std::fflush(stdout);
}

void replay_random(int32_t ranks, int32_t steps) {
  replay_plan(fmt::format("{} ranks, random", ranks), make_plan(ranks, steps),
              make_fabric(load_fabric_source("dgx-h100"), ranks / 8),
              parse_cost(load_cost_source("nccl-h100")));
}

void replay_deepseek(const std::string& fabric) {
  const Problem problem = load_problem({.model = "deepseek-v3",
                                        .train = "megatron:ep=16,pp=16",
                                        .gen = "vllm:tp=32,dp=8",
                                        .fabric = fabric,
                                        .cost = "",
                                        .dtype = ""});
  const Plan plan = search(problem, {});
  replay_plan("512 ranks, DeepSeek-V3, " + fabric, plan, problem.fabric, problem.cost);
  const double begin = cpu_seconds();
  REFIT_CHECK(check(plan).empty());
  fmt::print("  check    {:8.3f} s\n", cpu_seconds() - begin);
}

int run(bool full) {
  fmt::print("sizes: {}\n", full ? "full" : "reduced (--full for those of the goals)");
#ifndef REFIT_SIMGRID
  fmt::print("skipped: no SimGrid (libsimgrid-dev): no ratios\n");
#endif
  compare(256, full ? 16'384 : 4'096, 0);
  compare(full ? 1'024 : 256, full ? 65'536 : 16'384, 4);
  compare(256, 16'384, 1);
  replay_random(512, 50);
  if (!full) return 0;
  replay_random(4'096, 31);
  replay_deepseek("dgx-h100");
  replay_deepseek("gb200-nvl72");
  return 0;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  const bool full = argc == 2 && std::string(argv[1]) == "--full";
  if (argc > 1 && !full) {
    fmt::print(stderr, "usage: {} [--full]\n", argv[0]);
    return 2;
  }
  try {
    return refit::run(full);
  } catch (const refit::Error& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 1;
  }
}
