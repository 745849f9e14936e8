#include "base/document.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace refit {
namespace {

Value yaml(std::string_view text) { return parse_document(text, "f.yaml", false); }
Value json(std::string_view text) { return parse_document(text, "f.json", true); }

/// The message that `action` throws.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Document, YamlAndJsonGiveTheSameTree) {
  for (const Value& root :
       {yaml("a: 1\nb: [x, {c: 2.5}]\nd: ~\ne: true\nf: {}\n"),
        json(R"({"a": 1, "b": ["x", {"c": 2.5}], "d": null, "e": true, "f": {}})")}) {
    EXPECT_EQ(root.at("a").as_int(0, 9), 1);
    EXPECT_EQ(root.at("b").size(), 2u);
    EXPECT_EQ(root.at("b")[0].as_text(), "x");
    EXPECT_EQ(root.at("b")[1].at("c").as_number(), 2.5);
    EXPECT_TRUE(root.at("d").is_null());
    EXPECT_TRUE(root.at("e").as_bool());
    EXPECT_EQ(root.at("f").kind(), Value::Kind::kMap);
    EXPECT_EQ(root.find("g"), nullptr);
    std::string keys;
    for (const auto& [key, value] : root.items()) keys += key;
    EXPECT_EQ(keys, "abdef");
    root.finish();
  }
}

TEST(Document, QuantitiesCarryUnits) {
  const Value root = yaml("rate: 400Gbps\nlatency: 2us\nsize: 1MiB\nbad: 400\n");
  EXPECT_EQ(root.at("rate").as_rate(), 50e9);
  EXPECT_EQ(root.at("latency").as_time(), 2e-6);
  EXPECT_EQ(root.at("size").as_bytes(), 1 << 20);
  EXPECT_THROW(root.at("bad").as_rate(), Error);
  EXPECT_THROW(root.at("bad").as_time(), Error);
  EXPECT_THROW(root.at("bad").as_bytes(), Error);
}

TEST(Document, PlacesNameFileLineAndPath) {
  const Value y = yaml("nodes:\n  - name: a\n    gpus:\n      count: 8\n  - name: b\n");
  EXPECT_EQ(y.place(), "f.yaml:1");
  EXPECT_EQ(y.at("nodes")[0].at("gpus").at("count").place(), "f.yaml:4: nodes[0].gpus.count");
  EXPECT_EQ(y.at("nodes")[0].at("gpus").line(), 3);  // the line of the key
  EXPECT_EQ(y.at("nodes")[1].place(), "f.yaml:5: nodes[1]");
  // A JSON parser has to read past a number to see its end: the last of a list, and the last of a
  // map.
  const Value j = json("{\n\"list\": [\n1,\n22\n\n],\n\"map\": {\"x\":\n 5\n}, \"s\": \"t\"\n}\n");
  EXPECT_EQ(j.at("list")[0].place(), "f.json:3: list[0]");
  EXPECT_EQ(j.at("list")[1].place(), "f.json:4: list[1]");
  EXPECT_EQ(j.at("map").at("x").place(), "f.json:7: map.x");
  EXPECT_EQ(j.at("s").place(), "f.json:9: s");
}

TEST(Document, ValuesOutliveTheirParents) {
  const Value inner = yaml("a: {b: [1, 2]}").at("a").at("b");
  EXPECT_EQ(inner[1].place(), "f.yaml:1: a.b[1]");
}

TEST(Document, WrongKindsAreNamed) {
  const Value root = yaml("n: 12\ns: text\nl: [1]\nm: {a: 1}\nz:\nq: '12'\n");
  EXPECT_EQ(error_of([&] { root.at("s").as_int(0, 9); }),
            "f.yaml:2: s: found \"text\", expected an integer from 0 to 9");
  EXPECT_EQ(error_of([&] { root.at("n").as_int(0, 9); }),
            "f.yaml:1: n: found \"12\", expected an integer from 0 to 9");
  EXPECT_EQ(error_of([&] { root.at("q").as_int(0, 99); }),
            "f.yaml:6: q: found \"12\", expected an integer from 0 to 99");
  EXPECT_EQ(error_of([&] { root.at("l").as_text(); }),
            "f.yaml:3: l: found a list, expected a single value");
  EXPECT_EQ(error_of([&] { root.at("m").size(); }), "f.yaml:4: m: found a map, expected a list");
  EXPECT_EQ(error_of([&] { root.at("z").at("a"); }), "f.yaml:5: z: found nothing, expected a map");
  EXPECT_EQ(error_of([&] { root.at("l")[1]; }),
            "f.yaml:3: l: found a list of 1, expected at least 2");
  EXPECT_EQ(error_of([&] { root.at("m").at("b"); }),
            "f.yaml:4: m: found no key \"b\", expected one");
  EXPECT_EQ(error_of([&] { root.at("n").as_bool(); }),
            "f.yaml:1: n: found \"12\", expected true or false");
  for (const char* text : {"x", "''", "'1'", "1x", "nan", ".inf", "1e999", "[]", "~", "0x10"}) {
    EXPECT_THROW(yaml(std::string("k: ") + text).at("k").as_number(), Error) << text;
  }
  EXPECT_THROW(yaml("k: yes").at("k").as_bool(), Error);
  EXPECT_THROW(json(R"({"k": "true"})").at("k").as_bool(), Error);
  EXPECT_THROW(yaml("[1]").items(), Error);
}

