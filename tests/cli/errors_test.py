"""Wrong inputs: one line that names the place, what was found and what was expected; exit 2."""

import pathlib
import struct
import unittest

from refit_cli import DATA, TINY, CliTest

MODEL = str(DATA / "tiny-moe.json")


class Errors(CliTest):
    def refused(self, *arguments, words, program="refit"):
        done = self.run_program(*arguments, code=2, program=program)
        self.assertEqual(done.stdout, "")
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("note: ")]
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def test_inputs(self):
        def tiny(**changes):
            inputs = {"model": MODEL, "train": "megatron:ep=2,pp=2", "gen": "vllm:tp=4", "fabric": "dgx-h100", **changes}
            return ["plan"] + [word for key, value in inputs.items() for word in ("--" + key, value)]

        bad_json = self.write("bad.json", '{\n  "model_type": "qwen3",\n  oops\n}\n')
        no_layers = self.write("short.json", '{"model_type": "qwen3", "hidden_size": 64}')
        wrong_type = self.write("type.json", pathlib.Path(MODEL).read_text().replace('"num_experts": 4', '"num_experts": "four"'))
        family = self.write("family.json", '{"model_type": "quantum_llm"}')
        fabric = self.write("fabric.yaml", "name: f\ndefault_cost: nominal\nnode:\n  gpus: 8\n  nvlnk: 450GB/s\n  nics: 8\n  nic: 400Gbps\n  nic_latency: 1us\nnetwork: {kind: flat}\n")
        cases = [
            (tiny(model="/no/such/config.json"), ["/no/such/config.json"]),
            (tiny(model="qwen9-900b"), ["qwen9-900b", "qwen3-4b"]),
            (tiny(model=bad_json), ["bad.json:3"]),
            (tiny(model=no_layers), ["short.json"]),
            (tiny(model=wrong_type), ["type.json", "num_experts", "four"]),
            (tiny(model=family), ["quantum_llm", "qwen3"]),
            (tiny(train="megatron:tq=2"), ["tq", "tp"]),
            (tiny(train="megatron:tp=x"), ["tp", "x"]),
            (tiny(train="megatron:tp=0"), ["tp", "0"]),
            (tiny(train="megatron:tp=3"), ["tp", "3"]),
            (tiny(train="megatron:ep=3"), ["3"]),
            (tiny(train="megatron:tp=2,tp=2"), ["tp"]),
            (tiny(train="megatron:pp=2,layers=2|2"), ["layers", "3"]),
            (tiny(train="deepspeed:zero=3"), ["deepspeed", "megatron"]),
            (tiny(train="megatron:ep=2,world=3"), ["3"]),
            (tiny(gen="vllm:tp=4,ranks=0-2"), ["ranks"]),
            (tiny(gen="vllm:ep=maybe"), ["ep", "maybe"]),
            (tiny(gen=str(self.folder / "nothing.json")), ["nothing.json"]),
            (tiny(fabric="dgx-h900"), ["dgx-h900", "dgx-h100"]),
            (tiny(fabric=fabric), ["fabric.yaml:5", "nvlnk", "nvlink"]),
            (tiny(fabric="emulated-4x4", train="megatron:ep=4,pp=3,dp=8"), ["GPUs"]),
            (tiny() + ["--nodes", "1"], ["1 nodes"]),
            (tiny() + ["--cost", "free"], ["free", "nominal"]),
            (tiny() + ["--strategy", "magic"], ["magic", "relay"]),
            (tiny() + ["--staging", "64"], ["--staging", "64"]),
            (tiny() + ["--dtype", "bf17"], ["bf17"]),
            (tiny() + ["--staging", "16B"], ["--staging"]),
            (tiny() + ["--deadline", "soon"], ["--deadline", "soon"]),
            (tiny() + ["--deadline", "0s"], ["--deadline", "200it"]),
            (tiny() + ["--deadline", "0it"], ["--deadline", "0"]),
            (tiny() + ["--max-peers", "0"], ["--max-peers"]),
            (tiny(gen="vllm:tp=2,dp=2") + ["--max-peers", "1", "--strategy", "direct"], ["--max-peers: found 1", "at least 4"]),
            (tiny() + ["--frobnicate"], ["--frobnicate"]),
            (["plan", "--model", MODEL], ["--train"]),
            ([], ["subcommand"]),
            (["demand", *TINY[:6], "--tensor", "nope"], ["nope"]),
            (["demand", *TINY[:6], "--rank", "0"], ["--rank", "0"]),
            (["demand", *TINY[:6], "--rank", "-1"], ["--rank", "-1"]),
            (["explian", "a.plan"], ["explian", "simulate"]),
            (tiny() + ["-o", ""], ["expected a file"]),
            (tiny() + ["-o", "-"], ["expected a file"]),
            (tiny() + ["--seed", "-1"], ["--seed"]),
        ]
        for arguments, words in cases:
            with self.subTest(arguments=arguments[-4:], words=words):
                self.refused(*arguments, words=words)

    def test_plan_files(self):
        path, _ = self.plan(*TINY)
        whole = path.read_bytes()

        def variant(name, content):
            other = self.folder / name
            other.write_bytes(content)
            return other

        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        newer = bytearray(whole)
        newer[8:12] = struct.pack("<I", 99)
        older = bytearray(whole)
        older[8:12] = struct.pack("<I", 0)
        cases = [
            (self.folder / "missing.plan", ["missing.plan"]),
            (variant("empty.plan", b""), ["not a plan"]),
            (variant("text.plan", b"hello, this is no plan at all, but it is long enough to be one" * 9), ["not a plan"]),
            (variant("short.plan", whole[: len(whole) - 7]), ["damaged"]),
            (variant("flipped.plan", bytes(flipped)), ["damaged", "expected"]),
            (variant("newer.plan", bytes(newer)), ["too new", "99"]),
            (variant("older.plan", bytes(older)), ["too old", "0"]),
        ]
        for file, words in cases:
            for program, arguments in (("refit", ["check", file]), ("refit", ["simulate", file]), ("refit-exec", [file])):
                with self.subTest(file=file.name, program=program):
                    self.refused(*arguments, words=words, program=program)

    def test_executor_arguments(self):
        path, _ = self.plan(*TINY)
        for arguments, words in (
            ([path, "--backend", "nccl"], ["nccl", "host"]),
            ([path, "--backend", "pigeon"], ["pigeon"]),
            ([path, "--iterations", "0"], ["iterations"]),
            ([path, "--timeout", "30"], ["--timeout", "30"]),
            ([path, "--timeout", "1e300s"], ["--timeout", "1e300s"]),
            ([], ["PLAN"]),
        ):
            with self.subTest(arguments=arguments[1:]):
                self.refused(*arguments, words=words, program="refit-exec")

    def test_output_is_never_half_written(self):
        target = self.folder / "no-such-folder" / "a.plan"
        done = self.run_program("plan", *TINY, "-o", target, code=1)
        self.assertIn(str(target), done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
