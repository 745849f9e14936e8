#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace refit {
namespace {

TEST(Units, RatesAreBytesPerSecond) {
  EXPECT_EQ(parse_rate("400Gbps", "x"), 50e9);  // 400e9 bits / 8
  EXPECT_EQ(parse_rate("100 Mbps", "x"), 12.5e6);
  EXPECT_EQ(parse_rate("0.8Tbps", "x"), 100e9);
  EXPECT_EQ(parse_rate("450GB/s", "x"), 450e9);
  EXPECT_EQ(parse_rate("1.5TB/s", "x"), 1.5e12);
  EXPECT_EQ(parse_rate("100MB/s", "x"), 100e6);
  EXPECT_EQ(parse_rate("1MiB/s", "x"), 1048576);
  EXPECT_EQ(parse_rate("2GiB/s", "x"), 2147483648.0);
}

TEST(Units, BytesAreExact) {
  EXPECT_EQ(parse_bytes("64MiB", "x"), 67108864);
  EXPECT_EQ(parse_bytes("1 GiB", "x"), 1073741824);
  EXPECT_EQ(parse_bytes("512KiB", "x"), 524288);
  EXPECT_EQ(parse_bytes("2GB", "x"), 2000000000);
  EXPECT_EQ(parse_bytes("128B", "x"), 128);
  EXPECT_EQ(parse_bytes("0B", "x"), 0);
  EXPECT_EQ(parse_bytes("1.5KiB", "x"), 1536);
  EXPECT_EQ(parse_bytes("1342.1GB", "x"), 1342100000000);
  EXPECT_EQ(parse_bytes("9007199254740992B", "x"), int64_t{1} << 53);
}

TEST(Units, TimesAreTheNearestDouble) {
  EXPECT_EQ(parse_time("2us", "x"), 2e-6);
  EXPECT_EQ(parse_time("25ns", "x"), 25e-9);
  EXPECT_EQ(parse_time("1.5ms", "x"), 1.5e-3);
  EXPECT_EQ(parse_time("10 s", "x"), 10);
  EXPECT_EQ(parse_time("0s", "x"), 0);
}

TEST(Units, RefusesWhatIsNotANumberAndAUnit) {
  for (const char* text :
       {"",        " ",         "400",      "400 ",     "Gbps",      "-1Gbps",  "+1Gbps", "nanGbps",
        "infGbps", "1e999Gbps", "400Gbpsx", "400Gbps ", " 400Gbps",  "0Gbps",   "-0Gbps", "400gbps",
        "400GB",   "400G",      "0x10Gbps", "4 0Gbps",  "400,5Gbps", "1..5GB/s"}) {
    EXPECT_THROW(parse_rate(text, "x"), Error) << text;
  }
  for (const char* text : {"", "64", "MiB", "-1B", "nanB", "infB", "1.5B", "0.0001kB", "64MB/s",
                           "64mb", "64MiBB", "1e30B", "10000TB", "0x40B"}) {
    EXPECT_THROW(parse_bytes(text, "x"), Error) << text;
  }
  for (const char* text :
       {"", "2", "us", "-2us", "nans", "infs", "2u", "2min", "2us2us", "1e999s"}) {
    EXPECT_THROW(parse_time(text, "x"), Error) << text;
  }
}

TEST(Units, MessageNamesPlaceFoundAndExpected) {
  try {
    parse_rate("400", "f.yaml:3: links.rate");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "f.yaml:3: links.rate: found \"400\", expected a rate above 0 like 400Gbps or 50GB/s");
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
  }
}

TEST(Units, Integers) {
  EXPECT_EQ(parse_int("-3", -5, 5, "x"), -3);
  EXPECT_EQ(parse_int("9223372036854775807", 0, INT64_MAX, "x"), INT64_MAX);
  for (const char* text : {"", "6", "-6", "1.0", "1e3", "+1", " 1", "1 ", "0x1", "one",
                           "9223372036854775808", "99999999999999999999"}) {
    EXPECT_THROW(parse_int(text, -5, 5, "x"), Error) << text;
  }
}

TEST(Units, ShortForms) {
  EXPECT_EQ(print_bytes(61.06e9), "61.1 GB");
  EXPECT_EQ(print_bytes(1342.1e9), "1.34 TB");
  EXPECT_EQ(print_bytes(0), "0 B");
  EXPECT_EQ(print_bytes(999), "999 B");
  EXPECT_EQ(print_bytes(1000), "1 kB");
  EXPECT_EQ(print_bytes(999.96e6), "1 GB");  // not "1000 MB"
  EXPECT_EQ(print_bytes(100), "100 B");      // no zero lost
  EXPECT_EQ(print_rate(50e9), "50 GB/s");
  EXPECT_EQ(print_rate(4.5e12), "4.5 TB/s");
  EXPECT_EQ(print_time(0.15274), "152.7 ms");
  EXPECT_EQ(print_time(2e-6), "2 us");
  EXPECT_EQ(print_time(0), "0 s");
  EXPECT_EQ(print_time(-0.5), "-500 ms");
  EXPECT_EQ(print_time(1234.56), "1234.6 s");
  EXPECT_EQ(print_time(1e-12), "0 ns");
}

TEST(Error, QuotesForOneLine) {
  EXPECT_EQ(quote("a\nb"), "\"a?b\"");
  EXPECT_EQ(quote(std::string(100, 'x')), "\"" + std::string(80, 'x') + "...\"");
}

}  // namespace
}  // namespace refit
