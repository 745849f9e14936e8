// Casts and quantised targets from layouts to bytes in place. Every replay is verified: sources
// hold a function of (tensor, global index), and what has to arrive is computed from that function
// (exec/verify_cast.h; the arithmetic has its own oracle in tests/exec/cast_test.cc).

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "exec/host_replay.h"
#include "plans/check.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "sim/search/strategies.h"
#include "tests/pipeline/random_layout.h"
#include "tests/sim/search/small_fabric.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

using testing::Random;

ReplayReport replay_verified(const Plan& plan) {
  ReplayOptions options;
  options.iterations = 1;
  options.verify = true;
  return replay_on_host(plan, options);
}

void expect_replay(const Problem& problem, const SearchOptions& options) {
  const Plan plan = search(problem, options);  // checks it
  EXPECT_GE(plan.prediction.predicted_s, plan.prediction.lower_bound_s * (1 - 1e-9));
  const ReplayReport report = replay_verified(plan);
  EXPECT_GT(report.verified_bytes, 0);
  EXPECT_EQ(report.bytes_wire, plan_totals(plan).bytes_total);
}

// ---- The families of Kimi K2 and Qwen3-235B-A22B, small

constexpr const char* kKimi = R"({"model_type": "kimi_k2", "hidden_size": 256,
  "num_hidden_layers": 9, "num_nextn_predict_layers": 0, "num_attention_heads": 8, "q_lora_rank": 128,
  "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
  "intermediate_size": 512, "first_k_dense_replace": 1, "n_routed_experts": 12, "n_shared_experts": 1,
  "moe_intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

constexpr const char* kQwen = R"({"model_type": "qwen3_moe", "hidden_size": 256,
  "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
  "num_experts": 8, "moe_intermediate_size": 192, "vocab_size": 512, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16"})";

struct Job {
  const char* name;
  const char* config;
  const char* train;
  const char* gen;
};

constexpr Job kJobs[] = {
    {"kimi", kKimi, "megatron:tp=2,pp=4,ep=4,etp=1", "vllm:tp=4,ep=on,engines=2"},
    {"kimi_layers", kKimi, "megatron:tp=2,pp=4,ep=2,etp=1,layers=3|2|2|2", "vllm:tp=4,ep=on"},
    {"kimi_vpp_etp", kKimi, "megatron:tp=2,pp=2,ep=2,etp=2,vpp=2,layers=3|2|2|2",
     "vllm:tp=2,ep=on,pp=2"},
    {"qwen_kv_copies", kQwen, "megatron:tp=4,pp=2,ep=4,etp=1", "vllm:tp=16"},
    {"kimi_fused", kKimi, "megatron:tp=2,pp=2,ep=2,etp=1,fused=on", "vllm:tp=4,ep=on,fused=on"},
    {"qwen_fused", kQwen, "megatron:tp=8,ep=4,etp=2,fused=on", "sglang:tp=4,ep=2,fused=on"},
    {"qwen_fsdp", kQwen, "fsdp:world=6", "vllm:tp=4,ep=on,pp=2"},
};

class Families : public ::testing::TestWithParam<std::tuple<Job, const char*>> {};

TEST_P(Families, ReplayVerified) {
  const auto& [job, option] = GetParam();
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("model.json");
  std::ofstream(path) << job.config;
  InputSpec inputs;
  inputs.model = path;
  inputs.train = job.train;
  inputs.gen = std::string(job.gen) + (*option == 0 ? "" : ",") + option;
  inputs.fabric = "dgx-h100";
  expect_replay(load_problem(inputs), {});
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Job, const char*>>& info) {
  std::string name = std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Casts, Families,
                         ::testing::Combine(::testing::ValuesIn(kJobs),
                                            ::testing::Values("", "quant=mxfp8", "quant=fp8",
                                                              "quant=nvfp4")),
                         name_of);

// 128 x 128 blocks: only where the gen side's or the train side's cuts allow it.
INSTANTIATE_TEST_SUITE_P(
    Blocks, Families,
    ::testing::Combine(::testing::Values(kJobs[0], kJobs[1]),
                       ::testing::Values("quant=fp8_block,skip=*shared*|*kv_b*|*q_b*|*o_proj*")),
    name_of);

