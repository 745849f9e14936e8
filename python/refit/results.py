"""Results as plain data. Field names are those of `refit --json`; times in seconds, sizes in bytes."""

from __future__ import annotations

import dataclasses
import json
from typing import Optional


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a plan promises. Fields that only planning knows are None in a plan that was loaded."""

    strategy: str
    predicted_s: float
    lower_bound_s: float
    bound_reason: str
    gap: Optional[float]
    estimated_s: float
    ranks: int
    tensors: int
    transfers: int
    bytes_total: int
    bytes_inter_domain: int
    bytes_intra_domain: int
    peak_staging_bytes: int
    max_peers: int
    plan_bytes: int
    digest: str
    classes: Optional[int] = None
    model_bytes: Optional[int] = None
    demand_bytes: Optional[int] = None
    search_s: Optional[float] = None
    peak_memory_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One strategy of a comparison; `error` says why it cannot serve these layouts, and the rest is then None."""

    strategy: str
    error: Optional[str] = None
    predicted_s: Optional[float] = None
    lower_bound_s: Optional[float] = None
    gap: Optional[float] = None
    estimated_s: Optional[float] = None
    schedule_s: Optional[float] = None
    transfers: Optional[int] = None
    bytes_total: Optional[int] = None
    bytes_inter_domain: Optional[int] = None
    bytes_intra_domain: Optional[int] = None
    peak_staging_bytes: Optional[int] = None
    max_peers: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    lower_bound_s: float
    bound_reason: str
    rows: list[Row]

    def __getitem__(self, strategy: str) -> Row:
        for row in self.rows:
            if row.strategy == strategy:
                return row
        raise KeyError(strategy)


@dataclasses.dataclass(frozen=True)
class Bound:
    lower_bound_s: float
    bound_reason: str


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A plan replayed on a fabric; `wire_s` to `wait_s` split the time of the rank that ends last."""

    predicted_s: float
    saved_predicted_s: float
    saved_lower_bound_s: float
    fabric: str
    cost: str
    wire_s: float
    staging_s: float
    launch_s: float
    wait_s: float
    bottleneck: str
    bottleneck_use: float
    digest: str


def read(kind: type, text: str):
    """A dataclass from JSON text; what it has no field for is left out."""
    return make(kind, json.loads(text))


def make(kind: type, values: dict):
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in values.items() if key in known})
