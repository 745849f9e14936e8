// Pairing, progress and delivery.

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "plans/arrivals.h"
#include "plans/rules.h"

namespace refit {
namespace {

// Why two ends of a transfer do not match, or "".
std::string find_mismatch(const Plan& plan, const Program& sender, const Message& send,
                          const Program& receiver, const Message& recv) {
  const int32_t sent = send.last_piece - send.first_piece;
  const int32_t received = recv.last_piece - recv.first_piece;
  if (sent != received) return fmt::format("{} pieces are sent, {} received", sent, received);
  for (int32_t i = 0; i < sent; ++i) {
    const Piece& out = sender.pieces[static_cast<size_t>(send.first_piece + i)];
    const Piece& in = receiver.pieces[static_cast<size_t>(recv.first_piece + i)];
    const Box& out_box = sender.boxes[static_cast<size_t>(out.box)];
    const Box& in_box = receiver.boxes[static_cast<size_t>(in.box)];
    if (out.tensor == in.tensor && out_box == in_box && out.wire == in.wire) continue;
    return fmt::format("piece {} is sent as {} {} and received as {} {}", i, dtype_name(out.wire),
                       print_piece(plan, out.tensor, out_box), dtype_name(in.wire),
                       print_piece(plan, in.tensor, in_box));
  }
  return {};
}

// Why message m of a group does not match its other end, or "". Pieces are compared once, as sent.
std::string find_unpaired(const Plan& plan, const Meetings& meetings, int32_t group, int32_t m) {
  const Program& program = plan.programs[static_cast<size_t>(meetings.rank_of(group))];
  const Step& step = find_step(plan, meetings, group);
  const Meetings::Partner& partner =
      meetings.partners(group)[static_cast<size_t>(m - step.first_send)];
  const bool sends = m < step.first_recv;
  const Message& message = program.messages[static_cast<size_t>(m)];
  if (partner.message < 0) {
    return sends ? fmt::format("sends to rank {}, which does not receive", message.peer)
                 : fmt::format("receives from rank {}, which does not send", message.peer);
  }
  if (!sends) return {};
  const std::string what =
      find_mismatch(plan, program, message, plan.programs[static_cast<size_t>(message.peer)],
                    *find_message(plan, meetings, partner));
  return what.empty() ? what : fmt::format("to rank {}: {}", message.peer, what);
}

}  // namespace

void check_pairing(const Plan& plan, const Meetings& meetings, Faults& faults) {
  std::vector<std::pair<int32_t, int32_t>> wrong;  // group, message
  for (const int32_t group : meetings.in_order()) {
    const Step& step = find_step(plan, meetings, group);
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      if (!find_unpaired(plan, meetings, group, m).empty()) wrong.emplace_back(group, m);
    }
  }
  std::sort(wrong.begin(), wrong.end());
  for (const auto& [group, m] : wrong) {
    faults.add(Fault::Rule::kPairing, meetings.rank_of(group), &find_step(plan, meetings, group),
               find_unpaired(plan, meetings, group, m));
  }
}

void check_progress(const Plan& plan, const Meetings& meetings, const Order& order,
                    Faults& faults) {
  for (const int32_t group : order.stuck()) {
    const int32_t rank = meetings.rank_of(group);
    const Step& step = find_step(plan, meetings, group);
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    std::string peers;
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const int32_t peer = program.messages[static_cast<size_t>(m)].peer;
      peers += fmt::format("{}{}", peers.empty() ? "" : ", ", peer);
    }
    faults.add(Fault::Rule::kProgress, rank, &step,
               fmt::format("never ends (on or behind a cycle; its peers: {})", peers));
  }
}

void check_delivery(const Plan& plan, Faults& faults) {
  std::vector<Box> boxes;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    const Arrivals arrivals(plan, rank);
    for (int32_t tensor = 0; tensor < std::ssize(plan.tensors); ++tensor) {
      const int32_t map = plan.tensors[static_cast<size_t>(tensor)].gen_map;
      if (map < 0) continue;
      const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
      if (shards == nullptr) continue;
      const std::span<const Arrived> arrived = arrivals.of(tensor);
      auto next = arrived.begin();
      for (int32_t area = 0; area < std::ssize(*shards); ++area) {
        const Box& shard = (*shards)[static_cast<size_t>(area)].box;
        boxes.clear();
        for (; next != arrived.end() && next->area == area; ++next) {
          boxes.push_back(program.boxes[static_cast<size_t>(next->box)]);
        }
        Uncovered wrong;
        if (covers_once(shard, boxes, &wrong)) continue;
        Box point{wrong.point, wrong.point};
        for (int dim = 0; dim < point.dims(); ++dim) ++point.hi[dim];
        faults.add(Fault::Rule::kDelivery, rank, nullptr,
                   fmt::format("element {} of gen shard {} is written {} times",
                               print_piece(plan, tensor, point), print_box(shard), wrong.times));
      }
    }
  }
}

}  // namespace refit
