"""`pdrig compare`: two runs, cells or stored baselines held against each other, or why they cannot be; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evals.records import RequestRecord
from rig import metrics, verdict
from rig.compared import Compared, Held, SideSummary, Unmatched
from rig.comparison import compare
from rig.errors import RunError, UsageError
from rig.matching import OBSERVING, Difference, decoding_differences, differ_text, differences, nearest
from rig.pairs import Side as PairSide
from rig.pairs import make_pairs
from rig.ratios import ratios, slow
from rig.records import CellResult, Comparison, Counts, Gates, Judged, Pair, Reason, TaskInfo
from rig.sides import Side, Sides
from rig.verdict_tests import corrected

SEED = 0
"""Of the bootstrap of ratios: the same files give the same figures."""

FAMILY = "this comparison"
"""Whose tests are corrected together, as reasons say it."""

HARDWARE = ("machine", "cpus", "gpus")
"""What of a machine must be equal for bounds on latency and throughput to mean anything."""


@dataclass(frozen=True)
class _Pairing:
    """Two sides that can be compared: the candidate's result is complete but for its verdict."""

    candidate: Side
    baseline: Side
    shared: frozenset[str]
    result: CellResult
    base: CellResult
    notes: tuple[str, ...]


def compare_sides(candidate: Sides, baseline: Sides) -> Compared:
    """Hold every candidate against its partner; one error rate over all of them together.

    Two single cells are compared whatever their labels; otherwise cells whose labels are equal, a cell that repeats
    a red one against the partner of that. Raises UsageError when no cell has a partner.
    """
    partners, unmatched = _partners(candidate, baseline)
    if not partners:
        raise UsageError(_no_partner(candidate, baseline, unmatched))
    refused = {c.name: incomparable(c, b) for c, b in partners}
    pairings = {c.name: _paired(c, b) for c, b in partners if refused[c.name] is None}
    tested = dict(zip(pairings, corrected([p.result for p in pairings.values()]), strict=True))
    held = tuple(
        _held(pairings[c.name], tested[c.name])
        if c.name in pairings
        else Held(summary(c), summary(b), differences(c.result.labels, b.result.labels), refused=refused[c.name])
        for c, b in partners
    )
    # Of a whole run that one cell was looked up in, the others are not missed.
    one = candidate.single or baseline.single
    return Compared(candidate.argument, baseline.argument, held, () if one else tuple(unmatched))


def exit_code(found: Compared) -> int:
    """1 any regression; else 2 a side was refused; else 3 something could not be judged; else 0."""
    states = {held.verdict.state for held in found.held if held.verdict}
    if states & verdict.BAD_STATES:
        return 1
    if any(held.refused for held in found.held):
        return UsageError.exit_code
    return RunError.exit_code if states & verdict.UNJUDGED_STATES else 0


def _partners(candidate: Sides, baseline: Sides) -> tuple[list[tuple[Side, Side]], list[Unmatched]]:
    if candidate.single and baseline.single:
        return [(candidate.sides[0], baseline.sides[0])], []
    partners: list[tuple[Side, Side]] = []
    for side in candidate.sides:
        for other in baseline.sides:
            if other.result.rerun_of is None and not differences(side.result.labels, other.result.labels):
                partners.append((side, other))
                break
    mine, theirs = {c.name for c, _ in partners}, {b.name for _, b in partners}
    left = [s for s in baseline.sides if s.name not in theirs and s.result.rerun_of is None]
    unmatched = [_unmatched(s, "candidate", baseline) for s in candidate.sides if s.name not in mine]
    return partners, unmatched + [_unmatched(s, "baseline", candidate) for s in left]


def _unmatched(side: Side, which: str, others: Sides) -> Unmatched:
    by_name = {s.name: s.result.labels for s in others.sides}
    name = nearest(side.result.labels, by_name)
    found: tuple[Difference, ...] = ()
    if name is not None:
        pair = (side.result.labels, by_name[name])
        found = differences(*(pair if which == "candidate" else pair[::-1]))
    return Unmatched(side.name, "candidate" if which == "candidate" else "baseline", name, found)


def _no_partner(candidate: Sides, baseline: Sides, unmatched: Iterable[Unmatched]) -> str:
    closest = min((u for u in unmatched if u.nearest), key=lambda u: len(u.differences), default=None)
    if closest is None:
        empty = candidate.argument if not candidate.sides else baseline.argument
        return f"{empty}: has no cells to compare"
    pair = (closest.name, closest.nearest) if closest.side == "candidate" else (closest.nearest, closest.name)
    return (
        "no cell of one has a partner with the same labels in the other; nearest are "
        f"{pair[0]} and {pair[1]}, which differ in {differ_text(closest.differences)}: give those two by name to see "
        "what the difference costs"
    )


