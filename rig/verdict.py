"""From judged records, evidence and baselines to a verdict; pure.

What each channel says is in `verdict_channels`, `verdict_damage` and `verdict_speed`, which tests they rest on in
`verdict_tests`; here it becomes one state, an exit code, a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rig.errors import DeployError
from rig.planned import Expectation
from rig.records import CellResult, Reason, State, Tested, Verdict
from rig.segments import segment_text
from rig.verdict_channels import accuracy, errors, loaded, moved, transfers
from rig.verdict_damage import damage
from rig.verdict_sameness import sameness, scorable
from rig.verdict_speed import speed
from rig.verdict_tests import SWEEP, Tests, tests_of
from rig.verdict_usable import invalid, otherwise_scored, unusable
from rig.verdict_words import Found

BAD_STATES = frozenset({"regression", "xpass"})
UNJUDGED_STATES = frozenset({"failed", "invalid"})
OPEN_STATES = frozenset({"no_baseline", "inconclusive"})


def decide(
    result: CellResult,
    baselines: Mapping[str, CellResult | None],
    xfail: Expectation | None = None,
    family: str = SWEEP,
) -> Verdict | None:
    """The verdict on a cell whose result is complete but for it.

    `baselines` are all that the cell is to be held against, by the name that its comparisons use; None
    where one has no result. `family` names the tests that the cell's were corrected together with. A monolithic cell,
    or one that others are held against, with nothing to be held against itself has no verdict, unless it failed or
    cannot be used.
    """
    decided = _decided(result, baselines, family)
    return None if decided is None else _expected(decided, xfail)


def failed(error: DeployError, xfail: Expectation | None = None) -> Verdict:
    """The verdict on a cell whose deployment did not come up, or died."""
    return _expected(Verdict("failed", (_failure(str(error), error.log_line),)), xfail)


def _failure(text: str, evidence: str | None = None) -> Reason:
    return Reason("errors", f"The deployment did not come up, or died: {text}", evidence)


def _decided(result: CellResult, baselines: Mapping[str, CellResult | None], family: str) -> Verdict | None:
    if result.status == "failed":
        return Verdict("failed", (_failure(result.failure or "no reason was recorded"),))
    if reasons := invalid(result):
        return Verdict("invalid", reasons)
    usable, lost = _usable(result, baselines)
    tests = Tests(result, usable, family)
    channels = [damage(result, usable, tests), transfers(result, usable, tests), errors(result, usable, tests)]
    channels += [
        accuracy(result, c, tests) if scorable(result) else sameness(result, c)
        for c in result.comparisons
        if c.baseline in usable
    ]
    channels += [speed(result, usable, tests), _where(result, usable)]
    by_state: dict[str, list[Reason]] = {}
    for found in channels:
        by_state.setdefault(found.state, []).extend(found.reasons)
    proof = (*moved(result), *loaded(result))
    # What decides stands first, then what else is known.
    order = ("regression", "inconclusive", "improved", "pass", "note")
    reasons = tuple(reason for state in order for reason in by_state.get(state, ()))
    alarms = tuple(dict.fromkeys(channel for found in channels for channel in found.alarms))
    if alarms:
        return Verdict("regression", (*reasons, *lost, *proof), alarms)
    if lost:
        return Verdict("invalid", (*lost, *reasons, *proof), ())
    if not usable:
        return _alone(result, (*reasons, *proof))
    if uncompared := sorted(usable.keys() - {c.baseline for c in result.comparisons}):
        text = f"This cell was to be compared with {', '.join(uncompared)}, and was not."
        return Verdict("invalid", (Reason("rig", text), *reasons, *proof), ())
    state: State = "pass"
    if "inconclusive" in by_state:
        state = "inconclusive"
    elif "improved" in by_state:
        state = "improved"
    return Verdict(state, (*reasons, *proof), ())


def tests(result: CellResult, baselines: Mapping[str, CellResult | None]) -> tuple[Tested, ...]:
    """The tests that can alarm in a cell, uncorrected; none where the run cannot speak about it."""
    return () if result.status == "failed" or invalid(result) else tests_of(result, _usable(result, baselines)[0])


def _usable(
    result: CellResult, baselines: Mapping[str, CellResult | None]
) -> tuple[dict[str, CellResult], tuple[Reason, ...]]:
    """The baselines that a cell can be held against, and why the others cannot be used."""
    faults = {name: unusable(name, base) or otherwise_scored(name, base, result) for name, base in baselines.items()}
    usable = {name: base for name, base in baselines.items() if base is not None and not faults[name]}
    return usable, tuple(reason for found in faults.values() for reason in found)


def _where(result: CellResult, baselines: Mapping[str, CellResult]) -> Found:
    """The parts of the requests that are hit more than the rest; they decide nothing by themselves."""
    reasons = [
        Reason("accuracy" if segment.of == "lost" else "errors" if segment.of == "error" else "damage", text, source)
        for comparison in result.comparisons
        if comparison.baseline in baselines
        for segment in comparison.where
        for text, source in [(segment_text(segment), f"pairs.{comparison.baseline}.jsonl")]
    ]
    return Found("note", tuple(dict.fromkeys(reasons)))


def _alone(result: CellResult, reasons: tuple[Reason, ...]) -> Verdict | None:
    if _measure(result):
        return None
    text = "There is nothing to hold this cell against, so nobody knows whether it is worse."
    return Verdict("no_baseline", (Reason("accuracy", text), *reasons), ())


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
    """A word for a cell in lists: its state, `baseline` for a sound one without, `not judged` for the rest."""
    if result.verdict is not None:
        return result.verdict.state
    return "baseline" if _measure(result) and result.status == "ok" else "not judged"


def _measure(result: CellResult) -> bool:
    """Whether a cell is there for others to be held against, and needs nothing itself to be held against."""
    return result.kind == "monolithic" or (result.is_baseline and not result.comparisons)


def exit_code(results: Sequence[CellResult], strict: bool = False) -> int:
    """0 all as expected; 1 a `regression` or `xpass`; 3 a cell that could not be judged. 1 wins over 3.

    Under `strict`, `no_baseline` and `inconclusive` count as not judged, and so does any state without a stored
    baseline that was asked for. The repetition of a red cell does not count.
    """
    counted = [result for result in results if result.rerun_of is None]
    names = {state_name(result) for result in counted}
    if names & BAD_STATES:
        return 1
    if names & (UNJUDGED_STATES | {"not judged"}):
        return 3
    return 3 if strict and (names & OPEN_STATES or any(result.missing_baseline for result in counted)) else 0


def states_text(results: Sequence[CellResult]) -> str:
    """How many cells ended in which state; those that repeat another are not counted."""
    names = Counter(state_name(result) for result in results if result.rerun_of is None)
    line = f"{names.total()} cell{'' if names.total() == 1 else 's'}: "
    return line + (", ".join(f"{k} {name}" for name, k in sorted(names.items())) or "nothing ran")


def sweep_summary(results: Sequence[CellResult]) -> str:
    """One line: how many cells ended in which state, and which ones need a look."""
    looks = [
        f"{result.cell_id} ({', '.join([result.verdict.state, *(r.channel for r in result.verdict.reasons[:1])])})"
        for result in results
        if result.rerun_of is None
        and result.verdict is not None
        and result.verdict.state in BAD_STATES | UNJUDGED_STATES
    ]
    line = states_text(results)
    return f"{line}. Look at: {', '.join(looks)}" if looks else line
