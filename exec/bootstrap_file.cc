// Ranks that meet in a folder which all of them see: a file per rank and round, and one of failure.
// Names begin with a digest of the job token, so jobs may share a folder, and every file ends with
// an HMAC-SHA256 under the token of its own name and content.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "exec/bootstrap.h"
#include "exec/clock.h"
#include "exec/secret.h"

namespace refit {

namespace {

class FileBootstrap final : public Bootstrap {
 public:
  explicit FileBootstrap(const BootstrapOptions& options) : options_(options) {
    stem_ = options.folder + "/refit-" + print_hex(make_proof(options.token, "job").substr(0, 8));
    if (!std::filesystem::is_directory(options.folder)) {
      fail("REFIT_BOOTSTRAP_DIR", quote(options.folder), "a folder that all ranks see");
    }
    // Rounds of two jobs would be mixed up.
    const std::string own = fmt::format(".{}", rank());
    for (const auto& entry : std::filesystem::directory_iterator(options.folder)) {
      const std::string path = entry.path().string();
      if (path.starts_with(stem_ + ".") && path.ends_with(own)) {
        fail(path, "a file of an earlier job", "a fresh job token");
      }
    }
    barrier();
  }
  int32_t rank() const override { return options_.rank; }
  int32_t world() const override { return options_.world; }

  std::vector<std::string> all_gather(std::string_view mine) override {
    if (std::ssize(mine) > kMaxBlobBytes) {
      fail("blob", fmt::format("{} bytes", mine.size()), fmt::format("at most {}", kMaxBlobBytes));
    }
    if (const std::string reason = failure(); !reason.empty()) {
      throw Error(reason, ErrorKind::kWork);
    }
    const int64_t round = round_++;
    write_file(name(round, rank()), seal(name(round, rank()), mine));
    const Clock::time_point deadline = from_now(options_.timeout_s);
    std::vector<std::string> blobs;
    while (std::ssize(blobs) < world()) {
      const std::string path = name(round, static_cast<int32_t>(blobs.size()));
      if (std::filesystem::exists(path)) {
        blobs.push_back(read(path));
        continue;
      }
      if (const std::string reason = failure(); !reason.empty()) {
        throw Error(reason, ErrorKind::kWork);
      }
      if (Clock::now() > deadline) {
        const std::string reason = fmt::format("rank {}: nothing from rank {} for {} s", rank(),
                                               blobs.size(), options_.timeout_s);
        publish_failure(reason);
        throw Error(reason, ErrorKind::kWork);
      }
      // Nothing to block on: inotify does not see what other hosts write into a shared folder.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // All ranks have written this round, so all have read the one before it.
    std::error_code error;
    if (round > 0) std::filesystem::remove(name(round - 1, rank()), error);
    return blobs;
  }

  void publish_failure(const std::string& reason) override {
    // The first one stands: a link is made once, whoever else tries.
    const std::string path = stem_ + ".failure";
    const std::string own = fmt::format("{}-of-{}", path, rank());
    write_file(own, seal(path, reason.empty() ? "a rank has failed" : reason));
    std::error_code error;
    std::filesystem::create_hard_link(own, path, error);
    if (error && error != std::errc::file_exists) std::filesystem::rename(own, path, error);
    std::filesystem::remove(own, error);
  }

  std::string failure() override {
    const std::string path = stem_ + ".failure";
    return std::filesystem::exists(path) ? read(path) : "";
  }

 private:
  std::string name(int64_t round, int32_t of) const {
    return fmt::format("{}.{}.{}", stem_, round, of);
  }

  /// The content with the proof that it belongs at `path`.
  std::string seal(const std::string& path, std::string_view content) const {
    const std::string bare = std::filesystem::path(path).filename().string();
    std::string sealed(content);
    return sealed + make_proof(options_.token, bare + ' ' + sealed);
  }

  std::string read(const std::string& path) const {
    std::string content = read_file(path);
    const std::string bare = std::filesystem::path(path).filename().string();
    if (content.size() < kProofBytes ||
        std::ssize(content) > kMaxBlobBytes + static_cast<int64_t>(kProofBytes)) {
      throw Error(
          fmt::format("{}: found {} bytes, expected a message of this job", path, content.size()),
          ErrorKind::kWork);
    }
    const std::string proof = content.substr(content.size() - kProofBytes);
    content.resize(content.size() - kProofBytes);
    if (!equal_secrets(proof, make_proof(options_.token, bare + ' ' + content))) {
      throw Error(fmt::format("{}: found a file of a stranger, expected one of this job", path),
                  ErrorKind::kWork);
    }
    return content;
  }

  const BootstrapOptions options_;
  std::string stem_;
  int64_t round_ = 0;
};

}  // namespace

std::unique_ptr<Bootstrap> make_file_bootstrap(const BootstrapOptions& options) {
  REFIT_CHECK(options.rank >= 0 && options.rank < options.world);
  return std::make_unique<FileBootstrap>(options);
}

}  // namespace refit
