#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

constexpr int32_t kMaxLayersPerStage = 1 << 20;

/// A product of sizes, refused when it is more than a side may have.
int32_t ranks_of(int64_t a, int64_t b, std::string_view what, const std::string& place) {
  if (a * b > kMaxRanks) {
    fail(place, fmt::format("{} = {} * {} ranks", what, a, b),
         fmt::format("at most {}", kMaxRanks));
  }
  return static_cast<int32_t>(a * b);
}

/// Ranks of one stage, W.
int32_t stage_ranks(const MegatronSizes& sizes, const std::string& place) {
  const int32_t pp = sizes.stages.pp;
  const int32_t dense = ranks_of(sizes.tp, sizes.cp, "tp * cp", place);
  const int32_t experts = ranks_of(sizes.etp, sizes.ep, "etp * ep", place);

  // Every size that was given says what W is.
  struct Claim {
    std::string text;
    int32_t ranks;
  };
  std::vector<Claim> claims;
  if (sizes.world) {
    if (*sizes.world % pp != 0) {
      fail(place, fmt::format("world={}", *sizes.world), fmt::format("a multiple of pp={}", pp));
    }
    claims.push_back({fmt::format("world / pp = {} / {}", *sizes.world, pp), *sizes.world / pp});
  }
  if (sizes.dp) {
    claims.push_back({fmt::format("tp * cp * dp = {} * {} * {}", sizes.tp, sizes.cp, *sizes.dp),
                      ranks_of(dense, *sizes.dp, "tp * cp * dp", place)});
  }
  if (sizes.edp) {
    claims.push_back({fmt::format("etp * ep * edp = {} * {} * {}", sizes.etp, sizes.ep, *sizes.edp),
                      ranks_of(experts, *sizes.edp, "etp * ep * edp", place)});
  }
  if (claims.empty()) {
    const int32_t common = std::gcd(dense, experts);
    claims.push_back({"lcm(tp * cp, etp * ep)",
                      ranks_of(dense / common, experts, "lcm(tp * cp, etp * ep)", place)});
  }
  for (const Claim& claim : claims) {
    if (claim.ranks != claims[0].ranks) {
      fail(place,
           fmt::format("{} ranks a stage from {}, but {} from {}", claims[0].ranks, claims[0].text,
                       claim.ranks, claim.text),
           "sizes that agree");
    }
  }
  const Claim& claim = claims[0];
  if (claim.ranks % dense != 0) {
    fail(place, fmt::format("{} ranks a stage from {}", claim.ranks, claim.text),
         fmt::format("a multiple of tp * cp = {} * {}", sizes.tp, sizes.cp));
  }
  if (claim.ranks % experts != 0) {
    fail(place, fmt::format("{} ranks a stage from {}", claim.ranks, claim.text),
         fmt::format("a multiple of etp * ep = {} * {}", sizes.etp, sizes.ep));
  }
  return claim.ranks;
}

/// The axes of one grid in the order of `order`. `size_of` gives an axis' size, `name_of` how
/// place_tensors calls it.
template <class SizeOf, class NameOf>
RankOrder rank_order(const std::string& order, SizeOf size_of, NameOf name_of,
                     const std::string& place) {
  constexpr std::array<std::string_view, 5> kAxes{"tp", "cp", "ep", "dp", "pp"};
  RankOrder result;
  std::vector<std::string_view> seen;
  for (const std::string_view axis : split_text(order, '-')) {
    if (std::find(kAxes.begin(), kAxes.end(), axis) == kAxes.end()) {
      fail(place, fmt::format("axis {} in order", quote(axis)),
           fmt::format("one of {}", fmt::join(kAxes, ", ")));
    }
    if (std::find(seen.begin(), seen.end(), axis) != seen.end()) {
      fail(place, fmt::format("axis {} twice in order", axis), "every axis once");
    }
    seen.push_back(axis);
    result.axis.push_back(name_of(axis));
    result.size.push_back(size_of(axis));
  }
  for (const std::string_view axis : kAxes) {
    if (std::find(seen.begin(), seen.end(), axis) != seen.end()) continue;
    if (size_of(axis) != 1) {
      fail(place, fmt::format("an order without {}, of size {}", axis, size_of(axis)),
           "every axis of more than one rank");
    }
    result.axis.push_back(name_of(axis));
    result.size.push_back(1);
  }
  return result;
}

