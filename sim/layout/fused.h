#pragma once

#include <string>

#include "sim/layout/grid.h"

namespace refit {

// Frameworks keep some tensors in one buffer: queries, keys and values; gate and up. A row of the
// table names the buffer and its parts, in order. With one part it is that tensor's name in the
// framework. Two ways to fuse:
//   by rows    every part is cut on its own; a rank's buffer has its pieces one after the other
//              (vLLM, SGLang; gate and up everywhere, expert by expert),
//   by groups  Megatron's linear_qkv: rows stand by KV head (the queries of its group, their gates
//              where it has such, the key, the value), and the whole is then cut evenly: with more
//              ranks than KV heads a rank's part begins and ends anywhere.

/// Moves the tensors of a layout into the framework's buffers, when `grid.fused`. Where Megatron
/// has more ranks than KV heads, also without: cuts queries, keys and values as their fused matrix
/// is cut.
void apply_fusions(const Model& model, const Grid& grid, const std::string& place, Layout& layout);

}  // namespace refit
