"""The library of plans: makes each from its command and compares it with what stands here, or writes it (--update). Reports on large
plans stay below 5 MB.

Usage: library.py BIN_DIR [--quick] [--update] [NAME...]. Exit 1 when something differs."""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
MACHINE = ("search_s", "peak_memory_bytes")  # of the run, not of the plan
LARGEST_PLAN = 1_000_000
LARGEST_REPORT = 5_000_000


def make(program, arguments, folder):
    """Summary and file of one plan."""
    path = pathlib.Path(folder) / "a.plan"
    done = subprocess.run([program, "plan", *shlex.split(arguments), "-o", path, "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"refit plan {arguments}: {done.stderr.strip()}")
    summary = {key: value for key, value in json.loads(done.stdout).items() if key not in MACHINE}
    if summary["ranks"] >= 512:
        subprocess.run([program, "report", path, "-o", path.with_suffix(".html"), "--strategies", "none", "--quiet"], stdout=subprocess.DEVNULL, check=True)
        size = path.with_suffix(".html").stat().st_size
        if size > LARGEST_REPORT:
            raise SystemExit(f"refit report of {arguments}: {size} bytes")
    return {"command": f"refit plan {arguments}", **summary}, path.read_bytes()


def differences(kept, made):
    return [f"{key}: kept {kept.get(key)}, now {made.get(key)}" for key in {**kept, **made} if kept.get(key) != made.get(key)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true", help="only what plans in seconds")
    parser.add_argument("--update", action="store_true", help="write instead of comparing")
    options = parser.parse_intermixed_args()
    wrong = 0
    for row in yaml.safe_load((HERE / "library.yaml").read_text()):
        name = row["name"]
        if (options.quick and not row.get("quick")) or (options.names and name not in options.names):
            continue
        summary_file, plan_file = HERE / f"{name}.json", HERE / f"{name}.plan"
        with tempfile.TemporaryDirectory() as folder:
            made, plan = make(f"{options.bin}/refit", row["arguments"], folder)
        if options.update:
            summary_file.write_text(json.dumps(made, indent=1) + "\n")
            plan_file.unlink(missing_ok=True)
            if len(plan) < LARGEST_PLAN:
                plan_file.write_bytes(plan)
            found = []
        else:
            found = differences(json.loads(summary_file.read_text()), made) if summary_file.exists() else ["not in the library yet"]
            if plan_file.exists() and plan_file.read_bytes() != plan:
                found.append("the plan's bytes differ")
        wrong += bool(found)
        ratio = made["predicted_s"] / made["lower_bound_s"]
        print(f"{name:<28} {made['predicted_s'] * 1e3:9.1f} ms  {ratio:.3f} x bound  {'; '.join(found) or ('written' if options.update else 'equal')}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
