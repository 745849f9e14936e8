#!/usr/bin/env python3
"""Runs the benchmarks: bench.py BIN_DIR [NAME...] [--full].

A benchmark is a program refit_bench_NAME in BIN_DIR; without names all of them run, one after the
other. Each prints ratios against a baseline that it measures in the same run. --full takes the large
sizes, of which some baselines need minutes.
"""

import pathlib
import subprocess
import sys

PREFIX = "refit_bench_"


def main() -> int:
    names = [word for word in sys.argv[2:] if not word.startswith("-")]
    options = [word for word in sys.argv[2:] if word.startswith("-")]
    if len(sys.argv) < 2 or set(options) - {"--full"}:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    known = sorted(path.name.removeprefix(PREFIX) for path in folder.glob(PREFIX + "*"))
    unknown = sorted(set(names) - set(known))
    if unknown or not known:
        found = " ".join(unknown) or f"no {PREFIX}* in {folder}"
        print(f"bench: found {found}, expected of: {' '.join(known)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed += subprocess.run([folder / (PREFIX + name), *options], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
