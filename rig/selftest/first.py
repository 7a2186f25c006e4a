"""Which evidence would have shown a fault first. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rig import stats
from rig.divergence import standings
from rig.records import CellResult, JudgedCanary, Pair


@dataclass(frozen=True)
class First:
    """The evidence that reached its level earliest, after so many requests in order of arrival."""

    evidence: str
    requests: int


def first_evidence(
    result: CellResult,
    base: CellResult,
    pairs: Sequence[Pair],
    canaries: Sequence[JudgedCanary],
    noise: Sequence[Pair],
) -> First | None:
    """Look back over a cell: each kind of evidence at each request, at the level it has after correction.

    This ranks the evidence of a finished cell. It is no sequential test: looking after each request would need one.
    """
    level = result.gates.alpha / max(1, len(result.tests))
    theirs = base.evidence.canaries if base.evidence else None
    arrivals = _arrivals(canaries)
    in_order = sorted(pairs, key=lambda p: p.order or 0)
    answered = [p for p in in_order if "error" not in (p.outcome, p.baseline_outcome)]
    found = [_accuracy(answered, level, arrivals)]
    found.append(_divergence(in_order, noise, level, arrivals))
    if canaries and theirs is not None and theirs.sent > theirs.error:
        known = sorted((c for c in canaries if c.outcome != "error"), key=lambda c: c.order or 0)
        lost = [(1 + (c.order or 0), c.outcome != "right") for c in known]
        there = (theirs.wrong + theirs.crossed, theirs.sent - theirs.error)
        found.append(_excess("canaries", lost, there, level))
        crossed = next((c for c in known if c.outcome == "crossed"), None)
        found.append(None if crossed is None else First("crossed canary", 1 + (crossed.order or 0)))
    failed = [(arrivals(p), p.outcome == "error") for p in in_order if p.baseline_outcome != "error"]
    found.append(_excess("errors", failed, (0, len(failed)), level))
    return min((f for f in found if f is not None), key=lambda f: f.requests, default=None)


def _arrivals(canaries: Sequence[JudgedCanary]) -> Callable[[Pair], int]:
    """How many requests had come with a question, which its own order does not say: canaries came between."""
    taken = sorted(c.order for c in canaries if c.order is not None)
    # Before the place of the i-th canary, as many questions had come as there were places without a canary.
    questions_before = [place - i for i, place in enumerate(taken)]

    def arrived(pair: Pair) -> int:
        order = pair.order or 0
        return 1 + order + bisect_right(questions_before, order)

    return arrived


def _accuracy(pairs: Iterable[Pair], level: float, arrivals: Callable[[Pair], int]) -> First | None:
    b = c = 0
    for pair in pairs:
        b += pair.baseline_outcome == "correct" != pair.outcome
        c += pair.outcome == "correct" != pair.baseline_outcome
        if b > c and stats.mcnemar_no_drop(b, c) <= level:
            return First("accuracy", arrivals(pair))
    return None


def _divergence(
    pairs: Sequence[Pair], noise: Sequence[Pair], level: float, arrivals: Callable[[Pair], int]
) -> First | None:
    rounds, asked = standings(pairs, noise)
    moved = led = 0
    for standing in asked:
        moved += standing.moved
        led += standing.led
        if standing.led and stats.leading(led, moved, rounds) <= level:
            return First("divergence", arrivals(standing.pair))
    return None


def _excess(evidence: str, hits: Sequence[tuple[int, bool]], base: tuple[int, int], level: float) -> First | None:
    """The first request at which hits outnumber the baseline's by Fisher's test; hits with their place of arrival."""
    k = 0
    for n, (arrived, hit) in enumerate(hits, 1):
        k += hit
        if hit and stats.fisher_excess(k, n, *base) <= level:
            return First(evidence, arrived)
    return None
