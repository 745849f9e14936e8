#include "sim/search/slot_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refit {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Arrival arrival(int64_t bytes, int32_t last_read) {
  return {.bytes = bytes, .last_read = 1.0 * last_read, .readers = {{0, last_read}}};
}

TEST(SlotRing, WaitsForAllThatLayThere) {
  SlotRing ring(1000);
  std::vector<Wait> waits;
  EXPECT_EQ(ring.add(arrival(400, 2), 1, waits), 0);
  EXPECT_EQ(ring.add(arrival(300, 4), 3, waits), 400);
  EXPECT_EQ(ring.add(arrival(300, 5), 4, waits), 700);
  EXPECT_THAT(waits, IsEmpty());
  // Round again: over the first and a part of the second, the rest of which follows.
  EXPECT_EQ(ring.add(arrival(500, 8), 6, waits), 0);
  EXPECT_THAT(waits, ElementsAre(Wait{0, 2}, Wait{0, 4}));
  waits.clear();
  EXPECT_EQ(ring.add(arrival(100, 9), 7, waits), 500);
  EXPECT_THAT(waits, ElementsAre(Wait{0, 4}));
}

TEST(SlotRing, GoesAroundWhatIsStillNeeded) {
  SlotRing ring(1000);
  std::vector<Wait> waits;
  EXPECT_EQ(ring.add(arrival(200, 2), 1, waits), 0);
  EXPECT_EQ(ring.add(arrival(300, 50), 1, waits), 200);
  EXPECT_EQ(ring.add(arrival(500, 3), 2, waits), 500);
  // The first place is free, but too small: behind what is needed until 50.
  EXPECT_EQ(ring.add(arrival(400, 6), 4, waits), 500);
  EXPECT_THAT(waits, ElementsAre(Wait{0, 3}));
  waits.clear();
  // Round the end; 100 bytes are left of the third.
  EXPECT_EQ(ring.add(arrival(200, 7), 5, waits), 0);
  EXPECT_EQ(ring.add(arrival(50, 8), 7, waits), 500);
  EXPECT_THAT(waits, ElementsAre(Wait{0, 2}, Wait{0, 6}));
  waits.clear();
  EXPECT_EQ(ring.add(arrival(400, 9), 8, waits), 550) << "across two";
  EXPECT_THAT(waits, ElementsAre(Wait{0, 6}, Wait{0, 3}));
}

TEST(SlotRing, GrowsWhereItIsTooSmall) {
  SlotRing ring(1000);
  std::vector<Wait> waits;
  EXPECT_EQ(ring.add(arrival(700, 9), 1, waits), 0);
  EXPECT_EQ(ring.add(arrival(500, 3), 2, waits), 1000);
  EXPECT_THAT(waits, IsEmpty());
  // There are 1500 now, and 800 behind what is in use until 9.
  EXPECT_EQ(ring.add(arrival(800, 11), 8, waits), 700);
  EXPECT_THAT(waits, ElementsAre(Wait{0, 3}));
  waits.clear();
  EXPECT_EQ(ring.add(arrival(500, 12), 9, waits), 0) << "free from the time of the last read on";
  EXPECT_THAT(waits, ElementsAre(Wait{0, 9}));
}

TEST(SlotRing, AlignsSlots) {
  EXPECT_EQ(align_slot(0), 0);
  EXPECT_EQ(align_slot(1), 256);
  EXPECT_EQ(align_slot(256), 256);
  EXPECT_EQ(align_slot(257), 512);
}

}  // namespace
}  // namespace refit
