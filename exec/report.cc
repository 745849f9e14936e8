#include "exec/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/units.h"

namespace refit {

namespace {

using Json = nlohmann::ordered_json;

std::string bytes_text(int64_t bytes) { return print_bytes(static_cast<double>(bytes)); }

Json steps_json(const std::vector<StepReport>& steps) {
  Json list = Json::array();
  for (const StepReport& step : steps) {
    list.push_back({step.channel, step.step, step.times.begin_s, step.times.end_s, step.sends,
                    step.recvs, step.bytes_sent, step.bytes_received});
  }
  return list;
}

Json peers_json(const std::vector<PeerReport>& peers) {
  Json list = Json::array();
  for (const PeerReport& peer : peers) {
    list.push_back({{"from", peer.from},
                    {"to", peer.to},
                    {"channel", peer.channel},
                    {"messages", peer.messages},
                    {"bytes", peer.bytes},
                    {"first_s", peer.times.begin_s},
                    {"last_s", peer.times.end_s}});
  }
  return list;
}

/// What crosses the boundary of each node. Times are those of the receivers' steps.
Json nodes_json(const Plan& plan, const ReplayReport& report) {
  struct Node {
    int64_t sent = 0, received = 0;
    double first_s = std::numeric_limits<double>::infinity(), last_s = 0;
  };
  std::map<std::string, Node> nodes;
  for (const RankReport& rank : report.ranks) {
    for (const PeerReport& peer : rank.peers) {
      const std::string& from = plan.ranks[static_cast<size_t>(peer.from)].node;
      const std::string& to = plan.ranks[static_cast<size_t>(peer.to)].node;
      if (from == to) continue;
      nodes[from].sent += peer.bytes;
      nodes[to].received += peer.bytes;
      for (Node* node : {&nodes[from], &nodes[to]}) {
        node->first_s = std::min(node->first_s, peer.times.begin_s);
        node->last_s = std::max(node->last_s, peer.times.end_s);
      }
    }
  }
  Json list = Json::array();
  for (const auto& [name, node] : nodes) {
    list.push_back({{"node", name},
                    {"sent", node.sent},
                    {"received", node.received},
                    {"first_s", node.first_s},
                    {"last_s", node.last_s}});
  }
  return list;
}

}  // namespace

double Outcome::rate() const {
  return static_cast<double>(report.bytes_moved()) / report.median_s();
}

std::string report_text(const Outcome& outcome) {
  const Plan& plan = outcome.loaded.plan;
  const ReplayReport& report = outcome.report;
  const PlanTotals totals = plan_totals(plan);
  const auto [fastest, slowest] = std::minmax_element(report.seconds.begin(), report.seconds.end());
  std::string text;
  text += fmt::format("plan       {}, {} ranks, strategy {}\n",
                      outcome.loaded.saved.digest.substr(0, 12), plan.ranks.size(), plan.strategy);
  text += fmt::format("moves      {} in {} transfers, {} in {} local copies\n",
                      bytes_text(report.bytes_wire), totals.transfers,
                      bytes_text(report.bytes_copied), totals.copies);
  text += fmt::format("memory     {} of buffers, {} of staging\n", bytes_text(report.buffer_bytes),
                      bytes_text(report.staging_bytes));
  text +=
      fmt::format("refit      min {}, median {}, max {} over {} iterations\n", print_time(*fastest),
                  print_time(report.median_s()), print_time(*slowest), report.seconds.size());
  if (outcome.memcpy_rate > 0) {
    text += fmt::format("rate       {} moved; memcpy on {} cores here: {}; ratio {:.2f}\n",
                        print_rate(outcome.rate()), outcome.cores, print_rate(outcome.memcpy_rate),
                        outcome.rate() / outcome.memcpy_rate);
  } else {
    text +=
        fmt::format("rate       {} moved, {} hosts\n", print_rate(outcome.rate()), outcome.hosts);
  }
  const double predicted_s = plan.prediction.predicted_s;
  if (outcome.hosts > 1 && predicted_s > 0) {
    text += fmt::format("predicted  {}; measured / predicted {:.3f}\n", print_time(predicted_s),
                        report.median_s() / predicted_s);
  } else {
    text += fmt::format("predicted  {} on the plan's fabric, which is not this host\n",
                        print_time(predicted_s));
  }
  if (outcome.verified) {
    text += fmt::format("verified   {} bytes on {} ranks, every byte equal\n",
                        report.verified_bytes, report.verified_ranks);
  }
  return text;
}

std::string report_json(const Outcome& outcome, const std::string& build_type) {
  const Plan& plan = outcome.loaded.plan;
  const ReplayReport& report = outcome.report;
  Json json;
  json["context"] = {{"version", REFIT_VERSION},
                     {"backend", outcome.backend},
                     {"cores", outcome.cores},
                     {"hosts", outcome.hosts},
                     {"build_type", build_type}};
  json["digest"] = outcome.loaded.saved.digest;
  json["strategy"] = plan.strategy;
  json["iterations"] = report.seconds;
  json["median_s"] = report.median_s();
  json["setup_s"] = report.setup_s;
  json["bytes_moved"] = report.bytes_moved();
  json["bytes_per_second"] = outcome.rate();
  if (outcome.memcpy_rate > 0) json["memcpy_bytes_per_second"] = outcome.memcpy_rate;
  json["verified"] = outcome.verified;
  json["predicted_s"] = plan.prediction.predicted_s;
  json["estimated_s"] = plan.prediction.estimated_s;
  json["lower_bound_s"] = plan.prediction.lower_bound_s;
  json["channels"] = Json::array();
  for (size_t c = 0; c < plan.channels.size(); ++c) {
    json["channels"].push_back({{"channel", c}, {"lane", lane_name(plan.channels[c].lane)}});
  }
  json["nodes"] = nodes_json(plan, report);
  json["peers"] = Json::array();
  for (const RankReport& rank : report.ranks) {
    for (const Json& peer : peers_json(rank.peers)) json["peers"].push_back(peer);
  }
  json["step_fields"] = {"channel", "step",  "begin_s",    "end_s",
                         "sends",   "recvs", "bytes_sent", "bytes_received"};
  json["ranks"] = Json::array();
  for (const RankReport& rank : report.ranks) {
    const PlanRank& where = plan.ranks[static_cast<size_t>(rank.rank)];
    json["ranks"].push_back({{"rank", rank.rank},
                             {"node", where.node},
                             {"nvlink_domain", where.nvlink_domain},
                             {"seconds", median(rank.seconds)},
                             {"bytes_received", rank.bytes_received},
                             {"bytes_copied", rank.bytes_copied},
                             {"staging_bytes", rank.staging_bytes},
                             {"steps", steps_json(rank.steps)}});
  }
  return json.dump() + "\n";
}

std::string write_rank_report(const RankReport& report) {
  const Json json = {{"rank", report.rank},
                     {"seconds", report.seconds},
                     {"setup_s", report.setup_s},
                     {"bytes",
                      {report.bytes_received, report.bytes_copied, report.staging_bytes,
                       report.buffer_bytes, report.verified_bytes}},
                     {"steps", steps_json(report.steps)},
                     {"peers", peers_json(report.peers)}};
  return json.dump();
}

namespace {

RankReport read_rank_report(const std::string& text) {
  const Json json = Json::parse(text);
  RankReport report;
  report.rank = json.at("rank");
  report.seconds = json.at("seconds").get<std::vector<double>>();
  report.setup_s = json.at("setup_s");
  const Json& bytes = json.at("bytes");
  report.bytes_received = bytes[0];
  report.bytes_copied = bytes[1];
  report.staging_bytes = bytes[2];
  report.buffer_bytes = bytes[3];
  report.verified_bytes = bytes[4];
  for (const Json& step : json.at("steps")) {
    report.steps.push_back(
        {step[0], step[1], {step[2], step[3]}, step[4], step[5], step[6], step[7]});
  }
  for (const Json& peer : json.at("peers")) {
    report.peers.push_back({peer.at("from"),
                            peer.at("to"),
                            peer.at("channel"),
                            peer.at("messages"),
                            peer.at("bytes"),
                            {peer.at("first_s"), peer.at("last_s")}});
  }
  return report;
}

}  // namespace

std::vector<RankReport> read_rank_reports(const std::vector<std::string>& texts) {
  std::vector<RankReport> ranks;
  for (const std::string& text : texts) ranks.push_back(read_rank_report(text));
  return ranks;
}

}  // namespace refit
