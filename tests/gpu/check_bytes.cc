// The sweep's bytes on the device against those of the host.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/copy_table.h"
#include "exec/device_step.h"
#include "tests/exec/random_casts.h"
#include "tests/gpu/gpu_check.h"
#include "tests/random.h"

namespace refit {
namespace {

std::string in_mb(int64_t bytes) {
  return fmt::format("{:.1f} MB", 1e-6 * static_cast<double>(bytes));
}

}  // namespace

void check_copies(const SweepBlocks& blocks) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  const DeviceMemory source(kBytes), target(kBytes);
  std::vector<std::byte> host_source(kBytes), host_target(kBytes), found(kBytes);
  testing::Random random(1);
  int64_t compared = 0;
  for (int d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    const int64_t even = dtype_bits(dtype) == 4 ? 2 : 1;
    for (int round = 0; round < 40; ++round) {
      for (std::byte& byte : host_source) byte = random.byte();
      std::fill(host_target.begin(), host_target.end(), std::byte{0xee});
      source.upload(host_source.data(), kBytes);
      target.upload(host_target.data(), kBytes);
      CopyTable on_host;
      Sweep on_device;
      int64_t from_at = 0, to_at = 0;
      while (true) {  // boxes until one of the blocks is full
        Dims from_shape, to_shape;
        Box from_box, to_box;
        from_shape.count = to_shape.count = static_cast<int32_t>(random.in(1, 4));
        from_box.lo.count = from_box.hi.count = to_box.lo.count = to_box.hi.count =
            from_shape.count;
        for (int k = 0; k < from_shape.count; ++k) {
          const int64_t step = k == from_shape.count - 1 ? even : 1;
          const int64_t extent = random.in(1, k == 0 ? 70 : 17) * step;
          const auto place = [&](Dims& shape, Box& box) {
            box.lo[k] = random.in(0, 1) * random.in(0, 7) * step;
            box.hi[k] = box.lo[k] + extent;
            shape[k] = box.hi[k] + random.in(0, 1) * random.in(0, 7) * step;
          };
          place(from_shape, from_box);
          place(to_shape, to_box);
        }
        from_at += random.in(0, 1) * random.in(0, 15);
        to_at += random.in(0, 1) * random.in(0, 15);
        const int64_t from_bytes = dtype_bytes(dtype, from_shape.product());
        const int64_t to_bytes = dtype_bytes(dtype, to_shape.product());
        if (from_at + from_bytes > kBytes || to_at + to_bytes > kBytes) break;
        const auto add = [&](CopyTable& table, std::byte* from, std::byte* to) {
          Strided left = part_of(from_shape, from_box, dtype, from + from_at);
          Strided right = part_of(to_shape, to_box, dtype, to + to_at);
          if (round % 3 == 1) right = dense_block(to + to_at, left.bytes());
          if (round % 3 == 2) left = dense_block(from + from_at, right.bytes());
          if (!add_copy(table, left, right)) throw Error("boxes do not fit", ErrorKind::kWork);
        };
        add(on_host, host_source.data(), host_target.data());
        add(on_device.copies, source.data(), target.data());
        from_at += from_bytes;
        to_at += to_bytes;
      }
      copy_tiles(view(on_host));
      const DeviceSweep sweep(on_device);
      sweep.launch(blocks);
      target.download(found.data(), kBytes);
      if (std::memcmp(found.data(), host_target.data(), kBytes) != 0) {
        throw Error(fmt::format("dtype {}, round {}: the device's bytes are not the host's",
                                dtype_name(dtype), round),
                    ErrorKind::kWork);
      }
      compared += on_host.bytes();
    }
  }
  print_row(fmt::format("copies of all {} dtypes, odd strides", kDtypeCount), in_mb(compared), "",
            "equal");
}

