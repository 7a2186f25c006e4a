"""Every significance test that can alarm in a cell, and what each comes to after correction; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rig import stats
from rig.metrics import RIGS_OWN
from rig.records import CellResult, Channel, Counts, Divergence, Tested
from rig.stats_family import bonferroni, holm

SWEEP = "the sweep"


class Tests:
    """The tests of one cell, by name. Where one has not been corrected yet, its p-value stands as it is.

    `family` names those that were corrected together.
    """

    __test__ = False

    def __init__(self, result: CellResult, baselines: Mapping[str, CellResult], family: str = SWEEP) -> None:
        self._family = family
        known = {test.name: test for test in result.tests}
        self._alpha = result.gates.alpha
        self._tests = {test.name: known.get(test.name, test) for test in tests_of(result, baselines)}

    def has(self, name: str) -> bool:
        return name in self._tests

    def alarms(self, name: str) -> bool:
        """Whether "no worse" is rejected at alpha, after correction."""
        return name in self._tests and _corrected(self._tests[name]) <= self._alpha

    def shown(self, name: str, method: str) -> str:
        """The test in words: method, p-value, what it is after correction, level."""
        test = self._tests[name]
        corrected = test.p_adjusted
        after = "" if corrected is None else f", {p_text(corrected)} after correction for all tests of {self._family}"
        return f"{method} {p_text(test.p_value)}{after}, level {self._alpha:g}"


def p_text(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.0001 else "p < 0.0001"


def tests_of(result: CellResult, baselines: Mapping[str, CellResult]) -> tuple[Tested, ...]:
    """The tests that a cell makes against the baselines that can be used, uncorrected."""
    found: list[Tested] = []

    def add(channel: Channel, name: str, p_value: float | None) -> None:
        if p_value is not None:
            found.append(Tested(name, channel, p_value))

    for comparison in result.comparisons:
        name = comparison.baseline
        if name in baselines:
            add("accuracy", f"accuracy/{name}", comparison.p_value)
            add("damage", f"divergence/{name}", _divergence(comparison.first_divergence))
            if warm(result) and warm(baselines[name]):
                for ratio in comparison.ratios:
                    add(speed_channel(ratio.metric), f"{ratio.metric}/{name}", ratio.p_value)
                for slow in comparison.slow:
                    add("latency", f"slow_{slow.metric}/{name}", slow.p_value)
    for name, base in baselines.items():
        add("damage", f"canaries/{name}", _canaries(result, base))
        add("errors", f"errors/{name}", _errors(result, base))
        for event in ("failed", "expired"):
            add("transfer", f"{event}/{name}", _events(result, base, event))
    return tuple(found)


def speed_channel(metric: str) -> Channel:
    return "throughput" if metric == "requests_per_s" else "latency"


def warm(result: CellResult) -> bool:
    """Whether the cell's speed can be judged: requests went ahead of it."""
    return bool(result.warmup_requests)


def share_of_each(tests: Iterable[Tested], planned: int) -> tuple[Tested, ...]:
    """The tests corrected as `planned` ones, for a verdict that cannot wait for the rest of the sweep (Bonferroni)."""
    return tuple(replace(test, p_adjusted=bonferroni(test.p_value, planned)) for test in tests)


def corrected(results: Sequence[CellResult]) -> list[CellResult]:
    """The results with the tests of all of them corrected together (Holm): one error rate over the whole sweep.

    Cells that repeat a red one are left as they are: they look again at what has alarmed already.
    """
    family = {(r.cell_id, t.name): t.p_value for r in results if r.rerun_of is None for t in r.tests}
    adjusted = holm(family)
    return [
        result
        if result.rerun_of is not None
        else replace(result, tests=tuple(replace(t, p_adjusted=adjusted[result.cell_id, t.name]) for t in result.tests))
        for result in results
    ]


def _corrected(test: Tested) -> float:
    return test.p_value if test.p_adjusted is None else test.p_adjusted


def _divergence(seen: Divergence | None) -> float | None:
    """Outputs shifted further than the baseline shifts its own when it is asked again, question by question."""
    if seen is None or not seen.measured or not seen.rounds or seen.led is None or seen.moved is None:
        return None
    return stats.leading(seen.led, seen.moved, seen.rounds)


def _canaries(result: CellResult, base: CellResult) -> float | None:
    """Canaries that came back wrong, whatever with, against the baseline's."""
    mine = result.evidence.canaries if result.evidence else None
    theirs = base.evidence.canaries if base.evidence else None
    if mine is None or theirs is None or mine.sent == mine.error or theirs.sent == theirs.error:
        return None
    return stats.fisher_excess(
        mine.wrong + mine.crossed, mine.sent - mine.error, theirs.wrong + theirs.crossed, theirs.sent - theirs.error
    )


def _errors(result: CellResult, base: CellResult) -> float | None:
    if result.counts is None or base.counts is None or not asked(result.counts) or not asked(base.counts):
        return None
    return stats.fisher_excess(failed(result.counts), asked(result.counts), failed(base.counts), asked(base.counts))


def _events(result: CellResult, base: CellResult, event: str) -> float | None:
    """Failed transfers or expired leases, where both sides had some; beyond a sound baseline any is too many."""
    mine = getattr(result.evidence, event) if result.evidence else None
    theirs = getattr(base.evidence, event) if base.evidence else None
    if not mine or not theirs or not asked(result.counts) or not asked(base.counts):
        return None
    return stats.event_excess(mine, asked(result.counts), theirs, asked(base.counts))


def asked(counts: Counts | None) -> int:
    """Questions that were asked, failed ones too."""
    return scored(counts) + (sum(counts.error.values()) if counts else 0)


def scored(counts: Counts | None) -> int:
    """Questions with an answer that counts, right, wrong, or neither."""
    return counts.correct + counts.wrong + counts.unparsed + counts.truncated + counts.unscored if counts else 0


def failed(counts: Counts | None) -> int:
    """Errors of the deployment; the rig's own are not among them."""
    return sum(k for name, k in counts.error.items() if name not in RIGS_OWN) if counts else 0
