#include "exec/control.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/refused.h"

namespace refit {
namespace {

/// Runs `body` once per rank, each in a thread with connections of its own; `after` when they are
/// closed.
void run_world(
    int32_t world, double timeout_s, const std::function<void(int32_t, Control&)>& body,
    const std::function<void(int32_t)>& after = [](int32_t) {}) {
  const Listener listener("127.0.0.1", 0);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      {
        const Meeting meeting{rank, world, 0, "a token of this job", timeout_s};
        std::vector<Connection> connections;
        if (rank == 0) {
          connections = meet_all(listener, meeting);
        } else {
          connections.push_back(meet_root({"127.0.0.1"}, listener.port(), meeting));
        }
        Control control(rank, world, std::move(connections), timeout_s);
        body(rank, control);
      }
      after(rank);
    });
  }
}

TEST(Control, BarriersHoldEveryone) {
  constexpr int32_t kRanks = 12;
  std::atomic<int> arrived = 0;
  run_world(kRanks, 30, [&](int32_t, Control& control) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      control.barrier();
      EXPECT_EQ(arrived, round * kRanks);
      control.barrier();
    }
  });
}

TEST(Control, ARankAloneIsAWorld) {
  run_world(1, 30, [](int32_t, Control& control) {
    control.barrier();
    EXPECT_EQ(control.gather("mine"), std::vector<std::string>{"mine"});
  });
}

TEST(Control, GatherKeepsRanksAndRoundsApart) {
  const std::string large(3 << 20, 'x');  // more than a socket takes at once
  run_world(5, 30, [&](int32_t rank, Control& control) {
    const auto first = control.gather("first of " + std::to_string(rank));
    const auto second = control.gather(large + std::to_string(rank));
    control.barrier();
    if (rank > 0) {
      EXPECT_TRUE(first.empty());
      return;
    }
    for (size_t r = 0; r < 5; ++r) {
      EXPECT_EQ(first.at(r), "first of " + std::to_string(r));
      EXPECT_TRUE(second.at(r) == large + std::to_string(r)) << "rank " << r;
    }
  });
}

TEST(Control, OneAbortsAllGetItsReasonAndKind) {
  for (const int32_t aborter : {0, 3}) {
    std::atomic<int> told = 0;
    run_world(6, 30, [&](int32_t rank, Control& control) {
      control.barrier();
      if (rank == aborter) {
        control.abort("rank 3: out of ideas", ErrorKind::kInput);
        return;
      }
      try {
        control.barrier();
      } catch (const Error& error) {
        EXPECT_EQ(error.what(), std::string("rank 3: out of ideas"));
        EXPECT_EQ(error.kind(), ErrorKind::kInput);
        EXPECT_TRUE(control.failed());
        EXPECT_THROW(control.check(), Error);
        ++told;
      }
    });
    EXPECT_EQ(told, 5);
  }
}

TEST(Control, TheFirstReasonStands) {
  run_world(3, 30, [&](int32_t rank, Control& control) {
    if (rank == 2) control.abort("rank 2: first");
    EXPECT_EQ(error_of([&] { control.barrier(); }, ErrorKind::kWork), "rank 2: first");
    control.abort("rank " + std::to_string(rank) + ": later");
    EXPECT_EQ(error_of([&] { control.check(); }, ErrorKind::kWork), "rank 2: first");
  });
}

TEST(Control, LeavingIsNoFailure) {
  std::latch left(1);
  run_world(
      4, 30,
      [&](int32_t rank, Control& control) {
        control.barrier();
        if (rank == 1) {  // its connection closes while the others still work
          control.arrive();
          control.gather("rank 1");
          return;
        }
        left.wait();
        // What is said from here on rank 0 reads after the end of rank 1's connection.
        control.barrier();
        control.gather("rank " + std::to_string(rank));
        EXPECT_FALSE(control.failed());
      },
      [&](int32_t rank) {
        if (rank == 1) left.count_down();
      });
}

TEST(Control, ProgressOfOneIsSeenByAll) {
  run_world(3, 30, [&](int32_t rank, Control& control) {
    const int64_t before = control.progress();
    if (rank == 1) control.add_progress(7);
    while (control.progress() == before) std::this_thread::yield();  // or the test times out
    control.barrier();
  });
}

TEST(Control, AHangIsReportedWhereNobodyLooks) {
  std::atomic<int> told = 0;
  run_world(3, 30, [&](int32_t rank, Control& control) {
    std::promise<std::string> reported;
    control.on_hang(0.05, [&](const Error& error) { reported.set_value(error.what()); });
    if (rank == 1) control.abort("rank 1: broken");
    EXPECT_EQ(reported.get_future().get(), "rank 1: broken");
    ++told;
  });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace refit