// ---- Random ones

/// A mesh of two axes; each shards a dimension or none, in chunks of `grain` elements (so that some
/// cuts lie between blocks).
RankMap random_map(Random& random, const Dims& shape, const std::vector<int32_t>& ranks) {
  Mesh mesh{{"a", "b"}, {1, static_cast<int32_t>(ranks.size())}, ranks};
  for (int32_t size = static_cast<int32_t>(random.in(1, mesh.size[1])); size > 1; --size) {
    if (mesh.size[1] % size != 0) continue;
    mesh.size = {size, mesh.size[1] / size};
    break;
  }
  const Placement placements[] = {{static_cast<int32_t>(random.in(-1, shape.count - 1))},
                                  {static_cast<int32_t>(random.in(-1, shape.count - 1))}};
  const Split split = random.in(0, 1) == 0 ? Split::kChunk : Split::kBalanced;
  return make_map(shape, mesh, placements, split, "test");
}

std::vector<int32_t> ranks_from(int32_t first, int64_t count) {
  std::vector<int32_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// Throws where the formats refuse the cuts.
Problem random_problem(Random& random) {
  constexpr Dtype kTrained[] = {Dtype::kBf16, Dtype::kBf16, Dtype::kFp32, Dtype::kFp16};
  constexpr Format kFormats[] = {Format::kNone, Format::kFp8Block, Format::kMxfp8, Format::kFp8,
                                 Format::kNvfp4};
  constexpr int64_t kRows[] = {32, 96, 128, 200, 256, 384};
  Problem problem;
  problem.model.name = "random";
  const std::vector<int32_t> train_ranks = ranks_from(0, random.in(1, 6));
  const auto first_gen = static_cast<int32_t>(
      random.in(0, 3) == 0 ? random.in(0, std::ssize(train_ranks) - 1) : std::ssize(train_ranks));
  const std::vector<int32_t> gen_ranks = ranks_from(first_gen, random.in(1, 6));
  std::vector<RankMap> train, gen;
  std::vector<Precision> train_precision, gen_precision;
  for (int64_t t = 0, count = random.in(1, 3); t < count; ++t) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(t) + ".weight";
    tensor.dtype = random.of(kTrained);
    tensor.shape = Dims{random.of(kRows), random.of(kRows) / 32 * 32};
    if (random.in(0, 2) == 0)
      tensor.shape = Dims{random.in(1, 4), tensor.shape[0], tensor.shape[1]};
    if (random.in(0, 5) == 0) tensor.shape = Dims{random.in(1, 300)};
    train.push_back(random_map(random, tensor.shape, train_ranks));
    gen.push_back(random_map(random, tensor.shape, gen_ranks));
    problem.model.tensors.push_back(tensor);
    constexpr CastAt kCasts[] = {CastAt::kAnywhere, CastAt::kOnSend, CastAt::kOnReceive};
    train_precision.push_back({tensor.dtype, CastAt::kNowhere});
    gen_precision.push_back({random.of(kTrained), random.of(kCasts)});
  }
  problem.train = testing::layout_of(train, train_ranks);
  problem.gen = testing::layout_of(gen, gen_ranks);
  problem.train.precision = train_precision;
  problem.gen.precision = gen_precision;
  problem.gen.quantisation = {random.of(kFormats), {}, random.in(0, 3) == 0};
  problem.casts = apply_casts(problem.model, problem.train, problem.gen);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  testing::place_on_small_fabric(problem);
  return problem;
}

/// A random problem, or one more until one is not refused.
Problem next_problem(Random& random, int& refused) {
  while (true) {
    try {
      return random_problem(random);
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool expected = what.find("cuts inside a") != std::string::npos ||
                            what.find("a cut inside a byte") != std::string::npos ||
                            what.find("a multiple of") != std::string::npos;
      if (!expected) throw;
      ++refused;
    }
  }
}

