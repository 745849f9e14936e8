#include "tests/sim/flow/flow_program.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace refit::testing {
namespace {

constexpr double kGiga = 1e9;  // rows and columns in GB and GB/s, for numbers near 1

/// Columns of a sparse matrix, filled one by one; rows are numbered as they are made.
struct Matrix {
  std::vector<CoinBigIndex> start = {0};
  std::vector<int> index;
  std::vector<double> value;
  std::vector<double> row_low, row_high;

  int add_row(double low, double high) {
    row_low.push_back(low);
    row_high.push_back(high);
    return static_cast<int>(row_low.size()) - 1;
  }
  void add(int row, double number) {
    if (row < 0) return;
    index.push_back(row);
    value.push_back(number);
  }
  void end_column() { start.push_back(static_cast<CoinBigIndex>(index.size())); }
};

struct Arc {
  int32_t from = -1, to = -1;
  std::map<int32_t, int> links;  // and how often
};

std::vector<Arc> list_arcs(const Fabric& fabric, std::span<const double> rates) {
  std::vector<Arc> arcs;
  const auto count = static_cast<int32_t>(fabric.gpus.size());
  for (int32_t from = 0; from < count; ++from)
    for (int32_t to = 0; to < count; ++to) {
      if (from == to) continue;
      for (const Route& route : list_routes(fabric, from, to)) {
        if (route.kind == RouteClass::kPeerNic) continue;  // two hops, by the peer
        Arc arc = {from, to, {}};
        bool up = true;
        for (const int32_t link : route.links) {
          ++arc.links[link];
          up = up && rates[static_cast<size_t>(link)] > 0;
        }
        if (up) arcs.push_back(std::move(arc));
      }
    }
  return arcs;
}

bool has(const std::vector<int32_t>& list, int32_t item) {
  return std::ranges::find(list, item) != list.end();
}

}  // namespace

double flow_program(const Fabric& fabric, std::span<const double> rates,
                    std::span<const Multicast> items) {
  const double unlimited = std::numeric_limits<double>::max();
  const std::vector<Arc> arcs = list_arcs(fabric, rates);
  const auto gpus = static_cast<int32_t>(fabric.gpus.size());
  Matrix matrix;
  std::vector<int> row_of_link(rates.size(), -1);
  for (const Arc& arc : arcs)
    for (const auto& [link, times] : arc.links)
      if (row_of_link[static_cast<size_t>(link)] < 0)
        row_of_link[static_cast<size_t>(link)] = matrix.add_row(-unlimited, 0);
  // T
  for (size_t link = 0; link < rates.size(); ++link)
    matrix.add(row_of_link[link], -rates[link] / kGiga);
  matrix.end_column();
  for (const Multicast& item : items) {
    const size_t needers = item.needers.size();
    // Flow out of a GPU less flow into it; f - y <= 0.
    std::vector<std::vector<int>> balance(needers), below(needers);
    for (size_t d = 0; d < needers; ++d) {
      for (int32_t gpu = 0; gpu < gpus; ++gpu) {
        const double need = gpu == item.needers[d] ? -1 : 0;
        balance[d].push_back(has(item.holders, gpu) ? -1 : matrix.add_row(need, need));
      }
      for (size_t a = 0; a < arcs.size(); ++a) below[d].push_back(matrix.add_row(-unlimited, 0));
    }
    for (size_t a = 0; a < arcs.size(); ++a) {
      for (const auto& [link, times] : arcs[a].links)
        matrix.add(row_of_link[static_cast<size_t>(link)], item.bytes / kGiga * times);
      for (size_t d = 0; d < needers; ++d) matrix.add(below[d][a], -1);
      matrix.end_column();
      for (size_t d = 0; d < needers; ++d) {
        matrix.add(balance[d][static_cast<size_t>(arcs[a].from)], 1);
        matrix.add(balance[d][static_cast<size_t>(arcs[a].to)], -1);
        matrix.add(below[d][a], 1);
        matrix.end_column();
      }
    }
  }
  const size_t columns = matrix.start.size() - 1;
  const std::vector<double> low(columns, 0), high(columns, unlimited);
  std::vector<double> cost(columns, 0);
  cost[0] = 1;
  Clp_Simplex* model = Clp_newModel();
  Clp_setLogLevel(model, 0);
  Clp_loadProblem(model, static_cast<int>(columns), static_cast<int>(matrix.row_low.size()),
                  matrix.start.data(), matrix.index.data(), matrix.value.data(), low.data(),
                  high.data(), cost.data(), matrix.row_low.data(), matrix.row_high.data());
  Clp_initialSolve(model);
  const int status = Clp_status(model);
  const double seconds = Clp_objectiveValue(model);
  Clp_deleteModel(model);
  REFIT_CHECK(status == 0 || status == 1);
  return status == 0 ? seconds : std::numeric_limits<double>::infinity();
}

}  // namespace refit::testing
