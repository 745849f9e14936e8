// The scenarios that are about the engine around a refit: hooks, frozen tensors, readers, versions,
// and ranks that fail. On the host backend; weights prove their own place and round (exec/verify.h).

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/host_backend.h"
#include "exec/verify.h"
#include "tests/scenarios/planning.h"

namespace refit::scenarios {
namespace {

std::vector<Scenario> scenarios_with(const std::string& exec_key, const std::string& fault) {
  std::vector<Scenario> some;
  for (const std::string& file : scenario_files()) {
    for (Scenario& scenario : load_scenarios(file)) {
      const bool faulty = scenario.fault_rank.contains(fault);
      if (fault.empty() ? scenario.has_exec(exec_key) : faulty) some.push_back(std::move(scenario));
    }
  }
  return some;
}

/// What stands for a rank that dies: nobody catches it as an error, so that nobody is told.
struct Died {};

/// A rank that dies instead of its first wait.
class Dying final : public Backend {
 public:
  explicit Dying(Backend& backend) : backend_(backend) {}
  std::string name() const override { return backend_.name(); }
  int32_t rank() const override { return backend_.rank(); }
  int32_t world() const override { return backend_.world(); }
  std::byte* allocate(int64_t bytes) override { return backend_.allocate(bytes); }
  void post(const Group&) override {}
  int32_t wait_any() override { throw Died{}; }
  void barrier() override { backend_.barrier(); }
  void abort(const std::string& reason) override { backend_.abort(reason); }

 private:
  Backend& backend_;
};

/// The engine on one rank: its buffers outlive the executors that fill them.
struct Engine {
  Executor::Buffers buffers;
  Weights weights;
  int opened = 0, committed = 0;
  std::map<std::string, int> finalized;  // by model: the name of a tensor up to its first '.'
  std::vector<std::byte> frozen = std::vector<std::byte>(64, std::byte{0x5a});  // not in the plan

  std::mutex serving;  // held by readers, and while weights are written
  std::unique_lock<std::mutex> window;
  std::function<void()> in_window;  // may be empty

  /// The refit has failed: somebody may look at the weights again, which say that they are torn.
  void give_up() {
    if (window.owns_lock()) window.unlock();
    opened = committed;
  }

  Hooks hooks(const Plan& plan, int32_t rank, bool broken) {
    Hooks hooks;
    hooks.before_write = [this] {
      window = std::unique_lock(serving);
      ++opened;
    };
    hooks.finalize = [this, &plan, rank, broken](std::span<const int32_t> tensors) {
      if (broken) throw std::runtime_error("the engine cannot fuse its weights");
      EXPECT_EQ(opened, committed + 1) << "rank " << rank;
      verify_gen(plan, rank, buffers, weights.version + 1);  // after the last byte
      std::map<std::string, int> models;
      for (const int32_t t : tensors) {
        const std::string& name = plan.tensors[static_cast<size_t>(t)].name;
        models[name.substr(0, name.find('.'))] = 1;
      }
      for (const auto& [model, once] : models) finalized[model] += once;
      if (in_window) in_window();
    };
    hooks.after_commit = [this, rank](int64_t version) {
      EXPECT_TRUE(window.owns_lock());
      EXPECT_EQ(weights.version, version) << "rank " << rank;
      EXPECT_FALSE(weights.torn) << "rank " << rank;
      ++committed;
      window.unlock();
    };
    return hooks;
  }
};

class Refits {
 public:
  explicit Refits(const Scenario& scenario)
      : plan_(plan_scenario(scenario, make_problem(scenario), "direct")),
        engines_(plan_.ranks.size()) {
    worlds_.push_back(std::make_unique<HostWorld>(world(), 30));
    for (int32_t rank = 0; rank < world(); ++rank) {
      engine(rank).buffers = allocate_buffers(plan_, worlds_[0]->backend(rank));
      poison_gen(plan_, rank, engine(rank).buffers, 1);
    }
  }

  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  const Plan& plan() const { return plan_; }
  Engine& engine(int32_t rank) { return engines_[static_cast<size_t>(rank)]; }
  bool receives(int32_t rank) const { return plan_.ranks[static_cast<size_t>(rank)].gen; }

