#include "tests/scenarios/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/crc.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/host_backend.h"
#include "tests/scenarios/elements.h"

namespace refit::scenarios {
namespace {

/// One buffer of a rank: the elements that belong there and its memory.
struct Buffer {
  const Local* local = nullptr;
  bool column_major = false;
  int64_t fill = 0;
  std::string crc;  // expected; "": the file has none, as for very many ranks
  std::string name;
  std::vector<int32_t> memory;

  int32_t& cell(int64_t index) {
    return memory[static_cast<size_t>(memory_index(local->shape, index, column_major))];
  }
};

/// All buffers of one rank, by tensor of the plan.
struct RankBuffers {
  std::vector<Buffer> train, gen;
};

class Replay {
 public:
  Replay(const Scenario& scenario, const Plan& plan) : scenario_(scenario), plan_(plan) {
    int32_t index = 0;
    for (const ScenarioTensor& tensor : scenario.tensors) {
      locals_.push_back(
          {local_elements(tensor.shape, tensor.src), local_elements(tensor.shape, tensor.dst)});
      for (int64_t repeat = 0; repeat < tensor.repeat; ++repeat) ++index;
    }
    REFIT_CHECK(index == std::ssize(plan.tensors));
  }

  std::vector<std::string> run() {
    const auto world = static_cast<int32_t>(plan_.ranks.size());
    const auto timeout = static_cast<double>(scenario_.exec_number("timeout_s", 20));
    std::vector<std::string> wrong(static_cast<size_t>(world));
    HostWorld host(world, timeout);
    host.run(
        [&](Backend& backend) { run_rank(backend, wrong[static_cast<size_t>(backend.rank())]); });
    std::erase(wrong, "");
    return wrong;
  }

 private:
  struct Locals {
    std::map<int32_t, Local> train, gen;
  };
  static constexpr int32_t kPoison = -1234567;

  std::string expected_crc(const ScenarioTensor& tensor, int32_t rank) const {
    const std::lock_guard lock(reading_);
    const Value* of_tensor = nullptr;
    if (scenario_.expects("crc32_per_rank")) {
      of_tensor = &scenario_.expect->at("crc32_per_rank");
    } else if (scenario_.expects("crc32")) {
      of_tensor = &scenario_.expect->at("crc32").at(tensor.name);
    }
    const Value* crc = of_tensor == nullptr ? nullptr : of_tensor->find(std::to_string(rank));
    return crc == nullptr ? "" : crc->as_text();
  }

  RankBuffers make_buffers(int32_t rank) const {
    RankBuffers buffers;
    for (size_t t = 0; t < scenario_.tensors.size(); ++t) {
      const ScenarioTensor& tensor = scenario_.tensors[t];
      const auto make = [&](const std::map<int32_t, Local>& locals, const TensorSide& side) {
        Buffer buffer;
        buffer.fill = tensor.fill;
        buffer.name = tensor.name;
        const auto found = locals.find(rank);
        if (found == locals.end()) return buffer;
        buffer.local = &found->second;
        buffer.column_major = side.column_major;
        buffer.memory.resize(buffer.local->ids.size());
        return buffer;
      };
      for (int64_t repeat = 0; repeat < tensor.repeat; ++repeat) {
        buffers.train.push_back(make(locals_[t].train, tensor.src));
        buffers.gen.push_back(make(locals_[t].gen, tensor.dst));
        if (buffers.gen.back().local != nullptr) {
          buffers.gen.back().crc = expected_crc(tensor, rank);
        }
      }
    }
    return buffers;
  }

  static Executor::Buffers addresses(RankBuffers& buffers) {
    Executor::Buffers result;
    const auto add = [](std::vector<Buffer>& from, std::vector<std::byte*>& to) {
      for (Buffer& buffer : from) {
        to.push_back(buffer.memory.empty() ? nullptr
                                           : reinterpret_cast<std::byte*>(buffer.memory.data()));
      }
    };
    add(buffers.train, result.train);
    add(buffers.gen, result.gen);
    return result;
  }

