"""From judged records, evidence and baselines to a verdict; pure.

What each channel says is in `verdict_channels`; here it becomes one state, an exit code, a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rig import stats
from rig.errors import DeployError, RunError
from rig.planned import Expectation
from rig.records import CellResult, Comparison, Gates, Judged, Reason, State, Verdict
from rig.verdict_channels import accuracy, damage, errors, invalid, moved, otherwise_scored, transfers, unusable

BAD_STATES = frozenset({"regression", "xpass"})
UNJUDGED_STATES = frozenset({"failed", "invalid"})
OPEN_STATES = frozenset({"no_baseline", "inconclusive"})


def compare(
    name: str,
    candidate: Sequence[Judged],
    baseline: Sequence[Judged],
    candidate_texts: Mapping[str, str],
    baseline_texts: Mapping[str, str],
    gates: Gates,
) -> Comparison:
    """Hold a cell against the baseline `name`, question by question.

    Questions that either side lacks or failed at are left out. `p_value` is one-sided exact McNemar of "no
    drop"; `upper_drop` the bound at level 1 - alpha; `output_agreement` the share of pairs with equal texts;
    `more_questions` is set where the result is open. Raises RunError when a side has a question twice.
    """
    mine, theirs = _by_question(candidate, "the cell"), _by_question(baseline, name)
    pairs = [
        sample
        for sample, judged in mine.items()
        if sample in theirs and judged.outcome != "error" and theirs[sample].outcome != "error"
    ]
    n = len(pairs)
    if n == 0:
        needed = stats.questions_needed(0, 0, 0, gates.max_accuracy_drop, gates.alpha)
        more = needed.more if needed else None
        return Comparison(name, None, None, None, 0, 0, 0, None, None, more_questions=more)
    b = sum(1 for s in pairs if theirs[s].outcome == "correct" != mine[s].outcome)
    c = sum(1 for s in pairs if mine[s].outcome == "correct" != theirs[s].outcome)
    p_value = stats.mcnemar_no_drop(b, c)
    upper = stats.drop_upper_bound(b, c, n, gates.alpha)
    is_open = p_value > gates.alpha and upper is not None and upper >= gates.max_accuracy_drop
    needed = stats.questions_needed(b, c, n, gates.max_accuracy_drop, gates.alpha) if is_open else None
    both = [s for s in pairs if s in candidate_texts and s in baseline_texts]
    equal = sum(1 for s in both if candidate_texts[s] == baseline_texts[s])
    return Comparison(
        baseline=name,
        delta=(c - b) / n,
        ci95=stats.paired_difference_interval(b, c, n),
        p_value=p_value,
        b=b,
        c=c,
        n=n,
        min_detectable_drop=stats.min_detectable_drop(b, c, n, gates.alpha),
        output_agreement=equal / len(both) if both else None,
        upper_drop=upper,
        more_questions=needed.more if needed else None,
    )


def _by_question(judged: Sequence[Judged], whose: str) -> dict[str, Judged]:
    found = {j.sample_id: j for j in judged}
    if len(found) < len(judged):
        twice = next(s for s, k in Counter(j.sample_id for j in judged).items() if k > 1)
        raise RunError(f"{whose} answered the question {twice} more than once: pairing needs one answer a question")
    return found


def decide(
    result: CellResult, baselines: Mapping[str, CellResult | None], xfail: Expectation | None = None
) -> Verdict | None:
    """The verdict on a cell whose result is complete but for it.

    `baselines` are all that the cell is to be held against, by the name that its comparisons use; None
    where one has no result. A monolithic cell with nothing to be held against has no verdict, unless it
    failed or cannot be used as a baseline.
    """
    state, reasons = _state(result, baselines)
    return None if state is None else _expected(Verdict(state, reasons), xfail)


def failed(error: DeployError, xfail: Expectation | None = None) -> Verdict:
    """The verdict on a cell whose deployment did not come up, or died."""
    return _expected(Verdict("failed", (_failure(str(error), error.log_line),)), xfail)


def _failure(text: str, evidence: str | None = None) -> Reason:
    return Reason("errors", f"The deployment did not come up, or died: {text}", evidence)


def _state(result: CellResult, baselines: Mapping[str, CellResult | None]) -> tuple[State | None, tuple[Reason, ...]]:
    if result.status == "failed":
        return "failed", (_failure(result.failure or "no reason was recorded"),)
    if reasons := invalid(result):
        return "invalid", reasons
    faults = {name: unusable(name, base) or otherwise_scored(name, base, result) for name, base in baselines.items()}
    usable = {name: base for name, base in baselines.items() if base is not None and not faults[name]}
    lost = tuple(reason for found in faults.values() for reason in found)
    channels = [damage(result), transfers(result, usable), errors(result, usable)]
    channels += [accuracy(result, c) for c in result.comparisons if c.baseline in usable]
    by_state: dict[str, list[Reason]] = {}
    for found in channels:
        by_state.setdefault(found.state, []).extend(found.reasons)
    proof = moved(result)
    # What decides stands first, then what else is known.
    order = ("regression", "inconclusive", "improved", "pass", "note")
    reasons = tuple(reason for state in order for reason in by_state.get(state, ()))
    if "regression" in by_state:
        return "regression", (*reasons, *lost, *proof)
    if lost:
        return "invalid", (*lost, *reasons, *proof)
    if not usable:
        return _alone(result, (*reasons, *proof))
    if uncompared := sorted(usable.keys() - {c.baseline for c in result.comparisons}):
        text = f"This cell was to be compared with {', '.join(uncompared)}, and was not."
        return "invalid", (Reason("rig", text), *reasons, *proof)
    if "inconclusive" in by_state:
        return "inconclusive", (*reasons, *proof)
    return ("improved" if "improved" in by_state else "pass"), (*reasons, *proof)


def _alone(result: CellResult, reasons: tuple[Reason, ...]) -> tuple[State | None, tuple[Reason, ...]]:
    if result.kind == "monolithic":
        return None, ()
    text = "There is nothing to hold this cell against, so nobody knows whether it is worse."
    return "no_baseline", (Reason("accuracy", text), *reasons)


def _expected(verdict: Verdict, xfail: Expectation | None) -> Verdict:
    """Turn a failure that was expected into `xfail`, and a success that was not into `xpass`."""
    if xfail is None:
        return verdict
    why = f"{xfail.reason} ({xfail.issue})" if xfail.issue else xfail.reason
    if verdict.state in ("regression", "failed"):
        return _marked(verdict, "xfail", f"Expected to fail: {why}. It did ({verdict.state}).")
    if verdict.state in ("pass", "improved"):
        text = f"Expected to fail: {why}. It did not ({verdict.state}): take the expectation out of the config."
        return _marked(verdict, "xpass", text)
    return verdict


def _marked(verdict: Verdict, state: State, text: str) -> Verdict:
    return replace(verdict, state=state, reasons=(Reason(verdict.reasons[0].channel, text), *verdict.reasons))


def state_name(result: CellResult) -> str:
    """A word for a cell in lists: its state, `baseline` for a sound monolithic cell, `not judged` for the rest."""
    if result.verdict is not None:
        return result.verdict.state
    return "baseline" if result.kind == "monolithic" and result.status == "ok" else "not judged"


def exit_code(results: Sequence[CellResult], strict: bool = False) -> int:
    """0 all as expected; 1 a `regression` or `xpass`; 3 a cell that could not be judged. 1 wins over 3.

    Under `strict`, `no_baseline` and `inconclusive` count as not judged.
    """
    names = {state_name(result) for result in results}
    if names & BAD_STATES:
        return 1
    unjudged = UNJUDGED_STATES | {"not judged"} | (OPEN_STATES if strict else frozenset())
    return 3 if names & unjudged else 0


def sweep_summary(results: Sequence[CellResult]) -> str:
    """One line: how many cells ended in which state, and which ones need a look."""
    names = Counter(state_name(result) for result in results)
    line = f"{len(results)} cell{'' if len(results) == 1 else 's'}: "
    line += ", ".join(f"{k} {name}" for name, k in sorted(names.items())) or "nothing ran"
    looks = [
        f"{result.cell_id} ({', '.join([result.verdict.state, *(r.channel for r in result.verdict.reasons[:1])])})"
        for result in results
        if result.verdict is not None and result.verdict.state in BAD_STATES | UNJUDGED_STATES
    ]
    return f"{line}. Look at: {', '.join(looks)}" if looks else line
