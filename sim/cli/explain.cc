// refit explain: what limits the time of a plan, and what would help.

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "sim/cli/print.h"
#include "sim/cli/results.h"
#include "sim/cli/simulation.h"
#include "sim/simulator/critical.h"
#include "sim/simulator/sensitivity.h"
#include "sim/simulator/usage.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What is explained: the chain of parts to some end.
struct Target {
  std::string name;  // "rank 17", "the last byte over n0.nic1.out"
  std::vector<ChainPart> chain;
  double seconds() const { return chain.empty() ? 0 : chain.back().to; }
};

/// What the parts of a chain add up to. Wire time is split into what the bytes would have taken on
/// idle links and the rest.
struct ChainSplit {
  double alone_s = 0, shared_s = 0, start_s = 0, staging_s = 0;
};

class Explanation {
 public:
  Explanation(const Simulation& simulation, const ExplainOptions& options)
      : plan_(simulation.loaded.plan),
        fabric_(simulation.world.fabric),
        replay_(replay(plan_, fabric_, simulation.world.cost, simulation.how, /*holders=*/true)),
        timeline_(make_timeline(plan_, replay_, simulation.world.cost)),
        uses_(link_uses(replay_, timeline_.refit_s)),
        target_(find_target(options)),
        binding_(saved_binding(plan_)) {
    for (const LinkUsage& use : uses_) {
      if (fabric_.links[static_cast<size_t>(use.link)].name == options.link) asked_ = &use;
    }
    if (!options.quick)
      sensitivities_ = sensitivities(plan_, fabric_, simulation.world.cost, simulation.how);
  }

  void print(const Simulation& simulation, const ExplainOptions& options) const;
  Json json(const Simulation& simulation) const;

 private:
  const Transfer& transfer(int32_t id) const {
    return replay_.graph.transfers[static_cast<size_t>(id)];
  }
  const StepNode& node(int32_t id) const { return replay_.graph.nodes[static_cast<size_t>(id)]; }
  std::string holder(int32_t id) const {
    return resource_name(replay_.graph, fabric_, replay_.transfers[static_cast<size_t>(id)].holder);
  }

  Target find_target(const ExplainOptions& options) const;
  Target find_tensor(const std::string& name) const;
  ChainSplit split() const;
  std::string waited_for(int32_t transfer) const;
  void print_chain(size_t rows) const;
  void print_links(size_t rows) const;
  void print_gaps(size_t rows) const;

  const Plan& plan_;
  const Fabric& fabric_;
  const Replay replay_;
  const Timeline timeline_;
  const std::vector<LinkUsage> uses_;
  const LinkUsage* asked_ = nullptr;  // of uses_: the link that was asked for
  Target target_;
  const std::vector<PriceGroup> binding_;
  std::vector<Sensitivity> sensitivities_;
};

Target Explanation::find_target(const ExplainOptions& options) const {
  if (!options.tensor.empty()) return find_tensor(options.tensor);
  if (!options.link.empty()) {
    const auto link = std::find_if(fabric_.links.begin(), fabric_.links.end(),
                                   [&](const Link& l) { return l.name == options.link; });
    if (link == fabric_.links.end())
      fail("--link", quote(options.link), "a link of the fabric, as in n0.nic1.out");
    const auto over = transfers_over(replay_, static_cast<int32_t>(link - fabric_.links.begin()));
    if (over.empty()) return {"link " + link->name + ", which carries nothing", {}};
    const auto ends_earlier = [&](int32_t a, int32_t b) {
      return replay_.transfers[static_cast<size_t>(a)].end <
             replay_.transfers[static_cast<size_t>(b)].end;
    };
    const int32_t last = *std::max_element(over.begin(), over.end(), ends_earlier);
    return {"the last byte over " + link->name, critical_chain_to(plan_, replay_, last)};
  }
  if (options.rank >= static_cast<int32_t>(plan_.ranks.size()))
    fail("--rank", fmt::format("{}", options.rank), fmt::format("0..{}", plan_.ranks.size() - 1));
  const int32_t last = last_node(replay_, options.rank);
  if (last < 0)
    return {options.rank < 0 ? "nothing" : fmt::format("rank {}, which does nothing", options.rank),
            {}};
  return {fmt::format("the end of rank {}", node(last).rank), critical_chain(plan_, replay_, last)};
}

Target Explanation::find_tensor(const std::string& name) const {
  const auto found = std::find_if(plan_.tensors.begin(), plan_.tensors.end(),
                                  [&](const PlanTensor& tensor) { return tensor.name == name; });
  if (found == plan_.tensors.end()) fail("--tensor", quote(name), "a tensor of the plan");
  const auto tensor = static_cast<int32_t>(found - plan_.tensors.begin());
  int32_t last = -1;
  for (size_t t = 0; t < replay_.transfers.size(); ++t) {
    const Transfer& candidate = replay_.graph.transfers[t];
    const double end = replay_.transfers[t].end;
    if (last >= 0 && end <= replay_.transfers[static_cast<size_t>(last)].end) continue;
    const Program& program = plan_.programs[static_cast<size_t>(candidate.from)];
    const Message& message =
        *find_send(program, step_of(plan_, node(candidate.sender)), candidate.to);
    for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
      if (program.pieces[static_cast<size_t>(p)].tensor == tensor) last = static_cast<int32_t>(t);
    }
  }
  if (last < 0) return {name + ", which is sent to nobody", {}};
  return {"the last byte of " + name, critical_chain_to(plan_, replay_, last)};
}

