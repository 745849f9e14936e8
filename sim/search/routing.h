#pragma once

#include <cstdint>
#include <vector>

#include "plans/box.h"

namespace refit {

/// A box of a tensor moves from one rank to another (from == to: from its train shard to its own
/// gen shard).
struct Hop {
  int32_t tensor = -1;
  int32_t box = -1;  // of Routing::boxes
  int32_t from = -1, to = -1;
  int32_t parent = -1;  // hop that brought the box, or the last part of it, to `from`; -1: a train
                        // shard of `from` holds it
  bool staged = false;  // `to` does not need the box: it is in a slot until the children have left
};

/// What goes where, by which trees; when, and in what chunks, is the schedule's business. Parents
/// come before their children. The hops into a needer tile what it needs. Over the network lead
/// roots, children of hops over the network, and children of staged roots inside a domain; what has
/// come over the network goes on inside its domain in one or two hops.
struct Routing {
  std::vector<Box> boxes;
  std::vector<Hop> hops;
};

}  // namespace refit
