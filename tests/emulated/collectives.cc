// The same refit by a third party: gather to one training rank, broadcast to all gen ranks, as
// frameworks without a plan do it. With the collectives of MPI and, where it is installed, gloo.
// Usage, under mpirun: refit-collectives PLAN ITERATIONS INTERFACE FOLDER
// Rank 0 prints JSON: seconds of each iteration, by library. Every byte is verified.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "exec/mpi_backend.h"
#include "exec/strided.h"
#include "exec/verify.h"
#include "plans/plan_io.h"

#ifdef REFIT_HAVE_GLOO
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace refit {
namespace {

constexpr int64_t kBucket = int64_t{32} << 20;  // whole tensors, together about so many bytes

/// A box of a tensor in a bucket, and the rank that gives it.
struct Given {
  int32_t rank = -1, tensor = -1;
  Shard shard;
};

struct Bucket {
  std::vector<int32_t> tensors;
  std::vector<int64_t> offset;  // of each tensor in the bucket
  int64_t bytes = 0;
  std::vector<Given> given;
  std::vector<int64_t> gathered;  // bytes from each rank
};

int64_t tensor_bytes(const PlanTensor& tensor) {
  return dtype_bytes(tensor.gen_dtype, tensor.shape.product());
}

/// Every distinct box of the train side is given by its first holder.
void add_tensor(const Plan& plan, int32_t t, Bucket& bucket) {
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(t)];
  bucket.tensors.push_back(t);
  bucket.offset.push_back(bucket.bytes);
  bucket.bytes += tensor_bytes(tensor);
  std::vector<Box> seen;
  for (const auto& [rank, shards] : plan.maps[static_cast<size_t>(tensor.train_map)].shards) {
    for (const Shard& shard : shards) {
      if (std::find(seen.begin(), seen.end(), shard.box) != seen.end()) continue;
      seen.push_back(shard.box);
      bucket.given.push_back({rank, t, shard});
      bucket.gathered[static_cast<size_t>(rank)] +=
          dtype_bytes(tensor.train_dtype, shard.box.volume());
    }
  }
}

std::vector<Bucket> make_buckets(const Plan& plan) {
  std::vector<Bucket> buckets;
  for (int32_t t = 0; t < std::ssize(plan.tensors); ++t) {
    const PlanTensor& tensor = plan.tensors[static_cast<size_t>(t)];
    if (tensor.train_map < 0 || tensor.gen_map < 0) continue;
    if (buckets.empty() || buckets.back().bytes + tensor_bytes(tensor) > kBucket) {
      buckets.emplace_back().gathered.resize(plan.ranks.size());
    }
    add_tensor(plan, t, buckets.back());
  }
  return buckets;
}

/// The collectives that a refit needs.
struct Library {
  std::string name;
  /// Train ranks: `mine` to the root, where they arrive one behind the other in `all`, by rank.
  std::function<void(std::byte* mine, std::byte* all, const std::vector<int64_t>& bytes)> gather;
  std::function<void(std::byte* block, int64_t bytes)> broadcast;  // root and gen ranks
};

class Refit {
 public:
  Refit(const Plan& plan, Backend& backend)
      : plan_(plan), backend_(backend), buffers_(allocate_buffers(plan, backend)) {
    while (!plan.ranks[static_cast<size_t>(root_)].train) ++root_;
    buckets_ = make_buckets(plan);
    int64_t most = 0;
    for (const Bucket& bucket : buckets_) most = std::max(most, bucket.bytes);
    mine_.resize(static_cast<size_t>(most));
    all_.resize(static_cast<size_t>(most));
    whole_.resize(static_cast<size_t>(most));
  }

  int32_t root() const { return root_; }
  bool takes_part() const {
    return backend_.rank() == root_ || plan_.ranks[static_cast<size_t>(backend_.rank())].gen;
  }

  double run(const Library& library, int64_t round) {
    fill_train(plan_, backend_.rank(), buffers_, round);
    poison_gen(plan_, backend_.rank(), buffers_, round);
    backend_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (const Bucket& bucket : buckets_) {
      if (plan_.ranks[static_cast<size_t>(backend_.rank())].train) {
        pack_mine(bucket);
        library.gather(mine_.data(), all_.data(), bucket.gathered);
      }
      if (backend_.rank() == root_) assemble(bucket);
      if (takes_part()) library.broadcast(whole_.data(), bucket.bytes);
      take_shards(bucket);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    verify_gen(plan_, backend_.rank(), buffers_, round);
    backend_.barrier();
    return seconds.count();
  }

 private:
  std::byte* tensor_at(const Bucket& bucket, int32_t tensor) {
    const auto at = std::find(bucket.tensors.begin(), bucket.tensors.end(), tensor);
    return whole_.data() + bucket.offset[static_cast<size_t>(at - bucket.tensors.begin())];
  }

  Strided in_whole(const Bucket& bucket, int32_t t, const Box& box) {
    const PlanTensor& tensor = plan_.tensors[static_cast<size_t>(t)];
    const Shard all{whole(tensor.shape), 0, dense_strides(tensor.shape)};
    return resolve(all, box, tensor.gen_dtype, tensor_at(bucket, t));
  }

  void pack_mine(const Bucket& bucket) {
    std::byte* at = mine_.data();
    for (const Given& given : bucket.given) {
      if (given.rank != backend_.rank()) continue;
      const PlanTensor& tensor = plan_.tensors[static_cast<size_t>(given.tensor)];
      std::byte* base = buffers_.train[static_cast<size_t>(tensor.train_buffer)];
      const Strided from = resolve(given.shard, given.shard.box, tensor.train_dtype, base);
      const Strided to{.base = at, .run = from.bytes()};
      copy_strided({&to, 1}, {&from, 1});
      at += to.run;
    }
  }

  void assemble(const Bucket& bucket) {
    const std::byte* at = all_.data();
    for (int32_t rank = 0; rank < backend_.world(); ++rank) {
      for (const Given& given : bucket.given) {
        if (given.rank != rank) continue;
        const Strided to = in_whole(bucket, given.tensor, given.shard.box);
        const Strided from{.base = const_cast<std::byte*>(at), .run = to.bytes()};
        copy_strided({&to, 1}, {&from, 1});
        at += from.run;
      }
    }
  }

  void take_shards(const Bucket& bucket) {
    for (const int32_t t : bucket.tensors) {
      const PlanTensor& tensor = plan_.tensors[static_cast<size_t>(t)];
      const RankMap& map = plan_.maps[static_cast<size_t>(tensor.gen_map)];
      const std::vector<Shard>* shards = map.find(backend_.rank());
      if (shards == nullptr) continue;
      for (const Shard& shard : *shards) {
        std::byte* base = buffers_.gen[static_cast<size_t>(tensor.gen_buffer)];
        const Strided to = resolve(shard, shard.box, tensor.gen_dtype, base);
        const Strided from = in_whole(bucket, t, shard.box);
        copy_strided({&to, 1}, {&from, 1});
      }
    }
  }

  const Plan& plan_;
  Backend& backend_;
  Executor::Buffers buffers_;
  int32_t root_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<std::byte> mine_, all_, whole_;
};

Library mpi_library(const Plan& plan, const Refit& refit, int32_t rank) {
  const bool gives = plan.ranks[static_cast<size_t>(rank)].train;
  std::vector<int32_t> givers;  // the root is the first
  for (int32_t r = 0; r < std::ssize(plan.ranks); ++r) {
    if (plan.ranks[static_cast<size_t>(r)].train) givers.push_back(r);
  }
  MPI_Comm train = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, gives ? 0 : MPI_UNDEFINED, rank, &train);
  MPI_Comm gen = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, refit.takes_part() ? 0 : MPI_UNDEFINED,
                 rank == refit.root() ? -1 : rank, &gen);  // the root becomes rank 0
  Library library{"mpi", {}, {}};
  library.gather = [train, givers](std::byte* mine, std::byte* all,
                                   const std::vector<int64_t>& bytes) {
    std::vector<int> counts, offsets{0};
    for (const int32_t r : givers) {
      counts.push_back(static_cast<int>(bytes[static_cast<size_t>(r)]));
      offsets.push_back(offsets.back() + counts.back());
    }
    int number = 0;
    MPI_Comm_rank(train, &number);
    MPI_Gatherv(mine, counts[static_cast<size_t>(number)], MPI_BYTE, all, counts.data(),
                offsets.data(), MPI_BYTE, 0, train);
  };
  library.broadcast = [gen](std::byte* block, int64_t bytes) {
    MPI_Bcast(block, static_cast<int>(bytes), MPI_BYTE, 0, gen);
  };
  return library;
}

