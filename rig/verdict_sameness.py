"""What the verdict rests on where questions have no right answer: outputs that are the baseline's; pure."""

from __future__ import annotations

from evals.scorers import NO_SCORER
from rig import stats
from rig.divergence import DAMAGED_NATS
from rig.records import CellResult, Comparison, Reason
from rig.verdict_words import Found, questions

HOW_TO_DECIDE = (
    "With `divergence: logprobs` for the task and `noise_floor: true` for the sweep, outputs that part at a near-tie "
    "would be told from damaged ones."
)


def scorable(result: CellResult) -> bool:
    """Whether the cell's questions have right answers."""
    return result.task is None or result.task.scorer != NO_SCORER


def sameness(result: CellResult, comparison: Comparison) -> Found:
    """Outputs shown to be the baseline's, or nothing decided; more damage than noise is `verdict_damage`'s to say.

    What bounds the answers that may have been lost is the share of outputs that moved by more than the threshold of
    the noise, or, where no log probabilities are known, of those that differ at all: its upper bound at 1 - alpha
    (Clopper-Pearson) has to be below the margin of an accuracy drop. A baseline whose own noise is as large as damage
    decides nothing.
    """
    gates, name = result.gates, comparison.baseline
    source = f"pairs.{name}.jsonl"
    seen, advice = comparison.first_divergence, f" {HOW_TO_DECIDE}"
    if seen is not None and seen.damaged is not None and seen.measured:
        if (seen.threshold or 0.0) > DAMAGED_NATS:
            text = (
                f"Whether the outputs are those of {name} cannot be told: it answers otherwise itself when asked once "
                f"more, so that only a shift above {seen.threshold:.3g} nats would count as damage, and damage begins "
                f"at {DAMAGED_NATS:g}. Ask fewer questions at once (`concurrency`), which makes less noise; the "
                "questions have no right answers that would tell."
            )
            return Found("inconclusive", (Reason("damage", text, f"cells/{name}/pairs.itself.jsonl"),))
        advice = ""
        moved, n = seen.damaged, seen.measured
        what = f"moved a token's log probability by more than the noise of {name} does"
    elif comparison.n and comparison.output_agreement is not None:
        n = comparison.n
        moved = n - round(comparison.output_agreement * n)
        what = f"are another text than on {name}"
    else:
        text = f"No output can be compared with one of {name}, and the questions have no right answers."
        return Found("inconclusive", (Reason("damage", text, source),))
    upper = stats.binomial_upper(moved, n, gates.alpha)
    margin, confidence = f"{100 * gates.max_accuracy_drop:g} %", f"{100 * (1 - gates.alpha):g} %"
    told = f"{moved} of the outputs of {questions(n)} {what}"
    if upper < gates.max_accuracy_drop:
        text = (
            f"The questions have no right answers; the outputs are those of {name}: {told}, so with {confidence} "
            f"confidence fewer than {100 * upper:.2f} % of all do, below the margin of {margin}."
        )
        return Found("pass", (Reason("damage", text, source),))
    text = (
        f"Whether the outputs are those of {name} is not decided: {told}, and the true share may be as large as "
        f"{100 * upper:.2f} % ({confidence} confidence), above the margin of {margin}; the questions have no right "
        "answers that would tell."
    )
    return Found("inconclusive", (Reason("damage", text + advice, source),))
