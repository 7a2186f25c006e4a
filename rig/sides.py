"""What `pdrig compare` is given, read: a run, a cell of one, an evaluation, or a stored baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from evals.records import RequestRecord
from evals.scorers import get_scorer
from evals.sink import read_jsonl
from rig import baselines, metrics
from rig.baselines import BaselineFile, Stored
from rig.errors import DataError, UsageError
from rig.judge import judge, with_reasoning
from rig.records import CellResult, Evidence, Judged, JudgedCanary, Leg, Pair, RunInfo, Verdict
from rig.records_requests import ITSELF
from rig.saving import machine
from rig.store import RunFolder
from rig.verdict_usable import invalid

JUDGED = "judged.jsonl"


@dataclass(frozen=True)
class Side:
    """One cell or stored baseline with all that can be known of it.

    `problem` says why it cannot be compared; there may be no more than its labels then. `prompts` has the prompt's
    SHA-256 by sample, `block_size` is in tokens, `noise` are its pairs with itself. A `stored` one has no texts, tokens
    or times: its `records` only say what was asked.
    """

    name: str
    file: str
    judged_file: str
    result: CellResult
    problem: str | None = None
    stored: bool = False
    judged: tuple[Judged, ...] = ()
    records: tuple[RequestRecord, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    legs: tuple[Leg, ...] | None = None
    canaries: tuple[JudgedCanary, ...] = ()
    noise: tuple[Pair, ...] | None = None
    block_size: int | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sides:
    """What one argument names: a `single` cell, or all those of a run or file."""

    argument: str
    sides: tuple[Side, ...]
    single: bool


class _LoneCell(RunFolder):
    """A folder with one cell's files: an evaluation of `pdrig eval`, or a copy of a cell."""

    def cell(self, cell_id: str) -> Path:
        return self.path


def read_sides(argument: str, scorer: str | None = None) -> Sides:
    """Read RUN, RUN/cells/ID, RUN:ID, an evaluation's folder, FILE.json or FILE.json:NAME.

    With `scorer`, outcomes are those that `pdrig rescore --scorer` wrote. Raises UsageError or DataError for what is
    none of these; a cell that cannot be used has a `problem`.
    """
    path, name = Path(argument), None
    if not path.exists() and ":" in argument:
        first, name = argument.rsplit(":", 1)
        path = Path(first)
    if path.is_file():
        file = baselines.read(path)
        chosen = [baselines.pick(file, str(path), name)] if name else file.baselines
        sides = [of_stored(path, file, stored, scorer) for stored in chosen]
        return Sides(argument, tuple(sides), single=len(sides) == 1)
    if (path / "run.json").is_file():
        run = RunFolder.open(path)
        if name is None:
            return Sides(argument, tuple(_of_run(run, scorer)), single=False)
        return Sides(argument, (_named(run, name, scorer),), single=True)
    if name is None and (path / "cell.json").is_file():
        whole = path.resolve().parent.parent
        if (whole / "run.json").is_file():
            return Sides(argument, (_named(RunFolder(path.parent.parent), path.name, scorer),), single=True)
        lone = _LoneCell(path)
        return Sides(argument, (_of_cell(lone, path.name, None, scorer, str(path)),), single=True)
    raise UsageError(
        f"{argument}: neither a run (no run.json), nor a cell (no cell.json), nor a stored baseline: "
        "give RUN, RUN:CELL_ID, RUN/cells/CELL_ID or FILE.json"
    )


def _of_run(run: RunFolder, scorer: str | None) -> Iterator[Side]:
    """Every cell that was planned, in that order, then any other that has a folder."""
    info = run.read_info()
    planned = [str(cell.get("id")) for cell in info.planned]
    there = sorted(path.parent.name for path in run.path.glob("cells/*/cell.json"))
    for cell_id in dict.fromkeys([*planned, *there]):
        yield _of_cell(run, cell_id, info, scorer, f"{run.path.name}:{cell_id}")


def _named(run: RunFolder, cell_id: str, scorer: str | None) -> Side:
    info = run.read_info()
    known = {str(cell.get("id")) for cell in info.planned} | {p.name for p in run.path.glob("cells/*")}
    if cell_id not in known:
        raise UsageError(f"{run.path}: has no cell {cell_id}; it has {', '.join(sorted(known))}")
    return _of_cell(run, cell_id, info, scorer, f"{run.path.resolve().name}:{cell_id}")


def _of_cell(run: RunFolder, cell_id: str, info: RunInfo | None, scorer: str | None, name: str) -> Side:
    folder = run.cell(cell_id)
    labels = next((cell.get("labels") for cell in info.planned if cell.get("id") == cell_id), None) if info else None
    nothing = CellResult(cell_id, labels if isinstance(labels, dict) else {}, "pd", "", "interrupted")
    side = Side(name, str(folder / "cell.json"), str(folder / JUDGED), nothing)
    if info is not None:
        side = replace(side, machine=machine(info.host), versions=info.versions)
    try:
        result = run.read_cell(cell_id)
        if result is None:
            return replace(side, problem="it has no result yet: finish the run with `pdrig sweep --resume`")
        side = replace(side, result=result)
        problem = unfit(result) or run.damage(result)
        if problem:
            return replace(side, problem=problem)
        side = _with_records(run, side)
        return side if scorer is None else _rescored(folder, side, scorer)
    except (DataError, EvalError) as error:
        return replace(side, problem=str(error))


