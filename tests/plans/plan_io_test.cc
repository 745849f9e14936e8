#include "plans/plan_io.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "plans/check.h"
#include "random_plan.h"

namespace refit {
namespace {

class PlanIo : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("refit_plan_io_") + test->name());
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "p.plan").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
  }

  // The message of the error that loading gives, without the path; "" when it loads.
  std::string load_error(int32_t rank = -1) const {
    try {
      rank < 0 ? load_plan(path_) : load_plan_for_rank(path_, rank);
      return "";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(path_ + ": ")) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      return what.substr(std::min(what.size(), path_.size() + 2));
    }
  }

  // Overwrites bytes of the file.
  void patch(size_t at, const std::string& bytes) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)) << bytes;
  }

  std::filesystem::path folder_;
  std::string path_;
};

// Two ranks, two steps, a slot and a wait.
Plan make_small_example() {
  const Box first{Dims{0}, Dims{2}}, second{Dims{2}, Dims{4}};
  FlatPlan flat = make_frame({4}, {{whole({4})}, {}}, {{}, {whole({4})}});
  flat.slots[1].push_back({0, second, 0});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, first, 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, second, 0, 0);
  flat.transfer(1, Place::kStaging, 0, 1, Place::kGen, 0, 0, second, 1, 1);
  flat.waits.push_back({1, 1, 1, {0, 0}});
  flat.frame.inputs = {{"model", "m"}};
  return make_plan(flat);
}

Plan make_example() {
  Random random(3);
  Plan plan = make_plan(make_random_plan(random));
  plan.seed = std::numeric_limits<uint64_t>::max();
  plan.max_peers = 8;
  plan.ranks[0].rails = {0, 3};
  plan.prediction = {0.25, 0.1, 1.0 / 3, "ingress of node n1: 1.0 GB at 400 GB/s"};
  plan.inputs = {{"model", "{\"name\": \"x\"}"}, {"options", std::string("a\0b", 3)}};
  return plan;
}

TEST_F(PlanIo, ReadsBackWhatItWrote) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const Plan plan = make_plan(make_random_plan(random));
    const SavedPlan saved = save_plan(plan, path_);
    const LoadedPlan loaded = load_plan(path_);
    ASSERT_EQ(loaded.plan, plan) << seed;
    EXPECT_EQ(loaded.saved.digest, saved.digest);
    EXPECT_EQ(loaded.saved.bytes, saved.bytes);
    EXPECT_EQ(saved.bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
  }
  const Plan plan = make_example();
  save_plan(plan, path_);
  EXPECT_EQ(load_plan(path_).plan, plan);
}

TEST_F(PlanIo, EmptyPlan) {
  save_plan(Plan{}, path_);
  EXPECT_EQ(load_plan(path_).plan, Plan{});
}

TEST_F(PlanIo, SamePlanSameBytes) {
  const Plan plan = make_example();
  const SavedPlan saved = save_plan(plan, path_);
  const std::string first = read_file(path_);
  save_plan(load_plan(path_).plan, path_);
  EXPECT_EQ(read_file(path_), first);
  EXPECT_EQ(measure_plan(plan).digest, saved.digest);
  EXPECT_EQ(measure_plan(plan).bytes, saved.bytes);
}

TEST_F(PlanIo, DigestTellsPlansApart) {
  const Plan plan = make_example();
  const std::string digest = measure_plan(plan).digest;
  EXPECT_EQ(digest.size(), 64);
  EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  Plan other = plan;
  other.seed = 1;
  EXPECT_NE(measure_plan(other).digest, digest);
  other = plan;
  other.inputs[0].second += " ";
  EXPECT_NE(measure_plan(other).digest, digest);
  other = plan;
  for (Program& program : other.programs) {
    if (program.messages.empty()) continue;
    program.messages[0].peer = program.messages[0].peer == 0 ? 1 : 0;
    break;
  }
  EXPECT_NE(measure_plan(other).digest, digest);
}