TEST(Document, FinishNamesTheUnknownKeyAndTheKnownOnes) {
  const Value root = yaml("_comment: free\ncount: 1\nspeeed: 2\n");
  root.at("count");
  root.find("speed");
  EXPECT_EQ(error_of([&] { root.finish(); }),
            "f.yaml:3: speeed: found an unknown key, expected one of: count, speed");
  root.find("speeed");
  root.finish();
}

TEST(Document, DuplicateKeysAreRefused) {
  EXPECT_EQ(error_of([] { yaml("a: 1\nb: {c: 1,\n c: 2}\n"); }),
            "f.yaml:3: b.c: found the key a second time, expected it once");
  EXPECT_EQ(error_of([] { json("{\"a\": 1,\n\"a\": 1}"); }),
            "f.json:2: a: found the key a second time, expected it once");
}

TEST(Document, YamlBeyondPlainDataIsRefused) {
  EXPECT_EQ(error_of([] { yaml("a: &x 1\n"); }),
            "f.yaml:1: found an anchor (&name), expected a value without one");
  EXPECT_EQ(error_of([] { yaml("a: 1\n---\nb: 1\n"); }),
            "f.yaml: found more than one YAML document, expected one");
  for (const char* text : {"a: *x\n", "a: !!str 1\n", "? [1, 2]\n: 3\n", "~: 3\n", "{a: 1}: 2\n"}) {
    EXPECT_THROW(yaml(text), Error) << text;
  }
}

TEST(Document, SyntaxErrorsNameFileAndLine) {
  EXPECT_TRUE(error_of([] { yaml("a: 1\nb: [1, 2\n"); }).starts_with("f.yaml:3: not valid YAML: "));
  EXPECT_TRUE(error_of([] { yaml("a: 1\n\tb: 2\n"); }).starts_with("f.yaml:2: not valid YAML: "));
  EXPECT_TRUE(
      error_of([] { json("{\"a\": 1,\n \"b\": }\n"); }).starts_with("f.json:2: not valid JSON: "));
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "nul", "{} x", "\"\x01\"", "\"\xff\"",
                           "{'a': 1}", "[1 2]", "// c\n1", "1e999", "\xef\xbb"}) {
    EXPECT_THROW(json(text), Error) << text;
  }
  const std::string message = error_of([] { json("[\"a\nb\"]"); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Document, DeepNestingIsRefusedWithoutRecursion) {
  EXPECT_THROW(json(std::string(1000000, '[')), Error);
  EXPECT_THROW(yaml(std::string(10000, '[')), Error);
}

TEST(Document, EmptyYamlIsNothing) {
  EXPECT_TRUE(yaml("").is_null());
  EXPECT_TRUE(yaml("# only a comment\n").is_null());
}

TEST(Document, ReadsLargeJson) {
  // 20,000 tensor names of 250 bytes each, as in an index of a large checkpoint: found again by
  // name.
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) {
    text += (i > 0 ? ",\n\"" : "\"") + std::string(180, 'n') + std::to_string(i) +
            "\": {\"shape\": [64, 64], \"dtype\": \"BF16\", \"shard\": \"s\"}";
  }
  const Value root = json(text + "}");
  EXPECT_EQ(root.items().size(), 20000u);
  const Value& last = root.at(std::string(180, 'n') + "19999");
  EXPECT_EQ(last.line(), 20000);
  EXPECT_EQ(last.at("shape")[1].as_int(0, 100), 64);
}

}  // namespace
}  // namespace refit
