"""Which part of the requests is hit more than the rest, named only if it survives correction; pure.

Requests are split by what could explain a fault: order of arrival, requests in flight, prompt length and its
remainder modulo the block size, who served them, how soon after another request's end they came, what that one met.
Parts are chosen without a look at the answers (but for `predecessor`), so that Fisher's exact test holds for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from rig.records import JudgedCanary, Pair, Segment
from rig.stats import fisher_excess, mcnemar_no_drop
from rig.stats_family import holm

Bools = npt.NDArray[np.bool_]
Of = Literal["lost", "damaged", "error", "canary"]
V = TypeVar("V")

FEWEST_HITS = 3
"""Fewer hits than this have no pattern."""

CUT_POINTS = 8
"""At most so many thresholds of concurrency are tried."""

_AFTER_HIT = "right after one that was hit itself"

SOON_MS = (2, 10, 50)
"""How soon after another request's end counts as soon: damage of that kind was seen within milliseconds."""


@dataclass(frozen=True)
class _Request:
    """What the requests are split by."""

    sample_id: str
    order: int | None
    concurrency: int | None
    prompt_tokens: int | None
    prefill: str | None = None
    decode: str | None = None
    since_finish_ms: float | None = None
    predecessor: str | None = None


@dataclass(frozen=True)
class _Part:
    """Some of the requests, among those of which it is known whether they belong."""

    axis: str
    value: str
    inside: Bools
    known: Bools


@dataclass(frozen=True)
class _Count:
    """Which requests can be hit at all, which are, and which went the other way: gains beside losses."""

    of: Of
    eligible: Bools
    hit: Bools
    parts: list[_Part]
    opposite: Bools | None = None

    def one_way(self, part: _Part, alpha: float) -> bool:
        """Whether hits in a part outnumber their opposite (exact McNemar); noise in hard questions does not."""
        if self.opposite is None:
            return True
        return mcnemar_no_drop(int((part.inside & self.hit).sum()), int((part.inside & self.opposite).sum())) <= alpha


def find_segments(
    pairs: Sequence[Pair],
    canaries: Sequence[JudgedCanary],
    damaged_above: float | None,
    alpha: float,
    block_size: int | None = None,
) -> tuple[Segment, ...]:
    """The parts of the requests that are hit more than the rest, the clearest first.

    Lost answers are counted among those the baseline had right, damaged outputs (shift above `damaged_above` nats)
    among those measured, errors where the baseline had none, wrong canaries among those that answered. Of several
    repeats of a question the first counts. Each part is held against the rest by Fisher's exact test, one-sided;
    Holm's correction runs over every part of every count, so that the chance of any being named for nothing is at most
    `alpha`. A part in which about as many answers are gained as lost is not named: hard questions do that. Of parts
    that overlap along one axis the one with the smallest p is kept. Without `block_size` (tokens) the remainder of the
    prompt's length is not looked at.
    """
    first = min((p.repeat for p in pairs), default=0)
    counts = _of_pairs([p for p in pairs if p.repeat == first], damaged_above, block_size)
    counts += _of_canaries(canaries, block_size)
    tried = [
        (count, part, segment)
        for count in counts
        if int(count.hit.sum()) >= FEWEST_HITS
        for part, segment in _tests(count)
    ]
    adjusted = holm({i: segment.p_value for i, (*_, segment) in enumerate(tried)})
    named = [
        (part, replace(segment, p_adjusted=adjusted[i]))
        for i, (count, part, segment) in enumerate(tried)
        if adjusted[i] <= alpha and count.one_way(part, alpha)
    ]
    kept: list[tuple[_Part, Segment]] = []
    for part, segment in sorted(named, key=lambda found: (found[1].p_value, -found[1].hits)):
        same_count = [(p, s) for p, s in kept if s.of == segment.of]
        # Whatever gathers hits in one place puts them after one another too: that says something only by itself.
        follows = segment.value == _AFTER_HIT and bool(same_count)
        if not follows and not any(_overlap(part, p) for p, _ in same_count):
            kept.append((part, segment))
    return tuple(segment for _, segment in kept)


def segment_text(segment: Segment, parts: int | None = None) -> str:
    """One sentence for a report; `parts` is the number of parts that were looked at, where it is known."""
    what, noun = _WORDS[segment.of]
    p = "p < 0.0001" if segment.p_adjusted < 0.0001 else f"p = {segment.p_adjusted:.4f}"
    corrected = f"{parts} parts" if parts is not None else "all the parts that were looked at"
    return (
        f"{what} sit {_PLACES[segment.axis].format(segment.value)}: {segment.hits} of {segment.n} {noun} there, "
        f"{segment.rest_hits} of {segment.rest_n} elsewhere (Fisher exact {p}, corrected for {corrected})."
    )


