"""What a self-test plants, at which rates, and what should come of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rig.faults.control import FAULTS, Control, Fault, impossible
from rig.planned import CellPlan
from rig.records import Channel, State

Policy = Literal["fail", "recompute"]

BASELINE_QUESTIONS = 1000
CLEAN_QUESTIONS = 400
CLEAN_RUNS = 10
NOISE_ROUNDS = 6
"""How often the baseline is asked again: three damaged outputs are then proof (1/7 to the power of 3)."""
CONTROL = "control"
"""The first clean run: what the speed of all others is held against."""

DAMAGE: tuple[Channel, ...] = ("damage", "accuracy", "errors")
"""A damaged request answers wrongly, or ends at once without a word, which is an error of class `empty`."""
KV_FAULTS: Mapping[str, Policy] = {
    "late_zeroing": "fail",
    "state_rewritten": "fail",
    "blocks_swapped": "fail",
    "last_block_missing": "fail",
    "stale_blocks": "fail",
    "recompute_unwritten": "recompute",
}
"""Faults that damage the KV cache, and the policy for failed loads that the engine runs them under."""
RARE = ("late_zeroing", "state_rewritten")
"""Those that are also planted at 2 % of 1,000 questions."""
SLOW_MS = 8000.0


@dataclass(frozen=True)
class Case:
    """One fault at one rate and seed, asked so many questions; `fault` None is a clean run.

    The state expected is `regression`, with an alarm in one of `channels`; a clean run has none: it must not alarm.
    """

    name: str
    questions: int
    canaries: int
    seed: int
    policy: Policy = "fail"
    fault: str | None = None
    rate: float = 0.0
    params: Mapping[str, Any] = field(default_factory=dict)
    channels: tuple[Channel, ...] = ()

    @property
    def control(self) -> Control:
        """What the engines are told to plant."""
        if self.fault is None:
            return Control()
        return Control((Fault(self.fault, self.rate, self.seed, params=dict(self.params)),))

    def as_expected(self, state: State | None, alarms: tuple[Channel, ...]) -> bool:
        """Whether the rig said what it should have: a clean run is not red, a fault is, for the right reason."""
        if self.fault is None:
            return state in ("pass", "improved", "inconclusive")
        return state == "regression" and any(channel in self.channels for channel in alarms)


def cases(short: bool, connectors: Sequence[str] = ("NixlConnector",)) -> list[Case]:
    """Every case in the order of running, those of one engine together; the short form has one seed and no 2 %.

    Left out are the faults that cannot be planted in these connectors (`left_out` says which).
    """
    without = left_out(connectors)
    return sorted((c for c in _cases(short) if c.fault not in without), key=lambda case: case.policy != "fail")


def left_out(connectors: Sequence[str]) -> dict[str, str]:
    """The faults that cannot be planted in these connectors, each with the reason."""
    reasons = {fault: impossible(fault, connectors, recomputes=True) for fault in FAULTS}
    return {fault: reason for fault, reason in reasons.items() if reason is not None}


def _cases(short: bool) -> Iterator[Case]:
    seeds = range(1, 2 if short else 6)
    yield Case(CONTROL, CLEAN_QUESTIONS, 20, seed=0)
    for run in range(1, 1 + (1 if short else CLEAN_RUNS)):
        yield Case(f"clean-{run}", CLEAN_QUESTIONS, 20, seed=run)
    for groups in ("attention", "state"):
        yield _damage("late_zeroing", 1.0, 1, 60, {"groups": groups}, f"{groups}-only")
    for fault in KV_FAULTS:
        for seed in seeds:
            yield _damage(fault, 0.1, seed, 200)
    for fault in () if short else RARE:
        for seed in seeds:
            yield _damage(fault, 0.02, seed, 1000)
    for rate in (0.1,) if short else (0.1, 1.0):
        yield _other("slow_transfer", rate, ("latency",), 200 if rate < 1 else 60, {"ms": SLOW_MS})
    for rate in (0.1,) if short else (0.05, 0.1):
        yield _other("failed_handshake", rate, ("errors", "transfer"), 200)


def _damage(
    fault: str, rate: float, seed: int, questions: int, params: Mapping[str, Any] | None = None, part: str = ""
) -> Case:
    name = f"{fault}{f'-{part}' if part else ''}-{100 * rate:g}pc-seed{seed}"
    canaries = max(8, questions // 20)
    return Case(name, questions, canaries, seed, KV_FAULTS[fault], fault, rate, params or {}, DAMAGE)


def _other(
    fault: str, rate: float, channels: tuple[Channel, ...], questions: int, params: Mapping[str, Any] | None = None
) -> Case:
    return Case(f"{fault}-{100 * rate:g}pc-seed1", questions, 8, 1, "fail", fault, rate, params or {}, channels)


def cell_of(case: Case, template: CellPlan, baseline: CellPlan, control: CellPlan | None) -> CellPlan:
    """The cell that asks a case of the servers of `template`, held against the baseline and the control run."""
    task = replace(template.task, limit=case.questions, canaries=case.canaries)
    return replace(
        template,
        id=case.name,
        labels={**template.labels, "case": case.name, "fault": case.fault, "rate": case.rate, "seed": case.seed},
        task=task,
        baselines=(baseline.id, *([control.id] if control else [])),
        rerun=False,
        early_stop=False,
        noise_floor=0,
        shuffled=case.fault is None,
        seed=case.seed,
    )


def baseline_of(template: CellPlan, short: bool) -> CellPlan:
    """The monolithic server, asked everything that any case asks, and again for its own noise."""
    questions = CLEAN_QUESTIONS if short else BASELINE_QUESTIONS
    return replace(
        template, task=replace(template.task, limit=questions, canaries=100), noise_floor=2 if short else NOISE_ROUNDS
    )
