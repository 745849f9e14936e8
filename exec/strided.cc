#include "exec/strided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/error.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace refit {

namespace {

constexpr int64_t kPastCache = int64_t{4} << 20;  // so many bytes are not in a cache for long,
constexpr int64_t kLongRun = 512;                 // and runs are worth going past it

/// Copies a run and leaves nothing of it in the caches. A store into a line that is not there reads
/// it first: a third of all traffic, which large calls of memcpy avoid in the same way.
void copy_past_cache(std::byte* to, const std::byte* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64, kStore = 16;
  const auto head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (int64_t part = at; part < at + kLine; part += kStore) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
    }
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

/// Before others are told that the bytes are there.
void end_past_cache() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

int64_t whole_bytes(int64_t bits, const Box& box) {
  if (bits % 8 != 0) {
    fail("box " + print_box(box), "runs that begin or end within a byte",
         "4-bit elements at even places of a row");
  }
  return bits / 8;
}

template <size_t kRun>
void copy_short_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                     int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, kRun);
  }
}

void copy_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
               int64_t run, int64_t rows, bool past_cache) {
  if (past_cache && run >= kLongRun) {
    for (int64_t row = 0; row < rows; ++row)
      copy_past_cache(to + row * to_stride, from + row * from_stride, run);
    return;
  }
  // A call of memcpy costs more than the few bytes of a short run: a column of a tensor is made of
  // such.
  switch (run) {
    case 1:
      return copy_short_rows<1>(to, to_stride, from, from_stride, rows);
    case 2:
      return copy_short_rows<2>(to, to_stride, from, from_stride, rows);
    case 4:
      return copy_short_rows<4>(to, to_stride, from, from_stride, rows);
    case 8:
      return copy_short_rows<8>(to, to_stride, from, from_stride, rows);
    case 16:
      return copy_short_rows<16>(to, to_stride, from, from_stride, rows);
    case 32:
      return copy_short_rows<32>(to, to_stride, from, from_stride, rows);
    case 64:
      return copy_short_rows<64>(to, to_stride, from, from_stride, rows);
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, static_cast<size_t>(run));
  }
}

}  // namespace

Strided resolve(const Shard& area, const Box& box, Dtype dtype, std::byte* base) {
  if (box.dims() != area.box.dims() || box.empty() || !contains(area.box, box)) {
    fail("box " + print_box(box), "an empty box or one that leaves its area",
         "a part of area " + print_box(area.box));
  }
  const int64_t bits = dtype_bits(dtype);
  int64_t first = area.offset;
  int64_t run = bits;
  int32_t dims = 0;
  std::array<int64_t, kMaxDims> count{}, stride{};  // innermost first, strides in bits
  for (int d = box.dims() - 1; d >= 0; --d) {
    first += (box.lo[d] - area.box.lo[d]) * area.stride[d];
    const int64_t extent = box.extent(d);
    const int64_t apart = area.stride[d] * bits;
    if (extent == 1) continue;
    const size_t next = static_cast<size_t>(dims);
    if (dims == 0 && apart == run) {
      run *= extent;
    } else if (dims > 0 && apart == count[next - 1] * stride[next - 1]) {
      count[next - 1] *= extent;
    } else {
      count[next] = extent;
      stride[next] = apart;
      ++dims;
    }
  }
  Strided out;
  out.base = base + whole_bytes(first * bits, box);
  out.run = whole_bytes(run, box);
  out.dims = dims;
  for (int32_t d = 0; d < dims; ++d) {
    const size_t inner = static_cast<size_t>(dims - 1 - d);
    out.count[d] = count[inner];
    out.stride[d] = whole_bytes(stride[inner], box);
  }
  return out;
}

int32_t Cursor::last() const { return boxes_[box_].dims - 1; }

int64_t Cursor::rows() const {
  return last() < 0 ? 1 : boxes_[box_].count[last()] - index_[static_cast<size_t>(last())];
}

int64_t Cursor::row_stride() const { return last() < 0 ? 0 : boxes_[box_].stride[last()]; }

void Cursor::pass_bytes(int64_t bytes) {
  at_ += bytes;
  left_ -= bytes;
  if (left_ == 0) {
    at_ -= run();
    pass_rows(1);
  }
}

void Cursor::pass_rows(int64_t rows) {
  const Strided& box = boxes_[box_];
  left_ = box.run;
  for (int32_t d = box.dims - 1; d >= 0; --d) {
    const size_t dim = static_cast<size_t>(d);
    index_[dim] += rows;
    at_ += rows * box.stride[dim];
    if (index_[dim] < box.count[dim]) return;
    at_ -= box.count[dim] * box.stride[dim];
    index_[dim] = 0;
    rows = 1;
  }
  ++box_;
  enter();
}

void Cursor::enter() {
  while (!done() && boxes_[box_].bytes() == 0) ++box_;
  if (done()) return;
  at_ = boxes_[box_].base;
  left_ = boxes_[box_].run;
}

void copy_strided(std::span<const Strided> to, std::span<const Strided> from) {
  Cursor out(to), in(from);
  int64_t bytes = 0;
  for (const Strided& box : to) bytes += box.bytes();
  const bool past_cache = bytes >= kPastCache;
  copy_strided(out, in, past_cache);
  if (past_cache) end_past_cache();
  REFIT_CHECK(out.done() && in.done());
}

void copy_strided(Cursor& out, Cursor& in, bool past_cache) {
  while (!out.done() && !in.done()) {
    const bool out_starts = out.at_run_start(), in_starts = in.at_run_start();
    if (out_starts && in_starts && out.run() == in.run()) {
      const int64_t rows = std::min(out.rows(), in.rows());
      copy_rows(out.at(), out.row_stride(), in.at(), in.row_stride(), in.run(), rows, past_cache);
      out.pass_rows(rows);
      in.pass_rows(rows);
    } else if (in_starts && out.left() >= in.run()) {
      // One run of `out` takes several of `in`.
      const int64_t rows = std::min(in.rows(), out.left() / in.run());
      copy_rows(out.at(), in.run(), in.at(), in.row_stride(), in.run(), rows, past_cache);
      out.pass_bytes(rows * in.run());
      in.pass_rows(rows);
    } else if (out_starts && in.left() >= out.run()) {
      const int64_t rows = std::min(out.rows(), in.left() / out.run());
      copy_rows(out.at(), out.row_stride(), in.at(), out.run(), out.run(), rows, past_cache);
      in.pass_bytes(rows * out.run());
      out.pass_rows(rows);
    } else {
      const int64_t bytes = std::min(out.left(), in.left());
      std::memcpy(out.at(), in.at(), static_cast<size_t>(bytes));
      out.pass_bytes(bytes);
      in.pass_bytes(bytes);
    }
  }
}

void pack(Cursor& from, std::byte* to, int64_t bytes) {
  const Strided block{.base = to, .run = bytes};
  Cursor out({&block, 1});
  copy_strided(out, from);
  REFIT_CHECK(out.done());
}

void unpack(Cursor& to, const std::byte* from, int64_t bytes) {
  const Strided block{.base = const_cast<std::byte*>(from), .run = bytes};  // only read
  Cursor in({&block, 1});
  copy_strided(to, in);
  REFIT_CHECK(in.done());
}

}  // namespace refit
