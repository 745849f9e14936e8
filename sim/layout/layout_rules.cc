#include "sim/layout/layout_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/layout/glob.h"
#include "sim/layout/precision.h"
#include "sim/layout/quantise.h"

namespace refit {
namespace {

constexpr size_t kNamesShown = 3;  // of many in one message

/// The rule of every tensor. All that is wrong is said at once, with counts.
std::vector<size_t> match(const LayoutRules& side, const Model& model) {
  const std::vector<LayoutRule>& rules = side.rules;
  std::vector<std::string> missing, twice, unexpected;
  std::vector<size_t> rule_of_tensor;
  std::set<std::pair<size_t, size_t>> used;  // rule, pattern
  for (const Tensor& tensor : model.tensors) {
    std::vector<size_t> found;
    for (size_t r = 0; r < rules.size(); ++r) {
      for (size_t p = 0; p < rules[r].patterns.size(); ++p) {
        if (!match_glob(rules[r].patterns[p], tensor.name)) continue;
        used.insert({r, p});
        if (found.empty() || found.back() != r) found.push_back(r);
      }
    }
    if (found.empty() && !side.rest) missing.push_back(tensor.name);
    if (found.size() > 1) twice.push_back(tensor.name);
    rule_of_tensor.push_back(found.empty() ? rules.size() : found.front());
  }
  for (size_t r = 0; r < rules.size(); ++r) {
    for (size_t p = 0; p < rules[r].patterns.size(); ++p) {
      if (!used.contains({r, p})) unexpected.push_back(rules[r].patterns[p]);
    }
  }
  std::string wrong;
  const auto add = [&](const std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    const size_t shown = std::min(names.size(), kNamesShown);
    wrong +=
        fmt::format("{}{} {} ({}{})", wrong.empty() ? "" : "; ", names.size(), what,
                    fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "),
                    shown < names.size() ? ", ..." : "");
  };
  add(missing, "missing tensors");
  add(twice, "tensors with duplicate entries");
  add(unexpected, "unexpected names that no tensor of the model has");
  if (!wrong.empty()) {
    fail(side.place, wrong,
         "every tensor of the model in exactly one entry (absent: true where the side has a "
         "subset)");
  }
  return rule_of_tensor;
}

std::vector<Shard> shards_of(const RankBoxes& held, const Tensor& tensor) {
  std::vector<Shard> shards;
  std::vector<Box> local;  // where the boxes lie in the buffer
  int64_t end = 0;
  for (const StoredBox& stored : held.boxes) {
    const Box& box = stored.box;
    const std::string place = fmt::format("{}, tensor {}", stored.place, tensor.name);
    if (box.dims() != tensor.shape.count || !contains(whole(tensor.shape), box)) {
      fail(place, "box " + print_box(box), "a box inside " + print_box(whole(tensor.shape)));
    }
    for (const Shard& other : shards) {
      if (other.box == box || intersect(other.box, box).empty()) continue;
      fail(place, fmt::format("box {} over {}", print_box(box), print_box(other.box)),
           "boxes of a rank to be equal or apart");
    }
    if (!held.local_shape) {
      shards.push_back({box, end, dense_strides(box.extents())});
      end += box.volume();
      continue;
    }
    const Dims& at = stored.at;
    const Box room = whole(*held.local_shape);
    Box spot{at, at};
    for (int dim = 0; dim < at.count && dim < box.dims(); ++dim) {
      spot.hi[dim] += box.extent(dim);
    }
    if (at.count != box.dims() || room.dims() != box.dims() || !contains(room, spot)) {
      fail(place, fmt::format("{} at {}", print_box(box), print_shape(at)),
           "room in the local shape " + print_shape(*held.local_shape));
    }
    for (const Box& other : local) {
      if (intersect(other, spot).empty()) continue;
      fail(place, fmt::format("{} at {}, where another box lies", print_box(box), print_shape(at)),
           "a free place");
    }
    local.push_back(spot);
    const Dims stride = dense_strides(*held.local_shape);
    int64_t offset = 0;
    for (int dim = 0; dim < at.count; ++dim) offset += at[dim] * stride[dim];
    shards.push_back({box, offset, stride});
  }
  return shards;
}

/// What the rank's buffer has to look like, from the declared shape of it: the same number of
/// elements, and as many in each dimension where the buffer is one box.
void check_local_shape(const RankMap& map, int32_t rank, const Dims& declared,
                       const std::string& place) {
  const std::vector<Shard>* shards = map.find(rank);
  int64_t elements = 0;
  for (const Shard& shard : shards != nullptr ? *shards : std::vector<Shard>{}) {
    elements += shard.box.volume();
  }
  const bool one_box = shards != nullptr && shards->size() == 1;
  if (one_box ? declared == shards->front().box.extents() : declared.product() == elements) return;
  fail(fmt::format("{}, rank {}", place, rank), "local shape " + print_shape(declared),
       one_box
           ? print_shape(shards->front().box.extents()) + ", the shape that its placement gives"
           : fmt::format("a shape of {} elements, the size that its placement gives", elements));
}

RankMap map_of(const LayoutRule& rule, const Tensor& tensor) {
  const std::string place = fmt::format("{}, tensor {}", rule.place, tensor.name);
  if (rule.global_shape && *rule.global_shape != tensor.shape) {
    fail(place, "global shape " + print_shape(*rule.global_shape),
         print_shape(tensor.shape) + ", the model's");
  }
  RankMap map;
  for (const MeshPart& part : rule.parts) {
    RankMap of_part = make_map(tensor.shape, part.mesh, part.placements, part.split,
                               fmt::format("{}, tensor {}", part.place, tensor.name), part.storage);
    map.shards.insert(map.shards.end(), std::make_move_iterator(of_part.shards.begin()),
                      std::make_move_iterator(of_part.shards.end()));
  }
  for (const RankBoxes& held : rule.boxes) {
    std::vector<Shard> shards = shards_of(held, tensor);
    if (!shards.empty()) map.shards.emplace_back(held.rank, std::move(shards));
  }
  std::sort(map.shards.begin(), map.shards.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [rank, declared] : rule.local_shapes) {
    check_local_shape(map, rank, declared, place);
  }
  return map;
}

}  // namespace

std::string print_shape(const Dims& shape) {
  std::string text;
  for (int dim = 0; dim < shape.count; ++dim) {
    text += fmt::format("{}{}", dim == 0 ? "" : ", ", shape[dim]);
  }
  return "[" + text + "]";
}

Layout place_by_rules(const LayoutRules& side, const Model& model) {
  const std::vector<size_t> rule_of_tensor = match(side, model);
  if (side.ranks.empty()) fail(side.place, "no ranks", "at least one");
  Layout layout;
  layout.ranks.assign(side.ranks.begin(), side.ranks.end());
  std::map<std::pair<size_t, Dims>, int32_t> maps;  // by rule and shape
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    const Tensor& tensor = model.tensors[t];
    const size_t index = rule_of_tensor[t];
    const auto [it, is_new] =
        maps.try_emplace({index, tensor.shape}, static_cast<int32_t>(layout.maps.size()));
    if (is_new) {
      layout.maps.push_back(
          map_of(index < side.rules.size() ? side.rules[index] : *side.rest, tensor));
    }
    layout.tensor_map.push_back(it->second);
    const LayoutRule& rule = index < side.rules.size() ? side.rules[index] : *side.rest;
    layout.precision.push_back({rule.dtype.value_or(tensor.dtype), rule.cast});
  }
  check_skip(side.quantisation, model, side.place);
  layout.quantisation = side.quantisation;
  if (side.scales_follow) follow_weights(model, layout);
  return layout;
}

}  // namespace refit
