#include <gtest/gtest.h>

#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

struct Case {
  std::string spec;
  std::vector<std::string> words;  // that the message has, besides the layout's text
};

void expect_refused(const Case& bad, const Model& model) {
  std::vector<std::string> words = bad.words;
  words.push_back(bad.spec);
  expect_layout_refused(bad.spec, model, Side::kTrain, words);
}

TEST(LayoutErrors, Text) {
  const Model model = make_small_model({.layers = 4, .experts = 4});
  const std::vector<Case> cases{
      {"", {"no such file"}},
      {"megatron", {"no such file", "megatron:KEY=VALUE"}},
      {"megatron:", {"key=value"}},
      {"megatron:tp", {"\"tp\"", "key=value"}},
      {"megatron:tp=2,", {"key=value"}},
      {"megatron:=2", {"\"=2\""}},
      {"megatron:tp=", {"key tp", "\"\""}},
      {"megatron:tp=0", {"key tp", "0"}},
      {"megatron:tp=-2", {"key tp", "-2"}},
      {"megatron:tp=x", {"key tp", "x"}},
      {"megatron:tp=2x", {"key tp", "2x"}},
      {"megatron:tp= 2", {"key tp", " 2"}},
      {"megatron:tp=1e3", {"key tp", "1e3"}},
      {"megatron:tp=99999999999999999999", {"key tp"}},
      {"megatron:tp=2,pp=2,tp=2", {"key tp", "only once"}},
      {"megatron:TP=2", {"unknown key \"TP\"", "tp, pp, ep"}},
      {"megatron:engines=2", {"unknown key \"engines\""}},
      {"megatron:tp=2, pp=2", {"unknown key \" pp\""}},
      {"vllm:tp=2,etp=2", {"unknown key \"etp\"", "engines"}},
      {"vllm:tp=2,ep=2", {"key ep", "\"2\"", "on or off"}},
      {"vllm:ep=", {"key ep", "on or off"}},
      {"fsdp:ranks=0-3", {"world=N"}},
      {"fsdp:world=2,ep=2", {"unknown key \"ep\""}},
      {"fsdp:world=6,tp=4", {"key world", "6", "a multiple of replicas * tp = 1 * 4"}},
      {"vllm:tp=2,fused=yes", {"key fused", "\"yes\"", "on or off"}},
      {"megatron:tp=2,vocab=0", {"key vocab", "0"}},
      {"trtllm:tp=2", {"unknown kind \"trtllm\"", "megatron", "vllm", "sglang", "fsdp"}},
      {"sglang:tp=4,ep=3", {"key ep", "3", "a divisor of tp=4"}},
      {"sglang:tp=2,ep=on", {"key ep", "on"}},
      {"sglang:tp=2,dp_attention=on", {"unknown key \"dp_attention\""}},
      {"/no/such/file.json", {"no such file"}},
  };
  for (const Case& bad : cases) expect_refused(bad, model);
}

TEST(LayoutErrors, Grids) {
  const Model model = make_small_model({.layers = 4, .experts = 4});
  const std::vector<Case> cases{
      {"megatron:tp=2,world=5", {"5 ranks", "tp * cp = 2 * 1"}},
      {"megatron:pp=2,world=5", {"world=5", "pp=2"}},
      {"megatron:tp=2,dp=2,world=8", {"8 ranks", "4 from tp * cp * dp = 2 * 1 * 2"}},
      {"megatron:dp=2,edp=4", {"2 ranks", "4 from etp * ep * edp = 1 * 1 * 4"}},
      {"megatron:ep=4,dp=2", {"2 ranks", "etp * ep = 1 * 4"}},
      {"megatron:tp=2,etp=1,edp=3", {"3 ranks", "tp * cp = 2 * 1"}},
      {"megatron:tp=65536,cp=65536", {"tp * cp = 65536 * 65536", "at most"}},
      {"megatron:etp=65536,ep=65536", {"etp * ep = 65536 * 65536"}},
      {"megatron:tp=65535,etp=65536", {"lcm"}},
      {"megatron:tp=65536,pp=2", {"pp * ranks a stage = 2 * 65536"}},
      {"megatron:tp=2,order=tp-tp-dp", {"axis tp twice"}},
      {"megatron:tp=2,order=tp-xp", {"\"xp\"", "tp, cp, ep, dp, pp"}},
      {"megatron:tp=2,order=", {"axis \"\""}},
      {"megatron:tp=2,pp=2,order=tp-dp", {"without pp, of size 2"}},
      {"megatron:tp=2,ep=2,order=tp-cp-dp-pp", {"without ep, of size 2"}},
      {"megatron:dp=2,order=tp-pp", {"without dp, of size 2"}},
      // Dense stage 0: ranks 0-3 (tp, cp); experts: etp=2, then pp: ranks 0, 1, 4, 5.
      {"megatron:tp=2,cp=2,pp=2,order=tp-cp-pp-ep-dp",
       {"other ranks in stage 0", "2, 2, 1", "2, 1, 2"}},
      {"megatron:pp=2,layers=2", {"key layers", "1 stages", "2, that is pp * vpp"}},
      {"megatron:pp=2,layers=2|3", {"5 in all", "4, the model's"}},
      {"megatron:pp=2,layers=2|2,first=2", {"first="}},
      {"megatron:pp=2,vpp=4", {"vpp=4"}},
      {"megatron:pp=3,first=1", {"first=1", "last=unset", "4 layers over pp=3"}},
      {"megatron:pp=2,first=-1", {"key first", "-1"}},
      {"megatron:pp=2,last=two", {"key last", "two"}},
      {"megatron:pp=65536,vpp=65536,layers=4", {"pp * vpp"}},
      {"vllm:tp=65536,dp=65536,pp=65536,engines=65536", {"at most 65536"}},
      {"vllm:pp=2,layers=4", {"key layers"}},
  };
  for (const Case& bad : cases) expect_refused(bad, model);
}

