"""The shapes of what `pdrig compare` finds. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rig.matching import Difference
from rig.records import Accuracy, Comparison, Counts, Gates, Percentiles, State, Tested, Throughput, Verdict


@dataclass(frozen=True)
class SideSummary:
    """One side of a pair: what it is called, the files its figures come from, and the figures.

    `asked` counts its questions. `state` is the verdict of its own run, None where it has none; of a `stored` baseline
    there are no single requests.
    """

    name: str
    file: str
    judged_file: str
    labels: dict[str, Any]
    kind: Literal["pd", "monolithic"]
    state: State | None = None
    stored: bool = False
    asked: int | None = None
    accuracy: Accuracy | None = None
    counts: Counts | None = None
    latency_ms: dict[str, Percentiles] = field(default_factory=dict)
    throughput: Throughput | None = None


@dataclass(frozen=True)
class Held:
    """A candidate held against one baseline. Either `refused` says why not, or `comparison` and `verdict` are there.

    Accuracy and counts within `comparison` and `verdict` are of the `shared` questions, those of the sides of all.
    """

    candidate: SideSummary
    baseline: SideSummary
    differences: tuple[Difference, ...] = ()
    shared: int | None = None
    refused: str | None = None
    gates: Gates | None = None
    comparison: Comparison | None = None
    tests: tuple[Tested, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unmatched:
    """A cell without a partner of the same labels; `nearest` is the other side's that differs least, and in what."""

    name: str
    side: Literal["candidate", "baseline"]
    nearest: str | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Compared:
    """The whole answer of `pdrig compare`, with both arguments as they were given."""

    candidate: str
    baseline: str
    held: tuple[Held, ...]
    unmatched: tuple[Unmatched, ...] = ()
    schema: int = 1
