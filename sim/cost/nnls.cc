#include "sim/cost/nnls.h"

#include <Eigen/Dense>
#include <algorithm>

#include "base/error.h"

namespace refit {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

/// Least squares over the columns that are in; 0 for the others.
VectorXd solve_in(const MatrixXd& a, const VectorXd& b, const std::vector<bool>& in) {
  std::vector<Index> columns;
  for (Index c = 0; c < a.cols(); ++c) {
    if (in[static_cast<size_t>(c)]) columns.push_back(c);
  }
  const VectorXd part = MatrixXd(a(Eigen::all, columns)).colPivHouseholderQr().solve(b);
  VectorXd x = VectorXd::Zero(a.cols());
  for (size_t i = 0; i < columns.size(); ++i) x(columns[i]) = part(static_cast<Index>(i));
  return x;
}

}  // namespace

std::vector<double> solve_nnls(const std::vector<std::vector<double>>& rows,
                               std::span<const double> b) {
  REFIT_CHECK(!rows.empty() && rows.size() == b.size());
  MatrixXd a(static_cast<Index>(rows.size()), static_cast<Index>(rows[0].size()));
  for (size_t r = 0; r < rows.size(); ++r) {
    REFIT_CHECK(rows[r].size() == rows[0].size());
    for (size_t c = 0; c < rows[r].size(); ++c)
      a(static_cast<Index>(r), static_cast<Index>(c)) = rows[r][c];
  }
  const VectorXd wanted = Eigen::Map<const VectorXd>(b.data(), static_cast<Index>(b.size()));
  VectorXd scale = a.colwise().norm();
  for (Index c = 0; c < a.cols(); ++c) {
    if (scale(c) == 0) scale(c) = 1;
    a.col(c) /= scale(c);
  }

  constexpr double kSmall = 1e-12;
  const double tolerance = kSmall * std::max(1.0, wanted.norm());
  std::vector<bool> in(static_cast<size_t>(a.cols()), false);
  VectorXd x = VectorXd::Zero(a.cols());
  for (Index round = 0; round < 3 * a.cols(); ++round) {
    // The column along which the residual shrinks fastest comes in.
    const VectorXd gradient = a.transpose() * (wanted - a * x);
    Index best = -1;
    for (Index c = 0; c < a.cols(); ++c) {
      if (in[static_cast<size_t>(c)] || gradient(c) <= tolerance) continue;
      if (best < 0 || gradient(c) > gradient(best)) best = c;
    }
    if (best < 0) break;
    in[static_cast<size_t>(best)] = true;
    // What would be negative then goes out, at the point where it reaches 0.
    while (true) {
      const VectorXd next = solve_in(a, wanted, in);
      double part = 1;
      for (Index c = 0; c < a.cols(); ++c) {
        if (in[static_cast<size_t>(c)] && next(c) <= 0)
          part = std::min(part, x(c) / (x(c) - next(c) + kSmall));
      }
      x += part * (next - x);
      if (part == 1) break;
      for (Index c = 0; c < a.cols(); ++c) {
        if (!in[static_cast<size_t>(c)] || x(c) > kSmall) continue;
        in[static_cast<size_t>(c)] = false;
        x(c) = 0;
      }
    }
  }
  std::vector<double> result(static_cast<size_t>(a.cols()));
  for (Index c = 0; c < a.cols(); ++c) result[static_cast<size_t>(c)] = x(c) / scale(c);
  return result;
}

}  // namespace refit