ChainSplit Explanation::split() const {
  ChainSplit split;
  for (const ChainPart& part : target_.chain) {
    switch (part.part) {
      case PartKind::kStart:
      case PartKind::kMessage:
        split.start_s += part.seconds();
        break;
      case PartKind::kPack:
      case PartKind::kUnpack:
      case PartKind::kCopy:
        split.staging_s += part.seconds();
        break;
      case PartKind::kWire: {
        const double alone = std::min(part.seconds(), alone_s(replay_, part.transfer));
        split.alone_s += alone;
        split.shared_s += part.seconds() - alone;
        break;
      }
    }
  }
  return split;
}

/// What the later end of a transfer had waited for.
std::string Explanation::waited_for(int32_t id) const {
  const Begin begin = begin_of_transfer(plan_, replay_, id);
  if (begin.after < 0) return cause_name(begin.cause);
  const Step& step = step_of(plan_, node(begin.after));
  return fmt::format("{} of rank {}, {}:{}", cause_name(begin.cause), node(begin.after).rank,
                     step.channel, step.id);
}

void Explanation::print_chain(size_t rows) const {
  // A line for each transfer or copy, with the parts that led to it from the step before.
  std::vector<std::vector<std::string>> table;
  double start = 0;
  std::string cause;
  double before = 0;
  for (const ChainPart& part : target_.chain) {
    if (part.part != PartKind::kWire && part.part != PartKind::kCopy) {
      if (before == 0) start = part.from;
      if (part.part == PartKind::kStart || part.part == PartKind::kPack)
        cause = fmt::format("{} of {}", cause_name(part.cause), node(part.node).rank);
      if (part.part != PartKind::kUnpack) before += part.seconds();
      if (part.part == PartKind::kUnpack && !table.empty())
        table.back()[8] = print_time(part.seconds());
      continue;
    }
    const Step& step = step_of(plan_, node(part.node));
    const std::string where = fmt::format("{}:{}", step.channel, step.id);
    if (part.part == PartKind::kCopy) {
      table.push_back({print_time(part.from), fmt::format("copy in {}", node(part.node).rank),
                       where, print_bytes(static_cast<double>(node(part.node).copy_bytes)),
                       fmt::format("{} of {}", cause_name(part.cause), node(part.node).rank), "",
                       "", print_time(part.seconds()), "", ""});
    } else {
      const Transfer& moved = transfer(part.transfer);
      table.push_back({print_time(before > 0 ? start : part.from),
                       fmt::format("{} to {}", moved.from, moved.to), where,
                       print_bytes(static_cast<double>(moved.bytes)), cause, print_time(before),
                       print_time(alone_s(replay_, part.transfer)), print_time(part.seconds()), "",
                       holder(part.transfer)});
    }
    before = 0;
  }
  const size_t hidden = table.size() > rows ? table.size() - rows : 0;
  if (hidden > 0) {
    table.erase(table.begin(), table.end() - static_cast<ptrdiff_t>(rows));
    fmt::print("  the last {} of {} transfers (--rows, or --json for all):\n", rows, rows + hidden);
  }
  print_table({"at", "transfer", "step", "bytes", "after", "start", "alone", "took", "unpack",
               "rate held by"},
              table);
}

void Explanation::print_links(size_t rows) const {
  std::vector<std::vector<std::string>> table;
  for (const LinkUsage& use : uses_) {
    if (table.size() == rows) break;
    double idle = 0, longest = 0;
    for (const IdleGap& gap : use.gaps) {
      idle += gap.seconds();
      longest = std::max(longest, gap.seconds());
    }
    table.push_back({fabric_.links[static_cast<size_t>(use.link)].name, print_bytes(use.bytes),
                     print_percent(use.use), print_time(use.busy_s),
                     fmt::format("{}", use.gaps.size()), print_time(idle), print_time(longest)});
  }
  print_table({"link", "bytes", "use", "busy", "gaps", "idle between", "longest"}, table);
}

void Explanation::print_gaps(size_t rows) const {
  std::vector<IdleGap> gaps = asked_->gaps;
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const IdleGap& a, const IdleGap& b) { return a.seconds() > b.seconds(); });
  if (gaps.size() > rows) gaps.resize(rows);
  std::vector<std::vector<std::string>> table;
  for (const IdleGap& gap : gaps) {
    const Transfer& next = transfer(gap.next);
    table.push_back({print_time(gap.from), print_time(gap.seconds()),
                     fmt::format("{} to {}", next.from, next.to), waited_for(gap.next)});
  }
  print_table({"idle from", "for", "until transfer", "which waited for"}, table);
}