TEST(LayoutErrors, Ranks) {
  const Model model = make_small_model({});
  const std::vector<Case> cases{
      {"megatron:tp=2,ranks=0", {"key ranks", "1 ranks", "2, the grid's"}},
      {"megatron:tp=2,ranks=0-2", {"3 ranks"}},
      {"megatron:tp=2,ranks=1|1", {"rank 1 more than once"}},
      {"fsdp:world=4,ranks=0-2|2", {"rank 2 more than once"}},
      {"vllm:tp=2,ranks=1-0", {"\"1-0\"", "ascends"}},
      {"vllm:tp=2,ranks=", {"key ranks"}},
      {"vllm:tp=2,ranks=0|", {"key ranks"}},
      {"vllm:tp=2,ranks=-1|0", {"key ranks", "-1"}},
      {"vllm:tp=2,ranks=0-", {"key ranks"}},
      {"vllm:tp=2,ranks=0-1-2", {"key ranks", "1-2"}},
      {"vllm:tp=2,ranks=0|65536", {"key ranks", "65536"}},
      {"vllm:tp=2,ranks=a|b", {"key ranks", "a"}},
      {"vllm:tp=2,ranks=0-65535|0-65535|0-65535", {"more than once"}},
  };
  for (const Case& bad : cases) expect_refused(bad, model);
}

TEST(LayoutErrors, Tensors) {
  const Model model = make_small_model({.layers = 1, .experts = 4});
  // q has 16 rows, o 16 columns, k 2 heads, gate 4 experts of 12 rows.
  const std::vector<Case> cases{
      {"megatron:tp=3", {"tensor 0.q", "dimension 0 over tp=3", "extent 16", "a multiple of 3"}},
      {"megatron:ep=3", {"tensor 0.gate", "dimension 0 over ep=3", "extent 4"}},
      {"megatron:etp=8", {"tensor 0.gate", "dimension 1 over etp=8", "extent 12"}},
      {"vllm:tp=8", {"tensor 0.gate", "dimension 1 over etp=8"}},
  };
  for (const Case& bad : cases) expect_refused(bad, model);

  // The vocabulary of 10 with padding is 64, and 12.
  expect_refused({"vllm:tp=3", {"tensor embed", "64 with padding", "over tp=3"}}, model);
  expect_refused({"vllm:tp=8,vocab=12", {"tensor embed", "12 with padding", "over tp=8"}}, model);
  expect_refused({"fsdp:world=4,tp=2", {"tensor 0.gate", "experts over tp=2"}}, model);

  Model heads = make_small_model({.layers = 1, .kv_heads = 3});
  expect_refused({"vllm:tp=2", {"tensor 0.k", "3 KV heads over tp=2", "one to divide the other"}},
                 heads);
  heads.kv_heads = 0;
  expect_refused({"vllm:tp=2", {"tensor 0.k", "unknown number of KV heads"}}, heads);
  heads.kv_heads = 4;  // 6 rows are not 4 heads
  expect_refused({"vllm:tp=8", {"tensor 0.k", "dimension 0 over kv=4", "extent 6"}}, heads);

  Model scalar = make_small_model({});
  scalar.tensors.push_back(
      {"scale", Dims{}, Dtype::kFp32, Role::kReplicated, Block::kLayer, 0, false});
  EXPECT_NO_THROW(load_layout("vllm:tp=2", scalar, Side::kGen, 0));
  expect_refused({"fsdp:world=2", {"tensor scale", "0 dimensions", "at least 1"}}, scalar);
}

}  // namespace
}  // namespace refit
