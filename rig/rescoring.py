"""`pdrig rescore`: score stored texts again, and write what comes out beside what was.

Results and verdicts stay as they are, since a verdict rests on more than texts: on baselines that may be in no run, on
an order of questions that was ended early, on expectations of the sweep file. `pdrig compare --scorer` judges anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from evals.scorers import SCORERS, get_scorer
from rig import metrics
from rig.errors import DataError, UsageError
from rig.judge import judge, with_reasoning
from rig.records import CellResult
from rig.store import RunFolder


def rescore_run(run: RunFolder, scorer: str | None) -> Iterator[str]:
    """Score every cell's stored texts; yields a line a cell, then what that means for its verdict, if it has any.

    Raises UsageError for an unknown scorer.
    The reference answers come from the run's own judged records, so neither task data nor a server is needed.
    """
    if scorer is not None and scorer not in SCORERS:
        raise UsageError(f"--scorer {scorer}: no such scorer; there are {', '.join(SCORERS)}")
    used: dict[str, None] = {}
    for result in run.read().cells:
        if result.task is not None:
            name = scorer or result.task.scorer
            used[name] = None
            yield rescore_cell(run, result, name)
    for name in used:
        yield (
            f"cell.json, reports and verdicts stay as they were; for verdicts by {name}: "
            f"pdrig compare CANDIDATE BASELINE --scorer {name}"
        )


def rescore_cell(run: RunFolder, result: CellResult, scorer: str) -> str:
    """Write `judged.<scorer>.jsonl` of one cell; returns what changed, in a line."""
    if problem := run.damage(result):
        raise DataError(f"{run.cell(result.cell_id)}: {problem}")
    before = {j.request_id: j for j in run.read_judged(result.cell_id)}
    targets = {j.sample_id: j.target_text for j in before.values() if j.target_text is not None}
    if any(j.target_text is None for j in before.values()):
        raise DataError(f"{run.cell(result.cell_id)}: judged.jsonl does not hold the reference answers")
    reasoning = result.task is not None and result.task.score_reasoning
    records = [with_reasoning(record, reasoning) for record in run.read_requests(result.cell_id)]
    judged = judge(records, targets, [scorer], scorer, {name: j.tainted for name, j in before.items()})
    name = f"judged.{scorer}.jsonl"
    run.write_judged(result.cell_id, judged, name)
    new = metrics.accuracy([j for j in judged if j.repeat == 0], scorer)
    changed = sum(before[j.request_id].outcome != j.outcome for j in judged)
    old = result.accuracy.value if result.accuracy else None
    was, gives = ("-" if value is None else f"{value:.3f}" for value in (old, new.value))
    version = get_scorer(scorer).version
    return f"{result.cell_id}: {scorer} v{version} gives {gives} (was {was}), {changed} outcomes differ -> {name}"