#ifdef REFIT_HAVE_GLOO
Library gloo_library(const Plan& plan, const Refit& refit, int32_t rank,
                     const std::string& interface, const std::string& folder) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto store = std::make_shared<gloo::rendezvous::FileStore>(folder);
  const int root = refit.root();
  const auto connect = [&](const std::string& name, int number, int size) {
    gloo::rendezvous::PrefixStore named(name, *store);
    auto context = std::make_shared<gloo::rendezvous::Context>(number, size);
    context->setTimeout(std::chrono::seconds(60));
    context->connectFullMesh(named, device);
    return context;
  };
  auto all_ranks = connect("all", rank, static_cast<int>(plan.ranks.size()));
  int size = 0, number = 0;
  for (int32_t r = 0; r < std::ssize(plan.ranks); ++r) {
    if (r != root && !plan.ranks[static_cast<size_t>(r)].gen) continue;
    if (r == rank) number = size;
    ++size;
  }
  int root_number = 0;
  for (int32_t r = 0; r < root; ++r) root_number += plan.ranks[static_cast<size_t>(r)].gen ? 1 : 0;
  std::shared_ptr<gloo::rendezvous::Context> gen;
  if (refit.takes_part()) gen = connect("gen", number, size);

  Library library{"gloo", {}, {}};
  library.gather = [all_ranks, root, rank](std::byte* mine, std::byte* all,
                                           const std::vector<int64_t>& bytes) {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> receives;
    int64_t at = 0;
    for (size_t r = 0; r < bytes.size(); ++r) {
      const auto count = static_cast<size_t>(bytes[r]);
      if (rank == root && count > 0) {
        if (static_cast<int>(r) == root) {
          std::copy(mine, mine + count, all + at);
        } else {
          receives.push_back(all_ranks->createUnboundBuffer(all + at, count));
          receives.back()->recv(static_cast<int>(r), 1);
        }
      }
      at += bytes[r];
    }
    if (rank != root && bytes[static_cast<size_t>(rank)] > 0) {
      const auto buffer = all_ranks->createUnboundBuffer(
          mine, static_cast<size_t>(bytes[static_cast<size_t>(rank)]));
      buffer->send(root, 1);
      buffer->waitSend();
    }
    for (const auto& buffer : receives) buffer->waitRecv();
  };
  library.broadcast = [gen, root_number](std::byte* block, int64_t bytes) {
    gloo::BroadcastOptions options(gen);
    options.setRoot(root_number);
    options.setOutput(reinterpret_cast<char*>(block), static_cast<size_t>(bytes));
    gloo::broadcast(options);
  };
  return library;
}
#endif

