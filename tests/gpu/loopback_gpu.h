#pragma once

#include <string>

#include "exec/clock.h"
#include "exec/gpu_api.h"

namespace refit::testing {

/// One rank of a plan alone: every communicator has this rank only, and whatever the rank sends or
/// receives it exchanges with itself, from and to memory that nobody looks at. So a rank's whole
/// program runs, sweeps, groups and graph, without its peers; what it receives means nothing.
class LoopbackGpu final : public GpuApi {
 public:
  /// No message has more than `most_bytes` bytes.
  LoopbackGpu(GpuApi& gpu, int64_t most_bytes)
      : gpu_(gpu), nowhere_(gpu.allocate(2 * most_bytes)), most_bytes_(most_bytes) {}
  ~LoopbackGpu() override { gpu_.release(nowhere_); }

  bool messages = true;  // else they are left out, and groups with them
  /// Seconds that calls which enqueue have taken here on the host, and how many there were.
  double host_s = 0;
  int64_t calls = 0;

  void make_current() override { gpu_.make_current(); }
  std::string describe() const override { return gpu_.describe(); }
  int32_t multiprocessors() const override { return gpu_.multiprocessors(); }
  std::byte* allocate(int64_t bytes) override { return gpu_.allocate(bytes); }
  void release(std::byte* memory) override { gpu_.release(memory); }
  std::byte* allocate_host(int64_t bytes) override { return gpu_.allocate_host(bytes); }
  void release_host(std::byte* memory) override { gpu_.release_host(memory); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    gpu_.copy(to, from, bytes);
  }
  Stream make_stream() override { return gpu_.make_stream(); }
  void destroy_stream(Stream stream) override { gpu_.destroy_stream(stream); }
  bool is_done(Stream stream) override { return gpu_.is_done(stream); }
  Event make_event() override { return gpu_.make_event(); }
  void destroy_event(Event event) override { gpu_.destroy_event(event); }
  void record(Event event, Stream stream) override {
    count([&] { gpu_.record(event, stream); });
  }
  void wait(Stream stream, Event event) override {
    count([&] { gpu_.wait(stream, event); });
  }
  void begin_capture(Stream stream) override { gpu_.begin_capture(stream); }
  Graph end_capture(Stream stream) override { return gpu_.end_capture(stream); }
  void launch(Graph graph, Stream stream) override {
    count([&] { gpu_.launch(graph, stream); });
  }
  void destroy_graph(Graph graph) override { gpu_.destroy_graph(graph); }
  void launch_sweep(const SweepView& sweep, int32_t* marker, int32_t mark, Stream stream) override {
    count([&] { gpu_.launch_sweep(sweep, marker, mark, stream); });
  }

  std::string make_unique_id() override { return gpu_.make_unique_id(); }
  Comm make_comm(const std::string&, int32_t, int32_t, const CommSettings& settings) override {
    return gpu_.make_comm(gpu_.make_unique_id(), 1, 0, settings);
  }
  Comm split_comm(Comm, int32_t, int32_t, const CommSettings& settings) override {
    return gpu_.make_comm(gpu_.make_unique_id(), 1, 0, settings);
  }
  bool is_settled(Comm comm) override { return gpu_.is_settled(comm); }
  void begin_group() override {
    if (messages) count([&] { gpu_.begin_group(); });
  }
  void end_group() override {
    if (messages) count([&] { gpu_.end_group(); });
  }
  void send(const std::byte* from, int64_t bytes, int32_t, Comm comm, Stream stream) override {
    exchange(from, nowhere_ + most_bytes_, bytes, comm, stream);
  }
  void receive(std::byte* to, int64_t bytes, int32_t, Comm comm, Stream stream) override {
    exchange(nowhere_, to, bytes, comm, stream);
  }
  void all_gather(const std::byte* from, std::byte* to, int64_t bytes, Comm comm,
                  Stream stream) override {
    gpu_.all_gather(from, to, bytes, comm, stream);
  }
  void* register_memory(Comm comm, std::byte* memory, int64_t bytes) override {
    return gpu_.register_memory(comm, memory, bytes);
  }
  void deregister_memory(Comm comm, void* handle) override { gpu_.deregister_memory(comm, handle); }
  void abort_comm(Comm comm) override { gpu_.abort_comm(comm); }
  void destroy_comm(Comm comm) override { gpu_.destroy_comm(comm); }

 private:
  template <typename Call>
  void count(const Call& call) {
    const Clock::time_point begin = Clock::now();
    call();
    host_s += seconds_since(begin);
    ++calls;
  }
  /// NCCL matches what a group sends to itself in order.
  void exchange(const std::byte* from, std::byte* to, int64_t bytes, Comm comm, Stream stream) {
    if (!messages) return;
    count([&] {
      gpu_.send(from, bytes, 0, comm, stream);
      gpu_.receive(to, bytes, 0, comm, stream);
    });
  }

  GpuApi& gpu_;
  std::byte* const nowhere_;
  const int64_t most_bytes_;
};

}  // namespace refit::testing
