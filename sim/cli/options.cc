// The options of all commands, one function a command.

#include "sim/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/units.h"

namespace refit::cli {
namespace {

/// The options of a command, which it hands to `run` when it is the one that was given.
template <typename Options>
Options& options_of(CLI::App& command, CommandLine& line,
                    int (*run)(const Common&, const Options&)) {
  const auto options = std::make_shared<Options>();
  command.callback([&line, options, run] {
    line.run = [&line, options, run] { return run(line.common, *options); };
  });
  return *options;
}

/// A plan is binary and read back by seeking: it goes to a file.
const CLI::Validator is_file_name(
    [](const std::string& text) {
      return text.empty() || text == "-" ? "found '" + text + "', expected a file" : std::string();
    },
    "");

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
  command
      .add_option_function<std::string>(
          "--deadline",
          [&search](const std::string& text) { set_deadline(search, text, "--deadline"); },
          "when to stop improving: a time, as in 10s (the plan may then depend on the machine), or "
          "schedules tried [200it]")
      ->type_name("TIME");
  command
      .add_option("--max-peers", search.max_peers,
                  "bound on ranks of other NVLink domains that a rank exchanges messages with")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
}

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

void add_plan(CLI::App& command, CommandLine& line) {
  PlanOptions& options = options_of(command, line, run_plan);
  add_inputs(command, options.inputs);
  add_search(command, options.search);
  command.add_option("--strategy", options.search.strategy, strategy_help())->type_name("S");
  command.add_option("-o,--output", options.output, "plan file to write")
      ->check(is_file_name)
      ->type_name("FILE");
}

void add_compare(CLI::App& command, CommandLine& line) {
  CompareOptions& options = options_of(command, line, run_compare);
  add_inputs(command, options.inputs);
  add_search(command, options.search);
  command.add_option("--strategies", options.strategies, "comma-separated; default: all")
      ->delimiter(',')
      ->type_name("A,B");
}

void add_bound(CLI::App& command, CommandLine& line) {
  InputSpec& inputs = options_of(command, line, run_bound);
  add_inputs(command, inputs);
}

void add_demand(CLI::App& command, CommandLine& line) {
  DemandOptions& options = options_of(command, line, run_demand);
  add_layout_inputs(command, options.inputs);
  command.add_option("--tensor", options.tensor, "only this tensor")->type_name("T");
  command.add_option("--rank", options.rank, "only this gen rank, by tensor")
      ->check(CLI::NonNegativeNumber)
      ->type_name("R");
  command.add_flag("--pairs", options.pairs, "from whom: by pair of ranks");
}

void add_check(CLI::App& command, CommandLine& line) {
  std::string& plan = options_of(command, line, run_check);
  command.add_option("plan", plan, "plan file")->required()->type_name("P");
}

void add_simulate(CLI::App& command, CommandLine& line) {
  SimulatePlanOptions& options = options_of(command, line, run_simulate);
  add_simulation(command, options);
  command.add_option("--trace", options.trace, "write a Chrome / Perfetto trace")
      ->type_name("FILE");
  command.add_option("--timeline", options.timeline, "write a CSV of all transfers")
      ->type_name("FILE");
  command.add_option("--links", options.links, "write a CSV of all links, with idle gaps")
      ->type_name("FILE");
  command.add_option("--ranks", options.ranks, "write a CSV of all ranks")->type_name("FILE");
}

void add_explain(CLI::App& command, CommandLine& line) {
  ExplainOptions& options = options_of(command, line, run_explain);
  add_simulation(command, options.simulate);
  auto* of_rank =
      command.add_option("--rank", options.rank, "until this rank ends, not the last one")
          ->check(CLI::NonNegativeNumber)
          ->type_name("R");
  auto* of_link = command.add_option("--link", options.link, "until the last byte over this link")
                      ->type_name("L")
                      ->excludes(of_rank);
  command.add_option("--tensor", options.tensor, "until this tensor has arrived everywhere")
      ->type_name("T")
      ->excludes(of_rank)
      ->excludes(of_link);
  command.add_option("--rows", options.rows, "longest tables")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  command.add_flag("--quick", options.quick, "do not simulate what would help");
}

void add_calibrate(CLI::App& command, CommandLine& line) {
  CalibrateOptions& options = options_of(command, line, run_calibrate);
  command
      .add_option("log", options.logs,
                  "output of sendrecv, alltoall, all_gather or broadcast; of refit-exec --json if "
                  "it ends in .json")
      ->required()
      ->type_name("LOG");
  command.add_option("--fabric", options.fabric, "cluster on which they ran")
      ->required()
      ->type_name("F");
  command
      .add_option("--base", options.base,
                  "cost model for what the logs do not tell; default: the fabric's own")
      ->type_name("C");
  command.add_option("--plan", options.plan, "plan that refit-exec ran")->type_name("P");
  command.add_option("--name", options.name, "of the new model")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("-o,--output", options.output, "cost model file to write")
      ->required()
      ->check(is_file_name)
      ->type_name("FILE");
}

void add_export(CLI::App& command, CommandLine& line) {
  ExportOptions& options = options_of(command, line, run_export);
  command.add_option("plan", options.plan, "plan file")->required()->type_name("P");
  command.add_option("--format", options.format, "json, yaml, csv or trace")
      ->required()
      ->check(CLI::IsMember({"json", "yaml", "csv", "trace"}))
      ->type_name("FORMAT");
  command.add_option("-o,--output", options.output, "file to write; - for stdout")
      ->required()
      ->type_name("FILE");
}

void add_report(CLI::App& command, CommandLine& line) {
  ReportOptions& options = options_of(command, line, run_report);
  command.add_option("plan", options.plan, "plan file")->required()->type_name("P");
  command.add_option("-o,--output", options.output, "page to write")
      ->required()
      ->check(is_file_name)
      ->type_name("FILE");
  command
      .add_option("--strategies", options.strategies,
                  "comma-separated, to compare with; none: no others; default: all for plans of at "
                  "most 20,000 transfers")
      ->delimiter(',')
      ->type_name("A,B");
}

void add_doctor(CLI::App& command, CommandLine& line) {
  command.callback([&line] { line.run = [&line] { return run_doctor(line.common); }; });
}

void add_topo_import(CLI::App& command, CommandLine& line) {
  TopoImportOptions& options = options_of(command, line, run_topo_import);
  command.add_option("file", options.files, "files to read, node and network files together")
      ->required()
      ->type_name("FILE...");
  command.add_option("-o,--output", options.output, "fabric file to write; - for stdout")
      ->required()
      ->type_name("F");
  command.add_option("--name", options.name, "name of the fabric; default: the file's")
      ->type_name("NAME");
  command.add_option("--gpu", options.gpu, "how fast one NVLink is, as in v100, h100, gb200")
      ->type_name("GPU");
  command
      .add_option("--nvlink", options.nvlink, "a GPU's port to an NVSwitch, where files do not say")
      ->type_name("RATE");
  command.add_option("--nic", options.nic, "rate of a NIC, where files do not say")
      ->type_name("RATE");
  command.add_option("--cost", options.cost, "cost model the fabric names [nominal]")
      ->type_name("C");
}

void add_fabric(CLI::App& command, TopoOptions& options) {
  command.add_option("fabric", options.fabric, "name or YAML file")->required()->type_name("F");
  command.add_option("--nodes", options.nodes, "nodes, where the fabric leaves them open")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  command
      .add_option("--exclude", options.exclude, "node, GPU or NIC to leave out; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME");
}

void add_topo_show(CLI::App& command, CommandLine& line) {
  TopoOptions& options = options_of(command, line, run_topo_show);
  add_fabric(command, options);
  command.add_option("--dot", options.dot, "write it for Graphviz; - for stdout")
      ->type_name("FILE");
  command.add_option("--svg", options.svg, "draw it with Graphviz")->type_name("FILE");
}

void add_topo_validate(CLI::App& command, CommandLine& line) {
  add_fabric(command, options_of(command, line, run_topo_validate));
}

struct Command {
  const char* name;
  const char* summary;
  void (*add)(CLI::App& command, CommandLine& line);
};

void add_commands(CLI::App& app, CommandLine& line, std::initializer_list<Command> commands) {
  app.require_subcommand(1);
  for (const auto& [name, summary, add] : commands) add(*app.add_subcommand(name, summary), line);
}

void add_topo(CLI::App& command, CommandLine& line) {
  add_commands(
      command, line,
      {{"import",
        "one fabric from what a cluster says: NCCL topology XML, nvidia-smi topo -m,\n"
        "ibnetdiscover, iblinkinfo, Slurm topology.conf, a fabric's node",
        add_topo_import},
       {"show", "a fabric as a tree, or drawn", add_topo_show},
       {"validate", "what looks wrong in a fabric; exit 1 if anything", add_topo_validate}});
}

}  // namespace

void add_commands(CLI::App& app, CommandLine& line) {
  add_commands(
      app, line,
      {{"plan", "search for a schedule and save it", add_plan},
       {"compare", "plan with several strategies, in one table", add_compare},
       {"bound", "lower bound on any schedule, and what binds", add_bound},
       {"demand", "who needs how much, before any fabric", add_demand},
       {"check", "prove that a plan delivers every element once", add_check},
       {"simulate", "replay a plan on a fabric", add_simulate},
       {"explain", "what limits the time of a plan, and what would help", add_explain},
       {"calibrate", "fit a cost model to logs of nccl-tests and refit-exec", add_calibrate},
       {"export", "a plan in a form that others read", add_export},
       {"report", "one self-contained HTML page on a plan", add_report},
       {"doctor", "what this machine can do, and what brings the rest", add_doctor},
       {"topo", "read, look at and check fabrics", add_topo}});
}

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

}  // namespace refit::cli
