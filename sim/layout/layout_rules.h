#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

// Layouts said tensor by tensor, as their readers hand them over. `place` is for messages.

/// A mesh with one placement per axis.
struct MeshPart {
  Mesh mesh;
  std::vector<Placement> placements;
  Split split = Split::kEven;
  Storage storage = Storage::kRowMajor;
  std::string place;
};

/// A box of a rank as the file has it.
struct StoredBox {
  Box box;
  Dims at;  // in the rank's local buffer
  std::string place;
};
struct RankBoxes {
  int32_t rank = -1;
  std::optional<Dims> local_shape;  // none: boxes lie densely one after the other
  std::vector<StoredBox> boxes;
};

/// One entry: which tensors, and where they are.
struct LayoutRule {
  std::vector<std::string> patterns;
  std::vector<MeshPart> parts;
  std::vector<RankBoxes> boxes;
  std::vector<std::pair<int32_t, Dims>> local_shapes;  // declared, to be compared
  std::optional<Dims> global_shape;                    // the same
  std::optional<Dtype> dtype;                          // none: the model's
  CastAt cast = CastAt::kNowhere;
  std::string place;
};

/// A side. `rest` is for tensors that no entry names; none: there may be no such tensor.
struct LayoutRules {
  std::vector<LayoutRule> rules;
  std::optional<LayoutRule> rest;
  Quantisation quantisation;
  bool scales_follow = false;  // boxes of scales are made from those of their weights
  std::set<int32_t> ranks;     // of the side; some may hold nothing
  std::string place;
};

/// "[4, 8]".
std::string print_shape(const Dims& shape);

/// Every tensor of the model by its rule. All that is missing, double or unexpected is counted in
/// one error; boxes, local shapes and splits that do not fit a tensor are errors that name it.
Layout place_by_rules(const LayoutRules& rules, const Model& model);

}  // namespace refit