void check_bulk_copies(const SweepBlocks& blocks) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const DeviceMemory source(kBytes), target(kBytes);
  std::vector<std::byte> from(kBytes), to(kBytes), found(kBytes);
  testing::Random random(2);
  for (std::byte& byte : from) byte = random.byte();
  source.upload(from.data(), kBytes);
  int64_t compared = 0;
  for (int round = 0; round < 20; ++round) {
    std::fill(to.begin(), to.end(), std::byte{0xee});
    target.upload(to.data(), kBytes);
    CopyTable on_host;
    Sweep on_device;
    int64_t from_at = 0, to_at = 0;
    while (true) {
      Strided rows;
      rows.run = (kLongRunUnits + random.in(0, 3000)) * 16;
      rows.dims = static_cast<int32_t>(random.in(0, 2));
      int64_t extent = rows.run;
      for (int32_t d = rows.dims - 1; d >= 0; --d) {
        rows.count[d] = random.in(2, 9);
        rows.stride[d] = extent + random.in(0, 20) * 16;
        extent = rows.count[d] * rows.stride[d];
      }
      if (from_at + extent > kBytes || to_at + extent > kBytes) break;
      const auto add = [&](CopyTable& table, std::byte* left, std::byte* right) {
        rows.base = left + from_at;
        const Strided dense = dense_block(right + to_at, rows.bytes());
        if (!add_copy(table, rows, dense)) throw Error("boxes do not fit", ErrorKind::kWork);
      };
      add(on_host, from.data(), to.data());
      add(on_device.copies, source.data(), target.data());
      from_at += (extent + 15) / 16 * 16 + random.in(0, 9) * 16;
      to_at += rows.bytes() + random.in(0, 9) * 16;
    }
    copy_tiles(view(on_host));
    if (!on_device.copies.has_long_runs()) throw Error("runs are not long", ErrorKind::kWork);
    const DeviceSweep sweep(on_device);
    sweep.launch(blocks);
    target.download(found.data(), kBytes);
    if (found != to) {
      throw Error(
          fmt::format("bulk copies, round {}: the device's bytes are not the host's", round),
          ErrorKind::kWork);
    }
    compared += on_host.bytes();
  }
  print_row("bulk copies of long runs", in_mb(compared), "", "equal");
}

void check_casts(const SweepBlocks& blocks) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int32_t kRounds = 60;
  constexpr Format kFormats[] = {Format::kNone, Format::kFp8Block, Format::kMxfp8, Format::kFp8,
                                 Format::kNvfp4};
  const DeviceMemory weights(kBytes), packing(kBytes);
  testing::Arena arena(kBytes);
  for (const Format format : kFormats) {
    testing::CastRandom random(static_cast<uint32_t>(format) + 100);
    int64_t compared = 0;
    for (int32_t round = 0; round < kRounds; ++round) {
      random.specials = round % 2 == 0;
      arena.take_back();
      testing::CastMessage message = random_message(random, arena, format);
      weights.upload(arena.data(), arena.used());
      const auto on_device = [&](std::byte* at) { return weights.data() + (at - arena.data()); };
      for (Strided& box : message.part.boxes) {
        if (box.base != nullptr) box.base = on_device(box.base);
      }
      for (Conversion& conversion : message.part.conversions) {
        conversion.memory = on_device(conversion.memory);
      }
      Group group;
      group.sends.push_back(message.part);
      const DeviceStep step = make_device_step(group, 0, packing.data());
      const DeviceSweep sweep(step.before);
      std::vector<std::byte> found(message.expected.size());
      for (int32_t again = 0; again < 2; ++again) {  // the first leaves its counters at zero
        check_cuda(cudaMemset(packing.data(), 0xee, found.size()), "memset");
        sweep.launch(blocks);
        packing.download(found.data(), std::ssize(found));
        if (found == message.expected) continue;
        const auto wrong = std::mismatch(found.begin(), found.end(), message.expected.begin());
        throw Error(fmt::format("cast to {}, round {}.{}, byte {} of {}: found 0x{:02x}, expected "
                                "0x{:02x} as on the host",
                                format_name(format), round, again, wrong.first - found.begin(),
                                found.size(), std::to_integer<int>(*wrong.first),
                                std::to_integer<int>(*wrong.second)),
                    ErrorKind::kWork);
      }
      compared += std::ssize(found);
    }
    print_row(fmt::format("casts to {}, odd shapes, NaN, infinity",
                          format == Format::kNone ? "fp32, bf16, fp16" : format_name(format)),
              in_mb(compared), "", "equal");
  }
}

}  // namespace refit
