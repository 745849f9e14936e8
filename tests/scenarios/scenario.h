#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/document.h"

namespace refit::scenarios {

// Scenarios from public bug reports, as shared/scenarios/scenarios.yaml has them; the vocabulary is
// that of expected.py beside it, which is the oracle for every number under `expect`.

using Numbers = std::vector<int64_t>;

/// A box of a tensor and its place in the rank's local buffer.
struct Block {
  std::vector<Numbers> box;  // [lo, hi] per dimension
  Numbers at;
};

/// How one side holds a tensor; exactly one of the three forms, or none of them.
struct TensorSide {
  Numbers mesh, ranks;
  std::vector<std::string> placements;
  Numbers order;  // of mesh dimensions, the one that cuts first in front
  std::string split = "chunk";

  std::map<int32_t, std::vector<Numbers>> rows;  // [lo, hi] along `dim`, by rank
  std::map<int32_t, int64_t> pad;
  int64_t dim = 0;

  std::map<int32_t, std::vector<Block>> blocks;
  std::map<int32_t, Numbers> local_shape;

  int64_t replicas = 1, stride = 0;  // the whole side again, rank numbers shifted
  bool column_major = false;
  std::map<int32_t, Numbers> declared_shapes;
  std::map<int32_t, std::vector<std::string>> names;
  std::vector<Numbers> engines;  // ranks of each
  std::string dtype, cast;

  bool has_layout() const { return !mesh.empty() || !rows.empty() || !blocks.empty(); }
};

struct ScenarioTensor {
  std::string name;
  Numbers shape;
  std::string dtype;
  TensorSide src, dst;
  Numbers block;  // of its scales; empty: none
  int64_t repeat = 1;
  int64_t fill = 0;  // i of the fill rule: that of the tensor it is tied to, else its own
};

struct Scenario {
  std::string id, name;
  std::vector<ScenarioTensor> tensors;
  std::string verify;  // kind of input that has to be refused
  std::map<std::string, std::vector<int32_t>> hosts;
  std::vector<std::vector<int32_t>> domains;
  std::vector<std::string> fault_kinds;
  std::map<std::string, int32_t> fault_rank;  // that a fault hits (the last, of one kind)
  std::vector<std::string> exec_keys, expect_keys;
  std::optional<Value> exec, expect;
  std::vector<std::string> error_words;  // empty: no refusal is expected

  /// The numbers of a map under `expect` or one of them; fail when the key is absent.
  std::map<int32_t, int64_t> expected_by_rank(const std::string& key) const;
  int64_t expected(const std::string& key) const;
  bool expects(const std::string& key) const;

  /// A number under `exec`.
  int64_t exec_number(const std::string& key, int64_t fallback) const;
  bool has_exec(const std::string& key) const;
};

/// Our own scenarios, then $REFIT_SCENARIOS or else scenarios.yaml of the shared folder
/// ($REFIT_SHARED, else the one beside the project) where there is one.
std::vector<std::string> scenario_files();

/// Strict: an unknown key of a scenario or a side is an error; those of `exec` and `expect` are
/// listed, for the test to classify.
std::vector<Scenario> load_scenarios(const std::string& path);

}  // namespace refit::scenarios
