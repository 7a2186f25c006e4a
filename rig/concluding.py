"""From what an evaluation brought to a cell's result on disk: judge, prove, compare, decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evals.records import RequestRecord
from evals.tasks import Task
from rig import connectors, evidence, evidence_parts, evidence_requests, metrics, routers, verdict
from rig.asking import Clock, task_info
from rig.attempts import Kept, Part
from rig.comparison import compare
from rig.early import EarlyStop
from rig.evidence_common import deltas
from rig.judge import judge, with_reasoning
from rig.judge_canaries import count_canaries, judge_canaries
from rig.log_findings import LogFindings
from rig.observing import Observed, logs_of
from rig.pairs import Side, make_pairs, repeats_of, require_same_prompts
from rig.planned import CellPlan, DeploymentPlan
from rig.ratios import ratios, slow
from rig.records import (
    CellResult,
    Comparison,
    Evidence,
    Judged,
    JudgedCanary,
    Leg,
    Outcome,
    Pair,
    PromptSources,
    Resumed,
)
from rig.records_requests import ITSELF
from rig.rounds import Round
from rig.secrets import masked_argv
from rig.series import Reading
from rig.store import RunFolder
from rig.verdict_tests import share_of_each


@dataclass(frozen=True)
class Finished:
    """A cell's result, with what others need to be paired with it.

    `records` and `judged` are of its questions, every repeat; `noise` its pairs with itself, where it has a floor.
    """

    result: CellResult
    judged: tuple[Judged, ...]
    records: tuple[RequestRecord, ...]
    noise: tuple[Pair, ...] | None = None
    timed: bool = True

    @classmethod
    def read(cls, result: CellResult, run: RunFolder) -> Finished:
        """A cell that an earlier attempt finished, from disk."""
        name = result.cell_id
        reasoning = result.task is not None and result.task.score_reasoning
        records = [with_reasoning(r, reasoning) for r in run.read_requests(name) if r.kind == "question"]
        noise = run.read_pairs(name).get(ITSELF)
        return cls(result, tuple(run.read_judged(name)), tuple(records), None if noise is None else tuple(noise))

    @property
    def side(self) -> Side:
        return Side(self.judged, self.records)

    def first(self) -> list[RequestRecord]:
        """Its questions as they were asked the first time, and in one go: speed is that of one round.

        None where no times are known, as of a stored baseline.
        """
        return measured(self.records, self.result.resumed) if self.timed else []

    def outcomes(self) -> dict[str, Outcome]:
        return {j.sample_id: j.outcome for j in self.judged if j.repeat == 0}


@dataclass(frozen=True)
class Gathered:
    """What an evaluation brought: `records` are questions and canaries of all rounds, reasoning applied.

    Those of `kept` are among them; `resumed` tells of them. `between` are the counters after the first of several
    rounds: the later ones find in the caches what it has left there.
    """

    warm: list[RequestRecord]
    records: list[RequestRecord]
    rounds: list[Round]
    observed: Observed
    early: EarlyStop | None = None
    kept: Kept | None = None
    resumed: Resumed | None = None
    between: tuple[Reading, ...] | None = None

    def sources(self, counters: Mapping[str, Mapping[str, float | None]]) -> PromptSources | None:
        """Where prompt tokens came from, as far as `counters` have grown."""
        return evidence.prompt_sources(counters, {r.instance: r.role for r in self.observed.after})

    def first_sources(self, counters: Mapping[str, Mapping[str, float | None]]) -> PromptSources | None:
        """The same for the first round; None where several were asked, and not in one go: they cannot be told apart."""
        if self.between is None:
            return self.sources(counters)
        return None if self.kept is not None else self.sources(deltas(self.observed.before, self.between))


@dataclass(frozen=True)
class _Piece:
    """Records that one launch answered, with its counters around them; `under_way` as evidence.disaggregated has it."""

    deployment: str
    before: tuple[Reading, ...]
    after: tuple[Reading, ...]
    logs: LogFindings
    records: list[RequestRecord]
    every_leg: list[Leg] | None
    under_way: int | None = None

    @property
    def legs(self) -> list[Leg] | None:
        """Those of its records."""
        ids = {r.request_id for r in self.records}
        return None if self.every_leg is None else [leg for leg in self.every_leg if leg.request_id in ids]


def _pieces(gathered: Gathered, deployment: str, run: RunFolder) -> list[_Piece]:
    """What earlier attempts left, then what the last one brought."""
    parts: tuple[Part, ...] = gathered.kept.parts if gathered.kept else ()
    pieces, taken = [], set[str]()
    for part in parts:
        records = [r for r in gathered.records if r.request_id in set(part.ended)]
        taken |= {r.request_id for r in records}
        legs = run.read_legs(part.deployment)
        under_way = part.begun - len(records)
        pieces.append(_Piece(part.deployment, part.before, part.after, logs_of(part), records, legs, under_way))
    rest = [r for r in gathered.records if r.request_id not in taken]
    seen = gathered.observed
    last = _Piece(deployment, seen.before, seen.after, seen.logs, rest, run.read_legs(deployment))
    return [*pieces, last]


def measured(records: Iterable[RequestRecord], resumed: Resumed | None) -> list[RequestRecord]:
    """The records of the first round of which speed is told: those begun since the cell was gone on with."""
    return [r for r in records if r.repeat == 0 and (resumed is None or r.t_submit >= resumed.since_s)]


def commands(plan: DeploymentPlan) -> dict[str, list[str]]:
    """The command of each process, by name; secrets masked."""
    lines = {server.name: masked_argv(server.argv) for server in plan.servers}
    if plan.proxy:
        lines["proxy"] = masked_argv(plan.proxy.argv)
    return lines


def conclude(
    cell: CellPlan,
    plan: DeploymentPlan,
    deployment_name: str,
    task: Task,
    clock: Clock,
    gathered: Gathered,
    baselines: Mapping[str, Finished | None],
    run: RunFolder,
    tests_planned: int,
) -> Finished:
    """From what was gathered to a result on disk."""
    records = gathered.records
    pieces = _pieces(gathered, deployment_name, run)
    of_each = [piece.legs for piece in pieces]
    legs = None if None in of_each else [leg for found in of_each for leg in found or ()]
    targets = {s.sample_id: s.target_text for s in task.samples}
    taints: dict[str, tuple[str, ...]] = {}
    for piece in pieces:
        logged = routers.under_rig_ids(piece.logs.taints, piece.records)
        taints |= evidence_requests.taints(piece.every_leg, logged, not connectors.through_storage(plan.connector))
    judged = tuple(judge(records, targets, task.scorers, task.scorer, taints))
    codes = {(c.sample.sample_id, r.repeat): c for r in gathered.rounds for c in r.canaries}
    canaries = judge_canaries(records, codes, taints)
    proof = _evidence(plan, pieces, records, judged)
    alone, inside = plan.kind == "monolithic" and plan.connector is not None, connectors.children(plan.kv_transfer)
    stored = evidence.storage(alone, inside, gathered.sources(proof.counters), cell.task.pass_)
    proof = replace(proof, canaries=count_canaries(canaries), findings=(*proof.findings, *stored))
    first, first_judged = [r for r in records if r.repeat == 0], [j for j in judged if j.repeat == 0]
    questions = tuple(r for r in records if r.kind == "question")
    first_ids = {r.request_id for r in first if r.kind == "question"}
    early, resumed = gathered.early, gathered.resumed
    timed = measured(records, resumed)
    timed_ids = {r.request_id for r in timed if r.kind == "question"}
    block_size = next((r.block_size for r in gathered.observed.after if r.block_size is not None), None)
    result = CellResult(
        cell_id=cell.id,
        labels=cell.labels,
        kind=cell.kind,
        deployment=deployment_name,
        status="invalid" if any(finding.severity == "invalid" for finding in proof.findings) else "ok",
        task=task_info(task, cell.task.score_reasoning, len(first_ids)),
        commands=commands(plan),
        gates=cell.gates,
        t0_unix=clock.t0_unix,
        warmup_requests=len(gathered.warm),
        retried=metrics.retried(first),
        accuracy=metrics.accuracy(first_judged, task.scorer, task.scorers),
        counts=metrics.counts(first_judged, first),
        latency_ms=metrics.latency_ms(timed),
        legs_ms=metrics.legs_ms(leg for leg in legs or () if leg.request_id in timed_ids),
        throughput=metrics.throughput(timed),
        evidence=proof,
        sources=gathered.first_sources(proof.counters),
        block_size=block_size,
        groups=metrics.groups(first_judged, task),
        repeats=repeats_of(judged),
        sequential=None if early is None else early.result(len(first_ids)),
        is_baseline=cell.is_baseline,
        rerun_of=cell.rerun_of,
        resumed=resumed,
    )
    finished = Finished(result, judged, questions, _noise(cell, judged, questions, block_size))
    urls = {s.name: s.url for s in plan.servers} | {s.name: s.url for s in plan.attached}
    side = Side(judged, questions, legs, routers.served(questions, urls) if legs is None else {})
    comparisons = []
    for name, base in baselines.items():
        if base is not None:
            require_same_prompts(side, base.side, name)
            pairs = make_pairs(side, base.side, block_size, in_flight=[*gathered.warm, *records])
            run.write_pairs(cell.id, name, pairs)
            comparisons.append(_comparison(name, cell, pairs, finished, base, canaries, early, block_size))
    floor = None
    if finished.noise is not None:
        run.write_pairs(cell.id, ITSELF, finished.noise)
        floor = compare(ITSELF, finished.noise, cell.gates, noise=finished.noise)
    result = replace(result, comparisons=tuple(comparisons), noise_floor=floor)
    held_against = {name: base.result if base else None for name, base in baselines.items()}
    tests = share_of_each(verdict.tests(result, held_against), tests_planned)
    result = replace(result, tests=tests)
    result = replace(result, verdict=verdict.decide(result, held_against, cell.xfail))
    run.write_judged(cell.id, judged)
    run.write_canaries(cell.id, canaries)
    run.write_cell(result)
    return replace(finished, result=result)


def _comparison(
    name: str,
    cell: CellPlan,
    pairs: list[Pair],
    mine: Finished,
    base: Finished,
    canaries: Sequence[JudgedCanary],
    early: EarlyStop | None,
    block_size: int | None,
) -> Comparison:
    gated = base.result.kind == mine.result.kind
    return compare(
        name,
        pairs,
        cell.gates,
        noise=base.noise,
        canaries=canaries,
        decider=None if early is None else early.deciders[name],
        ratios=ratios(mine.first(), base.first(), cell.gates, gated, cell.seed),
        slow=slow(mine.first(), base.first(), cell.gates) if gated else (),
        block_size=block_size,
    )


def _noise(
    cell: CellPlan, judged: Sequence[Judged], records: Sequence[RequestRecord], block_size: int | None
) -> tuple[Pair, ...] | None:
    """The further rounds of a baseline held against its first; `repeat` counts them from 0."""
    if not cell.noise_floor:
        return None

    def side(repeat: int) -> Side:
        return Side(
            [replace(j, repeat=0) for j in judged if j.repeat == repeat],
            [replace(r, repeat=0) for r in records if r.repeat == repeat],
        )

    return tuple(
        replace(pair, repeat=further)
        for further in range(cell.noise_floor)
        for pair in make_pairs(side(1 + further), side(0), block_size)
    )


def _evidence(
    plan: DeploymentPlan, pieces: Sequence[_Piece], records: list[RequestRecord], judged: Sequence[Judged]
) -> Evidence:
    # An attempt in which nothing was left to ask proves nothing, and need not.
    asked = [piece for piece in pieces if piece.records] or pieces[-1:]
    proof = evidence_parts.together([_counted(plan, piece) for piece in asked])
    logged = [finding for piece in pieces for finding in piece.logs.findings]
    beside = evidence_requests.beside_failed(judged, records)
    return replace(proof, findings=(*proof.findings, *logged, *beside))


def _counted(plan: DeploymentPlan, piece: _Piece) -> Evidence:
    before, after = piece.before, piece.after
    if plan.kind == "monolithic":
        return evidence.monolithic(before, after, idle=piece.under_way is None)
    tp = {role: max((s.tp for s in plan.servers if s.role == role), default=1) for role in ("prefill", "decode")}
    inside, keeps = connectors.children(plan.kv_transfer), connectors.decode_keeps(plan.kv_transfer)
    recomputes = plan.kv_transfer.get("kv_load_failure_policy") == "recompute"
    shape = evidence.Shape(plan.connector, tp["prefill"], tp["decode"], inside, keeps, recomputes)
    proof = evidence.disaggregated(shape, before, after, piece.records, piece.legs, piece.under_way)
    if piece.under_way is None:
        return proof
    source = f"deployments/{piece.deployment}/legs.jsonl" if piece.every_leg is not None else "counters"
    told = evidence_parts.about(len(piece.records), piece.under_way, source, piece.every_leg is not None)
    return replace(proof, findings=(*proof.findings, told))
