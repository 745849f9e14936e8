#include "sim/report/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "sim/report/figures.h"
#include "sim/report/page.h"
#include "sim/search/problem.h"
#include "sim/simulator/usage.h"

namespace refit {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kColumns = 240;    // of the timelines
constexpr int32_t kLinkRows = 160;   // the fullest
constexpr int32_t kMostNodes = 128;  // of the traffic matrix
constexpr size_t kLoadRows = 4096;   // of the link loads

/// One byte per part, base64 (RFC 4648): a timeline of 512 ranks takes 160 kB.
std::string encode(const std::vector<float>& parts) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = [&](size_t i) {
    return i < parts.size() ? static_cast<uint32_t>(std::lround(parts[i] * 255)) : 0U;
  };
  std::string text;
  for (size_t i = 0; i < parts.size(); i += 3) {
    const uint32_t word = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t d = 0; d < 4; ++d)
      text += i + d > parts.size() ? '=' : kDigits[word >> (18 - 6 * d) & 63];
  }
  return text;
}

Json heat_json(const Heat& heat) {
  return {{"rows", heat.rows}, {"columns", heat.columns}, {"parts", encode(heat.part)}};
}

std::string kind_name(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return "NVLink";
    case LinkKind::kNic:
      return "NIC";
    case LinkKind::kSpine:
      return "spine";
    case LinkKind::kPcie:
      return "PCIe";
  }
  check_failed("a kind of link", __FILE__, __LINE__);
}

Json memory_json(const Plan& plan) {
  Json rows = Json::array();
  const auto buffers = static_cast<int32_t>(plan.buffers.size());
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto rank = static_cast<int32_t>(r);
    if (plan.ranks[r].gpu < 0) continue;
    const StagingUse staging = staging_use(plan, rank);
    if (staging.total() == 0 && plan.programs[r].steps.empty()) continue;
    rows.push_back({rank, staging.slots, staging.packing, plan.programs[r].steps.size()});
  }
  return {{"bound", plan.staging_bytes}, {"buffers", buffers}, {"rows", rows}};
}

Json others_json(const std::vector<ComparedPlan>& others) {
  Json rows = Json::array();
  for (const ComparedPlan& row : others) {
    rows.push_back({{"strategy", row.strategy},
                    {"predicted_s", row.error.empty() ? Json(row.prediction.predicted_s) : Json()},
                    {"error", row.error},
                    {"transfers", row.totals.transfers},
                    {"inter", row.totals.bytes_inter_domain},
                    {"intra", row.totals.bytes_intra_domain}});
  }
  return rows;
}

/// A layout's text where it is a line; a file's content would fill the page.
std::string layout_line(const Plan& plan, const char* side) {
  const std::string* text = find_input(plan, side);
  if (text == nullptr) return "";
  return text->find('\n') == std::string::npos && text->size() < 200 ? *text : "from a file";
}

Json report_json(const ReportInput& input) {
  const Plan& plan = input.plan;
  const Replay replayed = replay(plan, input.fabric, input.cost);
  const Timeline timeline = make_timeline(plan, replayed, input.cost, /*entries=*/true);
  const PlanTotals totals = plan_totals(plan);
  const Traffic traffic = node_traffic(plan, kMostNodes);

  const std::vector<LinkUsage> uses = link_uses(replayed, timeline.refit_s);
  Json load_rows = Json::array();
  for (const LinkUsage& use : uses) {
    if (load_rows.size() == kLoadRows) break;
    const Link& link = input.fabric.links[static_cast<size_t>(use.link)];
    load_rows.push_back({link.name, kind_name(link.kind), use.bytes, use.use});
  }
  return {
      {"version", REFIT_VERSION},
      {"digest", input.saved.digest},
      {"plan_bytes", input.saved.bytes},
      {"path", input.path},
      {"strategy", plan.strategy},
      {"model", model_name(plan)},
      {"train", layout_line(plan, "train")},
      {"gen", layout_line(plan, "gen")},
      {"fabric", input.fabric.name},
      {"nodes", input.fabric.nodes.size()},
      {"gpus", input.fabric.gpus.size()},
      {"domains", input.fabric.domains.size()},
      {"rails", input.fabric.rails},
      {"cost", input.cost.name},
      {"ranks", count_ranks(plan)},
      {"tensors", plan.tensors.size()},
      {"predicted_s", timeline.refit_s},
      {"lower_bound_s", plan.prediction.lower_bound_s},
      {"bound_reason", plan.prediction.bound_reason},
      {"estimated_s", plan.prediction.estimated_s},
      {"split",
       {{"wire", timeline.wire_s},
        {"staging", timeline.staging_s},
        {"launch", timeline.launch_s},
        {"waiting", timeline.wait_s}}},
      {"totals",
       {{"transfers", totals.transfers},
        {"copies", totals.copies},
        {"inter", totals.bytes_inter_domain},
        {"intra", totals.bytes_intra_domain},
        {"copied", totals.bytes_copied},
        {"staging", totals.peak_staging_bytes},
        {"peers", totals.max_peers}}},
      {"loads", load_rows},
      {"loaded_links", uses.size()},
      {"traffic", {{"names", traffic.names}, {"sides", traffic.sides}, {"bytes", traffic.bytes}}},
      {"rank_timeline", heat_json(rank_activity(plan, timeline, kColumns))},
      {"link_timeline", heat_json(link_activity(replayed, uses, input.fabric, timeline.refit_s,
                                                kColumns, kLinkRows))},
      {"memory", memory_json(plan)},
      {"others", others_json(input.others)}};
}

/// Replaces the one occurrence of a mark in the page.
void fill(std::string& page, std::string_view mark, std::string_view content) {
  const size_t at = page.find(mark);
  page.replace(at, mark.size(), content);
}

}  // namespace

std::string report_html(const ReportInput& input) {
  std::string data = report_json(input).dump();
  // Inside <script> a "</" would end the element.
  for (size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 3)) {
    data.replace(at, 2, "<\\/");
  }
  std::string page(page_html());
  fill(page, "/*style*/", page_css());
  fill(page, "/*library*/", page_library());
  fill(page, "/*script*/", page_js());
  fill(page, "/*data*/", data);
  return page;
}

}  // namespace refit
