// Layout files: placements per tensor, in YAML or JSON (docs/layouts.md).

#include "sim/layout/layout_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "sim/layout/glob.h"
#include "sim/layout/layout_rules.h"
#include "sim/layout/precision.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

const Value& as_list(const Value& value) {
  value.size();  // fails when it is none
  return value;
}

Dims read_dims(const Value& value, int64_t lo) {
  if (value.size() > static_cast<size_t>(kMaxDims)) {
    fail(value.place(), fmt::format("{} dimensions", value.size()),
         fmt::format("at most {}", kMaxDims));
  }
  Dims dims;
  for (size_t i = 0; i < value.size(); ++i) {
    dims[dims.count++] = value[i].as_int(lo, int64_t{1} << 40);
  }
  return dims;
}

int32_t read_rank(const std::string& text, const std::string& place) {
  return static_cast<int32_t>(parse_int(text, 0, kMaxRanks - 1, place));
}

/// Appends the ranks of nested lists, row-major.
void read_rank_lists(const Value& value, std::vector<int32_t>& ranks) {
  if (value.kind() == Value::Kind::kScalar) {
    ranks.push_back(static_cast<int32_t>(value.as_int(0, kMaxRanks - 1)));
    return;
  }
  for (size_t i = 0; i < value.size(); ++i) read_rank_lists(value[i], ranks);
}

Placement read_placement(const Value& value) {
  const std::string& text = value.as_text();
  constexpr std::string_view kExpected = "replicate, shard(DIM) or \"strided_shard(DIM, PIECES)\"";
  if (text == "replicate") return {};
  if (text.starts_with("partial")) {
    fail(value.place(), "placement " + quote(text) + ", of which no rank holds the sum", kExpected);
  }
  const auto number = [&](std::string_view part, int64_t lo, int64_t hi) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    return static_cast<int32_t>(parse_int(part, lo, hi, value.place()));
  };
  for (const std::string_view name : {"shard(", "strided_shard("}) {
    if (!text.starts_with(name) || !text.ends_with(')')) continue;
    const auto parts =
        split_text(std::string_view(text).substr(name.size(), text.size() - name.size() - 1), ',');
    if (parts.size() != (name == "shard(" ? 1 : 2)) break;
    return {number(parts[0], 0, kMaxDims - 1),
            parts.size() == 1 ? 1 : number(parts[1], 1, kMaxRanks)};
  }
  fail(value.place(), "placement " + quote(text), kExpected);
}

Split read_split(const Value& value) {
  const std::string& text = value.as_text();
  if (text == "even") return Split::kEven;
  if (text == "chunk") return Split::kChunk;
  if (text == "balanced") return Split::kBalanced;
  fail(value.place(), quote(text), "even, chunk or balanced");
}

Storage read_storage(const Value& value) {
  const std::string& text = value.as_text();
  if (text == "row_major") return Storage::kRowMajor;
  if (text == "column_major") return Storage::kColumnMajor;
  fail(value.place(), quote(text), "row_major or column_major");
}

/// The same mesh with its axes in the order of `names`: the order in which they cut.
void reorder_axes(const Value& names, MeshPart& part) {
  const Mesh& mesh = part.mesh;
  std::vector<size_t> order;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto axis = std::find(mesh.axis.begin(), mesh.axis.end(), names[i].as_text());
    if (axis == mesh.axis.end()) {
      fail(names[i].place(), quote(names[i].as_text()),
           fmt::format("one of the axes {}", fmt::join(mesh.axis, ", ")));
    }
    order.push_back(static_cast<size_t>(axis - mesh.axis.begin()));
    if (std::count(order.begin(), order.end(), order.back()) > 1) {
      fail(names[i].place(), "axis " + *axis + " a second time", "every axis once");
    }
  }
  if (order.size() != mesh.axis.size()) {
    fail(names.place(), fmt::format("{} axes", order.size()),
         fmt::format("all {}", mesh.axis.size()));
  }
  Mesh turned;
  std::vector<Placement> placements;
  std::vector<int64_t> stride(mesh.axis.size(), 1);  // in the list of ranks
  for (size_t axis = mesh.axis.size(); axis-- > 1;) {
    stride[axis - 1] = stride[axis] * mesh.size[axis];
  }
  std::vector<int64_t> positions{0};
  for (const size_t axis : order) {
    turned.axis.push_back(mesh.axis[axis]);
    turned.size.push_back(mesh.size[axis]);
    placements.push_back(part.placements[axis]);
    std::vector<int64_t> next;
    for (const int64_t position : positions) {
      for (int64_t i = 0; i < mesh.size[axis]; ++i) next.push_back(position + i * stride[axis]);
    }
    positions = std::move(next);
  }
  for (const int64_t position : positions) {
    turned.ranks.push_back(mesh.ranks[static_cast<size_t>(position)]);
  }
  part.mesh = std::move(turned);
  part.placements = std::move(placements);
}

