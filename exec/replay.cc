#include "exec/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/console.h"
#include "base/error.h"
#include "base/units.h"
#include "exec/clock.h"
#include "exec/machine.h"
#include "exec/verify.h"
#include "plans/check.h"

namespace refit {

namespace {

/// The program's steps with their bytes; times are still to come.
std::vector<StepReport> list_steps(const Program& program, int32_t rank) {
  std::vector<StepReport> steps;
  steps.reserve(program.steps.size());
  for (const Step& step : program.steps) {
    StepReport& report = steps.emplace_back();
    report.channel = step.channel;
    report.step = step.id;
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      if (message.peer == rank) continue;
      const bool send = m < step.first_recv;
      ++(send ? report.sends : report.recvs);
      (send ? report.bytes_sent : report.bytes_received) += message_bytes(program, message);
    }
  }
  return steps;
}

std::vector<PeerReport> list_peers(const Program& program, int32_t rank,
                                   const std::vector<StepReport>& steps) {
  std::map<std::pair<int32_t, int32_t>, PeerReport> peers;  // by peer and channel
  for (size_t s = 0; s < steps.size(); ++s) {
    const Step& step = program.steps[s];
    for (int32_t m = step.first_recv; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      if (message.peer == rank) continue;
      PeerReport& peer = peers[{message.peer, step.channel}];
      if (peer.messages++ == 0) {
        peer.from = message.peer;
        peer.to = rank;
        peer.channel = step.channel;
        peer.times = steps[s].times;
      }
      peer.bytes += message_bytes(program, message);
      peer.times.begin_s = std::min(peer.times.begin_s, steps[s].times.begin_s);
      peer.times.end_s = std::max(peer.times.end_s, steps[s].times.end_s);
    }
  }
  std::vector<PeerReport> list;
  for (const auto& [key, peer] : peers) list.push_back(peer);
  return list;
}

/// The values that a rank sends and expects. Where its buffers are not in host memory, made and
/// compared in a copy of them.
class Values {
 public:
  Values(const Plan& plan, Backend& backend, const Executor::Buffers& buffers)
      : plan_(plan),
        backend_(backend),
        bytes_(backend.in_host_memory() ? 0 : memory_use(plan, backend.rank()).buffers),
        shadow_(bytes_),
        here_(buffers) {
    if (bytes_ == 0) return;
    // allocate_buffers cuts one block, train first.
    for (const auto* side : {&buffers.gen, &buffers.train}) {
      for (std::byte* buffer : *side) {
        if (buffer != nullptr && (block_ == nullptr || buffer < block_)) block_ = buffer;
      }
    }
    for (auto* side : {&here_.train, &here_.gen}) {
      for (std::byte*& buffer : *side) {
        if (buffer != nullptr) buffer = shadow_.data() + (buffer - block_);
      }
    }
  }

  void fill(int64_t round) {
    fill_train(plan_, backend_.rank(), here_, round);
    poison_gen(plan_, backend_.rank(), here_, round);
    if (bytes_ > 0) backend_.copy(block_, shadow_.data(), bytes_);
  }

  int64_t verify(int64_t round) {
    if (bytes_ > 0) backend_.copy(shadow_.data(), block_, bytes_);
    return verify_gen(plan_, backend_.rank(), here_, round);
  }

 private:
  const Plan& plan_;
  Backend& backend_;
  const int64_t bytes_;  // of the shadow
  Mapping shadow_;
  std::byte* block_ = nullptr;
  Executor::Buffers here_;
};

}  // namespace

double median(std::vector<double> values) {
  REFIT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double ReplayReport::median_s() const { return median(seconds); }

void check_memory(int64_t bytes, const std::string& whose) {
  const int64_t available = available_memory();
  if (bytes > available) {
    fail("memory",
         fmt::format("{} needed for buffers and staging of {}",
                     print_bytes(static_cast<double>(bytes)), whose),
         fmt::format("at most the {} available", print_bytes(static_cast<double>(available))));
  }
}

void refuse_faulty(const Plan& plan, const std::string& path) {
  const std::vector<Fault> faults = check(plan);
  if (faults.empty()) return;
  for (const Fault& fault : faults) log_line(print_fault(fault));
  throw Error(fmt::format("{}: the plan is wrong, nothing was moved", path), ErrorKind::kWork);
}

RankReport replay_rank(const Plan& plan, Backend& backend, const ReplayOptions& options) {
  REFIT_CHECK(options.iterations > 0);
  const int32_t rank = backend.rank();
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  RankReport report;
  report.rank = rank;
  // The host sees when a step of a device is enqueued, not when it runs.
  if (backend.in_host_memory()) report.steps = list_steps(program, rank);
  const Executor::Buffers buffers = allocate_buffers(plan, backend);
  Values values(plan, backend, buffers);
  const Clock::time_point start = Clock::now();
  Weights weights;
  Executor executor(plan, backend, buffers, {}, &weights);
  report.setup_s = seconds_since(start);
  report.staging_bytes = executor.staging_bytes();
  report.buffer_bytes = memory_use(plan, rank).buffers;
  const int32_t warm_up = options.iterations > 1 ? 1 : 0;
  for (int32_t iteration = 0; iteration < options.iterations; ++iteration) {
    if (iteration == 0 || options.verify) values.fill(iteration);
    ReplayTimes times;
    try {
      times = executor.run();
    } catch (const Error& error) {
      if (!weights.torn) throw;
      throw Error(fmt::format("{}; refit {} is torn, rank {} holds parts of it over version {}",
                              error.what(), weights.version + 1, rank, weights.version),
                  error.kind());
    }
    report.seconds.push_back(times.refit_s);
    report.bytes_received = times.bytes_received;
    report.bytes_copied = times.bytes_copied;
    if (options.verify) report.verified_bytes = values.verify(iteration);
    if (iteration >= warm_up && !report.steps.empty()) {
      const double share = 1.0 / (options.iterations - warm_up);
      for (size_t s = 0; s < report.steps.size(); ++s) {
        report.steps[s].times.begin_s += share * executor.step_times()[s].begin_s;
        report.steps[s].times.end_s += share * executor.step_times()[s].end_s;
      }
    }
    if (rank == 0 && options.progress) options.progress(iteration);
  }
  if (!report.steps.empty()) report.peers = list_peers(program, rank, report.steps);
  return report;
}

ReplayReport summarize(std::vector<RankReport> ranks) {
  ReplayReport report;
  report.ranks = std::move(ranks);
  for (const RankReport& rank : report.ranks) {
    report.seconds.resize(std::max(report.seconds.size(), rank.seconds.size()));
    for (size_t i = 0; i < rank.seconds.size(); ++i) {
      report.seconds[i] = std::max(report.seconds[i], rank.seconds[i]);
    }
    report.setup_s = std::max(report.setup_s, rank.setup_s);
    report.buffer_bytes += rank.buffer_bytes;
    report.staging_bytes += rank.staging_bytes;
    report.bytes_wire += rank.bytes_received;
    report.bytes_copied += rank.bytes_copied;
    report.verified_bytes += rank.verified_bytes;
    report.verified_ranks += rank.verified_bytes > 0 ? 1 : 0;
  }
  return report;
}

}  // namespace refit
