"""Refit: plans how a model's weights move from a trainer's layout to an inference engine's.

    import refit
    plan = refit.plan(model="qwen3-0.6b", train="megatron:tp=4,pp=2", gen="vllm:tp=8", fabric="dgx-h100")
    print(plan.summary.predicted_s, plan.summary.lower_bound_s, plan.summary.bound_reason)
    plan.save("small.plan")
    print(plan.simulate(set=["nic=800Gbps"]).predicted_s)

Inputs are written as on the command line; `refit --help` explains them.
"""

from __future__ import annotations

import json
import os
from typing import Iterable, Optional, Union

from . import _core
from .errors import Error, InputError, WorkError
from .results import Bound, Comparison, Row, Simulation, Summary, make, read

__version__: str = _core.__version__  # type: ignore[attr-defined]
__all__ = ["Bound", "Comparison", "Error", "InputError", "Plan", "Row", "Simulation", "Summary", "WorkError", "bound", "compare", "plan", "simulate"]

PathLike = Union[str, "os.PathLike[str]"]


class Plan:
    """A checked schedule. Made by `refit.plan` or `Plan.load`."""

    def __init__(self, held: "_core.HeldPlan"):
        self._held = held
        self.summary = read(Summary, held.summary)

    @classmethod
    def load(cls, path: PathLike) -> "Plan":
        return cls(_core.load(os.fspath(path)))

    def save(self, path: PathLike) -> None:
        """Writes the plan file that `refit-exec` replays."""
        self._held.save(os.fspath(path))

    def check(self) -> list[str]:
        """Faults, a line each; empty when the plan delivers every element exactly once."""
        return self._held.check()

    def export(self, format: str = "json") -> str:
        """The plan as text: "json", "yaml" or "csv"."""
        return self._held.export(format)

    def simulate(self, *, fabric: Optional[PathLike] = None, cost: Optional[PathLike] = None, set: Iterable[str] = (), stragglers: Iterable[str] = ()) -> Simulation:
        """Replays the plan, on its own fabric or another; `set` and `stragglers` as `refit simulate` takes them."""
        text = self._held.simulate(_text(fabric), _text(cost), list(set), list(stragglers))
        return read(Simulation, text)

    def __repr__(self) -> str:
        return f"<refit.Plan {self.summary.digest[:12]}: {self.summary.strategy}, {self.summary.predicted_s * 1e3:.4g} ms>"


def _text(value) -> str:
    return "" if value is None else os.fspath(value)


def _inputs(model, train, gen, fabric, *, cost=None, dtype=None, nodes=None, place=None, exclude=(), mtp=False, unknown=None) -> "_core.Inputs":
    if unknown not in (None, "replicate"):
        raise InputError(f"unknown: found {unknown!r}, expected None or 'replicate'")
    inputs = _core.Inputs()
    inputs.model, inputs.train, inputs.gen, inputs.fabric = (os.fspath(text) for text in (model, train, gen, fabric))
    inputs.cost, inputs.dtype = _text(cost), dtype or ""
    inputs.nodes = nodes or 0
    inputs.place, inputs.exclude = _text(place), list(exclude)
    inputs.mtp = mtp
    inputs.unknown_replicate = unknown == "replicate"
    return inputs


def plan(model: PathLike, train: PathLike, gen: PathLike, fabric: PathLike, *, strategy: str = "refit", seed: int = 0, staging: str = "1GiB", max_peers: Optional[int] = None, deadline: str = "200it", **inputs) -> Plan:
    """Searches for a schedule, checks and simulates it. Further inputs: cost, dtype, nodes, place, exclude, mtp, unknown."""
    return Plan(_core.plan(_inputs(model, train, gen, fabric, **inputs), strategy, seed, staging, max_peers or 0, deadline))


def compare(model: PathLike, train: PathLike, gen: PathLike, fabric: PathLike, *, strategies: Iterable[str] = (), seed: int = 0, staging: str = "1GiB", max_peers: Optional[int] = None, deadline: str = "200it", **inputs) -> Comparison:
    """Plans with several strategies (default: all) by the same code."""
    values = json.loads(_core.compare(_inputs(model, train, gen, fabric, **inputs), list(strategies), seed, staging, max_peers or 0, deadline))
    return Comparison(values["lower_bound_s"], values["bound_reason"], [make(Row, row) for row in values["rows"]])


def bound(model: PathLike, train: PathLike, gen: PathLike, fabric: PathLike, **inputs) -> Bound:
    """A time that no schedule beats, and what gives it."""
    return read(Bound, _core.bound(_inputs(model, train, gen, fabric, **inputs)))


def simulate(plan: Plan, **how) -> Simulation:
    """`plan.simulate(...)`."""
    return plan.simulate(**how)
