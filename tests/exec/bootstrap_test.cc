#include "exec/bootstrap.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "tests/refused.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";

/// A port that nobody has at the moment.
int32_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

/// A plain connection, or -1; waits for somebody to listen while `patient`.
int connect_to(const char* host, int32_t port, bool patient = true) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  for (int attempt = 0; attempt < (patient ? 1000000 : 1); ++attempt) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      return socket;
    }
    ::close(socket);
    std::this_thread::yield();
  }
  return -1;
}

/// What a stranger hears until the other side closes, after having said `text`.
std::string say(int socket, const std::string& text) {
  EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  std::string heard;
  char buffer[256];
  for (ssize_t some; (some = ::recv(socket, buffer, sizeof buffer, 0)) > 0;) {
    heard.append(buffer, static_cast<size_t>(some));
  }
  ::close(socket);
  return heard;
}

/// A job of some ranks, each a thread.
class BootstrapJob : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    port_ = free_port();
    if (GetParam()) folder_ = shared_.path();
  }

  BootstrapOptions options(int32_t rank, int32_t world) const {
    BootstrapOptions options;
    options.rank = rank;
    options.world = world;
    options.address = "127.0.0.1";
    options.port = port_;
    options.folder = folder_;
    options.token = kToken;
    return options;
  }

  /// Runs `body` on every rank. What each says: empty where it threw nothing.
  std::vector<std::string> run(std::vector<BootstrapOptions> ranks,
                               const std::function<void(Bootstrap&)>& body) const {
    std::vector<std::string> errors(ranks.size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          const auto bootstrap = make_bootstrap(ranks[i]);
          body(*bootstrap);
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    }
    threads.clear();
    return errors;
  }

  std::vector<BootstrapOptions> all(int32_t world) const {
    std::vector<BootstrapOptions> ranks;
    for (int32_t rank = 0; rank < world; ++rank) ranks.push_back(options(rank, world));
    return ranks;
  }

  int32_t port_ = 0;
  const testing::TemporaryFolder shared_;
  std::string folder_;  // "": by TCP
};

INSTANTIATE_TEST_SUITE_P(, BootstrapJob, ::testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "ByFile" : "ByTcp");
});