std::vector<int32_t> sorted(std::vector<int32_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

int32_t megatron_world(const MegatronSizes& sizes, const std::string& place) {
  return ranks_of(sizes.stages.pp, stage_ranks(sizes, place), "pp * ranks a stage", place);
}

Layout megatron_layout(const Model& model, const MegatronSizes& sizes,
                       const std::vector<int32_t>& ranks, const std::string& place) {
  const int32_t width = stage_ranks(sizes, place), pp = sizes.stages.pp;
  const RankOrder dense = rank_order(
      sizes.order,
      [&](std::string_view axis) {
        if (axis == "tp") return sizes.tp;
        if (axis == "cp") return sizes.cp;
        if (axis == "dp") return width / (sizes.tp * sizes.cp);
        return axis == "pp" ? pp : 1;
      },
      // "ep" has size 1 here and must not cut dense tensors.
      [](std::string_view axis) { return std::string(axis == "ep" ? "-" : axis); }, place);
  const RankOrder experts = rank_order(
      sizes.order,
      [&](std::string_view axis) {
        if (axis == "tp") return sizes.etp;
        if (axis == "ep") return sizes.ep;
        if (axis == "dp") return width / (sizes.etp * sizes.ep);
        return axis == "pp" ? pp : 1;
      },
      [](std::string_view axis) {
        return std::string(axis == "tp" ? "etp" : axis == "dp" ? "edp" : axis);
      },
      place);

  Stages stages = deal_layers(model.layers, sizes.stages, place);
  Grid grid;
  grid.framework = Framework::kMegatron;
  grid.fused = sizes.fused;
  grid.vocab_multiple = int64_t{sizes.vocab} * sizes.tp;
  grid.stage_of_layer = std::move(stages.of_layer);
  grid.notes = std::move(stages.notes);
  for (int32_t stage = 0; stage < pp; ++stage) {
    grid.stages.push_back(
        {slice_mesh(dense, "pp", stage, ranks), slice_mesh(experts, "pp", stage, ranks)});
    if (sorted(grid.stages.back().dense.ranks) != sorted(grid.stages.back().experts.ranks)) {
      fail(place,
           fmt::format(
               "order={} with other ranks in stage {} of the dense grid (tp, cp, dp = {}, {}, {}) "
               "than of the expert grid (etp, ep, edp = {}, {}, {})",
               sizes.order, stage, sizes.tp, sizes.cp, width / (sizes.tp * sizes.cp), sizes.etp,
               sizes.ep, width / (sizes.etp * sizes.ep)),
           "the same, as with pp last");
    }
  }
  return place_tensors(model, grid, ranks, place);
}

Layout load_megatron(const std::string& text, const Model& model, int32_t first_rank) {
  constexpr std::array<std::string_view, 16> kKeys{
      "tp",    "pp",    "ep",    "etp",  "cp",     "dp",    "edp",   "vpp",
      "order", "world", "first", "last", "layers", "ranks", "vocab", "fused"};
  const Spec spec(text, kKeys);
  MegatronSizes sizes;
  sizes.tp = spec.size("tp", 1);
  sizes.ep = spec.size("ep", 1);
  sizes.etp = spec.size("etp", sizes.tp);
  sizes.cp = spec.size("cp", 1);
  sizes.dp = spec.size("dp");
  sizes.edp = spec.size("edp");
  sizes.world = spec.size("world");
  if (const std::string* order = spec.find("order")) sizes.order = *order;
  sizes.vocab = spec.size("vocab", sizes.vocab);
  sizes.fused = spec.is_on("fused");
  sizes.stages.pp = spec.size("pp", 1);
  sizes.stages.vpp = spec.size("vpp", 1);
  if (const std::string* first = spec.find("first")) {
    sizes.stages.first =
        static_cast<int32_t>(parse_int(*first, 0, kMaxLayersPerStage, spec.place("first")));
  }
  if (const std::string* last = spec.find("last")) {
    sizes.stages.last =
        static_cast<int32_t>(parse_int(*last, 0, kMaxLayersPerStage, spec.place("last")));
  }
  if (const std::string* layers = spec.find("layers")) {
    const int32_t chunks = ranks_of(sizes.stages.pp, sizes.stages.vpp, "pp * vpp", spec.place());
    sizes.stages.layers = parse_layers(*layers, chunks, spec.place("layers"));
  }
  const std::string place = spec.place();
  return megatron_layout(model, sizes, grid_ranks(spec, megatron_world(sizes, place), first_rank),
                         place);
}

}  // namespace refit
