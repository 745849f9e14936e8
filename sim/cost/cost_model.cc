#include "sim/cost/cost_model.h"

#include <fmt/core.h>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace refit {
namespace {

/// A rate, or "none" where nothing limits.
double read_limit(const Value& value) { return value.as_text() == "none" ? 0 : value.as_rate(); }

LinkCost read_link_cost(const Value& value) {
  LinkCost cost;
  const Value& efficiency = value.at("efficiency");
  cost.efficiency = efficiency.as_number();
  if (!(cost.efficiency > 0 && cost.efficiency <= 1))
    fail(efficiency.place(), efficiency.as_text(), "more than 0, at most 1");
  cost.flow_rate = read_limit(value.at("flow_rate"));
  cost.step_start = value.at("step_start").as_time();
  cost.message_start = value.at("message_start").as_time();
  value.finish();
  return cost;
}

constexpr int32_t kMostChannels = 64;  // MAXCHANNELS, NVIDIA/nccl src/include/device.h
constexpr int32_t kMostFills = 16;
constexpr int64_t kLeastChunk = 1024;

ChannelCost read_channel_cost(const Value& value) {
  ChannelCost cost;
  cost.channels = static_cast<int32_t>(value.at("channels").as_int(1, kMostChannels));
  cost.rate = value.at("channel_rate").as_rate();
  const Value& chunk = value.at("chunk");
  cost.chunk = chunk.as_bytes();
  if (cost.chunk < kLeastChunk) fail(chunk.place(), chunk.as_text(), "1KiB or more");
  cost.fills = static_cast<int32_t>(value.at("fills").as_int(0, kMostFills));
  value.finish();
  return cost;
}

NcclCost read_nccl(const Value& value) {
  NcclCost cost;
  cost.channels = static_cast<int32_t>(value.at("channels").as_int(1, kMostChannels));
  const Value& peers = value.at("max_peers");
  if (peers.as_text() != "all") cost.max_peers = static_cast<int32_t>(peers.as_int(1, 1 << 20));
  cost.pxn = value.at("pxn").as_bool();
  cost.nvlink = read_channel_cost(value.at("nvlink"));
  cost.net = read_channel_cost(value.at("net"));
  value.finish();
  return cost;
}

std::string limit_text(double rate) {
  return rate > 0 ? fmt::format("{:.6g}GB/s", rate * 1e-9) : "none";
}

std::string link_text(const char* name, const LinkCost& link, const std::string& rate_note,
                      const std::string& start_note, const std::string& rest) {
  return fmt::format(
      "\n{}:\n  efficiency: {:.6g}  # {}\n  flow_rate: {}  # {}\n  step_start: {:.6g}us  # {}\n"
      "  message_start: {:.6g}us  # {}\n",
      name, link.efficiency, rate_note, limit_text(link.flow_rate), rest, link.step_start * 1e6,
      start_note, link.message_start * 1e6, rest);
}

std::string channel_text(const char* name, const ChannelCost& cost) {
  return fmt::format("  {}: {{channels: {}, channel_rate: {:.6g}GB/s, chunk: {}B, fills: {}}}\n",
                     name, cost.channels, cost.rate * 1e-9, cost.chunk, cost.fills);
}

}  // namespace

CostSource load_cost_source(const std::string& name_or_path) {
  const std::string path = find_data_file("topologies/cost", name_or_path);
  if (path.empty())
    fail("cost model", quote(name_or_path),
         fmt::format("a file or one of: {}", list_data_files("topologies/cost")));
  return {.text = read_file(path), .name = path};
}

CostModel parse_cost(const CostSource& source) {
  const Value file = parse_document(source.text, source.name, /*json=*/false);
  CostModel cost;
  const Value& name = file.at("name");
  cost.name = name.as_text();
  if (cost.name.empty()) fail(name.place(), "an empty text", "a name");
  cost.nvlink = read_link_cost(file.at("nvlink"));
  cost.net = read_link_cost(file.at("net"));
  cost.gpu_rate = read_limit(file.at("gpu_rate"));
  cost.memory_rate = read_limit(file.at("memory_rate"));
  cost.copy_start = file.at("copy_start").as_time();
  if (const Value* nccl = file.find("nccl")) cost.nccl = read_nccl(*nccl);
  if (const Value* host = file.find("host"); host != nullptr) {
    cost.host.parameter = host->at("parameter").as_time();
    cost.host.call = host->at("call").as_time();
    host->finish();
  }
  file.finish();
  return cost;
}

std::string print_cost(const CostModel& cost, const CostNotes& notes) {
  std::string text;
  for (const std::string_view line : split_lines(notes.head)) text += fmt::format("# {}\n", line);
  text += fmt::format("name: {}\n", cost.name);
  text += link_text("nvlink", cost.nvlink, notes.nvlink_rate, notes.nvlink_start, notes.rest);
  text += link_text("net", cost.net, notes.net_rate, notes.net_start, notes.rest);
  text += fmt::format("\ngpu_rate: {}  # {}\nmemory_rate: {}  # {}\ncopy_start: {:.6g}us  # {}\n",
                      limit_text(cost.gpu_rate), notes.rest, limit_text(cost.memory_rate),
                      notes.rest, cost.copy_start * 1e6, notes.rest);
  if (cost.nccl.channels > 0) {
    text += fmt::format("\nnccl:  # {}\n  channels: {}\n  max_peers: {}\n  pxn: {}\n", notes.rest,
                        cost.nccl.channels,
                        cost.nccl.max_peers > 0 ? fmt::format("{}", cost.nccl.max_peers) : "all",
                        cost.nccl.pxn);
    text += channel_text("nvlink", cost.nccl.nvlink);
    text += channel_text("net", cost.nccl.net);
  }
  return text;
}

const LinkCost& link_cost(const CostModel& cost, LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return cost.nvlink;
    case LinkKind::kNic:
    case LinkKind::kSpine:
    case LinkKind::kPcie:
      return cost.net;
  }
  check_failed("a kind of link", __FILE__, __LINE__);
}

std::vector<double> link_rates(const Fabric& fabric, const CostModel& cost) {
  std::vector<double> rates;
  rates.reserve(fabric.links.size());
  for (const Link& link : fabric.links)
    rates.push_back(link.rate * link_cost(cost, link.kind).efficiency);
  return rates;
}

}  // namespace refit
