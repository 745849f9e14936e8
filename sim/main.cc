// refit: the planner's command line. Parses, dispatches, turns errors into exit codes; the work is
// in sim/cli.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/usage.h"
#include "sim/cli/commands.h"

namespace refit::cli {
namespace {

constexpr const char* kExamples = R"(
Example
  refit compare --model qwen3-30b-a3b --train megatron:ep=8,pp=2 --gen vllm:tp=8,dp=2 --fabric dgx-h100
  refit plan    --model qwen3-30b-a3b --train megatron:ep=8,pp=2 --gen vllm:tp=8,dp=2 --fabric dgx-h100 -o a.plan
  refit-exec a.plan --verify
Results on stdout, notes and progress on stderr. Exit 0: done, 1: the work failed, 2: bad usage or input.)";

void add_layout_inputs(CLI::App& command, InputSpec& inputs) {
  command.add_option("--model", inputs.model, "name, config.json or NCCL M2N model JSON")
      ->required()
      ->type_name("M");
  command
      .add_option("--train", inputs.train, "training layout: megatron:tp=..,pp=..,ep=.. or a file")
      ->required()
      ->type_name("L");
  command.add_option("--gen", inputs.gen, "inference layout: vllm:tp=..,dp=..,ep=on or a file")
      ->required()
      ->type_name("L");
  command.add_option("--dtype", inputs.dtype, "wire dtype where the config leaves a choice")
      ->type_name("D");
  command.add_flag("--mtp", inputs.mtp, "multi-token-prediction layers too");
  command
      .add_option_function<std::string>(
          "--unknown", [&inputs](const std::string&) { inputs.unknown_replicate = true; },
          "'replicate': unknown tensors are held by everybody")
      ->check(CLI::IsMember({"replicate"}))
      ->type_name("HOW");
}

void add_inputs(CLI::App& command, InputSpec& inputs) {
  add_layout_inputs(command, inputs);
  command.add_option("--fabric", inputs.fabric, "cluster: name or YAML file")
      ->required()
      ->type_name("F");
  command
      .add_option("--cost", inputs.cost, "cost model: name or YAML file; default: the fabric's own")
      ->type_name("C");
  command
      .add_option("--nodes", inputs.nodes,
                  "nodes of the cluster; default: as many as the ranks need")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  command.add_option("--place", inputs.place, "place file: which rank runs on which GPU")
      ->type_name("F");
  command
      .add_option("--exclude", inputs.exclude,
                  "node, GPU or NIC to plan around, as in n3, n[0-3].gpu7, *.nic2; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME");
}

void add_search(CLI::App& command, SearchOptions& search) {
  command.add_option("--seed", search.seed, "seed of the search")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 62))
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option_function<std::string>(
          "--staging",
          [&search](const std::string& text) {
            search.staging_bytes = parse_bytes(text, "--staging");
          },
          "bound on packing and relay memory per rank [1GiB]")
      ->type_name("BYTES");
}

/// A plan is binary and read back by seeking: it goes to a file.
const CLI::Validator is_file_name(
    [](const std::string& text) {
      return text.empty() || text == "-" ? "found '" + text + "', expected a file" : std::string();
    },
    "");

void add_simulation(CLI::App& command, SimulatePlanOptions& options) {
  command.add_option("plan", options.plan, "plan file")->required()->type_name("P");
  command.add_option("--fabric", options.fabric, "another fabric than the plan's")->type_name("F");
  command.add_option("--cost", options.cost, "another cost model than the plan's")->type_name("C");
  command
      .add_option("--error", options.error,
                  "faster: let each message end with this part of its bytes more or less, as in "
                  "0.1%")
      ->type_name("PART");
  command
      .add_option("--set", options.sets,
                  "what if: nic=800Gbps, nvlink=900GB/s, nodes[3].nic[2]=down; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TARGET=RATE");
  command
      .add_option("--straggler", options.stragglers,
                  "what if the GPU of a rank ran at a part of its speed; may be repeated")
      ->allow_extra_args(false)
      ->type_name("rank=R,x=PART");
}

std::string strategy_help() {
  std::string text = "how to plan [" + SearchOptions{}.strategy +
                     "]; those after 'direct' are peers' and take +misc behind the name:";
  for (const auto& [name, summary] : list_strategies()) text += "\n  " + name + ": " + summary;
  return text;
}

/// Names of ours that a shell can complete.
ValueWords value_words() {
  const auto names = [](const char* folder) {
    std::string list = list_data_files(folder);
    std::erase(list, ',');
    return list;
  };
  std::string strategies;
  for (const auto& [name, summary] : list_strategies()) strategies += name + " ";
  return {{"--model", names("models")},
          {"--fabric", names("topologies")},
          {"--cost", names("topologies/cost")},
          {"--strategy", strategies}};
}

