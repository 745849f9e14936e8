#include <fmt/format.h>

#include <numeric>

#include "base/document.h"
#include "base/error.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/layout_file.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

/// The fields of one half, by the names of the file.
struct SystemHalf {
  int32_t num_gpus, tp, cp, ep, pp, fsdp, dp;
};

SystemHalf parse_half(const Value& value) {
  const auto size = [&](std::string_view key) {
    return static_cast<int32_t>(value.at(key).as_int(1, kMaxRanks));
  };
  const SystemHalf half{size("num_gpus"), size("tp_size"),   size("cp_size"), size("ep_size"),
                        size("pp_size"),  size("fsdp_size"), size("dp_size")};
  value.finish();
  return half;
}

/// `dp_size` counts the replicas of the experts when there is expert parallelism (the published
/// files: num_gpus = ep * pp * dp at tp = cp = 1), and of the whole stage when there is none.
MegatronSizes megatron_sizes(const SystemHalf& half) {
  MegatronSizes sizes;
  sizes.tp = half.tp;
  sizes.cp = half.cp;
  sizes.ep = half.ep;
  sizes.etp = half.ep > 1 ? 1 : half.tp;
  (half.ep > 1 ? sizes.edp : sizes.dp) = half.dp;
  sizes.stages.pp = half.pp;
  sizes.vocab = 1;  // a benchmark: rows as they are
  return sizes;
}

void expect_gpus(const SystemHalf& half, int64_t ranks, std::string_view formula,
                 const std::string& place) {
  if (half.num_gpus == ranks) return;
  fail(place, fmt::format("num_gpus {}", half.num_gpus),
       fmt::format("{}, that is {}", ranks, formula));
}

}  // namespace

Layout read_m2n_system(const Value& root, const Model& model, Side side, int32_t first_rank) {
  const Value& train = root.at("train");
  const Value& generation = root.at("generation");
  root.finish();
  // Both halves are read, so that an error in either shows whichever is asked for.
  const SystemHalf train_half = parse_half(train), generation_half = parse_half(generation);
  const SystemHalf& half = side == Side::kTrain ? train_half : generation_half;
  const std::string place = (side == Side::kTrain ? train : generation).place();

  std::vector<int32_t> ranks(static_cast<size_t>(half.num_gpus));
  std::iota(ranks.begin(), ranks.end(), first_rank);
  if (half.fsdp > 1) {
    if (half.tp > 1 || half.cp > 1 || half.ep > 1 || half.pp > 1) {
      fail(place,
           fmt::format("fsdp_size {} with tp_size {}, cp_size {}, ep_size {}, pp_size {}",
                       half.fsdp, half.tp, half.cp, half.ep, half.pp),
           "fsdp_size 1, or 1 for the others");
    }
    expect_gpus(half, int64_t{half.fsdp} * half.dp, "fsdp_size * dp_size", place);
    return fsdp_layout(model, {.replicas = half.dp, .shards = half.fsdp, .tp = 1}, ranks, place);
  }
  const MegatronSizes sizes = megatron_sizes(half);
  expect_gpus(half, megatron_world(sizes, place),
              half.ep > 1 ? "pp_size * ep_size * dp_size" : "pp_size * tp_size * cp_size * dp_size",
              place);
  return megatron_layout(model, sizes, ranks, place);
}

}  // namespace refit