_WORDS: dict[Of, tuple[str, str]] = {
    "lost": ("Losses", "of the baseline's right answers"),
    "damaged": ("Damaged outputs", "outputs"),
    "error": ("Failures", "requests"),
    "canary": ("Wrong canaries", "canaries"),
}
_PLACES = {
    "order": "among {} in order of arrival",
    "concurrency": "where there were {}",
    "prompt_tokens": "in {}",
    "block": "in {}",
    "prefill": "where {} did the prefill",
    "decode": "where {} did the decode",
    "instances": "where the KV cache went from {}",
    "since_finish": "in requests that came {}",
    "predecessor": "in requests that came {}",
}


def _of_pairs(pairs: Sequence[Pair], damaged_above: float | None, block_size: int | None) -> list[_Count]:
    requests = [
        _Request(
            sample_id=p.sample_id,
            order=p.order,
            concurrency=p.concurrency,
            prompt_tokens=p.prompt_tokens,
            prefill=p.prefill,
            decode=p.decode,
            since_finish_ms=p.since_finish_ms,
            predecessor=p.predecessor,
        )
        for p in pairs
    ]
    parts = list(_parts(requests, "questions", block_size))
    failed = _bools(p.outcome == "error" for p in pairs)
    at_risk = ~failed & _bools(p.baseline_outcome == "correct" for p in pairs)
    lost = at_risk & _bools(p.outcome != "correct" for p in pairs)
    gained = ~failed & _bools(p.baseline_outcome not in ("correct", "error") and p.outcome == "correct" for p in pairs)
    owed = _bools(p.baseline_outcome != "error" for p in pairs)
    after_failed = [_after(requests, failed, "right after one that failed")]
    counts = [
        _Count("lost", at_risk, lost, [*parts, *after_failed, _after(requests, lost, _AFTER_HIT)], gained),
        _Count("error", owed, owed & failed, [*parts, *after_failed]),
    ]
    if damaged_above is not None:
        measured = _bools(p.shift is not None for p in pairs)
        damaged = _bools(p.shift is not None and p.shift > damaged_above for p in pairs)
        near = [*parts, *after_failed, _after(requests, damaged, _AFTER_HIT)]
        counts.append(_Count("damaged", measured, damaged, near))
    return counts


def _of_canaries(canaries: Sequence[JudgedCanary], block_size: int | None) -> list[_Count]:
    requests = [
        _Request(sample_id=c.sample_id, order=c.order, concurrency=c.concurrency, prompt_tokens=c.prompt_tokens)
        for c in canaries
    ]
    answered = _bools(c.outcome != "error" for c in canaries)
    wrong = _bools(c.outcome in ("wrong", "crossed") for c in canaries)
    return [_Count("canary", answered, wrong, list(_parts(requests, "requests", block_size)))]


def _tests(count: _Count) -> Iterator[tuple[_Part, Segment]]:
    """Every part that leaves something on both sides, with its test, not yet corrected."""
    for part in count.parts:
        there, elsewhere = part.inside & count.eligible, part.known & ~part.inside & count.eligible
        n, rest_n = int(there.sum()), int(elsewhere.sum())
        if n and rest_n:
            hits, rest_hits = int((there & count.hit).sum()), int((elsewhere & count.hit).sum())
            # A rate that is no higher needs no test: 1 is on the safe side.
            p = fisher_excess(hits, n, rest_hits, rest_n) if hits * rest_n > rest_hits * n else 1.0
            yield part, Segment(part.axis, part.value, count.of, hits, n, rest_hits, rest_n, p, p)


def _overlap(one: _Part, other: _Part) -> bool:
    """Whether two parts say the same twice: along one axis, or an instance and a pair with it."""
    axes = {one.axis, other.axis}
    same = len(axes) == 1 or ("instances" in axes and axes & {"prefill", "decode"})
    return bool(same) and bool((one.inside & other.inside).any())


# Splitting


def _parts(requests: Sequence[_Request], noun: str, block_size: int | None) -> Iterator[_Part]:
    """All parts that do not depend on the answers; none twice along one axis."""
    found = [
        *_by_order(requests, noun),
        *_by_concurrency(requests),
        *_by_length(requests),
        *(_by_remainder(requests, block_size) if block_size else ()),
        *_by_instance(requests),
        *_by_gap(requests),
    ]
    seen: set[tuple[str, bytes]] = set()
    for part in found:
        key = (part.axis, part.inside.tobytes())
        if key not in seen:
            seen.add(key)
            yield part


