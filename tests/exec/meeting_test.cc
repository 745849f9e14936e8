#include "exec/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/refused.h"

namespace refit {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Meeting as(int32_t rank, int32_t world, int32_t root = 0, double timeout_s = 30) {
  return {rank, world, root, "a token of this job", timeout_s};
}

template <typename Work>
auto in_thread(const Work& work) {
  return std::async(std::launch::async, work);
}

TEST(Meeting, AnyRankCanBeTheRoot) {
  for (const int32_t root : {0, 2, 3}) {
    const Listener listener("127.0.0.1", 0);
    std::vector<std::future<Connection>> others;
    for (int32_t rank = 0; rank < 4; ++rank) {
      if (rank == root) continue;
      others.push_back(in_thread([&, rank] {
        Connection connection = meet_root({"127.0.0.1"}, listener.port(), as(rank, 4, root));
        EXPECT_TRUE(connection.queue(print_frame(FrameKind::kBlob, rank, "hello")));
        return connection;
      }));
    }
    std::vector<Connection> met = meet_all(listener, as(root, 4, root));
    for (int32_t rank = 0; rank < 4; ++rank) {
      Connection& connection = met[static_cast<size_t>(rank)];
      EXPECT_EQ(connection.open(), rank != root);
      if (rank == root) continue;
      std::optional<Frame> frame;
      while (!(frame = connection.next(100))) ASSERT_TRUE(connection.receive());
      EXPECT_EQ(frame->rank, rank);
      EXPECT_EQ(frame->payload, "hello");
    }
  }
}

TEST(Meeting, OfSeveralHostsTheOneThatListensIsFound) {
  const Listener listener("127.0.0.1", 0);
  // Somebody of another job has the same port elsewhere.
  const Listener other("127.0.0.3", listener.port());
  auto stranger = in_thread([&] {
    Meeting another = as(0, 2, 0, 1);
    another.token = "that of another job";
    return error_of([&] { meet_all(other, another); }, ErrorKind::kWork);
  });
  auto rank_1 = in_thread([&] {
    return meet_root({"127.0.0.2", "127.0.0.3", "127.0.0.1"}, listener.port(), as(1, 2));
  });
  EXPECT_TRUE(meet_all(listener, as(0, 2))[1].open());
  EXPECT_TRUE(rank_1.get().open());
  EXPECT_THAT(stranger.get(), StartsWith("rank 1 did not come"));
}

TEST(Meeting, WhoDoesNotComeIsNamed) {
  const Listener listener("127.0.0.1", 0);
  auto rank_1 = in_thread([&] {
    Connection connection = meet_root({"127.0.0.1"}, listener.port(), as(1, 3));
    while (connection.receive()) {
    }
    const std::optional<Frame> frame = connection.next(1000);  // said before it was closed
    return frame ? frame->payload : "";
  });
  const std::string reason = "rank 2 did not come within 500 ms";
  EXPECT_EQ(error_of([&] { meet_all(listener, as(0, 3, 0, 0.5)); }, ErrorKind::kWork), reason);
  EXPECT_EQ(rank_1.get(), reason);
}

TEST(Meeting, NobodyListens) {
  int32_t port = 0;
  {
    const Listener closed("127.0.0.1", 0);
    port = closed.port();
  }
  EXPECT_THAT(error_of([&] { meet_root({"127.0.0.1"}, port, as(1, 2, 0, 0.1)); }, ErrorKind::kWork),
              HasSubstr("rank 1: nobody of this job listens on 127.0.0.1 port"));
}

TEST(Meeting, ListenersNeedAnAddressOfThisHost) {
  EXPECT_THROW(Listener("192.0.2.1", 0), Error);  // for documentation, nobody has it
  EXPECT_THROW(Listener("no such host", 0), Error);
  const Listener first("127.0.0.1", 0);
  EXPECT_THAT(error_of([&] { Listener("127.0.0.1", first.port()); }, ErrorKind::kWork),
              HasSubstr("cannot listen on 127.0.0.1"));
}

}  // namespace
}  // namespace refit
