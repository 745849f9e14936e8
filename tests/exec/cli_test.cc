#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "plans/check.h"
#include "plans/plan_io.h"
#include "tests/exec/test_plans.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int status = -1;
  std::string out, err;
};

/// A folder with one good plan, and the program to run on it.
class RefitExec : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::PlanMaker maker(4, 2);
    const Dims shape{64, 48};
    maker.add_tensor("w", shape, Dtype::kBf16, testing::split(shape, 0, 0, 2),
                     testing::split(shape, 1, 1, 3));
    maker.add_direct_transfers();
    plan_ = maker.finish();
    plan_.prediction.predicted_s = 0.125;
    for (const Fault& fault : check(plan_)) ADD_FAILURE() << print_fault(fault);
    saved_ = save_plan(plan_, path("good.plan"));
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

  Ran run(const std::string& arguments) const {
    const std::string command = "'" REFIT_EXEC_PROGRAM "' " + arguments + " >'" + path("out") +
                                "' 2>'" + path("err") + "' </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path("out")),
            read_file(path("err"))};
  }

  const testing::TemporaryFolder folder_;
  Plan plan_;
  SavedPlan saved_;
};

TEST_F(RefitExec, ReplaysAndVerifies) {
  const Ran ran = run(path("good.plan") + " --verify");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr(saved_.digest.substr(0, 12) + ", 4 ranks"));
  // 64 x 48 bf16 elements; rank 1 has half of the rows and needs a third of the columns of them:
  // 32 x 16 x 2 bytes stay.
  EXPECT_THAT(ran.out, HasSubstr("5.12 kB in 5 transfers, 1.02 kB in 1 local copies"));
  EXPECT_THAT(ran.out, HasSubstr("over 3 iterations"));
  EXPECT_THAT(ran.out, HasSubstr("predicted  125 ms on the plan's fabric, which is not this host"));
  EXPECT_THAT(ran.out, HasSubstr("verified   6144 bytes on 3 ranks, every byte equal"));
  EXPECT_EQ(ran.err, "");
}

TEST_F(RefitExec, WritesJson) {
  const Ran ran = run(path("good.plan") + " --iterations 5 --json " + path("r.json"));
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out.find("verified"), std::string::npos);  // nobody asked
  const auto json = nlohmann::json::parse(read_file(path("r.json")));
  EXPECT_EQ(json.at("digest"), saved_.digest);
  EXPECT_EQ(json.at("context").at("backend"), "host");
  EXPECT_EQ(json.at("context").at("version"), REFIT_VERSION);
  EXPECT_GT(json.at("context").at("cores"), 0);
  EXPECT_EQ(json.at("iterations").size(), 5U);
  EXPECT_EQ(json.at("bytes_moved"), 6144);
  EXPECT_EQ(json.at("verified"), false);
  EXPECT_EQ(json.at("predicted_s"), 0.125);
  EXPECT_GT(json.at("memcpy_bytes_per_second"), 0.0);
  const double median_s = json.at("median_s");
  EXPECT_DOUBLE_EQ(json.at("bytes_per_second"), 6144 / median_s);
  ASSERT_EQ(json.at("ranks").size(), 4U);
  EXPECT_EQ(json.at("ranks")[1].at("rank"), 1);
  EXPECT_EQ(json.at("ranks")[1].at("bytes_received"), 1024);
  EXPECT_EQ(json.at("ranks")[1].at("bytes_copied"), 1024);
  EXPECT_EQ(json.at("ranks")[1].at("staging_bytes"), 0);
  // Rank 0 sends to ranks 1, 2 and 3 in one step; rank 3 receives from ranks 0 and 1.
  const auto& fields = json.at("step_fields");
  ASSERT_EQ(json.at("ranks")[0].at("steps").size(), 1U);
  const auto& step = json.at("ranks")[0].at("steps")[0];
  ASSERT_EQ(step.size(), fields.size());
  std::map<std::string, double> of_step;
  for (size_t i = 0; i < fields.size(); ++i) of_step[fields[i]] = step[i];
  EXPECT_EQ(of_step.at("sends"), 3);
  EXPECT_EQ(of_step.at("recvs"), 0);
  EXPECT_EQ(of_step.at("bytes_sent"), 3 * 32 * 16 * 2);
  EXPECT_LE(of_step.at("begin_s"), of_step.at("end_s"));
  int64_t to_3 = 0;
  for (const auto& peer : json.at("peers")) {
    if (peer.at("to") == 3) to_3 += peer.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(to_3, 64 * 16 * 2);
  EXPECT_EQ(json.at("channels").size(), 2U);
}

TEST_F(RefitExec, JsonOnStdoutIsAlone) {
  const Ran ran = run(path("good.plan") + " --verify --iterations 1 --json -");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("verified"), true);
  EXPECT_THAT(ran.err, HasSubstr("every byte equal"));
}

TEST_F(RefitExec, RefusesAWrongPlan) {
  // Rank 3 forgets its last receive.
  plan_.programs[3].steps.back().last_message--;
  plan_.programs[3].messages.pop_back();
  save_plan(plan_, path("wrong.plan"));
  const Ran ran = run(path("wrong.plan"));
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("the plan is wrong, nothing was moved"));
  EXPECT_GT(std::count(ran.err.begin(), ran.err.end(), '\n'),
            1);  // a line for each fault before it
}

TEST_F(RefitExec, HelpFitsOneScreen) {
  const Ran ran = run("--help");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_LE(std::count(ran.out.begin(), ran.out.end(), '\n'), 40);
  for (const char* part : {"--backend", "host", "--verify", "--iterations", "3", "--json",
                           "--timeout", "30s", "--rank-map", "Example:"}) {
    EXPECT_THAT(ran.out, HasSubstr(part));
  }
}

TEST_F(RefitExec, RefusesBadUsage) {
  const std::string good = path("good.plan");
  const std::pair<std::string, std::string> cases[] = {
      {"", "PLAN"},
#ifndef REFIT_HAVE_MPI
      {good + " --backend mpi", "this build has no mpi backend; it has: host"},
#endif
#ifdef REFIT_HAVE_NCCL
      {good + " --backend nccl", "backend nccl: found no "},  // driver, device
#else
      {good + " --backend nccl", "this build has no nccl backend; it has: host"},
#endif
      {good + " --backend gpu", "--backend"},
      {good + " --rank-map map.txt", "--rank-map"},
      {good + " --iterations 0", "--iterations"},
      {good + " --iterations many", "--iterations"},
      {good + " --timeout 30", "--timeout"},
      {good + " --timeout 0s", "--timeout"},
      {good + " --timeout=-1s", "--timeout"},
      {good + " --frobnicate", "--frobnicate"},
      {path("absent.plan"), "absent.plan"},
      {path("err"), "err"},  // a text file, not a plan
  };
  for (const auto& [arguments, part] : cases) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.status, 2) << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_THAT(ran.err, HasSubstr(part));
  }
}

}  // namespace
}  // namespace refit
