#pragma once

#include <cstdint>
#include <string>

#include "plans/plan.h"

namespace refit {

// The plan file: a header (magic, version, size and SHA-256 of the root section), the root section
// (ranks, tensors, maps, prediction, section table), one section per rank with its program, and one
// with the inputs. Sections are FlatBuffers (plans/*.fbs); the table in the root holds offset, size
// and SHA-256 of each. A rank maps the file, verifies header, root and its own section, and reads
// nothing else. No dates, host names or search times: same inputs, same bytes.

/// Version of the format that this program writes. It reads [kOldestPlanVersion, kPlanVersion].
inline constexpr uint32_t kPlanVersion = 2;  // 2: casts and quantised tensors
inline constexpr uint32_t kOldestPlanVersion = 2;

struct SavedPlan {
  std::string digest;  // 64 hex digits: SHA-256 over the hashes of all sections
  int64_t bytes = 0;   // size of the file
};

/// Writes to a temporary file and renames it. Same plan, same bytes.
SavedPlan save_plan(const Plan& plan, const std::string& path);

/// Size and digest that save_plan would give, without a file.
SavedPlan measure_plan(const Plan& plan);

struct LoadedPlan {
  Plan plan;
  SavedPlan saved;
};

/// Reads and verifies everything. Distinct errors: "not a plan", "too old", "too new", "damaged"
/// (with section and expected hash).
LoadedPlan load_plan(const std::string& path);

/// Reads root and the program of one rank; the other programs and the inputs stay empty.
LoadedPlan load_plan_for_rank(const std::string& path, int32_t rank);

}  // namespace refit