  /// A refit to `version` with fresh connections; returns the error it ends in, or "".
  std::string run(int64_t version, int32_t broken = -1, int32_t dying = -1) {
    worlds_.push_back(std::make_unique<HostWorld>(world(), dying < 0 ? 30 : 0.2));
    try {
      worlds_.back()->run([&](Backend& backend) {
        const int32_t rank = backend.rank();
        Engine& mine = engine(rank);
        fill_train(plan_, rank, mine.buffers, version);
        Dying doomed(backend);
        Executor executor(plan_, rank == dying ? doomed : backend, mine.buffers,
                          mine.hooks(plan_, rank, rank == broken), &mine.weights);
        try {
          executor.run(version);
        } catch (const Died&) {
          mine.give_up();
        } catch (const Error&) {
          mine.give_up();
          throw;
        }
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kWork);
      return error.what();
    }
    return "";
  }

  void expect_committed(int64_t version) {
    for (int32_t rank = 0; rank < world(); ++rank) {
      EXPECT_EQ(engine(rank).weights.version, version) << "rank " << rank;
      EXPECT_FALSE(engine(rank).weights.torn) << "rank " << rank;
      verify_gen(plan_, rank, engine(rank).buffers, version);
    }
  }

 private:
  Plan plan_;
  std::vector<Engine> engines_;
  std::vector<std::unique_ptr<HostWorld>> worlds_;  // the first has the memory
};

bool names_one_of(const std::string& message, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return message.find(word) != std::string::npos;
  });
}

TEST(Engine, HooksRunOncePerReceiverAndRound) {
  for (const char* key : {"hooks", "finalize_hook"}) {
    for (const Scenario& scenario : scenarios_with(key, "")) {
      SCOPED_TRACE(scenario.id + " " + scenario.name);
      const int64_t rounds = scenario.exec_number("rounds", 1);
      Refits refits(scenario);
      for (int64_t round = 1; round <= rounds; ++round) EXPECT_EQ(refits.run(round), "");
      refits.expect_committed(rounds);
      for (int32_t rank = 0; rank < refits.world(); ++rank) {
        const Engine& engine = refits.engine(rank);
        const int64_t times = refits.receives(rank) ? rounds : 0;
        EXPECT_EQ(engine.opened, times) << "rank " << rank;
        EXPECT_EQ(engine.committed, times) << "rank " << rank;
        for (const auto& [model, calls] : engine.finalized) EXPECT_EQ(calls, times) << model;
        EXPECT_EQ(engine.frozen, std::vector<std::byte>(64, std::byte{0x5a}));
        if (!scenario.expects("finalize_calls") || times == 0) continue;
        for (const auto& [model, calls] : scenario.expect->at("finalize_calls").items()) {
          const auto found = engine.finalized.find(model);
          EXPECT_EQ(found == engine.finalized.end() ? 0 : found->second, calls->as_int(0, 1000))
              << model;
        }
      }
    }
  }
}

TEST(Engine, ReadersSeeOneVersionAndResumeWaitsForTheCommit) {
  for (const Scenario& scenario : scenarios_with("reader_thread", "")) {
    SCOPED_TRACE(scenario.id + " " + scenario.name);
    const auto reader_rank =
        static_cast<int32_t>(scenario.exec->at("reader_thread").at("rank").as_int(0, 1 << 16));
    Refits refits(scenario);
    Engine& engine = refits.engine(reader_rank);
    EXPECT_EQ(refits.run(1), "");
    std::atomic<bool> stop = false;
    std::atomic<int64_t> reads = 0;
    std::jthread reader([&] {
      while (!stop) {
        const std::lock_guard lock(engine.serving);
        const int64_t version = engine.weights.version;
        EXPECT_NO_THROW(verify_gen(refits.plan(), reader_rank, engine.buffers, version));
        ++reads;
      }
    });
    std::future<int64_t> resumed;
    engine.in_window = [&] {
      EXPECT_FALSE(std::async(std::launch::async, [&] { return engine.serving.try_lock(); }).get());
      resumed = std::async(std::launch::async, [&] {
        const std::lock_guard lock(engine.serving);
        return engine.weights.version;
      });
    };
    for (int64_t round = 2; round <= 20; ++round) {
      EXPECT_EQ(refits.run(round), "");
      EXPECT_GE(resumed.get(), round);  // not before the commit
    }
    stop = true;
    reader.join();
    EXPECT_GT(reads, 0);
  }
}

TEST(Engine, OneReceiverFailsNobodyCommits) {
  for (const Scenario& scenario : scenarios_with("", "raise_in_finalize")) {
    SCOPED_TRACE(scenario.id + " " + scenario.name);
    Refits refits(scenario);
    EXPECT_EQ(refits.run(1), "");
    const int32_t broken = scenario.fault_rank.at("raise_in_finalize");
    const std::string message = refits.run(2, broken);
    EXPECT_TRUE(names_one_of(message, scenario.error_words)) << message;
    EXPECT_NE(message.find("rank " + std::to_string(broken)), std::string::npos) << message;
    for (int32_t rank = 0; rank < refits.world(); ++rank) {
      EXPECT_EQ(refits.engine(rank).weights.version, 1) << "rank " << rank;
      EXPECT_EQ(refits.engine(rank).weights.torn, refits.receives(rank)) << "rank " << rank;
    }
    EXPECT_EQ(refits.run(2), "");
    refits.expect_committed(2);
  }
}

TEST(Engine, ADeadRankIsNamedAndAFreshRoundSucceeds) {
  for (const Scenario& scenario : scenarios_with("", "kill")) {
    SCOPED_TRACE(scenario.id + " " + scenario.name);
    Refits refits(scenario);
    const int32_t dying = scenario.fault_rank.at("kill");
    const std::string message = refits.run(1, -1, dying);
    EXPECT_NE(message.find("rank " + std::to_string(dying)), std::string::npos) << message;
    for (int32_t rank = 0; rank < refits.world(); ++rank) {
      EXPECT_EQ(refits.engine(rank).weights.version, 0) << "rank " << rank;
    }
    EXPECT_EQ(refits.run(1), "");
    refits.expect_committed(1);
  }
}

}  // namespace
}  // namespace refit::scenarios
