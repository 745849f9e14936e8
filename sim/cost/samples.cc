// Equations of measurements, see calibrate.h.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "sim/cost/calibrate.h"

namespace refit {
namespace {

/// Times at nominal rates that are closer than this part do not say which class they measure.
constexpr double kClear = 0.25;

/// How the ranks of a log lie on the fabric.
struct Ranks {
  int32_t count = 0;  // n
  int32_t per_host = 0;
  int32_t per_domain = 0;  // D, at most n
  double nics_per_host = 0, nics_per_gpu = 0, gpus_per_nic = 0;
  double nvlink = 0, nic = 0;                  // nominal rates; 0: none
  double nvlink_latency = 0, net_latency = 0;  // of a path
};

Ranks place_log(const NcclLog& log, const FabricSource& source) {
  std::vector<std::pair<std::string, int32_t>> hosts;
  for (const std::string& host : log.hosts) {
    if (hosts.empty() || hosts.back().first != host) hosts.emplace_back(host, 0);
    ++hosts.back().second;
  }
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (hosts[i].first == hosts[j].first)
        fail(log.name, fmt::format("ranks of host {} in several runs", quote(hosts[i].first)),
             "ranks in order of hosts");
    }
    if (hosts[i].second != hosts[0].second)
      fail(log.name,
           fmt::format("{} ranks on {} and {} on {}", hosts[0].second, hosts[0].first,
                       hosts[i].second, hosts[i].first),
           "equally many on each host");
  }
  const NodeShape shape = node_shape(source);
  if (hosts[0].second > shape.gpus_per_node)
    fail(log.name, fmt::format("{} ranks on a host", hosts[0].second),
         fmt::format("at most the {} GPUs of a node of {}", shape.gpus_per_node, source.name));
  const auto nodes = static_cast<int32_t>(hosts.size());
  if (shape.fixed_nodes > 0 && nodes > shape.fixed_nodes)
    fail(log.name, fmt::format("{} hosts", nodes),
         fmt::format("at most the {} nodes of {}", shape.fixed_nodes, source.name));
  const int32_t least = std::max(nodes, 2 * shape.nodes_per_domain);  // for a path by network
  const Fabric fabric = make_fabric(source, shape.fixed_nodes > 0 ? shape.fixed_nodes : least);

  Ranks ranks;
  ranks.count = static_cast<int32_t>(log.hosts.size());
  ranks.per_host = hosts[0].second;
  const Gpu& gpu = fabric.gpus[0];
  const auto link = [&](int32_t id) { return fabric.links[static_cast<size_t>(id)]; };
  const Nic& nic = fabric.nics[static_cast<size_t>(gpu.nics[0])];
  ranks.per_domain = 1;  // without NVLink
  if (gpu.nvlink_out >= 0) {
    ranks.per_domain = std::min(ranks.count, ranks.per_host * shape.nodes_per_domain);
    ranks.nvlink = link(gpu.nvlink_out).rate;
    ranks.nvlink_latency = link(gpu.nvlink_out).latency + link(gpu.nvlink_in).latency;
  }
  ranks.nic = link(nic.out).rate;
  ranks.net_latency = link(nic.out).latency + link(nic.in).latency;
  const auto nics = static_cast<double>(fabric.nodes[0].nics.size());
  ranks.nics_per_gpu = std::max(1.0, nics / shape.gpus_per_node);
  ranks.gpus_per_nic = std::max(1.0, ranks.per_host / nics);
  ranks.nics_per_host = std::min(nics, ranks.per_host * ranks.nics_per_gpu);
  return ranks;
}

/// Bytes that a port of each class has to pass, for a size S.
struct PortBytes {
  double nvlink = 0, net = 0;
};