TEST_F(PlanIo, RankReadsItsOwnProgram) {
  const Plan plan = make_example();
  const SavedPlan saved = save_plan(plan, path_);
  for (int32_t rank = 0; rank < std::ssize(plan.ranks); ++rank) {
    Plan expected = plan;
    expected.inputs.clear();
    for (int32_t other = 0; other < std::ssize(plan.ranks); ++other) {
      if (other != rank) expected.programs[static_cast<size_t>(other)] = {};
    }
    const LoadedPlan loaded = load_plan_for_rank(path_, rank);
    EXPECT_EQ(loaded.plan, expected);
    EXPECT_EQ(loaded.saved.digest, saved.digest);
  }
  const auto world = static_cast<int32_t>(plan.ranks.size());
  EXPECT_EQ(load_error(world), "found rank " + std::to_string(world) + ", expected one of " +
                                   std::to_string(world) + " ranks");
  EXPECT_THROW(load_plan_for_rank(path_, -1), Error);
}

TEST_F(PlanIo, NotAPlan) {
  const std::string expected = "not a plan file (does not start with 'REFITPLN')";
  for (const char* content : {"", "R", "REFITPL", "refitpln0123", "{\"format\": \"refit-plan\"}"}) {
    write(content);
    EXPECT_EQ(load_error(), expected) << content;
    EXPECT_EQ(load_error(0), expected) << content;
  }
  std::filesystem::remove(path_);
  EXPECT_EQ(load_error(), "cannot be read: No such file or directory");
  std::filesystem::create_directory(path_);
  EXPECT_EQ(load_error(), "not a plan file (not a regular file)");
}

TEST_F(PlanIo, Versions) {
  save_plan(make_example(), path_);
  std::string content = read_file(path_);
  content[8] = 0;
  write(content);
  EXPECT_EQ(load_error(), "too old: version 0, this program reads 2..2");
  content[8] = 7;
  write(content);
  EXPECT_EQ(load_error(), "too new: version 7, this program reads 2..2");
}

TEST_F(PlanIo, DamageNamesTheSection) {
  const Plan plan = make_example();
  save_plan(plan, path_);
  const std::string content = read_file(path_);
  std::string damaged = content;
  damaged[100] ^= 1;
  write(damaged);
  EXPECT_TRUE(load_error().starts_with("damaged: section 'root': found SHA-256 ")) << load_error();
  damaged = content;
  damaged[damaged.size() - 20] ^= 1;
  write(damaged);
  EXPECT_TRUE(load_error().starts_with("damaged: section 'inputs': found SHA-256 "))
      << load_error();
  EXPECT_EQ(load_error(0), "");  // reads no inputs
}

// Every byte of a file is under a hash or has one value only.
TEST_F(PlanIo, EveryFlippedByteIsFound) {
  save_plan(make_small_example(), path_);
  const std::string content = read_file(path_);
  for (size_t i = 0; i < content.size(); ++i) {
    patch(i, {static_cast<char>(content[i] ^ (1 << (i % 8)))});
    const std::string what = load_error();
    const char* expected = i < 8 ? "not a plan file" : i < 12 ? "too " : "damaged: ";
    ASSERT_TRUE(what.starts_with(expected)) << "byte " << i << ": " << what;
    load_error(0);  // may well work, but must not crash
    patch(i, {content[i]});
  }
  EXPECT_EQ(load_error(), "");
}

TEST_F(PlanIo, EveryTruncationIsFound) {
  save_plan(make_small_example(), path_);
  const std::string content = read_file(path_);
  write(content + '\0');
  EXPECT_TRUE(load_error().starts_with("damaged: ")) << load_error();
  for (size_t size = content.size(); size-- > 0;) {
    std::filesystem::resize_file(path_, size);
    const std::string what = load_error();
    ASSERT_TRUE(what.starts_with(size < 8 ? "not a plan file" : "damaged: "))
        << size << " bytes: " << what;
    ASSERT_EQ(load_error(0), what) << size << " bytes";
  }
}

std::string sha256(const std::string& bytes) {
  std::string hash(32, '\0');
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), nullptr,
             EVP_sha256(), nullptr);
  return hash;
}

