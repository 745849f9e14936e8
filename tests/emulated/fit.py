#!/usr/bin/env python3
"""Fits the constants of topologies/cost/emulated.yaml to measured refits: fit.py REFIT FOLDER, with what
`emulated.py --keep FOLDER` has kept. Simulates every plan on a grid of constants and prints the sum of the
squared logarithms of measured / predicted, and the ratios with the best."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

MODEL = """name: emulated
nvlink: {{efficiency: 0.95, flow_rate: none, step_start: {start:.0f}us, message_start: 20us}}
net: {{efficiency: {efficiency}, flow_rate: none, step_start: {start:.0f}us, message_start: 20us}}
gpu_rate: none
memory_rate: 4GB/s
copy_start: 1us
"""


def simulate(refit: str, plan: pathlib.Path, cost: pathlib.Path) -> float:
    out = subprocess.run([refit, "simulate", plan, "--cost", cost, "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(out)["predicted_s"]


def main() -> int:
    refit, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    measured = {}
    for plan in sorted(folder.glob("*.plan")):
        seconds = sorted(json.loads(plan.with_suffix(".json").read_text())["iterations"][1:])
        measured[plan] = seconds[len(seconds) // 2]
    best = None
    with tempfile.TemporaryDirectory() as scratch:
        cost = pathlib.Path(scratch) / "emulated.yaml"
        for efficiency in (0.945, 0.95, 0.953, 0.956):
            for start in (50, 100, 200, 400, 800):
                cost.write_text(MODEL.format(efficiency=efficiency, start=start))
                ratios = {plan: measured[plan] / simulate(refit, plan, cost) for plan in measured}
                error = sum(math.log(ratio) ** 2 for ratio in ratios.values())
                print(f"efficiency {efficiency}, step_start {start} us: {error:.4f}")
                if best is None or error < best[0]:
                    best = (error, efficiency, start, ratios)
    print(f"\nbest: efficiency {best[1]}, step_start {best[2]} us")
    for plan, ratio in best[3].items():
        print(f"  {ratio:.3f} {plan.stem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
