#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

/// A fresh folder for each test, removed after it.
class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "refit-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t file_count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  fs::path folder_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  std::string content(100000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  for (const std::string& text : {std::string(), std::string("a"), content}) {
    write_file(path("f"), text);
    EXPECT_EQ(read_file(path("f")), text);
    EXPECT_EQ(file_count(), 1u);  // nothing temporary is left
  }
}

TEST_F(FileTest, ReadingNamesFileAndReason) {
  try {
    read_file(path("absent"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), path("absent") + ": cannot be read: No such file or directory");
  }
  try {
    read_file(folder_.string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), folder_.string() + ": cannot be read: Is a directory");
  }
}

TEST_F(FileTest, FailedWriteLeavesNothingBehind) {
  // rename() cannot put a file over a folder that appears at `path`; stat sees a folder, which
  // cannot be opened for writing.
  fs::create_directory(path("d"));
  for (const std::string& target : {path("d"), path("no/such/folder"), std::string("")}) {
    try {
      write_file(target, "text");
      FAIL() << target;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kWork);
      EXPECT_TRUE(std::string(error.what()).starts_with(target + ": cannot be written: "));
    }
  }
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(FileTest, WritesIntoAPipeInsteadOfReplacingIt) {
  ASSERT_EQ(::mkfifo(path("p").c_str(), 0600), 0);
  const int reader = ::open(path("p").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file(path("p"), "text");
  char buffer[8] = {};
  EXPECT_EQ(::read(reader, buffer, sizeof buffer), 4);
  EXPECT_STREQ(buffer, "text");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path("p")));
}

TEST_F(FileTest, NamedFilesComeFromTheDataFolder) {
  fs::create_directories(folder_ / "models");
  write_file(path("models/b.yaml"), "");
  write_file(path("models/a.yaml"), "");
  write_file(path("models/notes.txt"), "");
  fs::create_directory(folder_ / "models" / "folder.yaml");
  ::setenv("REFIT_DATA", folder_.c_str(), 1);
  EXPECT_EQ(find_data_file("models", "a"), path("models/a.yaml"));
  EXPECT_EQ(find_data_file("models", path("models/notes.txt")), path("models/notes.txt"));
  for (const std::string& name :
       {std::string("c"), std::string(""), std::string("notes"), std::string("folder"),
        std::string("../models/a"), folder_.string()}) {
    EXPECT_EQ(find_data_file("models", name), "") << name;
  }
  EXPECT_EQ(list_data_files("models"), "a, b");
  EXPECT_EQ(list_data_files("absent"), "");
  ::unsetenv("REFIT_DATA");
}

}  // namespace
}  // namespace refit
