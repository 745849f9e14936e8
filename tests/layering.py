"""Fails on an include against the direction of DESIGN: base <- plans <- {sim, exec}; exec never sees sim; inside sim
model <- layout, fabric <- flow, model/layout/fabric/flow <- cost and simulator <- search <- cli <- main; check shares no code with search."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder -> folders that it may include from, itself always
ALLOWED = {
    "base": [],
    "plans": ["base"],
    "sim/model": ["base", "plans"],
    "sim/layout": ["base", "plans", "sim/model"],
    "sim/fabric": ["base", "plans"],
    "sim/flow": ["base", "sim/fabric"],
    "sim/cost": ["base", "plans", "sim/model", "sim/layout", "sim/fabric", "sim/flow"],
    "sim/simulator": ["base", "plans", "sim/fabric", "sim/cost"],
    "sim/search": ["base", "plans", "sim/model", "sim/layout", "sim/fabric", "sim/flow", "sim/cost", "sim/simulator"],
    "sim/report": ["base", "plans", "sim/fabric", "sim/cost", "sim/simulator", "sim/search"],
    "sim/cli": ["base", "plans", "sim/model", "sim/layout", "sim/fabric", "sim/cost", "sim/simulator", "sim/search", "sim/report"],
    "sim": ["base", "plans", "sim/cli", "sim/search"],
    "exec": ["base", "plans", "exec/cuda"],  # exec/cuda: the programs and the C API, to make a device
    "exec/cuda": ["base", "plans", "exec"],
    "exec/examples": ["exec"],
}
# The simulator is a second opinion: no closed-form estimate, no bound.
FORBIDDEN = {("sim/simulator", "sim/cost/estimate.h"), ("sim/simulator", "sim/cost/bound.h")}
# One name, one type: two types of one name in namespace refit would be merged by the linker without a word.
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)[^;]*$")
THIRD_PARTY = re.compile(r"#include <(yaml-cpp|nlohmann|flatbuffers|boost|Eigen|CLI)/")


def main():
    faults = []
    types = {}
    for folder, allowed in ALLOWED.items():
        for path in sorted((ROOT / folder).glob("*.*")):
            if path.suffix not in (".h", ".cc"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                place = f"{path.relative_to(ROOT)}:{number}"
                if path.suffix == ".h" and THIRD_PARTY.match(line):
                    faults.append(f"{place}: third-party header in a header: {line}")
                named = TYPE.match(line) if path.suffix == ".h" else None
                if named and types.setdefault(named.group(1), place) != place:
                    faults.append(f"{place}: {named.group(1)} is already a type at {types[named.group(1)]}")
                match = re.match(r'#include "([^"]+)"', line)
                if not match:
                    continue
                target = match.group(1)
                into = str(pathlib.PurePosixPath(target).parent)
                if into == "." or into.endswith("generated"):
                    continue  # generated beside the sources
                if into != folder and into not in allowed:
                    faults.append(f"{place}: {folder} may not include {target}")
                if (folder, target) in FORBIDDEN:
                    faults.append(f"{place}: {folder} may not include {target}")
    print("\n".join(faults) or f"layering: {len(ALLOWED)} folders, no include against the direction")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
