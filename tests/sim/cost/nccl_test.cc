#include "sim/cost/nccl.h"

#include <gtest/gtest.h>

namespace refit {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Of an H100 node with a 400 Gbps NIC a GPU.
NcclCost h100() {
  NcclCost nccl;
  nccl.channels = 32;
  nccl.nvlink = {.channels = 32, .rate = 19e9, .chunk = 512 * kKiB, .fills = 1};
  nccl.net = {.channels = 4, .rate = 14e9, .chunk = 128 * kKiB, .fills = 2};
  return nccl;
}

constexpr Communicator kPair{.ranks = 2, .nvlink = true};
constexpr Communicator kNode{.ranks = 8, .nvlink = true};

Communicator cluster(int32_t ranks) { return {.ranks = ranks, .nvlink = true, .network = true}; }

TEST(Nccl, ChannelsOfAPeerAreTheLeastOfAllPairs) {
  EXPECT_EQ(channels_per_peer(h100(), kNode), 32);
  // 4 by network, for the NVLink pairs, too: 4 x ceil(16 / 8) = 8 <= 32.
  EXPECT_EQ(channels_per_peer(h100(), cluster(16)), 4);
}

TEST(Nccl, LargeCommunicatorsHalveThem) {
  // 4 x ceil(64 / 8) = 32 <= 32; 4 x 16 = 64 > 32, so 2; 256 ranks: 4 x 32, 2 x 32 are above 32: 1.
  EXPECT_EQ(channels_per_peer(h100(), cluster(64)), 4);
  EXPECT_EQ(channels_per_peer(h100(), cluster(128)), 2);
  EXPECT_EQ(channels_per_peer(h100(), cluster(256)), 1);
  EXPECT_EQ(channels_per_peer(h100(), cluster(4096)), 1);
  // Told that it will have 8 peers: 4 x 1.
  NcclCost told = h100();
  told.max_peers = 8;
  EXPECT_EQ(channels_per_peer(told, cluster(256)), 4);
}

// The channels that a benchmark of two H100s names for each size (meta-pytorch/torchcomms
// comms/prims/docs/P2pNvlSendRecvBenchmark.md): 64 KiB 1, 1 to 256 MiB 16, 512 MiB and 1 GiB 32.
TEST(Nccl, ChannelsOfAMessageBetweenTwo) {
  // 32 x 2 > 32, so p = 16; parts of 64 KiB to 16 MiB.
  EXPECT_EQ(channels_of_message(h100(), kPair, 1), 1);
  EXPECT_EQ(channels_of_message(h100(), kPair, 64 * kKiB), 1);
  EXPECT_EQ(channels_of_message(h100(), kPair, 65 * kKiB), 2);
  EXPECT_EQ(channels_of_message(h100(), kPair, kMiB), 16);
  EXPECT_EQ(channels_of_message(h100(), kPair, 256 * kMiB), 16);  // parts of 16 MiB
  EXPECT_EQ(channels_of_message(h100(), kPair, 512 * kMiB), 32);
  EXPECT_EQ(channels_of_message(h100(), kPair, 1024 * kMiB), 32);
}

TEST(Nccl, ChannelsOfAMessageInANode) {
  // 32 x 8 > 32, 16 x 8, 8 x 8, 4 x 8 = 32: p = 4. 64 MiB in 4 parts of 16; 65 MiB needs 8.
  EXPECT_EQ(channels_of_message(h100(), kNode, 64 * kMiB), 4);
  EXPECT_EQ(channels_of_message(h100(), kNode, 65 * kMiB), 8);
  EXPECT_EQ(channels_of_message(h100(), kNode, 1024 * kMiB), 32);
}

TEST(Nccl, ChannelsOfAMessageByNetwork) {
  // 16 ranks: P = 4; 4 x 16 > 32, p = 2. Parts of 64 to 128 KiB: 64 KiB 1; 128 KiB 2; 1 MiB: parts
  // of 512 KiB are too large, 4.
  EXPECT_EQ(channels_of_message(h100(), cluster(16), 64 * kKiB), 1);
  EXPECT_EQ(channels_of_message(h100(), cluster(16), 128 * kKiB), 2);
  EXPECT_EQ(channels_of_message(h100(), cluster(16), 256 * kKiB), 2);
  EXPECT_EQ(channels_of_message(h100(), cluster(16), 257 * kKiB), 4);
  EXPECT_EQ(channels_of_message(h100(), cluster(16), 1024 * kMiB), 4);
  EXPECT_EQ(channels_of_message(h100(), cluster(256), 1024 * kMiB), 1);
}

TEST(Nccl, RateOfAMessage) {
  // 16 channels of 19 GB/s; alone, and with 7 others 32 / 8 = 4 channels' worth.
  const auto rate = [](int32_t together) {
    return shape_message(h100(), kPair, LinkKind::kNvlink, 64 * kMiB, together, 370e9).rate;
  };
  EXPECT_DOUBLE_EQ(rate(1), 16 * 19e9);
  EXPECT_DOUBLE_EQ(rate(2), 16 * 19e9);
  EXPECT_DOUBLE_EQ(rate(8), 4 * 19e9);
  // A node by network among 256 ranks: one channel.
  EXPECT_DOUBLE_EQ(shape_message(h100(), cluster(256), LinkKind::kNic, 64 * kMiB, 1, 48e9).rate,
                   14e9);
  // And its NVLink peers: one channel of theirs.
  EXPECT_DOUBLE_EQ(shape_message(h100(), cluster(256), LinkKind::kNvlink, 64 * kMiB, 1, 370e9).rate,
                   19e9);
}

TEST(Nccl, ThePipeFills) {
  const auto fill = [](const Communicator& who, LinkKind kind, int64_t bytes, double path) {
    return shape_message(h100(), who, kind, bytes, 1, path).fill_s;
  };
  // One chunk of 512 KiB at 19 GB/s; of 32 channels each has 370 / 32 GB/s.
  EXPECT_DOUBLE_EQ(fill(kPair, LinkKind::kNvlink, 64 * kMiB, 370e9), 512 * 1024 / 19e9);
  EXPECT_DOUBLE_EQ(fill(kPair, LinkKind::kNvlink, 512 * kMiB, 370e9), 512 * 1024 / (370e9 / 32));
  // 1 MiB in 16 parts of 64 KiB, less than a chunk.
  EXPECT_DOUBLE_EQ(fill(kPair, LinkKind::kNvlink, kMiB, 370e9), 64 * 1024 / 19e9);
  // By network two fills, at 48 / 4 = 12 GB/s a channel: 4 MiB in whole chunks of 128 KiB, 512 KiB
  // (4 parts of 128) in halves, 100 KiB (2 parts of 50) in quarters.
  EXPECT_DOUBLE_EQ(fill(cluster(16), LinkKind::kNic, 4 * kMiB, 48e9), 2 * 128 * 1024 / 12e9);
  EXPECT_DOUBLE_EQ(fill(cluster(16), LinkKind::kNic, 512 * kKiB, 48e9), 2 * 64 * 1024 / 12e9);
  EXPECT_DOUBLE_EQ(fill(cluster(16), LinkKind::kNic, 100 * kKiB, 48e9), 2 * 32 * 1024 / 14e9);
  // NVLink of a communicator with network has the network's chunk: 128 KiB, 4 channels.
  EXPECT_DOUBLE_EQ(fill(cluster(16), LinkKind::kNvlink, 64 * kMiB, 370e9), 128 * 1024 / 19e9);
  NcclCost registered = h100();
  registered.nvlink.fills = 0;
  EXPECT_EQ(shape_message(registered, kPair, LinkKind::kNvlink, kMiB, 1, 370e9).fill_s, 0);
}

// A step has at most eight peers each way, and a channel runs eight at a time: nothing waits for a
// second batch, however many channels each message takes.
TEST(Nccl, EightPeersFitIntoOneBatch) {
  for (int64_t bytes = 1; bytes <= 4096 * kMiB; bytes *= 4) {
    for (const Communicator& who : {kPair, kNode, cluster(16), cluster(512)}) {
      const int32_t channels = channels_of_message(h100(), who, bytes);
      EXPECT_LE(8 * channels, 8 * h100().channels);
      EXPECT_GE(channels, 1);
    }
  }
}

}  // namespace
}  // namespace refit