PortBytes port_bytes(NcclTest test, const Ranks& ranks, double size) {
  const double n = ranks.count, d = ranks.per_domain;
  const bool network = ranks.per_domain < ranks.count;
  PortBytes bytes;
  switch (test) {
    case NcclTest::kSendRecv:
      bytes = {d > 1 ? size : 0, network ? size / ranks.nics_per_gpu : 0};
      if (network && d == 1) bytes.net *= ranks.gpus_per_nic;  // every rank of a host crosses
      break;
    case NcclTest::kAllToAll:
      bytes = {(d - 1) * size / n, ranks.gpus_per_nic * (n - d) * size / n / ranks.nics_per_gpu};
      break;
    case NcclTest::kAllGather:
      bytes = {d > 1 ? (n - 1) * size / n : 0,
               network ? (n - 1) * size / n / ranks.nics_per_host : 0};
      break;
    case NcclTest::kBroadcast:
      bytes = {d > 1 ? size : 0, network ? size / ranks.nics_per_host : 0};
      break;
  }
  return bytes;
}

bool is_collective(NcclTest test) {
  return test == NcclTest::kAllGather || test == NcclTest::kBroadcast;
}

}  // namespace

std::vector<Sample> log_samples(const NcclLog& log, int32_t number, const FabricSource& source,
                                std::vector<std::string>* skipped) {
  const Ranks ranks = place_log(log, source);
  const PortBytes unit = port_bytes(log.test, ranks, 1);
  const double nvlink_s = unit.nvlink > 0 ? unit.nvlink / ranks.nvlink : 0;
  const double net_s = unit.net / ranks.nic;
  const bool net = net_s > nvlink_s;
  std::vector<Sample> samples;
  if (std::min(nvlink_s, net_s) > (1 - kClear) * std::max(nvlink_s, net_s)) {
    if (skipped != nullptr)
      skipped->push_back(fmt::format(
          "{}: {} of {} ranks takes about as long by NVLink as by network: it tells neither",
          log.name, test_name(log.test), ranks.count));
    return samples;
  }
  int64_t too_short = 0;
  for (const NcclLog::Row& row : log.rows) {
    Sample sample{.place = fmt::format("{}:{}", log.name, row.line),
                  .what = fmt::format("{} of {} ranks, {}", test_name(log.test), ranks.count,
                                      print_bytes(static_cast<double>(row.bytes))),
                  .kind = net ? LinkKind::kNic : LinkKind::kNvlink,
                  .collective = is_collective(log.test) ? number : -1,
                  .bytes = (net ? unit.net : unit.nvlink) * static_cast<double>(row.bytes),
                  .seconds = row.seconds - (net ? ranks.net_latency : ranks.nvlink_latency),
                  .nominal = net ? ranks.nic : ranks.nvlink};
    if (sample.seconds > 0)
      samples.push_back(std::move(sample));
    else
      ++too_short;
  }
  if (too_short > 0 && skipped != nullptr)
    skipped->push_back(fmt::format("{}: {} rows are shorter than the latency of the path alone",
                                   log.name, too_short));
  return samples;
}

