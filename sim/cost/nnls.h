#pragma once

#include <span>
#include <vector>

namespace refit {

/// The x >= 0 that minimises |A x - b| (Lawson & Hanson, Solving Least Squares Problems, 1974,
/// chapter 23). `rows` of A, all of one length; columns are scaled inside. A column of zeros gets
/// 0. Deterministic; for few columns.
std::vector<double> solve_nnls(const std::vector<std::vector<double>>& rows,
                               std::span<const double> b);

}  // namespace refit
