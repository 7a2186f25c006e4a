from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rig.records import CanaryOutcome, JudgedCanary, Pair, Segment
from rig.segments import find_segments, segment_text

ALPHA = 0.05
BLOCK = 16


def requests(n: int, rng: np.random.Generator, instances: int = 2) -> list[Pair]:
    """n questions that both sides got right, with everything that they are split by."""
    return [
        Pair(
            sample_id=f"q{i}",
            request_id=f"r{i}",
            baseline_request_id=f"b{i}",
            outcome="correct",
            baseline_outcome="correct",
            equal=True,
            shift=float(rng.uniform(0, 0.2)),
            order=i,
            concurrency=int(rng.integers(1, 17)),
            prompt_tokens=(tokens := int(rng.integers(100, 400))),
            block_remainder=tokens % BLOCK,
            prefill=f"prefill-{rng.integers(instances)}",
            decode=f"decode-{rng.integers(instances)}",
            since_finish_ms=float(rng.exponential(40)) if i else None,
            predecessor=f"q{rng.integers(i)}" if i else None,
        )
        for i in range(n)
    ]


def lose(pairs: Sequence[Pair], hit: Callable[[Pair], bool]) -> list[Pair]:
    return [replace(p, outcome="wrong") if hit(p) else p for p in pairs]


def canary(i: int, outcome: CanaryOutcome, tokens: int = 100) -> JudgedCanary:
    return JudgedCanary(f"r{i}", f"canary-{i:04}", "1", "1", outcome, order=i, concurrency=4, prompt_tokens=tokens)


def first(pairs: Sequence[Pair]) -> Segment:
    return find_segments(pairs, (), 1.0, ALPHA, BLOCK)[0]


# Nothing to find


@pytest.mark.parametrize(("rate", "runs"), [(0.03, 80), (0.2, 60)])
def test_noise_has_no_address(rate: float, runs: int) -> None:
    """Under no effect, any segment at all is named in at most alpha of the runs, with all four counts at work."""
    rng = np.random.default_rng(20250101)
    base = [replace(p, predecessor=f"q{i - 1}" if i else None) for i, p in enumerate(requests(200, rng))]
    alarms = 0
    for _ in range(runs):
        lost, damaged, failed, wrong = rng.random((4, 200)) < rate
        pairs = [
            replace(p, outcome="error" if f else "wrong" if x else "correct", shift=2.0 if d else 0.1)
            for p, x, d, f in zip(base, lost, damaged, failed, strict=True)
        ]
        canaries = [canary(i, "wrong" if wrong[i] else "right", int(rng.integers(50, 300))) for i in range(50)]
        alarms += bool(find_segments(pairs, canaries, 1.0, ALPHA, BLOCK))
    # Not above what chance gives at a rate of alpha in 99 of 100 such simulations.
    assert alarms <= scipy_stats.binom.isf(0.01, runs, ALPHA)


def test_two_hits_are_no_pattern() -> None:
    pairs = requests(4000, np.random.default_rng(1))
    assert find_segments(lose(pairs, lambda p: p.order in (3998, 3999)), (), None, ALPHA, BLOCK) == ()
    assert find_segments([], [], 1.0, ALPHA, BLOCK) == ()


# Planted