def unfit(result: CellResult) -> str | None:
    """Why a cell's result says nothing that could be compared; None where it does."""
    if result.status == "interrupted":
        return "it is not finished: go on with `pdrig sweep --resume`"
    if result.status == "failed":
        return f"it failed ({result.failure or 'no reason was recorded'}): run it again"
    if reasons := invalid(result):
        return f"it is invalid ({reasons[0].text.rstrip('.')}): mend that and run it again"
    return "it does not say what was asked" if result.task is None else None


def _with_records(run: RunFolder, side: Side) -> Side:
    result = side.result
    reasoning = result.task is not None and result.task.score_reasoning
    records = tuple(with_reasoning(r, reasoning) for r in run.read_requests(result.cell_id))
    legs = run.read_legs(result.deployment)
    noise = run.read_pairs(result.cell_id).get(ITSELF)
    return replace(
        side,
        records=records,
        judged=tuple(run.read_judged(result.cell_id)),
        prompts={r.sample_id: r.prompt_sha256 for r in records if r.kind == "question"},
        legs=None if legs is None else tuple(legs),
        canaries=tuple(run.read_canaries(result.cell_id)),
        noise=None if noise is None else tuple(noise),
        block_size=result.block_size,
    )


def _rescored(folder: Path, side: Side, name: str) -> Side:
    """The side as `pdrig rescore --scorer` scored it, if that was this version of the scorer."""
    scorer, path = get_scorer(name), folder / f"judged.{name}.jsonl"
    again = f"`pdrig rescore {folder.parent.parent} --scorer {name}`"
    if not path.is_file():
        return replace(side, problem=f"it was not scored by {name}: {again} does it")
    targets = {j.sample_id: j.target_text for j in side.judged if j.target_text is not None}
    judged = judge(side.records, targets, [name], name)
    stored = {(row.get("request_id"), row.get("outcome")) for row in read_jsonl(path).rows}
    if stored != {(j.request_id, j.outcome) for j in judged}:
        return replace(side, problem=f"{path} is not what this version of {name} gives: {again} again")
    result, task = side.result, side.result.task
    assert task is not None
    first = [j for j in judged if j.repeat == 0]
    result = replace(
        result,
        task=replace(task, scorer=scorer.name, scorer_sha256=scorer.sha256),
        accuracy=metrics.accuracy(first, name, [name]),
        counts=metrics.counts(first, [r for r in side.records if r.repeat == 0]),
    )
    return replace(side, judged_file=str(path), result=result, judged=tuple(judged))


def of_stored(path: Path, file: BaselineFile, stored: Stored, scorer: str | None) -> Side:
    """A stored baseline as far as it can stand for a cell."""
    task, outcomes = file.task_info(stored), stored.outcomes(file.questions)
    result = CellResult(
        cell_id=stored.name,
        labels=stored.labels,
        kind=stored.kind,
        deployment="",
        status="ok",
        task=task,
        commands=stored.commands,
        gates=stored.gates,
        warmup_requests=stored.warmup_requests,
        accuracy=stored.accuracy,
        counts=stored.counts,
        latency_ms=stored.latency_ms,
        throughput=stored.throughput,
        evidence=Evidence(
            stored.evidence.pd_exercised,
            transfers=stored.evidence.transfers,
            failed=stored.evidence.failed,
            expired=stored.evidence.expired,
            canaries=stored.evidence.canaries,
        ),
        verdict=Verdict(stored.verdict) if stored.verdict else None,
    )
    problem = None
    if scorer is not None and get_scorer(scorer).sha256 != task.scorer_sha256:
        problem = f"it holds outcomes of {task.scorer} and no texts to score again: save it again from a run"
    ids = {sample: f"stored-{sample}" for sample in outcomes}
    return Side(
        name=f"{path}:{stored.name}",
        file=str(path),
        judged_file=str(path),
        result=result,
        problem=problem,
        stored=True,
        judged=tuple(Judged(ids[s], s, task.scorer, None, None, outcome) for s, outcome in outcomes.items()),
        records=tuple(
            RequestRecord(
                kind="question",
                sample_id=sample,
                request_id=ids[sample],
                endpoint=task.endpoint,
                prompt_sha256=file.questions[sample],
                t_submit=0.0,
                t_end=0.0,
            )
            for sample in outcomes
        ),
        prompts={sample: file.questions[sample] for sample in outcomes},
        machine=stored.machine,
        versions=stored.versions,
    )
