"""How far the tokens of an answer moved away from the baseline's; pure.

Noise (another batch, another kernel) flips near-ties: the outputs part late, and either token was about as likely on
both sides. Damage changes the distribution itself: the outputs part early, with both sides sure of themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rig.records import Divergence
from rig.records_requests import Pair
from rig.stats import percentile

FLOOR_NATS = 1.0
"""The least threshold. Measured on a hybrid model: healthy answers move by at most about 0.25 nats."""

DAMAGED_NATS = 1.5
"""What damaged answers moved by at least, on the same model."""

MARGIN = 1.5
"""The threshold over the largest shift of the baseline against itself."""

SURE = 1 - 1e-6
"""The largest probability that is taken at its word: logprobs are float32, in which 1 - p below about 1e-7 is lost."""

ABSENT = -9999.0
"""What vLLM sends where it has no logprob, or one of minus infinity."""

BINS = (("0", 0), ("1-3", 3), ("4-15", 15), ("16+", math.inf))
"""Of the histogram: the name, and the last position in it."""


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """The first position at which two lists of token ids, or two texts, differ, from 0; None where they are equal.

    Where one is the beginning of the other, they differ at the shorter one's end.
    """
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def shift(
    ids_a: Sequence[int] | None,
    logprobs_a: Sequence[float] | None,
    ids_b: Sequence[int] | None,
    logprobs_b: Sequence[float] | None,
) -> float | None:
    """The least change of a token's logprob, in nats, that explains what both sides show; at least 0.

    It is a lower bound of the largest true change, over all tokens, at the positions up to the first difference:
    - Over the shared prefix both logprobs are of the same token in the same context: their difference is the change.
    - At the first difference the contexts are still the same. A chose a with probability p, B chose b with q.
      B's choice is its likeliest token, so B gave a no more than q, and as both are parts of one distribution no more
      than 1 - q. So a moved by at least log p - log min(q, 1 - q), and b by the same with the sides exchanged.
    - After it the contexts differ, and nothing is said. Where one output has ended, there is no choice to compare.

    Holds for greedy decoding without penalties or biases only: elsewhere the choice need not be the likeliest token.
    None where logprobs are missing, not finite, or not one a token.
    """
    if not ids_a or not ids_b or logprobs_a is None or logprobs_b is None:
        return None
    if len(ids_a) != len(logprobs_a) or len(ids_b) != len(logprobs_b):
        return None
    at = first_difference(ids_a, ids_b)
    shown = slice(None if at is None else at + 1)
    pairs = list(zip(logprobs_a[shown], logprobs_b[shown], strict=False))
    if not all(ABSENT < value < math.inf for pair in pairs for value in pair):
        return None
    if at is None or at == min(len(ids_a), len(ids_b)):
        return max(abs(one - other) for one, other in pairs)
    *shared, (chosen_a, chosen_b) = pairs
    moved = max(chosen_a - _at_most(chosen_b), chosen_b - _at_most(chosen_a))
    return max(0.0, moved, *(abs(one - other) for one, other in shared))


def threshold(noise: Iterable[float]) -> float:
    """The shift in nats above which an output is damaged: MARGIN times the largest of the noise, at least FLOOR_NATS.

    `noise` are the shifts of the baseline held against itself.
    """
    return max(FLOOR_NATS, MARGIN * max(noise, default=0.0))


@dataclass(frozen=True)
class Standing:
    """A question's shift in the cell beside those of the baseline's further rounds.

    `moved`: any of them is over FLOOR_NATS; `led`: the cell's is, and is the largest.
    """

    pair: Pair
    moved: bool
    led: bool


def standings(pairs: Iterable[Pair], noise: Iterable[Pair]) -> tuple[int, list[Standing]]:
    """How many further rounds there were, and each question that has a shift in all of them and in the cell.

    `noise` are the pairs of the baseline's further rounds with its first, `repeat` telling them apart.
    """
    rounds: dict[str, dict[int, float]] = {}
    for pair in noise:
        if pair.shift is not None:
            rounds.setdefault(pair.sample_id, {})[pair.repeat] = pair.shift
    times = max((len(shifts) for shifts in rounds.values()), default=0)
    found = []
    for pair in pairs:
        others = rounds.get(pair.sample_id, {})
        if pair.shift is not None and times and len(others) == times:
            largest = max(others.values())
            moved, led = max(pair.shift, largest) > FLOOR_NATS, pair.shift > max(largest, FLOOR_NATS)
            found.append(Standing(pair, moved, led))
    return times, found


def against_noise(found: Divergence, pairs: Iterable[Pair], noise: Iterable[Pair]) -> Divergence:
    """The same with how often the cell's shift is the largest of its question, over FLOOR_NATS.

    Were the cell no different, it would be as likely as each round to have the largest one, whatever the question:
    `stats.leading` makes a test of that.
    """
    times, asked = standings(pairs, noise)
    return replace(found, rounds=times, moved=sum(s.moved for s in asked), led=sum(s.led for s in asked))


def summarise(pairs: Iterable[Pair], threshold: float | None) -> Divergence | None:
    """The divergence of all pairs whose token ids are known on both sides; None where there is none.

    Pairs that differ in text alone have no position and are not counted. A pair of equal texts does not say whether
    its ids were known: it is counted, as equal, where any pair of the list has a position or a shift.
    """
    listed = [pair for pair in pairs if pair.equal is not None]
    if all(pair.first_token is None and pair.shift is None for pair in listed):
        return None
    counted = [pair for pair in listed if pair.equal or pair.first_token is not None or pair.shift is not None]
    positions = [pair.first_token for pair in counted if pair.first_token is not None]
    shifts = [pair.shift for pair in counted if pair.shift is not None]
    return Divergence(
        n=len(counted),
        equal=len(counted) - len(positions),
        at_zero=positions.count(0),
        measured=len(shifts),
        damaged=sum(value > threshold for value in shifts) if shifts and threshold is not None else None,
        threshold=threshold,
        position={f"p{q}": percentile(positions, q) for q in (10, 50, 90)} if positions else {},
        shift={"p50": percentile(shifts, 50), "p90": percentile(shifts, 90), "max": max(shifts)} if shifts else {},
        histogram=_histogram(positions),
    )


def _at_most(chosen: float) -> float:
    """The logprob that any token but the chosen one has at most, in nats."""
    p = min(math.exp(chosen), SURE)
    return math.log(min(p, 1 - p))


def _histogram(positions: Sequence[int]) -> dict[str, int]:
    found = dict.fromkeys((name for name, _ in BINS), 0)
    for position in positions:
        found[next(name for name, last in BINS if position <= last)] += 1
    return found