  void run_rank(Backend& backend, std::string& wrong) {
    const int32_t rank = backend.rank();
    int64_t rounds = 1;
    int32_t prefill = kPoison;
    bool rebind = false;
    {
      const std::lock_guard lock(reading_);
      rounds = scenario_.exec_number("rounds", 1);
      prefill = static_cast<int32_t>(scenario_.exec_number("prefill_dst", kPoison));
      rebind = scenario_.has_exec("between_rounds");
    }
    RankBuffers buffers = make_buffers(rank);
    auto executor = std::make_unique<Executor>(plan_, backend, addresses(buffers));
    for (int64_t round = 0; round < rounds; ++round) {
      if (round > 0 && rebind) {
        std::vector<Buffer> moved = make_buffers(rank).train;
        buffers.train.swap(moved);  // the old ones live until the new ones are bound
        executor = std::make_unique<Executor>(plan_, backend, addresses(buffers));
      }
      const int64_t shift =
          7919 * (rounds - 1 - round);  // values of the last round are the oracle's
      fill(buffers, shift, prefill);
      wait_for_turn(rank, round);
      executor->run();
      if (wrong.empty()) wrong = compare(buffers, rank, round, shift, prefill, round + 1 == rounds);
    }
  }

  static int32_t value_of(const Buffer& buffer, int64_t id, int64_t shift) {
    return static_cast<int32_t>(1 + id + 1'000'000 * buffer.fill + shift);
  }

  static void fill(RankBuffers& buffers, int64_t shift, int32_t prefill) {
    for (Buffer& buffer : buffers.train) {
      for (int64_t i = 0; i < std::ssize(buffer.memory); ++i) {
        const int64_t id = buffer.local->ids[static_cast<size_t>(i)];
        buffer.cell(i) = id == kPad ? kPoison : value_of(buffer, id, shift);
      }
    }
    for (Buffer& buffer : buffers.gen)
      std::fill(buffer.memory.begin(), buffer.memory.end(), prefill);
  }

  /// Late ranks begin when all others have.
  void wait_for_turn(int32_t rank, int64_t round) {
    int64_t others = 0;
    {
      const std::lock_guard lock(reading_);
      if (!scenario_.has_exec("start_delay_s")) return;
      const Value& late = scenario_.exec->at("start_delay_s");
      const auto late_ranks = std::ssize(late.items());
      if (late.find(std::to_string(rank)) == nullptr) {
        ++begun_;
        return;
      }
      others = std::ssize(plan_.ranks) - late_ranks;
    }
    while (begun_ < (round + 1) * others) std::this_thread::yield();
  }

  static std::string compare(RankBuffers& buffers, int32_t rank, int64_t round, int64_t shift,
                             int32_t prefill, bool last) {
    for (Buffer& buffer : buffers.gen) {
      for (int64_t i = 0; i < std::ssize(buffer.memory); ++i) {
        const int64_t id = buffer.local->ids[static_cast<size_t>(i)];
        const int32_t expected = id == kPad ? prefill : value_of(buffer, id, shift);
        if (buffer.cell(i) == expected) continue;
        return fmt::format("rank {}, round {}, {}: cell {} is {}, not {}", rank, round, buffer.name,
                           i, buffer.cell(i), expected);
      }
      if (!last || buffer.local == nullptr) continue;
      boost::crc_32_type sum;
      for (int64_t i = 0; i < std::ssize(buffer.memory); ++i) {  // row by row
        const int32_t value =
            buffer.local->ids[static_cast<size_t>(i)] == kPad ? 0 : buffer.cell(i);
        sum.process_bytes(&value, sizeof value);
      }
      const std::string crc = fmt::format("{:08x}", sum.checksum());
      if (!buffer.crc.empty() && crc != buffer.crc) {
        return fmt::format("rank {}, {}: crc {}, not {}", rank, buffer.name, crc, buffer.crc);
      }
    }
    return "";
  }

  mutable std::mutex reading_;  // a Value remembers what was asked of it: one reader at a time
  const Scenario& scenario_;
  const Plan& plan_;
  std::vector<Locals> locals_;
  std::atomic<int64_t> begun_{0};
};

}  // namespace

std::vector<std::string> replay(const Scenario& scenario, const Plan& plan) {
  return Replay(scenario, plan).run();
}

}  // namespace refit::scenarios
