#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "sim/cost/bound.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

constexpr double kNoticeable = 1e-4;     // a price bound that is not better by that is not worth it
constexpr double kSmallestShare = 1e-7;  // of a link that keeps its price
constexpr double kNamedShare = 0.05;     // of a group that the reason names

size_t at(int32_t index) { return static_cast<size_t>(index); }

std::string print_price(double price) { return fmt::format("{:.6g}", price); }
double round_price(double price) { return std::strtod(print_price(price).c_str(), nullptr); }

std::vector<int32_t> gpus_of(const std::vector<int32_t>& ranks,
                             const std::vector<int32_t>& gpu_of_rank) {
  std::vector<int32_t> gpus;
  for (const int32_t rank : ranks) gpus.push_back(gpu_of_rank[at(rank)]);
  std::ranges::sort(gpus);
  return gpus;
}

const char* side_name(uint8_t sides) {
  switch (sides) {
    case kTrainSide:
      return "train ranks";
    case kGenSide:
      return "gen ranks";
    case kTrainSide | kGenSide:
      return "ranks of both sides";
  }
  return "GPUs without a rank";
}

/// What a link is part of, by link.
std::vector<std::string> name_links(const Fabric& fabric, const std::vector<uint8_t>& sides) {
  std::vector<std::string> names(fabric.links.size());
  const auto name = [&](int32_t link, const char* what, uint8_t side) {
    if (link >= 0) names[at(link)] = fmt::format("{} {}", what, side_name(side));
  };
  std::vector<uint8_t> nic_sides(fabric.nics.size(), 0);
  for (size_t g = 0; g < fabric.gpus.size(); ++g) {
    const Gpu& gpu = fabric.gpus[g];
    name(gpu.nvlink_out, "NVLink out of", sides[g]);
    name(gpu.nvlink_in, "NVLink into", sides[g]);
    name(gpu.pcie_out, "PCIe out of", sides[g]);
    name(gpu.pcie_in, "PCIe into", sides[g]);
    for (const int32_t bridge : gpu.bridges) name(bridge, "NVLink out of", sides[g]);
    for (const int32_t nic : gpu.nics) nic_sides[at(nic)] |= sides[g];
  }
  for (size_t n = 0; n < fabric.nics.size(); ++n) {
    name(fabric.nics[n].out, "NICs out of", nic_sides[n]);
    name(fabric.nics[n].in, "NICs into", nic_sides[n]);
  }
  for (const Switch& leaf : fabric.leaves)
    for (const int32_t link : {leaf.up, leaf.down})
      if (link >= 0) names[at(link)] = link == leaf.up ? "the spine, up" : "the spine, down";
  for (const Switch& hub : fabric.hubs)
    for (const int32_t link : {hub.up, hub.down})
      if (link >= 0) names[at(link)] = "PCIe between hubs";
  return names;
}

}  // namespace

std::vector<Multicast> make_multicasts(const Demand& demand,
                                       const std::vector<int32_t>& gpu_of_rank) {
  std::vector<Multicast> items;
  for (const DemandClass& of : demand.classes) {
    Multicast item;
    item.holders = gpus_of(demand.rank_sets[at(of.holders)], gpu_of_rank);
    const std::vector<int32_t> needers = gpus_of(demand.rank_sets[at(of.needers)], gpu_of_rank);
    std::ranges::set_difference(needers, item.holders, std::back_inserter(item.needers));
    item.bytes = static_cast<double>(of.bytes);
    if (!item.needers.empty() && of.bytes > 0) items.push_back(std::move(item));
  }
  return items;
}

std::vector<PriceGroup> group_prices(const std::vector<LinkPrice>& prices, const Fabric& fabric,
                                     const std::vector<double>& rates,
                                     const std::vector<uint8_t>& sides) {
  const std::vector<std::string> names = name_links(fabric, sides);
  std::map<std::string, PriceGroup> groups;
  for (const LinkPrice& item : prices) {
    PriceGroup& group = groups[names[at(item.link)]];
    group.share += item.price * rates[at(item.link)];
    ++group.links;
  }
  std::vector<PriceGroup> sorted;
  for (auto& [name, group] : groups) {
    group.name = name;
    if (group.share >= 1e-3) sorted.push_back(group);
  }
  std::ranges::stable_sort(sorted, std::ranges::greater{}, &PriceGroup::share);
  return sorted;
}