void Explanation::print(const Simulation& simulation, const ExplainOptions& options) const {
  const auto rows = static_cast<size_t>(options.rows);
  const Prediction& saved = plan_.prediction;
  fmt::print("refit time   {} on {}, cost model {}\n", print_time(timeline_.refit_s), fabric_.name,
             simulation.world.cost.name);
  if (saved.lower_bound_s > 0) {
    print_text(fmt::format("lower bound  {}: {} (of the plan as saved; this is {} above it)\n",
                           print_time(saved.lower_bound_s), saved.bound_reason,
                           print_percent(timeline_.refit_s / saved.lower_bound_s - 1)));
    print_binding(binding_);
  }
  fmt::print("\nwhat leads to {}\n", target_.name);
  if (!target_.chain.empty()) {
    const ChainSplit parts = split();
    const double total = target_.seconds();
    const auto line = [&](const char* name, double seconds) {
      if (seconds > 0)
        fmt::print("  {:<42} {:>8}  {:>6}\n", name, print_time(seconds),
                   print_percent(seconds / total));
    };
    line("bytes on the wire, as on idle links", parts.alone_s);
    line("longer, because links are shared", parts.shared_s);
    line("start-ups of steps and messages, latencies", parts.start_s);
    line("packing, unpacking and copies", parts.staging_s);
    fmt::print("\n");
    print_chain(rows);
  }
  if (asked_ != nullptr && !asked_->gaps.empty()) {
    fmt::print("\nlongest idle times of {}\n",
               fabric_.links[static_cast<size_t>(asked_->link)].name);
    print_gaps(rows);
  }
  fmt::print("\nfullest links\n");
  print_links(std::min<size_t>(rows, 8));
  if (sensitivities_.empty()) return;
  fmt::print("\nwhat would help, with the same schedule\n");
  std::vector<std::vector<std::string>> table;
  for (const Sensitivity& s : sensitivities_) {
    table.push_back({s.change, print_time(s.refit_s),
                     fmt::format("{:+.1f} %", 100 * (s.refit_s / timeline_.refit_s - 1))});
  }
  print_table({"change", "refit time", "change"}, table);
}

Json Explanation::json(const Simulation& simulation) const {
  Json chain = Json::array();
  for (const ChainPart& part : target_.chain) {
    const Step& step = step_of(plan_, node(part.node));
    Json item = {{"part", part_name(part.part)},
                 {"cause", cause_name(part.cause)},
                 {"rank", node(part.node).rank},
                 {"channel", step.channel},
                 {"step", step.id},
                 {"from_s", part.from},
                 {"to_s", part.to}};
    if (part.transfer >= 0) {
      item["from"] = transfer(part.transfer).from;
      item["to"] = transfer(part.transfer).to;
      item["bytes"] = transfer(part.transfer).bytes;
    }
    if (part.part == PartKind::kWire) {
      item["alone_s"] = alone_s(replay_, part.transfer);
      item["holder"] = holder(part.transfer);
    }
    chain.push_back(std::move(item));
  }
  Json links = Json::array();
  for (const LinkUsage& use : uses_) {
    Json gaps = Json::array();
    if (&use == asked_) {
      for (const IdleGap& gap : use.gaps)
        gaps.push_back({{"from_s", gap.from},
                        {"to_s", gap.to},
                        {"from", transfer(gap.next).from},
                        {"to", transfer(gap.next).to},
                        {"waited_for", waited_for(gap.next)}});
    }
    Json item = {{"link", fabric_.links[static_cast<size_t>(use.link)].name},
                 {"bytes", use.bytes},
                 {"use", use.use},
                 {"busy_s", use.busy_s},
                 {"transfers", use.transfers},
                 {"gaps", use.gaps.size()}};
    if (&use == asked_) item["idle"] = std::move(gaps);
    links.push_back(std::move(item));
  }
  Json helps = Json::array();
  for (const Sensitivity& s : sensitivities_)
    helps.push_back({{"change", s.change}, {"refit_s", s.refit_s}});
  const ChainSplit parts = split();
  return {{"predicted_s", timeline_.refit_s},
          {"saved_predicted_s", plan_.prediction.predicted_s},
          {"bound",
           {{"seconds", plan_.prediction.lower_bound_s},
            {"reason", plan_.prediction.bound_reason},
            {"binding", Json::parse(binding_json(binding_))}}},
          {"fabric", fabric_.name},
          {"cost", simulation.world.cost.name},
          {"target", target_.name},
          {"chain_s", target_.seconds()},
          {"split",
           {{"alone_s", parts.alone_s},
            {"shared_s", parts.shared_s},
            {"start_s", parts.start_s},
            {"staging_s", parts.staging_s}}},
          {"chain", chain},
          {"links", links},
          {"helps", helps}};
}

}  // namespace

int run_explain(const Common& common, const ExplainOptions& options) {
  const Simulation simulation =
      during(common.quiet, "check", [&] { return load_simulation(options.simulate); });
  const Explanation explanation =
      during(common.quiet, "simulate", [&] { return Explanation(simulation, options); });
  if (common.json) {
    fmt::print("{}\n", explanation.json(simulation).dump(2));
  } else {
    explanation.print(simulation, options);
  }
  return 0;
}

}  // namespace refit::cli
