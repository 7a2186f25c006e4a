"""A cell held against one baseline, from their pairs; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rig import divergence, stats
from rig.pairs import sign_counts
from rig.records import Comparison, Gates, JudgedCanary, Pair, Ratio, Slow
from rig.segments import find_segments
from rig.stats_sequential import Sequential


def compare(
    name: str,
    pairs: Sequence[Pair],
    gates: Gates,
    *,
    noise: Sequence[Pair] | None = None,
    canaries: Sequence[JudgedCanary] = (),
    decider: Sequential | None = None,
    ratios: Sequence[Ratio] = (),
    slow: Sequence[Slow] = (),
    block_size: int | None = None,
) -> Comparison:
    """Hold a cell against the baseline `name`, question by question.

    Pairs in which either side failed are left out of accuracy. `p_value` is one-sided exact McNemar of "no drop",
    over all repeats that both sides have; `upper_drop` the bound at level 1 - alpha. `noise` are the pairs of the
    baseline with itself: without them divergence has no threshold. `decider` is what an evaluation that may have
    stopped early saw: its anytime-valid figures stand in place of those two then. `more_questions` is set where the
    result is open. `block_size` is the engine's, in tokens.
    """
    answered = [p for p in pairs if p.repeat == 0 and "error" not in (p.outcome, p.baseline_outcome)]
    first = [p for p in answered if "unscored" not in (p.outcome, p.baseline_outcome)]
    threshold = None if noise is None else divergence.threshold([p.shift for p in noise if p.shift is not None])
    seen = divergence.summarise([p for p in pairs if p.repeat == 0], threshold)
    if seen is not None and noise is not None:
        seen = divergence.against_noise(seen, [p for p in pairs if p.repeat == 0], noise)
    found = Comparison(
        baseline=name,
        delta=None,
        ci95=None,
        p_value=None,
        b=0,
        c=0,
        n=len(first),
        min_detectable_drop=None,
        output_agreement=None,
        first_divergence=seen,
        repeats=1 + max((p.repeat for p in pairs), default=0),
        where=find_segments(pairs, canaries, threshold, gates.alpha, block_size),
        ratios=tuple(ratios),
        slow=tuple(slow),
    )
    if answered and not first:
        return _without_accuracy(found, answered)
    return _with_accuracy(found, pairs, first, gates, decider)


def _without_accuracy(found: Comparison, answered: Sequence[Pair]) -> Comparison:
    """Of questions that have no right answer: the pairs whose texts can be compared, and how many are the same."""
    known = [p.equal for p in answered if p.equal is not None]
    return replace(found, n=len(known), output_agreement=sum(known) / len(known) if known else None)


def _with_accuracy(
    found: Comparison, pairs: Sequence[Pair], first: Sequence[Pair], gates: Gates, decider: Sequential | None
) -> Comparison:
    n = found.n
    if n == 0:
        needed = stats.questions_needed(0, 0, 0, gates.max_accuracy_drop, gates.alpha)
        return replace(found, more_questions=needed.more if needed else None)
    b = sum(p.baseline_outcome == "correct" != p.outcome for p in first)
    c = sum(p.outcome == "correct" != p.baseline_outcome for p in first)
    if decider is None:
        p_value = stats.mcnemar_no_drop(*sign_counts(pairs))
        upper = stats.drop_upper_bound(b, c, n, gates.alpha)
    else:
        p_value, upper = decider.p_no_drop, decider.upper_drop(gates.alpha)
    is_open = p_value > gates.alpha and upper is not None and upper >= gates.max_accuracy_drop
    needed = stats.questions_needed(b, c, n, gates.max_accuracy_drop, gates.alpha) if is_open else None
    known = [p.equal for p in first if p.equal is not None]
    return replace(
        found,
        delta=(c - b) / n,
        ci95=stats.paired_difference_interval(b, c, n),
        p_value=p_value,
        b=b,
        c=c,
        min_detectable_drop=stats.min_detectable_drop(b, c, n, gates.alpha),
        output_agreement=sum(known) / len(known) if known else None,
        upper_drop=upper,
        more_questions=needed.more if needed else None,
    )