def _by_order(requests: Sequence[_Request], noun: str) -> Iterator[_Part]:
    """Quarters and halves."""
    known = _bools(r.order is not None for r in requests)
    places = [(r.order, i) for i, r in enumerate(requests) if r.order is not None]
    places.sort()
    n = len(places)
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4)):
        chosen = places[low * n // 4 : high * n // 4]
        if chosen:
            inside = np.zeros(len(requests), dtype=np.bool_)
            inside[[i for _, i in chosen]] = True
            yield _Part("order", f"{noun} {chosen[0][0] + 1} to {chosen[-1][0] + 1}", inside, known)


def _by_concurrency(requests: Sequence[_Request]) -> Iterator[_Part]:
    """At or above each of up to CUT_POINTS values, evenly picked from those that were seen."""
    seen = sorted({r.concurrency for r in requests if r.concurrency is not None})[1:]
    picked = range(len(seen)) if len(seen) <= CUT_POINTS else np.linspace(0, len(seen) - 1, CUT_POINTS).round()
    for k in (seen[int(i)] for i in picked):
        yield _part("concurrency", f"{k} requests or more in flight", [r.concurrency for r in requests], _at_least(k))


def _by_length(requests: Sequence[_Request]) -> Iterator[_Part]:
    """Quarters of the prompts by length; equal lengths stay together."""
    lengths = [r.prompt_tokens for r in requests]
    known = sorted(n for n in lengths if n is not None)
    if not known:
        return
    starts = sorted({known[q * len(known) // 4] for q in range(4)})
    for low, after in zip(starts, [*starts[1:], known[-1] + 1], strict=True):
        inside = [n for n in known if low <= n < after]
        yield _part("prompt_tokens", f"prompts of {_range(low, inside[-1])} tokens", lengths, _between(low, after))


def _by_remainder(requests: Sequence[_Request], block: int) -> Iterator[_Part]:
    """Whole blocks, a token more, a token less, and quarters of a block."""
    left = [None if r.prompt_tokens is None else r.prompt_tokens % block for r in requests]
    edges = [-(-q * block // 4) for q in range(5)]
    ranges = [(0, 1), (1, 2), (block - 1, block), *pairwise(edges)]
    for low, after in ranges:
        if low < after <= block:
            over = f" + {_range(low, after - 1)}" if after > 1 else ""
            yield _part("block", f"prompts of k x {block}{over} tokens", left, _between(low, after))


def _by_instance(requests: Sequence[_Request]) -> Iterator[_Part]:
    """Each prefill and decode instance, and each pair of them."""
    routes = [None if r.prefill is None or r.decode is None else f"{r.prefill} to {r.decode}" for r in requests]
    for axis, names in (
        ("prefill", [r.prefill for r in requests]),
        ("decode", [r.decode for r in requests]),
        ("instances", routes),
    ):
        for name in sorted({n for n in names if n is not None}):
            yield _part(axis, name, names, name.__eq__)


def _by_gap(requests: Sequence[_Request]) -> Iterator[_Part]:
    """How soon after the end of another request; one that nothing ended before came as late as can be."""
    gaps = [math.inf if r.since_finish_ms is None else r.since_finish_ms for r in requests]
    for soon in SOON_MS:
        yield _part("since_finish", f"within {soon} ms of another request's end", gaps, _at_most(soon))


def _after(requests: Sequence[_Request], hit: Bools, value: str) -> _Part:
    """Requests before which one that was hit ended last."""
    samples = {r.sample_id for r, was_hit in zip(requests, hit, strict=True) if was_hit}
    return _part("predecessor", value, [r.predecessor for r in requests], samples.__contains__)


def _part(axis: str, value: str, seen: Sequence[V | None], belongs: Callable[[V], bool]) -> _Part:
    inside = _bools(v is not None and belongs(v) for v in seen)
    return _Part(axis, value, inside, _bools(v is not None for v in seen))


def _at_least(k: int) -> Callable[[int], bool]:
    return lambda value: value >= k


def _at_most(k: float) -> Callable[[float], bool]:
    return lambda value: value <= k


def _between(low: int, after: int) -> Callable[[int], bool]:
    return lambda value: low <= value < after


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _bools(values: Iterable[bool]) -> Bools:
    return np.fromiter(values, dtype=np.bool_)
