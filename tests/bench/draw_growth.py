#!/usr/bin/env python3
"""Draws what refit_bench_growth prints: draw_growth.py TABLE FILE.svg

Needs matplotlib: the environment of ./dev notebooks has it.
"""

import math
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "refit"  # the same table, the same bytes
import matplotlib.pyplot as plt


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as table:
        rows = [line.split() for line in table if line.split() and line.split()[0].isdigit()]
    ranks = [int(row[0]) for row in rows]
    deliveries = [int(row[1]) for row in rows]
    seconds = [float(row[3]) for row in rows]
    scale = seconds[0] / (deliveries[0] * math.log2(deliveries[0]))

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.loglog(deliveries, seconds, "o-", label="search: bound, routing, schedule, check, simulation")
    axes.loglog(deliveries, [scale * d * math.log2(d) for d in deliveries], "--", color="gray", label="n log n, through the first point")
    for d, s, r in zip(deliveries, seconds, ranks):
        axes.annotate(f"{r:,} ranks", (d, s), textcoords="offset points", xytext=(6, -10), fontsize=8)
    axes.set_xlabel("deliveries (boxes and needers)")
    axes.set_ylabel("CPU seconds")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
