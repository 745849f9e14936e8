#include "exec/host_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"

namespace refit {
namespace {

Part part(int32_t peer, std::byte* at, int64_t bytes) { return {peer, bytes, {{at, bytes}}}; }

TEST(HostWorld, ExchangeInOneGroup) {
  HostWorld world(2, 30);
  std::array<std::array<std::byte, 8>, 2> source{}, target{};
  source[0].fill(std::byte{1});
  source[1].fill(std::byte{2});
  world.run([&](Backend& backend) {
    const size_t rank = static_cast<size_t>(backend.rank());
    const int32_t peer = 1 - backend.rank();
    const Group group{
        0, 0, {part(peer, source[rank].data(), 8)}, {part(peer, target[rank].data(), 8)}};
    backend.post(group);
    EXPECT_EQ(backend.wait_any(), 0);
  });
  EXPECT_EQ(target[0], source[1]);
  EXPECT_EQ(target[1], source[0]);
}

TEST(HostWorld, ChannelsEndInTheOrderThatPeersAllow) {
  HostWorld world(2, 30);
  std::array<std::byte, 4> from{std::byte{7}}, to{};
  std::vector<int32_t> ended;
  world.run([&](Backend& backend) {
    std::array<Group, 3> groups;
    for (int32_t channel = 0; channel < 3; ++channel) {
      Group& group = groups[static_cast<size_t>(channel)];
      group.channel = channel;
      const Part one =
          part(1 - backend.rank(), (backend.rank() == 0 ? from : to).data() + channel, 1);
      (backend.rank() == 0 ? group.sends : group.recvs).push_back(one);
    }
    if (backend.rank() == 0) {
      for (const Group& group : groups) backend.post(group);
      for (int i = 0; i < 3; ++i) ended.push_back(backend.wait_any());
    } else {
      for (const size_t channel : {2U, 0U, 1U}) {  // one after the other, so this is the only order
        backend.post(groups[channel]);
        EXPECT_EQ(backend.wait_any(), static_cast<int32_t>(channel));
      }
    }
  });
  EXPECT_EQ(ended, (std::vector<int32_t>{2, 0, 1}));
  EXPECT_EQ(to[0], std::byte{7});
}

TEST(HostWorld, SendsAreNotEager) {
  HostWorld world(2, 0.1);
  std::array<std::byte, 4> memory{};
  const Group group{0, 5, {part(1, memory.data(), 4)}, {}};
  EXPECT_THROW(world.run([&](Backend& backend) {
    if (backend.rank() == 0) {
      backend.post(group);
      backend.wait_any();
    } else {
      backend.barrier();
    }
  }),
               Error);
}

TEST(HostWorld, BarriersHoldEveryone) {
  constexpr int32_t kRanks = 32;
  HostWorld world(kRanks, 30);
  std::atomic<int> arrived = 0;
  world.run([&](Backend& backend) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      backend.barrier();
      EXPECT_EQ(arrived, round * kRanks);
      backend.barrier();
    }
  });
}

TEST(HostWorld, OneThrowsAllGetItsReason) {
  constexpr int32_t kRanks = 16;
  HostWorld world(kRanks, 30);
  std::array<std::byte, 1> memory{};
  std::atomic<int> told = 0;
  try {
    world.run([&](Backend& backend) {
      const int32_t rank = backend.rank();
      if (rank == 5) throw std::runtime_error("out of ideas");
      const Group group{0, 0, {}, {part(5, memory.data(), 1)}};
      try {
        if (rank % 2 == 0) {
          backend.barrier();
        } else {
          backend.post(group);
          backend.wait_any();
        }
        ADD_FAILURE() << "rank " << rank << " was not told";
      } catch (const Error& error) {
        EXPECT_EQ(error.what(), std::string("rank 5: out of ideas"));
        EXPECT_EQ(error.kind(), ErrorKind::kWork);
        ++told;
        throw;
      }
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), std::string("out of ideas"));  // the first failure itself
  }
  EXPECT_EQ(told, kRanks - 1);
  EXPECT_THROW(world.backend(0).barrier(), Error);  // for good
}

TEST(HostWorld, AbortWaitsForReadersAndRefusesNewOnes) {
  // Rank 0 offers many parts, then fails at once and frees them. Whatever rank 1 still reads has to
  // be there: the sanitizers watch.
  for (int round = 0; round < 50; ++round) {
    HostWorld world(2, 30);
    EXPECT_THROW(world.run([&](Backend& backend) {
      std::vector<std::byte> memory(1 << 16);
      std::vector<Group> groups;
      for (int32_t channel = 0; channel < 4; ++channel) {
        const Part one = part(1 - backend.rank(), memory.data() + channel * 16384, 16384);
        groups.push_back({channel, 0, {}, {}});
        (backend.rank() == 0 ? groups.back().sends : groups.back().recvs).push_back(one);
      }
      try {
        for (const Group& group : groups) backend.post(group);
        if (backend.rank() == 0) throw Error("rank 0: gave up", ErrorKind::kWork);
        for (size_t i = 0; i < groups.size(); ++i) backend.wait_any();
        backend.barrier();
      } catch (const Error& error) {
        backend.abort(error.what());
        throw;
      }
    }),
                 Error);
  }
}

TEST(HostWorld, MemoryIsZeroAndUntouchedPagesAreFree) {
  HostWorld world(1, 30);
  const std::byte* memory = world.backend(0).allocate(int64_t{1} << 36);  // 64 GiB
  EXPECT_EQ(memory[(int64_t{1} << 36) - 1], std::byte{0});
}

}  // namespace
}  // namespace refit