def incomparable(candidate: Side, baseline: Side) -> str | None:
    """Why two sides cannot be compared and what would make them comparable, in a line; None where they can."""
    problems = [f"{side.name} cannot be compared: {side.problem}" for side in (candidate, baseline) if side.problem]
    if problems:
        return "; ".join(problems)
    mine, theirs = candidate.result.task, baseline.result.task
    if mine is None or theirs is None:
        return "one side does not say what was asked: run it again"
    if (mine.name, mine.version) != (theirs.name, theirs.version):
        asked = [f"{t.name} version {t.version}" for t in (mine, theirs)]
        return f"other tasks: {asked[0]} here, {asked[1]} there; run both with the same task and version of the rig"
    return _other_questions(candidate, baseline) or _other_answers(mine, theirs) or _other_scores(mine, theirs)


def _other_questions(candidate: Side, baseline: Side) -> str | None:
    shared = [s for s in candidate.prompts if s in baseline.prompts]
    if not shared:
        return "no question was put to both sides: run one again with a `limit` that takes in the other's questions"
    other = sorted(s for s in shared if candidate.prompts[s] != baseline.prompts[s])
    if not other:
        return None
    return (
        f"other prompts: {len(other):,} of {len(shared):,} shared questions were put in other words ({other[0]} is the "
        "first); run both with the same `shots` and the same data"
    )


def _other_answers(mine: TaskInfo, theirs: TaskInfo) -> str | None:
    found = decoding_differences(mine, theirs)
    if not found:
        return None
    keys = " and ".join(f"`{d.label}`" for d in found)
    return f"other decoding: {differ_text(found)}; run one again with the other's {keys}"


def _other_scores(mine: TaskInfo, theirs: TaskInfo) -> str | None:
    if mine.score_reasoning != theirs.score_reasoning:
        which = "here" if mine.score_reasoning else "there"
        return f"reasoning was scored {which} only; run one again with the other's `score_reasoning`"
    if mine.scorer_sha256 == theirs.scorer_sha256:
        return None
    what = (
        f"other versions of the scorer {mine.scorer}"
        if mine.scorer == theirs.scorer
        else f"other scorers: {mine.scorer} here, {theirs.scorer} there"
    )
    return (
        f"{what}; score the stored texts of both again with `pdrig rescore RUN --scorer {mine.scorer}`, then compare "
        f"with --scorer {mine.scorer}"
    )


def _paired(candidate: Side, baseline: Side) -> _Pairing:
    """Both sides over the questions that both were asked, with the tests that this makes."""
    shared = frozenset(candidate.prompts.keys() & baseline.prompts.keys())
    # What the baseline's own run said of it was looked at before; it was held against something else there.
    result, base = _over(candidate, shared), replace(_over(baseline, shared), verdict=None)
    gates = candidate.result.gates
    result = replace(result, comparisons=(_hold(candidate, baseline, shared, gates),), tests=(), verdict=None)
    result = replace(result, tests=verdict.tests(result, {_called(candidate, baseline): base}))
    return _Pairing(candidate, baseline, shared, result, base, tuple(_notes(candidate, baseline, shared)))


def _hold(candidate: Side, baseline: Side, shared: frozenset[str], gates: Gates) -> Comparison:
    """The one place that pairs two sides and asks for their comparison."""
    mine, theirs = _first(candidate), _first(baseline)
    timed = not (candidate.stored or baseline.stored) and _told_alike(candidate, baseline)
    gated = timed and candidate.result.kind == baseline.result.kind and _same_hardware(candidate, baseline)
    return compare(
        _called(candidate, baseline),
        _pairs(candidate, baseline, shared),
        gates,
        noise=baseline.noise,
        canaries=candidate.canaries,
        ratios=ratios(mine, theirs, gates, gated, SEED) if timed else (),
        slow=slow(mine, theirs, gates) if gated else (),
        block_size=candidate.block_size,
    )


def _pairs(candidate: Side, baseline: Side, shared: frozenset[str]) -> list[Pair]:
    """One a shared question and repeat; what a stored candidate cannot know is None."""
    cell, base = _asked(candidate, shared), _asked(baseline, shared)
    pairs = make_pairs(cell, base, candidate.block_size, in_flight=candidate.records)
    if candidate.stored:
        unknown = {"order": None, "concurrency": None, "since_finish_ms": None, "predecessor": None}
        return [replace(p, **unknown) for p in pairs]  # type: ignore[arg-type]
    return pairs


def _asked(side: Side, shared: frozenset[str]) -> PairSide:
    records = [r for r in side.records if r.kind == "question" and r.sample_id in shared]
    return PairSide([j for j in side.judged if j.sample_id in shared], records, side.legs)


def _first(side: Side) -> list[RequestRecord]:
    """Its questions as they were asked the first time, all of them: speed is that of the whole load."""
    return [r for r in side.records if r.kind == "question" and r.repeat == 0]


def _over(side: Side, shared: frozenset[str]) -> CellResult:
    """The side's result over some of its questions: accuracy and counts are of those."""
    if side.prompts.keys() == shared:
        return side.result
    task = side.result.task
    assert task is not None
    judged = [j for j in side.judged if j.repeat == 0 and j.sample_id in shared]
    return replace(
        side.result,
        task=replace(task, n=len(judged)),
        accuracy=metrics.accuracy(judged, task.scorer, [task.scorer]),
        counts=_counts(side, judged, shared),
    )