std::vector<Sample> exec_samples(std::string_view json, const std::string& name, const Plan& plan,
                                 const Fabric& fabric) {
  const Value file = parse_document(json, name, /*json=*/true);
  const Value& fields = file.at("step_fields");
  const auto field = [&](std::string_view wanted) {
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].as_text() == wanted) return i;
    }
    fail(fields.place(), "no " + quote(wanted), "it among the fields of a step");
  };
  const size_t channel_at = field("channel"), step_at = field("step");
  const size_t begin_at = field("begin_s"), end_at = field("end_s");
  struct Span {
    double begin = 0, end = 0;
    int line = 0;
  };
  std::map<std::tuple<int32_t, int32_t, int32_t>, Span> spans;  // rank, channel, step
  const auto rank_count = static_cast<int64_t>(plan.programs.size());
  const Value& ranks = file.at("ranks");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto rank = static_cast<int32_t>(ranks[r].at("rank").as_int(0, rank_count - 1));
    const Value& steps = ranks[r].at("steps");
    for (size_t i = 0; i < steps.size(); ++i) {
      const Value& step = steps[i];
      if (step.size() != fields.size())
        fail(step.place(), fmt::format("{} values", step.size()),
             fmt::format("the {} of step_fields", fields.size()));
      const auto channel = static_cast<int32_t>(step[channel_at].as_int(0, kMaxChannels - 1));
      const auto id = static_cast<int32_t>(step[step_at].as_int(0, INT32_MAX));
      if (find_step(plan.programs[static_cast<size_t>(rank)], channel, id) < 0)
        fail(step.place(), fmt::format("rank {}, channel {}, step {}", rank, channel, id),
             "a step of the plan");
      const Span span{step[begin_at].as_number(), step[end_at].as_number(), step.line()};
      if (!(span.end >= span.begin))
        fail(step.place(), fmt::format("end_s {} before begin_s {}", span.end, span.begin),
             "an end after the begin");
      if (!spans.emplace(std::tuple(rank, channel, id), span).second)
        fail(step.place(), "a step that is already there", "each step once");
    }
  }

  struct Use {
    double begin = 0, end = 0;
    size_t transfer = 0;
  };
  struct Found {
    Sample sample;
    std::vector<int32_t> links;
    double begin = 0, end = 0;
    bool alone = true;
  };
  std::vector<Found> found;
  for (const auto& [key, span] : spans) {
    const auto [rank, channel, id] = key;
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    const Step& step = program.steps[static_cast<size_t>(find_step(program, channel, id))];
    for (int32_t m = step.first_send; m < step.first_recv; ++m) {
      const Message& send = program.messages[static_cast<size_t>(m)];
      const auto other = spans.find(std::tuple(send.peer, channel, id));
      if (send.peer == rank || other == spans.end()) continue;
      const Program& peer = plan.programs[static_cast<size_t>(send.peer)];
      const Step& far = peer.steps[static_cast<size_t>(find_step(peer, channel, id))];
      const Message* receive = find_recv(peer, far, rank);
      const auto single = [](const Step& s) { return s.last_message - s.first_send == 1; };
      Found item;
      const int32_t from = plan.ranks[static_cast<size_t>(rank)].gpu;
      const int32_t to = plan.ranks[static_cast<size_t>(send.peer)].gpu;
      const int32_t ways = count_ways(fabric, from, to);
      for (int32_t way = 0; way < ways; ++way) {
        const std::vector<int32_t> links = route(fabric, from, to, way);
        item.links.insert(item.links.end(), links.begin(), links.end());
      }
      item.begin = std::max(span.begin, other->second.begin);
      item.end = std::max(span.end, other->second.end);
      // Others use links, too, but only these can be told from what surrounds them.
      item.alone = single(step) && single(far) && receive != nullptr && !item.links.empty() &&
                   !needs_packing(plan, rank, send) && !needs_packing(plan, send.peer, *receive);
      if (!item.links.empty()) {
        const Link& first = fabric.links[static_cast<size_t>(item.links[0])];
        double latency = 0;
        for (const int32_t link : route(fabric, from, to))
          latency += fabric.links[static_cast<size_t>(link)].latency;
        const auto bytes = static_cast<double>(message_bytes(program, send));
        item.sample = {
            .place = fmt::format("{}:{}", name, span.line),
            .what = fmt::format("rank {} to {}, {}", rank, send.peer, print_bytes(bytes)),
            .kind = first.kind,
            .collective = -1,
            .bytes = bytes,
            .seconds = item.end - item.begin - latency,
            .nominal = first.rate * ways};
        item.alone = item.alone && item.sample.seconds > 0;
      }
      found.push_back(std::move(item));
    }
  }
  std::map<int32_t, std::vector<Use>> uses;  // by link
  for (size_t f = 0; f < found.size(); ++f) {
    for (const int32_t link : found[f].links)
      uses[link].push_back({found[f].begin, found[f].end, f});
  }
  for (auto& [link, of_link] : uses) {
    std::sort(of_link.begin(), of_link.end(), [](const Use& a, const Use& b) {
      return std::tuple(a.begin, a.transfer) < std::tuple(b.begin, b.transfer);
    });
    size_t longest = 0;  // the one before that ends last
    for (size_t u = 1; u < of_link.size(); ++u) {
      if (of_link[u].begin < of_link[longest].end)
        found[of_link[u].transfer].alone = found[of_link[longest].transfer].alone = false;
      if (of_link[u].end > of_link[longest].end) longest = u;
    }
  }
  std::vector<Sample> samples;
  for (Found& item : found) {
    if (item.alone) samples.push_back(std::move(item.sample));
  }
  if (samples.empty())
    fail(name, "no transfer that was alone in its steps and on its links", "at least one");
  return samples;
}

}  // namespace refit
