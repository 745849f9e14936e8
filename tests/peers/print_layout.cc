// print_layout MODEL LAYOUT: what a layout comes to, for dtensor.py. A line per tensor and rank:
// name, rank, then "lo:hi,lo:hi@offset/stride,stride" per shard.

#include <fmt/core.h>

#include "base/error.h"
#include "sim/layout/layout.h"
#include "sim/model/model.h"

int main(int argc, char** argv) {
  using namespace refit;
  if (argc != 3) {
    fmt::print(stderr, "usage: print_layout MODEL LAYOUT\n");
    return 2;
  }
  try {
    const Model model = load_model(argv[1], {.dtype = "", .mtp = false, .unknown_replicate = true});
    const Layout layout = load_layout(argv[2], model, Side::kTrain, 0);
    for (size_t t = 0; t < model.tensors.size(); ++t) {
      const RankMap& map = layout.maps[static_cast<size_t>(layout.tensor_map[t])];
      for (const auto& [rank, shards] : map.shards) {
        fmt::print("{} {}", model.tensors[t].name, rank);
        for (const Shard& shard : shards) {
          for (int dim = 0; dim < shard.box.dims(); ++dim) {
            fmt::print("{}{}:{}", dim == 0 ? " " : ",", shard.box.lo[dim], shard.box.hi[dim]);
          }
          fmt::print("@{}", shard.offset);
          for (int dim = 0; dim < shard.stride.count; ++dim) {
            fmt::print("{}{}", dim == 0 ? "/" : ",", shard.stride[dim]);
          }
        }
        fmt::print("\n");
      }
    }
  } catch (const Error& error) {
    fmt::print(stderr, "print_layout: {}\n", error.what());
    return 2;
  }
  return 0;
}
