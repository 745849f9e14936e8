// Pairing, progress and delivery.

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

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
  return "";
}

}  // namespace

void check_pairing(const Plan& plan, Faults& faults) {
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (const Step& step : program.steps) {
      for (int32_t m = step.first_send; m < step.last_message; ++m) {
        const Message& message = program.messages[static_cast<size_t>(m)];
        const bool sends = m < step.first_recv;
        const Program& other = plan.programs[static_cast<size_t>(message.peer)];
        const int32_t there = find_step(other, step.channel, step.id);
        const Message* match = nullptr;
        if (there >= 0) {
          const Step& theirs = other.steps[static_cast<size_t>(there)];
          match = sends ? find_recv(other, theirs, rank) : find_send(other, theirs, rank);
        }
        if (match == nullptr) {
          faults.add(Fault::Rule::kPairing, rank, &step,
                     sends
                         ? fmt::format("sends to rank {}, which does not receive", message.peer)
                         : fmt::format("receives from rank {}, which does not send", message.peer));
        } else if (sends) {
          const std::string what = find_mismatch(plan, program, message, other, *match);
          if (!what.empty()) {
            faults.add(Fault::Rule::kPairing, rank, &step,
                       fmt::format("to rank {}: {}", message.peer, what));
          }
        }
      }
    }
  }
}

void check_progress(const Plan& plan, const Order& order, Faults& faults) {
  for (const int32_t group : order.stuck()) {
    const int32_t rank = order.rank_of(group);
    const Step& step = order.step_of(group);
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
  struct Arrival {
    int32_t tensor, area, box;
  };
  std::vector<Arrival> arrivals;
  std::vector<Box> boxes;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    arrivals.clear();
    for (const Step& step : program.steps) {
      for (int32_t m = step.first_recv; m < step.last_message; ++m) {
        const Message& message = program.messages[static_cast<size_t>(m)];
        for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
          const Piece& piece = program.pieces[static_cast<size_t>(p)];
          if (piece.place == Place::kGen) arrivals.push_back({piece.tensor, piece.area, piece.box});
        }
      }
    }
    std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
      return std::tie(a.tensor, a.area, a.box) < std::tie(b.tensor, b.area, b.box);
    });
    auto next = arrivals.begin();
    for (int32_t tensor = 0; tensor < std::ssize(plan.tensors); ++tensor) {
      const int32_t map = plan.tensors[static_cast<size_t>(tensor)].gen_map;
      if (map < 0) continue;
      const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
      if (shards == nullptr) continue;
      for (int32_t area = 0; area < std::ssize(*shards); ++area) {
        const Box& shard = (*shards)[static_cast<size_t>(area)].box;
        boxes.clear();
        for (; next != arrivals.end() && next->tensor == tensor && next->area == area; ++next) {
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
