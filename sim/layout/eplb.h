#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model/model.h"

namespace refit {

// Redundant experts (EPLB): an expert-parallel group has more slots than there are experts, and a
// table says which expert lies in which slot. Slots are dealt evenly over the group, in order. The
// table is a YAML or JSON file
//   physical_to_logical: [0, 1, 2, 3, 0, 2]        of all layers, or one such list per MoE layer
// or the same inline: "0|1|2|3|0|2", lists of layers with "/" between them.

/// Per layer of the model (empty for dense ones), and last for multi-token-prediction layers, the
/// expert of every slot. Experts that do not exist and experts without a slot are refused, and so
/// are lists of layers where multi-token-prediction layers have experts too.
std::vector<std::vector<int32_t>> load_slots(const std::string& file_or_text, const Model& model,
                                             const std::string& place);

/// The inline layout with `eplb=FILE` replaced by the content of the file.
std::string resolve_eplb(const std::string& spec);

}  // namespace refit
