#pragma once

#include <cstdint>

#include "base/document.h"
#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

/// A layout file: which ranks hold what of every tensor, said tensor by tensor (docs/layouts.md).
/// Every tensor of the model has to be in exactly one entry and every entry has to name one; all
/// that is missing, double or unexpected is counted in one error. `first_rank` is the first rank of
/// meshes without `ranks`.
Layout read_layout_file(const Value& root, const Model& model, int32_t first_rank);

/// A NeMo RL refit_info JSON (PEERS: nccl_reshard_utils.py): per layer a list of tensors with mesh
/// and placements of both sides; `{"dim": d}` shards, `{}` replicates, meshes are nested lists of
/// ranks.
Layout read_refit_info(const Value& root, const Model& model, Side side);

/// An NCCL M2N system JSON: sizes of both sides.
Layout read_m2n_system(const Value& root, const Model& model, Side side, int32_t first_rank);

}  // namespace refit