namespace {

/// Replaces the cut by prices where these give a noticeably better bound.
void try_prices(LowerBound& bound, const Demand& demand, const Fabric& fabric,
                const std::vector<int32_t>& gpu_of_rank, const std::vector<double>& rates) {
  const HopGraph graph = make_hop_graph(fabric, rates);
  const std::vector<Multicast> items = make_multicasts(demand, gpu_of_rank);
  const FluidRouting fluid = route_fluid(graph, items, {.at_least = bound.seconds});
  if (fluid.seconds < std::numeric_limits<double>::infinity()) bound.fluid_s = fluid.seconds;
  if (!(fluid.bound > bound.seconds * (1 + kNoticeable))) return;
  std::vector<double> rounded(rates.size(), 0);
  std::vector<LinkPrice> prices;
  for (size_t link = 0; link < rates.size(); ++link) {
    if (fluid.prices[link] * rates[link] < kSmallestShare) continue;
    rounded[link] = round_price(fluid.prices[link]);
    prices.push_back({static_cast<int32_t>(link), rounded[link]});
  }
  const double seconds = price_bound(graph, items, rounded);
  if (!(seconds > bound.seconds * (1 + kNoticeable))) return;
  bound.seconds = seconds;
  bound.from_prices = true;
  bound.prices = std::move(prices);
}

}  // namespace

LowerBound lower_bound(const Demand& demand, const Layout& train, const Layout& gen,
                       const Fabric& fabric, const std::vector<int32_t>& gpu_of_rank,
                       const std::vector<double>& rates) {
  LowerBound bound = cut_bound(demand, train, gen, fabric, gpu_of_rank, rates);
  if (bound.seconds == 0) return bound;
  for (LinkPrice& item : bound.prices) item.price = round_price(item.price);
  try_prices(bound, demand, fabric, gpu_of_rank, rates);
  std::vector<uint8_t> sides(fabric.gpus.size(), 0);
  for (const auto& [layout, side] : {std::pair{&train, kTrainSide}, std::pair{&gen, kGenSide}})
    for (const int32_t rank : layout->ranks) sides[at(gpu_of_rank[at(rank)])] |= side;
  bound.binding = group_prices(bound.prices, fabric, rates, sides);
  if (!bound.from_prices) return bound;
  bound.reason = "prices:";
  for (const PriceGroup& group : bound.binding) {
    if (group.share < kNamedShare) break;
    bound.reason += fmt::format("{} {:.0f} % {}", bound.reason.back() == ':' ? "" : ",",
                                100 * group.share, group.name);
  }
  return bound;
}

std::string print_bound(const LowerBound& bound, const Fabric& fabric) {
  std::string text =
      fmt::format("seconds: {}\nfrom_prices: {}\nreason: {}\nprices:{}\n", bound.seconds,
                  bound.from_prices, quoted(bound.reason), bound.prices.empty() ? " []" : "");
  std::map<std::string, std::vector<std::string>> links;  // by price
  for (const LinkPrice& item : bound.prices)
    links[print_price(item.price)].push_back(fabric.links[at(item.link)].name);
  for (const auto& [price, names] : links)
    text += fmt::format("- {{price: {}, links: {}}}\n", price, quoted(fold_names(names)));
  return text;
}

LowerBound parse_bound(const std::string& text, const std::string& name, const Fabric& fabric) {
  const Value file = parse_document(text, name, false);
  LowerBound bound;
  bound.seconds = file.at("seconds").as_number();
  bound.from_prices = file.at("from_prices").as_bool();
  bound.reason = file.at("reason").as_text();
  std::unordered_map<std::string, int32_t> link_of;
  for (size_t link = 0; link < fabric.links.size(); ++link)
    link_of[fabric.links[link].name] = static_cast<int32_t>(link);
  const Value& prices = file.at("prices");
  for (size_t i = 0; i < prices.size(); ++i) {
    const double price = prices[i].at("price").as_number();
    const Value& links = prices[i].at("links");
    for (const std::string& link : expand_names(links.as_text(), links.place())) {
      const auto found = link_of.find(link);
      if (found == link_of.end()) fail(links.place(), quote(link), "a link of the fabric");
      bound.prices.push_back({found->second, price});
    }
    prices[i].finish();
  }
  file.finish();
  std::ranges::sort(bound.prices, {}, &LinkPrice::link);
  return bound;
}

}  // namespace refit
