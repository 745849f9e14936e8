#include "plans/meetings.h"

#include <gtest/gtest.h>

#include <tuple>

#include "random_plan.h"

namespace refit {
namespace {

/// Compares with a search through the programs for every message.
void expect_found_by_search(const Plan& plan) {
  const Meetings meetings(plan);
  ASSERT_EQ(meetings.ranks(), std::ssize(plan.programs));
  size_t messages = 0;
  int32_t group = 0;
  for (int32_t rank = 0; rank < meetings.ranks(); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    EXPECT_EQ(meetings.first_group(rank), group);
    for (size_t index = 0; index < program.steps.size(); ++index, ++group) {
      const Step& step = program.steps[index];
      EXPECT_EQ(meetings.group(rank, static_cast<int32_t>(index)), group);
      EXPECT_EQ(meetings.rank_of(group), rank);
      EXPECT_EQ(meetings.first_message(group), messages);
      EXPECT_EQ(&find_step(plan, meetings, group), &step);
      ASSERT_EQ(std::ssize(meetings.partners(group)), step.last_message - step.first_send);
      for (const Meetings::Partner& partner : meetings.partners(group)) {
        const auto m =
            static_cast<size_t>(step.first_send) + messages++ - meetings.first_message(group);
        const Message& message = program.messages[m];
        const Program& other = plan.programs[static_cast<size_t>(message.peer)];
        const int32_t there = find_step(other, step.channel, step.id);
        EXPECT_EQ(partner.group, there < 0 ? -1 : meetings.group(message.peer, there));
        const Message* match = nullptr;
        if (there >= 0) {
          const Step& theirs = other.steps[static_cast<size_t>(there)];
          const bool sends = std::cmp_less(m, step.first_recv);
          match = sends ? find_recv(other, theirs, rank) : find_send(other, theirs, rank);
        }
        EXPECT_EQ(find_message(plan, meetings, partner), match);
      }
    }
  }
  EXPECT_EQ(meetings.groups(), group);
  EXPECT_EQ(meetings.first_message(group), messages);

  std::tuple previous(-1, -1, -1);
  for (const int32_t g : meetings.in_order()) {
    const Step& step = find_step(plan, meetings, g);
    const std::tuple here(step.channel, step.id, meetings.rank_of(g));
    EXPECT_LT(previous, here);
    previous = here;
  }
  EXPECT_EQ(std::ssize(meetings.in_order()), group);
}

TEST(Meetings, AgreeWithASearch) {
  Random random(1);
  for (int n = 0; n < 50; ++n) {
    FlatPlan flat = make_random_plan(random);
    expect_found_by_search(make_plan(flat));
    // Ends that nobody meets.
    flat.ends.erase(flat.ends.begin() + pick(random, 0, std::ssize(flat.ends) - 1));
    expect_found_by_search(make_plan(flat));
  }
}

TEST(Meetings, IdsMayBeFarApart) {
  Random random(2);
  for (int n = 0; n < 20; ++n) {
    FlatPlan flat = make_random_plan(random);
    for (FlatEnd& end : flat.ends) end.step *= 100'000'000 / kStepGap;
    flat.waits.clear();
    expect_found_by_search(make_plan(flat));
  }
}

TEST(Meetings, OfNobody) {
  EXPECT_EQ(Meetings(Plan{}).groups(), 0);
  Plan idle;
  idle.programs.resize(3);
  EXPECT_EQ(Meetings(idle).groups(), 0);
  EXPECT_EQ(Meetings(idle).ranks(), 3);
  EXPECT_TRUE(Meetings(idle).in_order().empty());
}

TEST(Meetings, PeersNeedNotExist) {
  FlatPlan flat = make_frame({4}, {{whole({4})}, {}}, {{}, {whole({4})}});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, whole({4}), 0, 0);
  Plan plan = make_plan(flat);
  for (const int32_t peer : {-1, 2, INT32_MAX}) {
    plan.programs[0].messages[0].peer = peer;
    const Meetings meetings(plan);
    EXPECT_EQ(meetings.partners(0)[0].group, -1);
    EXPECT_EQ(meetings.partners(0)[0].message, -1);
    EXPECT_EQ(meetings.partners(1)[0].group, 0);  // it is there, and sends to somebody else
    EXPECT_EQ(meetings.partners(1)[0].message, -1);
  }
}

}  // namespace
}  // namespace refit