TEST(Casts, RandomPairsReplayVerified) {
  Random random(31);
  std::vector<std::string>
      strategies;  // baselines may stage boxes of their own, which quantised targets rule out
  for (const Strategy& strategy : all_strategies()) {
    if (!strategy.baseline) strategies.emplace_back(strategy.name);
  }
  int refused = 0, assembled = 0;
  constexpr int kPairs = 60;
  for (int pair = 0; pair < kPairs; ++pair) {
    const Problem problem = next_problem(random, refused);
    const std::string strategy = strategies[static_cast<size_t>(pair) % strategies.size()];
    SCOPED_TRACE("pair " + std::to_string(pair) + ", " + strategy);
    assembled += std::any_of(problem.casts.begin(), problem.casts.end(),
                             [](const Cast& cast) { return cast.assembled; });
    // Little staging now and then, so that assembly goes in waves.
    const int64_t staging = random.in(0, 1) == 0 ? int64_t{2} << 20 : int64_t{1} << 30;
    ASSERT_NO_FATAL_FAILURE(
        expect_replay(problem, {.strategy = strategy, .staging_bytes = staging}));
    if (HasFailure()) return;
  }
  EXPECT_LT(refused, 3 * kPairs);
  EXPECT_GT(assembled, kPairs / 10);
}

/// Changes one thing that has to do with casts.
void mutate(Plan& plan, Random& random) {
  constexpr Dtype kDtypes[] = {Dtype::kBf16,    Dtype::kFp32, Dtype::kFp16,
                               Dtype::kFp8E4m3, Dtype::kE8m0, Dtype::kFp4E2m1};
  constexpr Place kPlaces[] = {Place::kTrain, Place::kGen, Place::kStaging};
  Program* program = nullptr;
  while (program == nullptr || program->pieces.empty()) {
    program = &plan.programs[static_cast<size_t>(random.in(0, std::ssize(plan.programs) - 1))];
  }
  Piece& piece =
      program->pieces[static_cast<size_t>(random.in(0, std::ssize(program->pieces) - 1))];
  PlanTensor& tensor =
      plan.tensors[static_cast<size_t>(random.in(0, std::ssize(plan.tensors) - 1))];
  switch (random.in(0, 9)) {
    case 0:
      piece.wire = random.of(kDtypes);
      return;
    case 1:
      piece.tensor = static_cast<int32_t>(random.in(0, std::ssize(plan.tensors) - 1));
      return;
    case 2:
      piece.place = random.of(kPlaces);
      return;
    case 3:
      piece.area = static_cast<int32_t>(random.in(0, 3));
      return;
    case 4: {
      Box& box = program->boxes[static_cast<size_t>(piece.box)];
      if (box.dims() > 0) box.lo[0] += random.in(-1, 1);
      return;
    }
    case 5:
      tensor.format = static_cast<Format>(random.in(0, kFormatCount - 1));
      return;
    case 6:
      (random.in(0, 1) == 0 ? tensor.train_dtype : tensor.gen_dtype) = random.of(kDtypes);
      return;
    case 7:
      if (program->slots.empty()) return;
      program->slots[0].dtype = random.of(kDtypes);
      return;
    case 8:
      if (program->slots.size() < 2) return;
      program->slots[0].offset = program->slots[1].offset;
      return;
    default:
      for (Step& step : program->steps) {
        if (step.first_wait == step.last_wait) continue;
        --step.last_wait;
        return;
      }
  }
}

// What check lets pass has to arrive all the same.
TEST(Casts, MutantsAreRefusedOrHarmless) {
  Random random(77);
  int refused = 0, harmless = 0, skipped = 0;
  for (int pair = 0; pair < 12; ++pair) {
    const Problem problem = next_problem(random, skipped);
    const Plan plan = search(problem, {.staging_bytes = int64_t{4} << 20});
    for (int i = 0; i < 12; ++i) {
      Plan mutant = plan;
      mutate(mutant, random);
      if (mutant == plan) continue;
      if (!check(mutant).empty()) {
        ++refused;
        continue;
      }
      ++harmless;
      EXPECT_NO_THROW(replay_verified(mutant)) << "pair " << pair << ", mutant " << i;
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(harmless, 0);
}

}  // namespace
}  // namespace refit