Box read_box(const Value& value) {
  Box box;
  if (value.size() > static_cast<size_t>(kMaxDims)) {
    fail(value.place(), fmt::format("{} dimensions", value.size()),
         fmt::format("at most {}", kMaxDims));
  }
  box.lo.count = box.hi.count = static_cast<int32_t>(value.size());
  for (int dim = 0; dim < box.dims(); ++dim) {
    const Value& range = value[static_cast<size_t>(dim)];
    const Dims bounds = read_dims(range, 0);
    if (bounds.count != 2 || bounds[0] >= bounds[1]) {
      fail(range.place(), print_shape(bounds), "[LO, HI] with LO < HI");
    }
    box.lo[dim] = bounds[0];
    box.hi[dim] = bounds[1];
  }
  return box;
}

/// Reads one file.
class FileReader {
 public:
  FileReader(const Value& root, int32_t first_rank) : root_(root), first_rank_(first_rank) {}

  LayoutRules read() {
    rules_.place = root_.place();
    if (const Value* meshes = root_.find("meshes")) {
      for (const auto& [name, mesh] : meshes->items()) meshes_.emplace(name, read_mesh(*mesh));
    }
    if (const Value* ranks = root_.find("ranks")) {
      const auto all = read_ranks(*ranks, std::nullopt);
      rules_.ranks.insert(all.begin(), all.end());
    }
    if (const Value* tensors = root_.find("tensors")) {
      for (size_t i = 0; i < tensors->size(); ++i)
        rules_.rules.push_back(read_rule((*tensors)[i], true));
    }
    if (const Value* value = root_.find("default")) rules_.rest = read_rule(*value, false);
    if (const Value* quant = root_.find("quant")) read_quant(*quant);
    if (const Value* scales = root_.find("scales")) {
      rules_.quantisation.whole_scales = parse_scales(scales->as_text(), scales->place());
      rules_.scales_follow = true;
    }
    root_.finish();
    if (rules_.rules.empty() && !rules_.rest) {
      fail(root_.place(), "no tensors", "tensors or default");
    }
    return std::move(rules_);
  }

 private:
  /// "0-7|16", a list, nested lists or one number; nothing: first_rank on.
  std::vector<int32_t> read_ranks(const Value& value, std::optional<int32_t> count) const {
    std::vector<int32_t> ranks;
    if (value.kind() == Value::Kind::kScalar) {
      return parse_ranks(value.as_text(), count, value.place());
    }
    read_rank_lists(as_list(value), ranks);
    check_ranks(ranks, count, value.place());
    return ranks;
  }

  /// A format, or {format: ..., skip: [patterns]}.
  void read_quant(const Value& value) {
    Quantisation& quant = rules_.quantisation;
    if (value.kind() == Value::Kind::kScalar) {
      quant.format = parse_format(value.as_text(), value.place());
      return;
    }
    const Value& format = value.at("format");
    quant.format = parse_format(format.as_text(), format.place());
    if (const Value* skip = value.find("skip")) {
      for (size_t i = 0; i < skip->size(); ++i) {
        quant.skip.push_back((*skip)[i].as_text());
        check_glob(quant.skip.back(), (*skip)[i].place());
      }
    }
    value.finish();
  }