TEST_P(BootstrapJob, EveryRankGetsEveryBlobByRank) {
  const auto errors = run(all(9), [](Bootstrap& bootstrap) {
    for (int round = 0; round < 20; ++round) {
      std::string mine = std::to_string(bootstrap.rank()) + "/" + std::to_string(round);
      if (round == 3) mine.append(100000, static_cast<char>('a' + bootstrap.rank()));
      if (round == 4) mine = std::string("\0x", 2);
      const std::vector<std::string> blobs = bootstrap.all_gather(mine);
      ASSERT_EQ(std::ssize(blobs), bootstrap.world());
      EXPECT_EQ(blobs[static_cast<size_t>(bootstrap.rank())], mine);
      if (round == 4) continue;
      for (size_t rank = 0; rank < blobs.size(); ++rank) {
        EXPECT_EQ(blobs[rank].substr(0, mine.find('/') + 2),
                  std::to_string(rank) + "/" + std::to_string(round).substr(0, 1));
      }
      EXPECT_EQ(bootstrap.failure(), "");
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(BootstrapJob, OneRankIsAWorld) {
  const auto errors = run(all(1), [](Bootstrap& bootstrap) {
    EXPECT_EQ(bootstrap.all_gather("x"), std::vector<std::string>{"x"});
  });
  EXPECT_EQ(errors[0], "");
}

TEST_P(BootstrapJob, FailureOfOneIsTheReasonOfAll) {
  const auto errors = run(all(5), [](Bootstrap& bootstrap) {
    bootstrap.barrier();
    if (bootstrap.rank() == 3) {
      bootstrap.publish_failure("rank 3: out of memory");
      bootstrap.publish_failure("rank 3: and a second thing");
    }
    while (bootstrap.failure().empty()) std::this_thread::yield();
    bootstrap.barrier();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 3: out of memory");
}

TEST_P(BootstrapJob, RankThatNeverComesIsNamed) {
  std::vector<BootstrapOptions> ranks = all(3);
  ranks.pop_back();
  for (BootstrapOptions& rank : ranks) rank.timeout_s = 1;
  const auto errors = run(ranks, [](Bootstrap&) {});
  EXPECT_THAT(errors[0],
              HasSubstr(GetParam() ? "nothing from rank 2" : "rank 2 did not come within 1 s"));
}

TEST_P(BootstrapJob, RankThatStaysAwayFromARoundIsNamed) {
  std::vector<BootstrapOptions> ranks = all(3);
  for (BootstrapOptions& rank : ranks) rank.timeout_s = 1;
  const auto errors = run(ranks, [](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 1) {
      while (bootstrap.failure().empty()) std::this_thread::yield();
      return;
    }
    bootstrap.barrier();
  });
  EXPECT_THAT(errors[0] + errors[2], HasSubstr("nothing from rank 1 for 1 s"));
}

TEST_P(BootstrapJob, BlobsHaveALimit) {
  const auto errors = run(all(1), [](Bootstrap& bootstrap) {
    bootstrap.all_gather(std::string(kMaxBlobBytes + 1, 'x'));
  });
  EXPECT_THAT(errors[0], HasSubstr("blob: found 1048577 bytes, expected at most 1048576"));
}

class TcpJob : public BootstrapJob {};
INSTANTIATE_TEST_SUITE_P(, TcpJob, ::testing::Values(false),
                         [](const auto&) { return std::string("Tcp"); });

TEST_P(TcpJob, StrangersAreTurnedAwayAndTheJobGoesOn) {
  const std::string head("RFT1", 4);
  const auto number = [](uint32_t value) {
    return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                       static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  const std::string hello = head + number(2) + number(1) + number(4 + 32 + 32);
  const std::vector<std::string> sayings = {
      "GET / HTTP/1.1\r\n\r\n",                            // another protocol
      std::string(4096, '\0'),                             // noise
      head + number(2) + number(1) + number(0x7fffffff),   // a length to choke on
      head + number(0) + number(1) + number(0),            // no kind
      head + number(99) + number(1) + number(0),           // no kind
      head + number(4) + number(1) + number(3) + "abc",    // a blob without a hello
      head + number(6) + number(1) + number(5) + "rank!",  // a failure without one
      head + number(2) + number(1) + number(3) + "abc",    // a hello that is too short
      hello + number(3) + std::string(64, 'p'),            // a proof of nothing
  };
  std::atomic<int> turned_away = 0;
  std::thread others([&] {
    for (const std::string& saying : sayings) {
      const std::string heard = say(connect_to("127.0.0.1", port_), saying);
      // A greeting with a nonce, and nothing that only ranks should know.
      EXPECT_EQ(heard.size(), 16U + 32U);
      ++turned_away;
    }
    ::close(connect_to("127.0.0.1", port_));  // says nothing and goes
    const auto errors = run({options(1, 3), options(2, 3)}, [](Bootstrap& bootstrap) {
      EXPECT_EQ(bootstrap.all_gather(std::to_string(bootstrap.rank())).size(), 3U);
    });
    EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  });
  const auto errors = run({options(0, 3)}, [&](Bootstrap& bootstrap) {
    EXPECT_EQ(turned_away, std::ssize(sayings));
    EXPECT_EQ(bootstrap.all_gather("0"), (std::vector<std::string>{"0", "1", "2"}));
  });
  others.join();
  EXPECT_EQ(errors[0], "");
}

TEST_P(TcpJob, AnotherTokenIsRefusedAndTheJobGoesOn) {
  std::thread others([&] {
    BootstrapOptions stranger = options(1, 2);
    stranger.token = "fedcba9876543210";
    EXPECT_THAT(run({stranger}, [](Bootstrap&) {})[0], HasSubstr("found another job token"));
    EXPECT_EQ(run({options(1, 2)}, [](Bootstrap& b) { b.barrier(); })[0], "");
  });
  const auto errors = run({options(0, 2)}, [](Bootstrap& b) { b.barrier(); });
  others.join();
  EXPECT_EQ(errors[0], "");
}

TEST_P(TcpJob, WhoPlaysRankZeroWithoutTheTokenIsFoundOut) {
  // Rank 0 of a job with another token, to which rank 1 proves itself: it answers with a proof that
  // rank 1 does not accept, or none.
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  std::thread impostor([&] {
    const int peer = ::accept(listener, nullptr, nullptr);
    const std::string greeting =
        std::string("RFT1\0\0\0\1\0\0\0\0\0\0\0\x20", 16) + std::string(32, 'n');
    const std::string welcome =
        std::string("RFT1\0\0\0\3\0\0\0\0\0\0\0\x20", 16) + std::string(32, 'p');
    EXPECT_EQ(say(peer, greeting + welcome).size(), 16U + 4 + 32 + 32);
  });
  const auto errors = run({options(1, 2)}, [](Bootstrap&) {});
  impostor.join();
  ::close(listener);
  EXPECT_THAT(errors[0], HasSubstr("cannot prove that it knows the job token"));
}

TEST_P(TcpJob, TwoOfOneRankAndAnotherWorldFailTheJob) {
  const auto twins = run({options(0, 3), options(1, 3), options(1, 3)}, [](Bootstrap&) {});
  EXPECT_THAT(twins[0], HasSubstr("rank 1: there are two of it"));
  port_ = free_port();
  const auto worlds = run({options(0, 3), options(1, 4)}, [](Bootstrap&) {});
  EXPECT_THAT(worlds[0], HasSubstr("rank 1: found a world of 4, expected 3"));
  EXPECT_THAT(worlds[1], HasSubstr("rank 1: found a world of 4, expected 3"));
}

TEST_P(TcpJob, ListensOnlyWhereTold) {
  std::atomic<bool> checked = false;
  std::thread other([&] {
    const int there = connect_to("127.0.0.1", port_);
    EXPECT_GE(there, 0);
    EXPECT_LT(connect_to("127.0.0.2", port_, false), 0);
    checked = true;
    ::close(there);
    EXPECT_EQ(run({options(1, 2)}, [](Bootstrap&) {})[0], "");
  });
  const auto errors = run({options(0, 2)}, [](Bootstrap&) {});
  other.join();
  EXPECT_TRUE(checked);
  EXPECT_EQ(errors[0], "");
  // When all have met, nobody listens any more.
  EXPECT_LT(connect_to("127.0.0.1", port_, false), 0);
}

TEST_P(TcpJob, LostConnectionIsAFailureUnlessItSaidGoodbye) {
  const pid_t child = fork();
  if (child == 0) {
    const auto bootstrap = make_bootstrap(options(1, 3));
    bootstrap->barrier();
    _exit(0);  // without a goodbye
  }
  const auto errors = run({options(0, 3), options(2, 3)}, [](Bootstrap& bootstrap) {
    bootstrap.barrier();
    while (bootstrap.failure().empty()) std::this_thread::yield();
    bootstrap.barrier();
  });
  waitpid(child, nullptr, 0);
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 1: its connection is lost");
}

TEST_P(BootstrapJob, ProcessesPlayTheRanksOfTheMap) {
  const std::vector<int32_t> process_of = {3, 0, 2, 1};
  std::vector<BootstrapOptions> processes = all(4);
  for (BootstrapOptions& process : processes) map_ranks(process, process_of);
  EXPECT_EQ(processes[0].rank, 1);
  EXPECT_EQ(processes[3].rank, 0);
  const auto errors = run(processes, [](Bootstrap& bootstrap) {
    EXPECT_EQ(bootstrap.all_gather(std::to_string(bootstrap.rank())),
              (std::vector<std::string>{"0", "1", "2", "3"}));
    bootstrap.barrier();
    // Rank 0 is not the root here.
    if (bootstrap.rank() == 0) bootstrap.publish_failure("rank 0: enough");
    while (bootstrap.failure().empty()) std::this_thread::yield();
  });
  for (const std::string& error : errors) {  // some may still be in the barrier
    EXPECT_THAT(error, AnyOf("", "rank 0: enough"));
  }
}

TEST(RankMap, HasEveryProcessOnce) {
  BootstrapOptions options;
  options.rank = 0;
  options.world = 3;
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{0, 1}, {0, 1, 1}, {0, 1, 3}, {0, -1, 2}, {0, 1, 2, 3}}) {
    BootstrapOptions mapped = options;
    EXPECT_THROW(map_ranks(mapped, bad), Error);
  }
}

class FileJob : public BootstrapJob {};
INSTANTIATE_TEST_SUITE_P(, FileJob, ::testing::Values(true),
                         [](const auto&) { return std::string("File"); });

TEST_P(FileJob, FilesOfStrangersAndOfEarlierJobsAreRefused) {
  EXPECT_EQ(run(all(2), [](Bootstrap& b) { b.barrier(); }), (std::vector<std::string>{"", ""}));
  // The last round's files stay: nobody knows whether they have been read.
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    left.push_back(entry.path().filename().string());
  }
  ASSERT_EQ(left.size(), 2U);
  EXPECT_THAT(run({options(0, 2)}, [](Bootstrap&) {})[0], HasSubstr("expected a fresh job token"));

  // The same names with a content that nobody with the token wrote.
  for (const std::string& name : left) std::filesystem::remove(folder_ + "/" + name);
  const std::string stem = left[0].substr(0, left[0].find('.'));
  for (const std::string& content : {std::string(), std::string(40, 'x')}) {
    std::ofstream(folder_ + "/" + stem + ".0.1") << content;
    const auto errors = run({options(0, 2)}, [](Bootstrap&) {});
    EXPECT_THAT(errors[0],
                HasSubstr(content.empty() ? "found 0 bytes" : "found a file of a stranger"));
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
  }
}

TEST_P(FileJob, FolderHasToBeThere) {
  BootstrapOptions nowhere = options(0, 1);
  nowhere.folder += "/none";
  EXPECT_THAT(run({nowhere}, [](Bootstrap&) {})[0], HasSubstr("REFIT_BOOTSTRAP_DIR"));
}

using Environment = std::map<std::string, std::string>;

BootstrapOptions read(const Environment& environment) {
  return read_bootstrap_environment([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(BootstrapEnvironment, KnowsLaunchersAndTakesRankAndWorldFromOne) {
  const Environment rest = {
      {"REFIT_JOB_TOKEN", kToken}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
  const auto with = [&](Environment more) {
    more.insert(rest.begin(), rest.end());
    return read(more);
  };
  const BootstrapOptions torch = with({{"RANK", "3"},
                                       {"WORLD_SIZE", "8"},
                                       {"LOCAL_RANK", "1"},
                                       {"SLURM_PROCID", "0"},
                                       {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(torch.rank, 3);
  EXPECT_EQ(torch.world, 8);
  EXPECT_EQ(torch.local_rank, 1);
  EXPECT_EQ(torch.address, "n0");
  EXPECT_EQ(torch.port, 29501);
  const BootstrapOptions slurm =
      with({{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(slurm.rank, 9);
  EXPECT_EQ(slurm.world, 16);
  EXPECT_EQ(with({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}}).rank, 2);
  const BootstrapOptions own = with({{"REFIT_RANK", "1"},
                                     {"REFIT_WORLD_SIZE", "2"},
                                     {"REFIT_MASTER_ADDR", "10.0.0.1"},
                                     {"REFIT_MASTER_PORT", "7"},
                                     {"REFIT_BIND_ADDR", "10.0.0.2"},
                                     {"RANK", "0"}});
  EXPECT_EQ(own.rank, 1);
  EXPECT_EQ(own.address, "10.0.0.1");
  EXPECT_EQ(own.port, 7);
  EXPECT_EQ(own.bind_address, "10.0.0.2");
  EXPECT_EQ(read({{"REFIT_RANK", "0"},
                  {"REFIT_WORLD_SIZE", "1"},
                  {"REFIT_JOB_TOKEN", kToken},
                  {"REFIT_BOOTSTRAP_DIR", "/x"}})
                .folder,
            "/x");
}

TEST(BootstrapEnvironment, NamesTheVariableThatIsMissingOrWrong) {
  const Environment good = {{"REFIT_RANK", "1"},
                            {"REFIT_WORLD_SIZE", "2"},
                            {"REFIT_JOB_TOKEN", kToken},
                            {"REFIT_MASTER_ADDR", "n0"},
                            {"REFIT_MASTER_PORT", "7"}};
  EXPECT_EQ(read(good).port, 7);
  const std::vector<std::tuple<std::string, const char*, std::string>> cases = {
      {"REFIT_RANK", nullptr, "REFIT_RANK: found nothing"},
      {"REFIT_RANK", "2", "REFIT_RANK: found \"2\", expected 0..1"},
      {"REFIT_RANK", "-1", "REFIT_RANK"},
      {"REFIT_RANK", "1x", "REFIT_RANK: found \"1x\""},
      {"REFIT_RANK", "", "REFIT_RANK: found nothing"},
      {"REFIT_WORLD_SIZE", nullptr, "REFIT_WORLD_SIZE: found nothing"},
      {"REFIT_WORLD_SIZE", "0", "REFIT_WORLD_SIZE"},
      {"REFIT_WORLD_SIZE", "99999999999", "REFIT_WORLD_SIZE"},
      {"REFIT_JOB_TOKEN", nullptr, "REFIT_JOB_TOKEN: found 0 characters"},
      {"REFIT_JOB_TOKEN", "short", "REFIT_JOB_TOKEN: found 5 characters"},
      {"REFIT_MASTER_ADDR", nullptr, "REFIT_MASTER_ADDR"},
      {"REFIT_MASTER_PORT", "0", "REFIT_MASTER_PORT"},
      {"REFIT_MASTER_PORT", "65536", "REFIT_MASTER_PORT"},
      {"REFIT_MASTER_PORT", nullptr, "MASTER_PORT: found nothing"},
      {"REFIT_LOCAL_RANK", "two", "REFIT_LOCAL_RANK"},
  };
  for (const auto& [name, value, message] : cases) {
    Environment bad = good;
    bad.erase(name);
    if (value != nullptr) bad[name] = value;
    SCOPED_TRACE(std::string(name) + " = " + (value == nullptr ? "(none)" : value));
    expect_refused([&] { read(bad); }, {message});
  }
  expect_refused([] { read({{"REFIT_JOB_TOKEN", kToken}}); }, {"no rank of this process"});
}

}  // namespace
}  // namespace refit