// Someone who makes files on purpose makes the hashes fit: then it takes the schema and
// find_malformed. What still loads is safe to walk.
TEST_F(PlanIo, ForgedFilesDoNoHarm) {
  save_plan(make_small_example(), path_);
  const std::string content = read_file(path_);
  constexpr size_t kHeader = 56, kRootHash = 24;
  uint64_t root_size = 0;
  std::memcpy(&root_size, content.data() + 16, sizeof(root_size));
  const size_t body = kHeader + (root_size + 7) / 8 * 8;
  // Sections end where their hash is in the root.
  std::vector<std::pair<size_t, size_t>> sections;  // first, last
  std::vector<size_t> hash_at;
  for (size_t first = body; first < content.size();) {
    size_t last = content.size(), at = std::string::npos;
    for (; last > first; --last) {
      at = content.find(sha256(content.substr(first, last - first)));
      if (at != std::string::npos) break;
    }
    ASSERT_GT(last, first);
    sections.emplace_back(first, last);
    hash_at.push_back(at);
    first = body + (last - body + 7) / 8 * 8;
  }
  ASSERT_EQ(sections.size(), 3);  // two ranks and the inputs

  int loads = 0, refusals = 0;
  const auto try_file = [&](std::string forged) {
    const std::string root_hash = sha256(forged.substr(kHeader, root_size));
    forged.replace(kRootHash, root_hash.size(), root_hash);
    patch(0, forged);
    const std::string what = load_error();
    if (!what.empty()) {
      ASSERT_TRUE(what.starts_with("damaged: ")) << what;
      ++refusals;
      return;
    }
    ++loads;
    const Plan plan = load_plan(path_).plan;
    check(plan);
    plan_totals(plan);
    measure_plan(plan);
  };
  for (const int flip : {0x01, 0x80, 0xff}) {
    for (size_t i = kHeader; i < kHeader + root_size; ++i) {
      std::string forged = content;
      forged[i] = static_cast<char>(forged[i] ^ flip);
      try_file(forged);
    }
    for (size_t section = 0; section < sections.size(); ++section) {
      const auto [first, last] = sections[section];
      for (size_t i = first; i < last; ++i) {
        std::string forged = content;
        forged[i] = static_cast<char>(forged[i] ^ flip);
        forged.replace(hash_at[section], 32, sha256(forged.substr(first, last - first)));
        try_file(forged);
      }
    }
  }
  EXPECT_GT(loads, 0);
  EXPECT_GT(refusals, 0);
}

TEST_F(PlanIo, MalformedPlansAreNotSaved) {
  const auto refuse = [&](const char* expected, auto&& spoil) {
    Plan plan = make_example();
    size_t rank = 0;
    while (plan.programs[rank].pieces.empty()) ++rank;
    spoil(plan, plan.programs[rank]);
    try {
      save_plan(plan, path_);
      ADD_FAILURE() << "saved: " << expected;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(path_));
  };
  refuse("programs", [](Plan& plan, Program&) { plan.programs.pop_back(); });
  refuse("channels", [](Plan& plan, Program&) { plan.channels.resize(5); });
  refuse("no map", [](Plan& plan, Program&) { plan.tensors[0].gen_map = 99; });
  refuse("no buffer", [](Plan& plan, Program&) { plan.tensors[0].gen_buffer = -1; });
  refuse("out of order", [](Plan& plan, Program&) { plan.maps[0].shards[0].first = 99; });
  refuse("dimensions", [](Plan& plan, Program&) {
    plan.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  });
  refuse("no tensor", [](Plan&, Program& program) { program.pieces[0].tensor = 99; });
  refuse("no box", [](Plan&, Program& program) { program.pieces[0].box = -1; });
  refuse("the rank has no", [](Plan&, Program& program) { program.pieces[0].area = 99; });
  refuse("unknown place", [](Plan&, Program& program) { program.pieces[0].place = Place{9}; });
  refuse("unknown wire dtype", [](Plan&, Program& program) { program.pieces[0].wire = Dtype{99}; });
  refuse("neither side's dtype",
         [](Plan&, Program& program) { program.pieces[0].wire = Dtype::kInt64; });
  refuse("does not fit", [](Plan&, Program& program) {
    program.boxes[static_cast<size_t>(program.pieces[0].box)] = whole({1, 1, 1, 1, 1, 1});
  });
  refuse("no rank", [](Plan&, Program& program) { program.messages[0].peer = 99; });
  refuse("no pieces", [](Plan&, Program& program) { program.messages[0].last_piece = 99; });
  refuse("no channel", [](Plan&, Program& program) { program.steps[0].channel = 3; });
  refuse("out of order",
         [](Plan&, Program& program) { program.steps.push_back(program.steps[0]); });
  refuse("no such messages", [](Plan&, Program& program) { program.steps[0].last_message = 99; });
  refuse("no such messages or waits",
         [](Plan&, Program& program) { program.steps[0].last_wait = 99; });
}

TEST_F(PlanIo, FailedWriteLeavesNothing) {
  EXPECT_THROW(save_plan(make_example(), (folder_ / "none" / "p.plan").string()), Error);
}

}  // namespace
}  // namespace refit