  Mesh read_mesh(const Value& value) {
    if (value.kind() == Value::Kind::kScalar) {
      const auto found = meshes_.find(value.as_text());
      if (found != meshes_.end()) return found->second;
      fail(value.place(), "mesh " + quote(value.as_text()), "one of `meshes`, or a mesh");
    }
    Mesh mesh;
    const Value& axes = value.at("axes");
    const Value& sizes = value.at("sizes");
    for (size_t i = 0; i < axes.size(); ++i) {
      const std::string& axis = axes[i].as_text();
      if (std::find(mesh.axis.begin(), mesh.axis.end(), axis) != mesh.axis.end()) {
        fail(axes[i].place(), "axis " + quote(axis) + " a second time", "every axis once");
      }
      mesh.axis.push_back(axis);
    }
    int64_t count = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      mesh.size.push_back(static_cast<int32_t>(sizes[i].as_int(1, kMaxRanks)));
      count *= mesh.size.back();
      if (count > kMaxRanks) {
        fail(sizes.place(), "a mesh of more ranks", fmt::format("at most {}", kMaxRanks));
      }
    }
    if (mesh.size.size() != mesh.axis.size()) {
      fail(sizes.place(), fmt::format("{} sizes", mesh.size.size()),
           fmt::format("{}, one per axis", mesh.axis.size()));
    }
    if (const Value* ranks = value.find("ranks")) {
      mesh.ranks = read_ranks(*ranks, static_cast<int32_t>(count));
    } else {
      mesh.ranks.resize(static_cast<size_t>(count));
      std::iota(mesh.ranks.begin(), mesh.ranks.end(), first_rank_);
    }
    value.finish();
    return mesh;
  }

  /// The mesh, the placements and what goes with them; `value` may have other keys.
  MeshPart read_part(const Value& value) {
    MeshPart part;
    part.place = value.place();
    part.mesh = read_mesh(value.at("mesh"));
    const Value& placements = value.at("placements");
    for (size_t i = 0; i < placements.size(); ++i) {
      part.placements.push_back(read_placement(placements[i]));
    }
    if (part.placements.size() != part.mesh.axis.size()) {
      fail(placements.place(), fmt::format("{} placements", part.placements.size()),
           fmt::format("{}, one per axis of the mesh", part.mesh.axis.size()));
    }
    if (const Value* split = value.find("split")) part.split = read_split(*split);
    if (const Value* storage = value.find("storage")) part.storage = read_storage(*storage);
    if (const Value* order = value.find("order")) reorder_axes(*order, part);
    rules_.ranks.insert(part.mesh.ranks.begin(), part.mesh.ranks.end());
    return part;
  }

  void read_parts(const Value& list, LayoutRule& rule) {
    std::map<int32_t, size_t> part_of_rank;
    for (size_t i = 0; i < list.size(); ++i) {
      MeshPart part = read_part(list[i]);
      list[i].finish();
      for (const int32_t rank : part.mesh.ranks) {
        const auto [it, is_new] = part_of_rank.try_emplace(rank, i);
        if (is_new) continue;
        fail(part.place,
             fmt::format("duplicate rank {}, which parts[{}] has too", rank, it->second),
             "parts with disjoint ranks");
      }
      rule.parts.push_back(std::move(part));
    }
  }

  void read_boxes(const Value& ranks, LayoutRule& rule) {
    for (const auto& [text, value] : ranks.items()) {
      RankBoxes held;
      held.rank = read_rank(text, value->place());
      rules_.ranks.insert(held.rank);
      const Value* boxes = value;
      if (value->kind() == Value::Kind::kMap) {
        held.local_shape = read_dims(value->at("shape"), 0);
        boxes = &value->at("boxes");
      }
      for (size_t i = 0; i < boxes->size(); ++i) {
        const Value& entry = (*boxes)[i];
        StoredBox stored;
        stored.place = entry.place();
        if (held.local_shape) {
          stored.box = read_box(entry.at("box"));
          stored.at = read_dims(entry.at("at"), 0);
          entry.finish();
        } else {
          stored.box = read_box(entry);
        }
        held.boxes.push_back(std::move(stored));
      }
      if (value->kind() == Value::Kind::kMap) value->finish();
      rule.boxes.push_back(std::move(held));
    }
  }

  LayoutRule read_rule(const Value& value, bool named) {
    LayoutRule rule;
    rule.place = value.place();
    if (named) {
      const Value& name = value.at("name");
      if (name.kind() == Value::Kind::kScalar) {
        rule.patterns.push_back(name.as_text());
      } else {
        for (size_t i = 0; i < name.size(); ++i) rule.patterns.push_back(name[i].as_text());
      }
      for (const std::string& pattern : rule.patterns) check_glob(pattern, name.place());
    }
    int kinds = 0;
    if (value.find("mesh") != nullptr) ++kinds, rule.parts.push_back(read_part(value));
    if (const Value* parts = value.find("parts")) ++kinds, read_parts(*parts, rule);
    if (const Value* boxes = value.find("boxes")) ++kinds, read_boxes(*boxes, rule);
    if (const Value* absent = value.find("absent")) {
      ++kinds;
      if (!absent->as_bool()) fail(absent->place(), "false", "true, or no such key");
    }
    if (kinds != 1) {
      fail(rule.place, kinds == 0 ? "no placement" : "more than one kind of placement",
           "mesh with placements, parts, boxes or absent: true");
    }
    if (const Value* shapes = value.find("local_shapes")) {
      for (const auto& [text, shape] : shapes->items()) {
        rule.local_shapes.emplace_back(read_rank(text, shape->place()), read_dims(*shape, 0));
      }
    }
    if (const Value* dtype = value.find("dtype")) {
      rule.dtype = parse_dtype(dtype->as_text(), dtype->place());
    }
    if (const Value* cast = value.find("cast")) {
      rule.cast = parse_cast(cast->as_text(), cast->place());
    }
    value.finish();
    return rule;
  }

  const Value& root_;
  const int32_t first_rank_;
  std::map<std::string, Mesh> meshes_;
  LayoutRules rules_;
};

}  // namespace

Layout read_layout_file(const Value& root, const Model& model, int32_t first_rank) {
  return place_by_rules(FileReader(root, first_rank).read(), model);
}

}  // namespace refit