void measure(const std::vector<std::string>& arguments) {
  MpiWorld world(std::vector<int32_t>{}, 60);
  const LoadedPlan loaded = load_plan(arguments[0]);
  const int iterations = std::stoi(arguments[1]);
  Backend& backend = world.open_backend(1);
  Refit refit(loaded.plan, backend);
  std::vector<Library> libraries{mpi_library(loaded.plan, refit, backend.rank())};
#ifdef REFIT_HAVE_GLOO
  libraries.push_back(gloo_library(loaded.plan, refit, backend.rank(), arguments[2], arguments[3]));
#endif
  std::string json;
  for (const Library& library : libraries) {
    std::vector<double> seconds;
    for (int i = 0; i < iterations; ++i) {
      double mine = refit.run(library, i), slowest = 0;
      MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      seconds.push_back(slowest);
    }
    json += fmt::format("{}\"{}\": [{}]", json.empty() ? "{" : ", ", library.name,
                        fmt::join(seconds, ", "));
  }
  if (backend.rank() == 0) fmt::print("{}}}\n", json);
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  try {
    if (argc != 5) {
      refit::log_line("Usage: refit-collectives PLAN ITERATIONS INTERFACE FOLDER");
      return 2;
    }
    refit::measure({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    refit::log_line(std::string("refit-collectives: ") + error.what());
    std::_Exit(1);
  }
}
