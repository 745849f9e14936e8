#include "sim/simulator/whatif.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace refit {
namespace {

constexpr const char* kTargets =
    "nic, nvlink, spine, nodes[N].nic, nodes[N].nic[I], nodes[N].nvlink or nodes[N].nvlink[I]";

/// "[12]" at the start of `text`, which is cut off; -1 when there is none.
int32_t take_index(std::string_view& text, size_t count, const std::string& place) {
  if (text.empty() || text.front() != '[') return -1;
  const size_t end = text.find(']');
  if (end == std::string_view::npos) fail(place, quote(text), "an index in [ ]");
  const std::string_view digits = text.substr(1, end - 1);
  text.remove_prefix(end + 1);
  return static_cast<int32_t>(parse_int(digits, 0, static_cast<int64_t>(count) - 1, place));
}

void add_ports(const Fabric& fabric, int32_t gpu, std::vector<int32_t>& links) {
  const Gpu& port = fabric.gpus[static_cast<size_t>(gpu)];
  if (port.nvlink_out >= 0) links.insert(links.end(), {port.nvlink_out, port.nvlink_in});
}

void add_nic(const Fabric& fabric, int32_t nic, std::vector<int32_t>& links) {
  const Nic& port = fabric.nics[static_cast<size_t>(nic)];
  links.insert(links.end(), {port.out, port.in});
}

/// Links of one node; `rest` is what follows "nodes[N].".
std::vector<int32_t> node_links(const Fabric& fabric, const Node& node, std::string_view rest,
                                const std::string& place) {
  const bool nics = rest.starts_with("nic");
  if (!nics && !rest.starts_with("nvlink")) fail(place, quote(rest), kTargets);
  rest.remove_prefix(std::string_view(nics ? "nic" : "nvlink").size());
  const std::vector<int32_t>& members = nics ? node.nics : node.gpus;
  const int32_t index = take_index(rest, members.size(), place);
  if (!rest.empty()) fail(place, quote(rest), "'=' after " + std::string(nics ? "nic" : "nvlink"));
  std::vector<int32_t> links;
  for (size_t i = 0; i < members.size(); ++i) {
    if (index >= 0 && i != static_cast<size_t>(index)) continue;
    nics ? add_nic(fabric, members[i], links) : add_ports(fabric, members[i], links);
  }
  return links;
}

std::vector<int32_t> links_of_kind(const Fabric& fabric, LinkKind kind) {
  std::vector<int32_t> links;
  for (size_t link = 0; link < fabric.links.size(); ++link) {
    if (fabric.links[link].kind == kind) links.push_back(static_cast<int32_t>(link));
  }
  return links;
}

std::vector<int32_t> find_links(const Fabric& fabric, std::string_view target,
                                const std::string& place) {
  if (target == "nic") return links_of_kind(fabric, LinkKind::kNic);
  if (target == "nvlink") return links_of_kind(fabric, LinkKind::kNvlink);
  if (target == "spine") return links_of_kind(fabric, LinkKind::kSpine);
  std::string_view rest = target;
  if (!rest.starts_with("nodes[")) fail(place, quote(target), kTargets);
  rest.remove_prefix(std::string_view("nodes").size());
  const int32_t node = take_index(rest, fabric.nodes.size(), place);
  if (!rest.starts_with('.')) fail(place, quote(target), kTargets);
  return node_links(fabric, fabric.nodes[static_cast<size_t>(node)], rest.substr(1), place);
}

}  // namespace

void change_fabric(Fabric& fabric, const std::string& change) {
  const std::string place = "--set " + change;
  const size_t equals = change.find('=');
  if (equals == std::string::npos) fail("--set", quote(change), "TARGET=RATE or TARGET=down");
  const std::string target = change.substr(0, equals), value = change.substr(equals + 1);
  const std::vector<int32_t> links = find_links(fabric, target, place);
  if (links.empty()) {
    fail(place, "no such link", fmt::format("a link of fabric {}", fabric.name));
  }
  const double rate = value == "down" ? 0 : parse_rate(value, place);
  for (const int32_t link : links) fabric.links[static_cast<size_t>(link)].rate = rate;
}

Straggler parse_straggler(const std::string& text) {
  const std::string place = "--straggler " + text;
  const auto wrong = [&] {
    fail("--straggler", quote(text), "rank=R,x=PART, as in rank=17,x=0.5");
  };
  const std::string_view all = text;
  const size_t comma = all.find(',');
  if (!all.starts_with("rank=") || comma == std::string_view::npos) wrong();
  const std::string_view rank = all.substr(5, comma - 5);
  std::string_view part = all.substr(comma + 1);
  if (!part.starts_with("x=")) wrong();
  part.remove_prefix(2);
  Straggler straggler;
  straggler.rank =
      static_cast<int32_t>(parse_int(rank, 0, std::numeric_limits<int32_t>::max(), place));
  const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), straggler.speed);
  if (code != std::errc() || end != part.data() + part.size() || !(straggler.speed > 0) ||
      !(straggler.speed <= 1)) {
    fail(place, "x " + quote(part), "above 0, at most 1");
  }
  return straggler;
}

}  // namespace refit
