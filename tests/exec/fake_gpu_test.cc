#include "tests/exec/fake_gpu.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "tests/refused.h"

namespace refit {
namespace {

using testing::FakeCluster;

TEST(FakeClusterItself, HoldsUsersToTheRules) {
  FakeCluster cluster(1, 8);
  GpuApi& gpu = cluster.gpu(0);
  GpuApi::Stream a = gpu.make_stream(), b = gpu.make_stream();
  const auto refused = [&](const std::function<void()>& act, const std::string& why) {
    SCOPED_TRACE(why);
    expect_refused(act, {why}, ErrorKind::kWork);
  };
  const auto settle = [&](GpuApi::Comm comm) {
    while (!gpu.is_settled(comm)) {
    }
  };
  GpuApi::Comm comm = gpu.make_comm("x", 1, 0, {4, 0});
  std::byte bytes[2] = {std::byte{7}, std::byte{0}};
  gpu.begin_group();
  refused([&] { gpu.send(bytes, 1, 0, comm, a); }, "in progress");
  settle(comm);
  gpu.send(bytes, 1, 0, comm, a);
  refused([&] { gpu.receive(bytes + 1, 1, 0, comm, b); }, "two streams");
  refused([&] { gpu.receive(bytes + 1, 1, 1, comm, a); }, "no such peer");
  gpu.receive(bytes + 1, 1, 0, comm, a);
  gpu.end_group();
  EXPECT_EQ(bytes[1], std::byte{0});  // nothing moves in the call
  EXPECT_TRUE(gpu.is_done(a));
  EXPECT_EQ(bytes[1], std::byte{7});

  GpuApi::Event event = gpu.make_event();
  gpu.begin_capture(a);
  refused([&] { gpu.is_done(a); }, "captures");
  gpu.record(event, a);
  gpu.wait(b, event);
  gpu.launch_sweep({}, nullptr, 0, b);
  refused([&] { gpu.end_capture(a); }, "not joined");
  EXPECT_TRUE(gpu.is_done(a));  // that was the end of the capture

  gpu.begin_capture(a);
  gpu.record(event, a);
  gpu.wait(b, event);
  gpu.launch_sweep({}, nullptr, 0, b);
  gpu.record(event, b);
  gpu.wait(a, event);
  gpu.destroy_graph(gpu.end_capture(a));
  refused([&] { gpu.wait(b, event); }, "capture that is over");
}

}  // namespace
}  // namespace refit
