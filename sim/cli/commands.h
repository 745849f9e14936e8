#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/search/problem.h"
#include "sim/search/search.h"

namespace refit::cli {

/// What every command gets.
struct Common {
  bool json = false;   // results as JSON on stdout
  bool quiet = false;  // no progress on stderr
};

struct PlanOptions {
  InputSpec inputs;
  SearchOptions search;
  std::string output;
};

struct CompareOptions {
  InputSpec inputs;
  SearchOptions search;
  std::vector<std::string> strategies;  // empty: all
};

struct DemandOptions {
  InputSpec inputs;  // fabric unused
  std::string tensor;
  int32_t rank = -1;
  bool pairs = false;  // by holder and needer
};

struct SimulatePlanOptions {
  std::string plan, fabric, cost;
  std::string trace, timeline, links, ranks;  // files to write
  std::string error;                          // "0.1%"; empty: exact
  std::vector<std::string> sets, stragglers;  // as in whatif.h
};

struct ExplainOptions {
  SimulatePlanOptions simulate;
  int32_t rank = -1;  // at most one of rank, link and tensor
  std::string link, tensor;
  int32_t rows = 20;   // of each table, for people
  bool quick = false;  // without what would help
};

struct CalibrateOptions {
  std::vector<std::string> logs;  // of nccl-tests; *.json: of refit-exec
  std::string fabric, base;       // base "": the fabric's default cost model
  std::string plan;               // that refit-exec ran
  std::string name = "calibrated";
  std::string output;
};

struct ExportOptions {
  std::string plan, format, output;
};

struct ReportOptions {
  std::string plan, output;
  std::vector<std::string> strategies;  // to compare with; empty: all when the plan is small
};

struct TopoImportOptions {
  std::vector<std::string> files;
  std::string output, name, gpu, nvlink, nic, cost;
};

struct TopoOptions {
  std::string fabric, dot, svg;
  int32_t nodes = 0;  // 0: those of the fabric, or as few as show it
  std::vector<std::string> exclude;
};

// Each runs one command, prints to stdout and returns the exit code; errors are thrown.
int run_plan(const Common& common, const PlanOptions& options);
int run_compare(const Common& common, const CompareOptions& options);
int run_bound(const Common& common, const InputSpec& inputs);
int run_demand(const Common& common, const DemandOptions& options);
int run_check(const Common& common, const std::string& plan);
int run_simulate(const Common& common, const SimulatePlanOptions& options);
int run_explain(const Common& common, const ExplainOptions& options);
int run_calibrate(const Common& common, const CalibrateOptions& options);
int run_export(const Common& common, const ExportOptions& options);
int run_report(const Common& common, const ReportOptions& options);
int run_doctor(const Common& common);
int run_topo_import(const Common& common, const TopoImportOptions& options);
int run_topo_show(const Common& common, const TopoOptions& options);
int run_topo_validate(const Common& common, const TopoOptions& options);

}  // namespace refit::cli