def _counts(side: Side, judged: list[Judged], shared: frozenset[str]) -> Counts:
    if not side.stored:
        return metrics.counts(judged, [r for r in _first(side) if r.sample_id in shared])
    failed = sum(j.outcome == "error" for j in judged)
    return replace(metrics.counts(judged, ()), error={"unknown": failed} if failed else {})


def _notes(candidate: Side, baseline: Side, shared: frozenset[str]) -> Iterable[str]:
    """What a reader must know of a comparison that is sound all the same."""
    if not candidate.prompts.keys() == baseline.prompts.keys() == shared:
        yield (
            f"{len(candidate.prompts):,} questions were asked here, {len(baseline.prompts):,} there: accuracy is over "
            f"the {len(shared):,} that both were asked, speed over all"
        )
    for side in (candidate, baseline):
        early = side.result.sequential
        if early is not None and early.asked < early.planned:
            yield (
                f"{side.name} stopped early, after {early.asked:,} of {early.planned:,} questions: where it stopped "
                "depended on its answers, so the p-value is not exact"
            )
        if side.result.rerun_of is not None:
            yield f"{side.name} repeats {side.result.rerun_of}, which was red"
        if side.stored:
            yield f"{side.name} is stored without texts, tokens and times: speed has no interval and no bound"
    state = verdict.state_name(baseline.result)
    if not baseline.stored and state not in ("baseline", "pass", "improved"):
        yield f"the verdict on {baseline.name} in its own run is {state}"
    if not _told_alike(candidate, baseline):
        yield "one side asked for token ids or logprobs and the other did not, which costs time: speed has no ratio"
    yield from _places(candidate, baseline)


def _places(candidate: Side, baseline: Side) -> Iterable[str]:
    mine, theirs = (_flat(side.machine) for side in (candidate, baseline))
    if told := _unlike(mine, theirs):
        bound = "" if _same_hardware(candidate, baseline) else ", and is held to no bound"
        yield f"the machines differ in {told}: speed is theirs as well{bound}"
    if versions := _unlike(candidate.versions, baseline.versions):
        yield f"the rigs differ in {versions}"


def _flat(machine: Mapping[str, Any]) -> dict[str, object]:
    """The variables of its environment beside the rest."""
    return {**machine, **machine.get("environment", {}), "environment": None} if machine else {}


def _unlike(mine: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    return differ_text(differences(mine, theirs)) if mine and theirs else ""


def _told_alike(candidate: Side, baseline: Side) -> bool:
    mine, theirs = (
        {k: v for k, v in side.result.task.params.items() if k in OBSERVING} if side.result.task else {}
        for side in (candidate, baseline)
    )
    return mine == theirs


def _called(candidate: Side, baseline: Side) -> str:
    """The baseline's name in sentences: its cell, or its run or file where the cells are called the same."""
    (mine, cell), (theirs, other) = (_split(side.name) for side in (candidate, baseline))
    return theirs if cell == other else other if mine == theirs else f"{theirs}:{other}"


def _split(name: str) -> tuple[str, str]:
    """Run or file, without folders, and cell."""
    where, _, cell = name.rpartition(":")
    return where.rsplit("/", 1)[-1], cell


def _same_hardware(candidate: Side, baseline: Side) -> bool:
    return all(candidate.machine.get(key) == baseline.machine.get(key) for key in HARDWARE)


def _traceable(reason: Reason, name: str, baseline: Side) -> Reason:
    """The reason with files that are there: this command writes none."""
    sources = {
        f"pairs.{name}.jsonl": "outcomes of both sides: the files are named below",
        f"cells/{name}/cell.json": baseline.file,
    }
    return replace(reason, evidence=sources.get(reason.evidence or "", reason.evidence))


def _held(pairing: _Pairing, result: CellResult) -> Held:
    name = _called(pairing.candidate, pairing.baseline)
    decided = verdict.decide(result, {name: pairing.base}, family=FAMILY)
    if decided is not None:
        reasons = tuple(_traceable(reason, name, pairing.baseline) for reason in decided.reasons)
        decided = replace(decided, reasons=reasons)
    return Held(
        candidate=summary(pairing.candidate),
        baseline=summary(pairing.baseline),
        differences=differences(pairing.candidate.result.labels, pairing.baseline.result.labels),
        shared=len(pairing.shared),
        gates=result.gates,
        comparison=result.comparisons[0],
        verdict=decided,
        tests=result.tests,
        notes=pairing.notes,
    )


def summary(side: Side) -> SideSummary:
    """What a report shows of a side."""
    result = side.result
    return SideSummary(
        name=side.name,
        file=side.file,
        judged_file=side.judged_file,
        labels=result.labels,
        kind=result.kind,
        state=result.verdict.state if result.verdict else None,
        stored=side.stored,
        asked=len(side.prompts) or None,
        accuracy=result.accuracy,
        counts=result.counts,
        latency_ms=result.latency_ms,
        throughput=result.throughput,
    )
