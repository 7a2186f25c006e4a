"""A cell's requests beside a baseline's, question by question, with what may explain a difference; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evals.records import RequestRecord
from rig.divergence import first_difference, shift
from rig.errors import RunError
from rig.records import Judged, Leg, Pair, Repeats

Key = tuple[str, int]
"""A question and its repeat."""

Asked = TypeVar("Asked", Judged, RequestRecord)


@dataclass(frozen=True)
class Side:
    """What one cell has of its questions; `legs` None where no proxy of ours stood between.

    `served` says which instance served a request's leg, as far as a router's answers tell in place of legs.
    """

    judged: Sequence[Judged]
    records: Sequence[RequestRecord]
    legs: Sequence[Leg] | None = None
    served: Mapping[tuple[str, str], str] = field(default_factory=dict)


def make_pairs(
    cell: Side, baseline: Side, block_size: int | None, in_flight: Sequence[RequestRecord] | None = None
) -> list[Pair]:
    """One pair a question and repeat that both sides have, failed ones too, in order of the cell's submits.

    `in_flight` are all records of the cell, canaries and warm-up with them: they count as running beside a question
    and as what ended before it (None: its questions alone). `block_size` is the engine's, in tokens. Texts and tokens
    are compared where both answers were generated to their end, be it without any text. Raises RunError when a side
    has a question twice in one repeat.
    """
    mine, theirs = _by_key(cell.records, "the cell"), _by_key(baseline.records, "the baseline")
    judged, their_judged = _by_key(cell.judged, "the cell"), _by_key(baseline.judged, "the baseline")
    moments = Moments(cell.records if in_flight is None else in_flight)
    served = {**cell.served, **_instances(cell.legs or (), {r.request_id for r in cell.records})}
    pairs = []
    for order, record in enumerate(_by_arrival(mine.values())):
        key = (record.sample_id, record.repeat)
        other, outcome, their_outcome = theirs.get(key), judged.get(key), their_judged.get(key)
        if other is None or outcome is None or their_outcome is None:
            continue
        equal, first_token, moved = _difference(record, other)
        since_ms, predecessor = moments.before(record)
        tokens = record.prompt_tokens
        pairs.append(
            Pair(
                sample_id=record.sample_id,
                request_id=record.request_id,
                baseline_request_id=other.request_id,
                outcome=outcome.outcome,
                baseline_outcome=their_outcome.outcome,
                repeat=record.repeat,
                equal=equal,
                first_token=first_token,
                shift=moved,
                order=order,
                concurrency=moments.in_flight(record),
                prompt_tokens=tokens,
                block_remainder=tokens % block_size if tokens is not None and block_size else None,
                prefill=served.get((record.request_id, "prefill")),
                decode=served.get((record.request_id, "decode")),
                since_finish_ms=since_ms,
                predecessor=predecessor,
            )
        )
    return pairs


def require_same_prompts(cell: Side, baseline: Side, name: str = "the baseline") -> None:
    """Raise RunError naming the first question whose prompt is not the one that the baseline `name` was asked."""
    theirs = {r.sample_id: r.prompt_sha256 for r in baseline.records}
    for record in _by_arrival(cell.records):
        if theirs.get(record.sample_id, record.prompt_sha256) != record.prompt_sha256:
            raise RunError(
                f"the question {record.sample_id} was put to the cell and to {name} in different words: "
                "ask both the same task with the same data, then compare"
            )


def repeats_of(judged: Sequence[Judged]) -> Repeats | None:
    """How steady the answers to questions asked several times are; None when asked once, or none can be scored.

    `n` are the questions that were asked every time and never failed.
    """
    times = len({j.repeat for j in judged})
    if times < 2:
        return None
    asked: dict[str, dict[int, Judged]] = {}
    for j in judged:
        asked.setdefault(j.sample_id, {})[j.repeat] = j
    right = {
        sample: [j.outcome == "correct" for j in answers.values()]
        for sample, answers in asked.items()
        if len(answers) == times and all(j.outcome not in ("error", "unscored") for j in answers.values())
    }
    if not right:
        return None
    bad = tuple(sorted(sample for sample, r in right.items() if not all(r)))
    always = sum(not any(r) for r in right.values())
    return Repeats(times, len(right), wrong_any=len(bad), wrong_all=always, flipped=len(bad) - always, bad=bad)


def sign_counts(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Questions that the cell answered worse than the baseline over the common repeats, and those it answered better.

    A repeat in which either side failed is left out. With one repeat these are McNemar's b and c.
    """
    drop: dict[str, int] = {}
    for pair in pairs:
        if pair.outcome != "error" and pair.baseline_outcome != "error":
            lost = (pair.baseline_outcome == "correct") - (pair.outcome == "correct")
            drop[pair.sample_id] = drop.get(pair.sample_id, 0) + lost
    return sum(d > 0 for d in drop.values()), sum(d < 0 for d in drop.values())