PLANTED: dict[str, tuple[Callable[[Pair], bool], str, str]] = {
    "order": (lambda p: p.order is not None and p.order >= 300, "order", "questions 301 to 400"),
    "half": (lambda p: p.order is not None and p.order >= 200, "order", "questions 201 to 400"),
    "concurrency": (lambda p: (p.concurrency or 0) >= 8, "concurrency", "8 requests or more in flight"),
    "whole blocks": (lambda p: p.block_remainder == 0, "block", "prompts of k x 16 tokens"),
    "one over": (lambda p: p.block_remainder == 1, "block", "prompts of k x 16 + 1 tokens"),
    "one short": (lambda p: p.block_remainder == 15, "block", "prompts of k x 16 + 15 tokens"),
    "quarter block": (lambda p: p.block_remainder in (4, 5, 6, 7), "block", "prompts of k x 16 + 4 to 7 tokens"),
    "prefill": (lambda p: p.prefill == "prefill-1", "prefill", "prefill-1"),
    "decode": (lambda p: p.decode == "decode-0", "decode", "decode-0"),
    "route": (
        lambda p: (p.prefill, p.decode) == ("prefill-1", "decode-0"),
        "instances",
        "prefill-1 to decode-0",
    ),
    "soon": (
        lambda p: p.since_finish_ms is not None and p.since_finish_ms <= 10,
        "since_finish",
        "within 10 ms of another request's end",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_named_first(name: str) -> None:
    hit, axis, value = PLANTED[name]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        pairs = requests(400, rng)
        # Thresholds are picked among the concurrencies seen: give eight of them.
        pairs = [replace(p, concurrency=2 * ((p.concurrency or 0) // 2)) for p in pairs]
        struck = {p.sample_id for p in pairs if hit(p) and rng.random() < 0.6}
        found = first(lose(pairs, lambda p, struck=struck: p.sample_id in struck))
        assert (found.axis, found.value, found.of) == (axis, value, "lost")


def test_long_prompts() -> None:
    pairs = requests(400, np.random.default_rng(5))
    found = first(lose(pairs, lambda p: (p.prompt_tokens or 0) >= 330))
    lengths = sorted(p.prompt_tokens or 0 for p in pairs)
    assert (found.axis, found.value) == ("prompt_tokens", f"prompts of {lengths[300]} to {lengths[-1]} tokens")


def test_an_instance_and_a_pair_with_it_are_named_once() -> None:
    pairs = lose(requests(400, np.random.default_rng(3)), lambda p: p.prefill == "prefill-1")
    found = find_segments(pairs, (), 1.0, ALPHA, BLOCK)
    assert [(s.axis, s.value) for s in found] == [("prefill", "prefill-1")]


def test_of_nested_parts_the_clearest_is_kept_and_disjoint_ones_both() -> None:
    pairs = lose(requests(400, np.random.default_rng(3), instances=8), lambda p: p.decode in ("decode-2", "decode-5"))
    assert {s.value for s in find_segments(pairs, (), 1.0, ALPHA, BLOCK)} == {"decode-2", "decode-5"}
    late = lose(requests(400, np.random.default_rng(3)), lambda p: (p.order or 0) >= 300)
    assert [s.value for s in find_segments(late, (), 1.0, ALPHA, BLOCK)] == ["questions 301 to 400"]


def test_after_one_that_was_hit() -> None:
    """Chains: a request is hit when the one that ended last before it was."""
    rng = np.random.default_rng(7)
    pairs: list[Pair] = []
    for i, p in enumerate(requests(400, rng)):
        before = pairs[i - 1] if i else None
        chance = 0.7 if before is not None and before.outcome == "wrong" else 0.04
        predecessor = before.sample_id if before else None
        pairs.append(replace(p, predecessor=predecessor, outcome="wrong" if rng.random() < chance else "correct"))
    found = first(pairs)
    assert (found.axis, found.value) == ("predecessor", "right after one that was hit itself")


def test_after_one_that_failed() -> None:
    """A failed hand-off frees blocks that the next request gets."""
    pairs = requests(400, np.random.default_rng(8))
    pairs = [replace(p, predecessor=f"q{i - 1}" if i else None) for i, p in enumerate(pairs)]
    pairs = [replace(p, outcome="error" if i % 20 == 5 else "correct") for i, p in enumerate(pairs)]
    found = first([replace(p, outcome="wrong") if i % 20 == 6 else p for i, p in enumerate(pairs)])
    assert (found.axis, found.value) == ("predecessor", "right after one that failed")
    assert (found.hits, found.n, found.rest_hits) == (20, 20, 0)


# What is counted


def test_losses_are_counted_among_right_answers_of_the_baseline() -> None:
    """A part that the baseline answers badly has less to lose, and what failed is not lost."""
    rng = np.random.default_rng(2)
    pairs = [
        replace(p, baseline_outcome="wrong" if i % 4 == 0 else "correct", outcome="error" if i % 4 == 1 else "correct")
        for i, p in enumerate(requests(400, rng))
    ]
    pairs = [replace(p, outcome="wrong") if p.outcome == "correct" and (p.order or 0) >= 300 else p for p in pairs]
    found = next(s for s in find_segments(pairs, (), 1.0, ALPHA, BLOCK) if s.axis == "order")
    assert (found.hits, found.n, found.rest_hits, found.rest_n) == (50, 50, 0, 150)


def test_hard_questions_that_flip_both_ways_are_no_fault() -> None:
    """Long prompts hold the near ties: as many answers are gained there as lost."""
    rng = np.random.default_rng(4)
    pairs = sorted(requests(400, rng), key=lambda p: p.prompt_tokens or 0)
    lost = [replace(p, outcome="wrong") if i >= 300 and i % 4 == 0 else p for i, p in enumerate(pairs)]
    assert first(lost).axis == "prompt_tokens"
    both = [replace(p, baseline_outcome="wrong") if i >= 300 and i % 4 == 1 else p for i, p in enumerate(lost)]
    assert find_segments(both, (), 1.0, ALPHA, BLOCK) == ()


def test_damage_needs_a_threshold_and_a_shift() -> None:
    pairs = requests(400, np.random.default_rng(2))
    pairs = [replace(p, shift=None if i % 2 else 3.0 if i < 100 else 0.1) for i, p in enumerate(pairs)]
    found = find_segments(pairs, (), 1.0, ALPHA, BLOCK)[0]
    assert (found.of, found.value, found.hits, found.n, found.rest_n) == ("damaged", "questions 1 to 100", 50, 50, 150)
    assert find_segments(pairs, (), None, ALPHA, BLOCK) == ()


def test_failures_that_the_baseline_shares_do_not_count() -> None:
    pairs = requests(400, np.random.default_rng(2))
    shared = [replace(p, outcome="error", baseline_outcome="error") if (p.order or 0) < 100 else p for p in pairs]
    assert find_segments(shared, (), 1.0, ALPHA, BLOCK) == ()
    own = [replace(p, outcome="error") if p.decode == "decode-1" else p for p in pairs]
    assert (first(own).of, first(own).value) == ("error", "decode-1")


def test_wrong_canaries_sit_in_long_prompts_and_failed_ones_are_no_wrong_answers() -> None:
    outcomes: list[CanaryOutcome] = ["crossed" if i % 4 == 0 else "error" if i % 4 == 1 else "right" for i in range(80)]
    canaries = [canary(i, outcome, 500 if outcome == "crossed" else 100) for i, outcome in enumerate(outcomes)]
    found = find_segments((), canaries, None, ALPHA, BLOCK)[0]
    assert (found.of, found.hits, found.n, found.rest_n) == ("canary", 20, 20, 40)
    assert found.value in ("prompts of 500 tokens", "prompts of k x 16 + 4 to 7 tokens")


def test_of_several_repeats_the_first_counts() -> None:
    pairs = lose(requests(400, np.random.default_rng(2)), lambda p: p.decode == "decode-1")
    again = [replace(p, repeat=1, outcome="correct", order=400 + i) for i, p in enumerate(pairs)]
    assert find_segments([*again, *pairs], (), 1.0, ALPHA, BLOCK) == find_segments(pairs, (), 1.0, ALPHA, BLOCK)


def test_what_is_not_known_belongs_to_neither_side() -> None:
    pairs = lose(requests(400, np.random.default_rng(2)), lambda p: p.decode == "decode-1")
    pairs = [replace(p, decode=None) if (p.order or 0) < 100 else p for p in pairs]
    found = next(s for s in find_segments(pairs, (), 1.0, ALPHA, BLOCK) if s.axis == "decode")
    assert found.n + found.rest_n == 300
    bare = [Pair(p.sample_id, "r", "b", p.outcome, p.baseline_outcome) for p in pairs]
    assert find_segments(bare, (), 1.0, ALPHA, BLOCK) == ()
    assert {s.axis for s in find_segments(pairs, (), 1.0, ALPHA)} == {"decode"}


def test_p_values_are_fishers_after_holm() -> None:
    pairs = lose(requests(400, np.random.default_rng(2)), lambda p: p.decode == "decode-1" and (p.order or 0) % 5 == 0)
    found = first(pairs)
    table = [[found.hits, found.n - found.hits], [found.rest_hits, found.rest_n - found.rest_hits]]
    assert found.p_value == pytest.approx(scipy_stats.fisher_exact(table, alternative="greater").pvalue)
    assert found.p_value < found.p_adjusted <= ALPHA


# segment_text


@pytest.mark.parametrize(
    ("axis", "value", "of", "text"),
    [
        (
            "concurrency",
            "8 requests or more in flight",
            "lost",
            "Losses sit where there were 8 requests or more in flight: 31 of 120 of the baseline's right answers there",
        ),
        ("order", "questions 301 to 400", "lost", "Losses sit among questions 301 to 400 in order of arrival: 31"),
        ("block", "prompts of k x 16 tokens", "damaged", "Damaged outputs sit in prompts of k x 16 tokens: 31 of 120"),
        ("prompt_tokens", "prompts of 90 tokens", "canary", "Wrong canaries sit in prompts of 90 tokens: 31 of 120"),
        ("prefill", "prefill-1", "error", "Failures sit where prefill-1 did the prefill: 31 of 120 requests there"),
        ("decode", "decode-1", "error", "Failures sit where decode-1 did the decode: 31 of 120 requests there"),
        ("instances", "p0 to d1", "lost", "Losses sit where the KV cache went from p0 to d1: 31"),
        (
            "since_finish",
            "within 2 ms of another request's end",
            "lost",
            "Losses sit in requests that came within 2 ms",
        ),
        ("predecessor", "right after one that failed", "lost", "Losses sit in requests that came right after one that"),
    ],
)
def test_a_sentence(axis: str, value: str, of: str, text: str) -> None:
    segment = Segment(axis, value, of, 31, 120, 0, 280, 1e-9, 3e-8)  # type: ignore[arg-type]
    said = segment_text(segment, 38)
    assert said.startswith(text)
    assert said.endswith(" there, 0 of 280 elsewhere (Fisher exact p < 0.0001, corrected for 38 parts).")
    assert "corrected for all the parts that were looked at" in segment_text(replace(segment, p_adjusted=0.0123))
    assert "p = 0.0123" in segment_text(replace(segment, p_adjusted=0.0123))
