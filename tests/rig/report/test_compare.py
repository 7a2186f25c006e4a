"""What `pdrig compare` prints, to the letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rig.compared import Compared, Held, SideSummary, Unmatched
from rig.matching import Difference
from rig.records import Accuracy, Comparison, Counts, Gates, Percentiles, Ratio, Reason, State, Throughput, Verdict
from rig.report.compare import format_compare_json, format_compare_markdown, format_compare_table, headline

GOLDEN = Path(__file__).parent / "golden"


def side(name: str, correct: int, ttft: float, **fields: Any) -> SideSummary:
    folder = f"runs/{name.replace(':', '/cells/')}"
    given: dict[str, Any] = {
        "file": f"{folder}/cell.json",
        "judged_file": f"{folder}/judged.jsonl",
        "labels": {"async_scheduling": "on" in name},
        "kind": "pd",
        "state": "pass",
        "asked": 400,
        "accuracy": Accuracy("gsm8k-strict", correct / 400, (0.9, 1.0)),
        "counts": Counts(correct, 398 - correct, 0, 0, {"reset": 2}),
        "latency_ms": {"ttft": Percentiles(ttft, 2 * ttft, 3 * ttft, ttft)},
        "throughput": Throughput(7.5, 812.0, None, 41153, 50.0),
    }
    return SideSummary(name=name, **(given | fields))


def verdict(state: State, channel: Any, text: str) -> Verdict:
    return Verdict(state, (Reason(channel, text, "outcomes of both sides: the files are named below"),))


RATIO = Ratio("ttft_p50", 1.25, (1.21, 1.3), 400, 400, gate=1.2, p_value=0.001)
PASS = Held(
    side("new:pd-off", 390, 12.0),
    side("old:pd-off", 391, 12.0),
    shared=400,
    gates=Gates(),
    comparison=Comparison("old", -0.0025, (-0.0158, 0.0095), 0.5, 2, 1, 398, 0.018, 0.99, upper_drop=0.0121),
    verdict=verdict("pass", "accuracy", "No worse by 2.00 points."),
)
WORSE = Held(
    side("new:pd-on", 350, 15.0),
    side("old:pd-off", 391, 12.0),
    differences=(Difference("async_scheduling", True, False),),
    shared=400,
    gates=Gates(),
    comparison=Comparison(
        "pd-off", -0.1, (-0.135, -0.07), 1e-9, 42, 2, 398, 0.03, 0.9, upper_drop=0.13, ratios=(RATIO,)
    ),
    verdict=verdict("regression", "accuracy", "Accuracy is worse than on pd-off. " * 6 + "End."),
    notes=("the verdict on old:pd-off in its own run is inconclusive",),
)
REFUSED = Held(
    side("new:pd-tp2", 390, 12.0),
    side("old:pd-tp2", 390, 12.0, file="b/tiny.json", judged_file="b/tiny.json", stored=True),
    refused="other decoding: max_tokens (64 here, 128 there); run one again with the other's `max_tokens`",
)
FOUND = Compared(
    "runs/new",
    "runs/old",
    (PASS, WORSE, REFUSED),
    (
        Unmatched("new:pd-tp4", "candidate", "old:pd-tp2", (Difference("decode_tp", 4, 2),)),
        Unmatched("old:mono", "baseline"),
    ),
)


def test_the_text_is_the_golden_one() -> None:
    assert format_compare_table(FOUND) + "\n" == (GOLDEN / "compare.txt").read_text()
    assert format_compare_markdown(FOUND) == (GOLDEN / "compare.md").read_text()


def test_the_first_line_is_the_verdict_in_words() -> None:
    assert headline(FOUND) == (
        "Worse than the baseline: pd-on. Could not be compared: pd-tp2. "
        "1 cell is shown to be no worse than the baseline by the margin."
    )
    for text in (format_compare_table(FOUND), format_compare_markdown(FOUND), format_compare_json(FOUND)):
        assert "Worse than the baseline: pd-on." in text.split("\n\n")[0]
    better = replace(PASS, verdict=verdict("improved", "accuracy", "Better."))
    open_ = replace(PASS, verdict=verdict("inconclusive", "accuracy", "Open."))
    invalid = replace(PASS, verdict=verdict("invalid", "rig", "No."))
    assert headline(replace(FOUND, held=(better, PASS, open_, invalid))) == (
        "Could not be judged: pd-off. Not decided: pd-off. "
        "2 cells are shown to be no worse than the baseline by the margin; better: pd-off."
    )


def test_json_reads_back_as_what_it_was_made_from() -> None:
    whole = json.loads(format_compare_json(FOUND))
    assert whole.pop("headline") == headline(FOUND)
    assert TypeAdapter(Compared).validate_python(whole) == FOUND


def test_what_is_not_known_is_a_dash_and_a_stored_side_has_a_bare_quotient() -> None:
    bare = replace(PASS.baseline, throughput=None, latency_ms={}, accuracy=None, counts=None)
    text = format_compare_table(replace(FOUND, held=(replace(PASS, baseline=bare),)))
    assert "pd-off  TTFT p50, ms     12.0        -      -             -" in text
    assert "output tokens/s  812         -      -             -" in text
    stored = replace(WORSE.baseline, stored=True, file="b.json", judged_file="b.json")
    assert WORSE.comparison is not None
    held = replace(WORSE, baseline=stored, comparison=replace(WORSE.comparison, ratios=()))
    text = format_compare_table(replace(FOUND, held=(held,)))
    assert [line.split()[-2:] for line in text.splitlines() if "TTFT" in line] == [["1.250", "-"]] * 2
    assert "pd-on, there: b.json\n" in text + "\n"


def test_a_narrow_terminal_gets_the_same_facts_below_one_another() -> None:
    text = format_compare_table(FOUND, width=60)
    assert max(map(len, text.split("Files")[0].splitlines())) <= 80
    for fact in ("here: pd-on", "change, points [95 %]: -10.00 [-13.50, -7.00]", "right only there/here: 42/2"):
        assert fact in text


def test_colour_is_only_where_it_is_asked_for() -> None:
    assert "\x1b[31mregression\x1b[0m" in format_compare_table(FOUND, color=True)
    assert "\x1b" not in format_compare_table(FOUND)