int run(int argc, char** argv) {
  CLI::App app{
      "refit plans how a model's weights move from a trainer's layout to an inference engine's.",
      "refit"};
  app.set_version_flag("--version", std::string("refit ") + REFIT_VERSION);
  app.footer(kExamples);
  app.require_subcommand(1);
  app.fallthrough();
  Common common;
  app.add_flag("--json", common.json, "results as JSON");
  app.add_flag("-q,--quiet", common.quiet, "no notes, no progress");

  PlanOptions plan;
  CLI::App* plan_command = app.add_subcommand("plan", "search for a schedule and save it");
  add_inputs(*plan_command, plan.inputs);
  add_search(*plan_command, plan.search);
  plan_command->add_option("--strategy", plan.search.strategy, strategy_help())->type_name("S");
  plan_command->add_option("-o,--output", plan.output, "plan file to write")
      ->check(is_file_name)
      ->type_name("FILE");

  CompareOptions compare;
  CLI::App* compare_command =
      app.add_subcommand("compare", "plan with several strategies, in one table");
  add_inputs(*compare_command, compare.inputs);
  add_search(*compare_command, compare.search);
  compare_command->add_option("--strategies", compare.strategies, "comma-separated; default: all")
      ->delimiter(',')
      ->type_name("A,B");

  InputSpec bound;
  CLI::App* bound_command =
      app.add_subcommand("bound", "lower bound on any schedule, and the cut that gives it");
  add_inputs(*bound_command, bound);

  DemandOptions demand;
  CLI::App* demand_command = app.add_subcommand("demand", "who needs how much, before any fabric");
  add_layout_inputs(*demand_command, demand.inputs);
  demand_command->add_option("--tensor", demand.tensor, "only this tensor")->type_name("T");
  demand_command->add_option("--rank", demand.rank, "only this gen rank, by tensor")
      ->check(CLI::NonNegativeNumber)
      ->type_name("R");
  demand_command->add_flag("--pairs", demand.pairs, "from whom: by pair of ranks");

  std::string checked;
  CLI::App* check_command =
      app.add_subcommand("check", "prove that a plan delivers every element once");
  check_command->add_option("plan", checked, "plan file")->required()->type_name("P");

  SimulatePlanOptions simulate;
  CLI::App* simulate_command = app.add_subcommand("simulate", "replay a plan on a fabric");
  add_simulation(*simulate_command, simulate);
  simulate_command->add_option("--trace", simulate.trace, "write a Chrome / Perfetto trace")
      ->type_name("FILE");
  simulate_command->add_option("--timeline", simulate.timeline, "write a CSV of all transfers")
      ->type_name("FILE");
  simulate_command
      ->add_option("--links", simulate.links, "write a CSV of all links, with idle gaps")
      ->type_name("FILE");
  simulate_command->add_option("--ranks", simulate.ranks, "write a CSV of all ranks")
      ->type_name("FILE");

  ExplainOptions explain;
  CLI::App* explain_command =
      app.add_subcommand("explain", "what limits the time of a plan, and what would help");
  add_simulation(*explain_command, explain.simulate);
  auto* of_rank =
      explain_command->add_option("--rank", explain.rank, "until this rank ends, not the last one")
          ->check(CLI::NonNegativeNumber)
          ->type_name("R");
  auto* of_link =
      explain_command->add_option("--link", explain.link, "until the last byte over this link")
          ->type_name("L")
          ->excludes(of_rank);
  explain_command
      ->add_option("--tensor", explain.tensor, "until this tensor has arrived everywhere")
      ->type_name("T")
      ->excludes(of_rank)
      ->excludes(of_link);
  explain_command->add_option("--rows", explain.rows, "longest tables")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  explain_command->add_flag("--quick", explain.quick, "do not simulate what would help");

  CalibrateOptions calibrate;
  CLI::App* calibrate_command =
      app.add_subcommand("calibrate", "fit a cost model to logs of nccl-tests and refit-exec");
  calibrate_command
      ->add_option("log", calibrate.logs,
                   "output of sendrecv, alltoall, all_gather or broadcast; of refit-exec --json if "
                   "it ends in .json")
      ->required()
      ->type_name("LOG");
  calibrate_command->add_option("--fabric", calibrate.fabric, "cluster on which they ran")
      ->required()
      ->type_name("F");
  calibrate_command
      ->add_option("--base", calibrate.base,
                   "cost model for what the logs do not tell; default: the fabric's own")
      ->type_name("C");
  calibrate_command->add_option("--plan", calibrate.plan, "plan that refit-exec ran")
      ->type_name("P");
  calibrate_command->add_option("--name", calibrate.name, "of the new model")
      ->capture_default_str()
      ->type_name("NAME");
  calibrate_command->add_option("-o,--output", calibrate.output, "cost model file to write")
      ->required()
      ->check(is_file_name)
      ->type_name("FILE");

  ExportOptions exported;
  CLI::App* export_command = app.add_subcommand("export", "a plan in a form that others read");
  export_command->add_option("plan", exported.plan, "plan file")->required()->type_name("P");
  export_command->add_option("--format", exported.format, "json, yaml, csv or trace")
      ->required()
      ->check(CLI::IsMember({"json", "yaml", "csv", "trace"}))
      ->type_name("FORMAT");
  export_command->add_option("-o,--output", exported.output, "file to write; - for stdout")
      ->required()
      ->type_name("FILE");

  ReportOptions report;
  CLI::App* report_command = app.add_subcommand("report", "one self-contained HTML page on a plan");
  report_command->add_option("plan", report.plan, "plan file")->required()->type_name("P");
  report_command->add_option("-o,--output", report.output, "page to write")
      ->required()
      ->check(is_file_name)
      ->type_name("FILE");
  report_command
      ->add_option(
          "--strategies", report.strategies,
          "comma-separated, to compare with; none: no others; default: all for plans of at "
          "most 20,000 transfers")
      ->delimiter(',')
      ->type_name("A,B");

  CLI::App* doctor_command =
      app.add_subcommand("doctor", "what this machine can do, and what brings the rest");

  TopoImportOptions import;
  TopoOptions topo;
  CLI::App* topo_command = app.add_subcommand("topo", "read, look at and check fabrics");
  topo_command->require_subcommand(1);
  CLI::App* import_command = topo_command->add_subcommand(
      "import",
      "one fabric from what a cluster says: NCCL topology XML, nvidia-smi topo -m,\n"
      "ibnetdiscover, iblinkinfo, Slurm topology.conf, a fabric's node");
  import_command->add_option("file", import.files, "files to read, node and network files together")
      ->required()
      ->type_name("FILE...");
  import_command->add_option("-o,--output", import.output, "fabric file to write; - for stdout")
      ->required()
      ->type_name("F");
  import_command->add_option("--name", import.name, "name of the fabric; default: the file's")
      ->type_name("NAME");
  import_command->add_option("--gpu", import.gpu, "how fast one NVLink is, as in v100, h100, gb200")
      ->type_name("GPU");
  import_command
      ->add_option("--nvlink", import.nvlink, "a GPU's port to an NVSwitch, where files do not say")
      ->type_name("RATE");
  import_command->add_option("--nic", import.nic, "rate of a NIC, where files do not say")
      ->type_name("RATE");
  import_command->add_option("--cost", import.cost, "cost model the fabric names [nominal]")
      ->type_name("C");
  const auto add_fabric = [&topo](CLI::App* command) {
    command->add_option("fabric", topo.fabric, "name or YAML file")->required()->type_name("F");
    command->add_option("--nodes", topo.nodes, "nodes, where the fabric leaves them open")
        ->check(CLI::Range(1, 1 << 20))
        ->type_name("N");
    command->add_option("--exclude", topo.exclude, "node, GPU or NIC to leave out; may be repeated")
        ->allow_extra_args(false)
        ->type_name("NAME");
  };
  CLI::App* show_command = topo_command->add_subcommand("show", "a fabric as a tree, or drawn");
  add_fabric(show_command);
  show_command->add_option("--dot", topo.dot, "write it for Graphviz; - for stdout")
      ->type_name("FILE");
  show_command->add_option("--svg", topo.svg, "draw it with Graphviz")->type_name("FILE");
  CLI::App* validate_command =
      topo_command->add_subcommand("validate", "what looks wrong in a fabric; exit 1 if anything");
  add_fabric(validate_command);

  add_usage_options(app, value_words(), REFIT_VERSION);

  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> known;
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
    if (std::find(known.begin(), known.end(), argv[1]) == known.end()) {
      fail("command", quote(argv[1]), fmt::format("one of {}", fmt::join(known, ", ")));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    log_line(std::string("refit: ") + error.what() + " (see refit --help)");
    return 2;
  }
  if (plan_command->parsed()) return run_plan(common, plan);
  if (compare_command->parsed()) return run_compare(common, compare);
  if (bound_command->parsed()) return run_bound(common, bound);
  if (demand_command->parsed()) return run_demand(common, demand);
  if (check_command->parsed()) return run_check(common, checked);
  if (simulate_command->parsed()) return run_simulate(common, simulate);
  if (report_command->parsed()) return run_report(common, report);
  if (doctor_command->parsed()) return run_doctor(common);
  if (explain_command->parsed()) return run_explain(common, explain);
  if (calibrate_command->parsed()) return run_calibrate(common, calibrate);
  if (import_command->parsed()) return run_topo_import(common, import);
  if (show_command->parsed()) return run_topo_show(common, topo);
  if (validate_command->parsed()) return run_topo_validate(common, topo);
  return run_export(common, exported);
}

}  // namespace
}  // namespace refit::cli

int main(int argc, char** argv) {
  try {
    const int code = refit::cli::run(argc, argv);
    refit::finish_output();
    return code;
  } catch (const refit::Error& error) {
    refit::log_line(std::string("refit: ") + error.what());
    return error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    refit::log_line(std::string("refit: ") + error.what());
    return 1;
  }
}