class Moments:
    """What else went on at the moment a request was submitted."""

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        asked = list(records)
        self._starts = sorted(r.t_submit for r in asked)
        self._ended = sorted(asked, key=lambda r: (r.t_end, r.t_submit, r.request_id))
        self._ends = [r.t_end for r in self._ended]

    def in_flight(self, record: RequestRecord) -> int:
        """Requests submitted at or before this one's submit and not ended by then, itself included."""
        at = record.t_submit
        running = bisect_right(self._starts, at) - bisect_right(self._ends, at)
        return running + 1 if record.t_end <= at else running

    def before(self, record: RequestRecord) -> tuple[float | None, str | None]:
        """Milliseconds since another request ended last, and its sample; None where none had ended."""
        i = bisect_right(self._ends, record.t_submit) - 1
        while i >= 0 and self._ended[i].request_id == record.request_id:
            i -= 1
        return ((record.t_submit - self._ends[i]) * 1000, self._ended[i].sample_id) if i >= 0 else (None, None)


def _difference(mine: RequestRecord, theirs: RequestRecord) -> tuple[bool | None, int | None, float | None]:
    """Whether the texts are equal, the first token that differs, and by how many nats the logprobs moved."""
    if not (_generated(mine) and _generated(theirs)):
        return None, None, None
    texts = [text_of(mine), text_of(theirs)]
    equal = None if None in texts else texts[0] == texts[1]
    if mine.token_ids is None or theirs.token_ids is None:
        return equal, None, None
    moved = shift(mine.token_ids, mine.logprobs, theirs.token_ids, theirs.logprobs)
    return equal, first_difference(mine.token_ids, theirs.token_ids), moved


def text_of(record: RequestRecord) -> str | None:
    """What was answered, "" where it ended without a word; None where that is not known."""
    return "" if record.text is None and record.error is not None else record.text


def _generated(record: RequestRecord) -> bool:
    """Whether an answer was generated to its end; one without text was, and its tokens say how it came to that."""
    return record.error is None or record.error.error_class == "empty"


def _instances(legs: Iterable[Leg], wanted: set[str]) -> dict[tuple[str, str], str]:
    """Who served each leg of a request: the last that succeeded, else the last that tried, for it may be at fault."""
    tried: dict[tuple[str, str], str] = {}
    served: dict[tuple[str, str], str] = {}
    for leg in legs:
        if leg.request_id in wanted:
            (served if leg.error is None else tried)[(leg.request_id, leg.leg)] = leg.instance
    return tried | served


def _by_arrival(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return sorted(records, key=lambda r: (r.t_submit, r.request_id))


def _by_key(asked: Iterable[Asked], whose: str) -> dict[Key, Asked]:
    found: dict[Key, Asked] = {}
    for one in asked:
        if (key := (one.sample_id, one.repeat)) in found:
            raise RunError(
                f"{whose} answered the question {one.sample_id} more than once in one repeat: "
                "pairing needs one answer a question and repeat"
            )
        found[key] = one
    return found
