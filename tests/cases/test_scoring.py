"""Cases 25 to 27: what answers mean, from texts and from an engine that gives them. Case 28: test_sweeps.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from evals.scorers import get_scorer, score

GSM8K = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")

TEXTS = [
    (25, "18 - 0 = 18.\n#### 18\n\nQuestion: Tom has 3 pens and buys 4 more. How many?\nAnswer: 7.\n#### 7", "18"),
    (26, "#### $29.00", "29"),
    (26, "#### $1,234.50", "1234.5"),
    (26, "#### 08", "8"),
    (26, "The answer is 5...", "5"),
    (26, "#### 5...", "5"),
    (26, "#### -12", "-12"),
    (26, "#### \u221212", "-12"),
    (26, "#### 18 (see step 2)", "18"),
    (27, "First I identify the Question. Then 3 + 4 = 7.\n#### 7", "7"),
]


@pytest.mark.parametrize(("case", "text", "answer"), TEXTS)
def test_case_25_to_27_the_number_that_is_meant(case: int, text: str, answer: str) -> None:
    robust = get_scorer("robust")
    assert score(robust, text, "stop", robust.target(f"#### {answer}")) == ("correct", answer)
    assert score(robust, text, "stop", robust.target("#### 6"))[0] == "wrong"


def test_case_25_the_deciding_scorer_takes_the_first_mark() -> None:
    strict = get_scorer("gsm8k-strict")
    assert score(strict, TEXTS[0][1], "stop", strict.target("#### 18")) == ("correct", "18")


@pytest.mark.parametrize("name", GSM8K)
def test_case_27_cut_by_length_without_an_answer(name: str) -> None:
    scorer = get_scorer(name)
    target = scorer.target("#### 18")
    assert score(scorer, "We begin by", "length", target) == ("truncated", None)
    assert score(scorer, "We begin by", "stop", target) == ("unparsed", None)
    assert score(scorer, "#### 18 and so", "length", target)[0] == "correct", "a text is scored first"


SAID = {
    "What does the pair cost?": ("29", "It costs $29.00.\n#### $29.00"),
    "What is owed?": ("1,234.50", "The debt is $1,234.50.\n#### $1,234.50"),
    "How many eggs?": ("8", "There are 08.\n#### 08"),
    "How many hens?": ("18", "See step 2 for the hens.\n#### 18 (see step 2)"),
    "How far?": ("7", "Identify the Question first. Then 3 + 4 = 7.\n#### 7"),
}
"""Questions with the answer of the data and with what the engine says."""


@pytest.fixture(scope="module")
def answers(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine that answers questions of its own spelling; gives a function that evaluates a task on it."""
    folder = tmp_path_factory.mktemp("scoring")
    shots = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}.\n#### {n + 1}"} for n in range(5)]
    data = {"train": shots, "test": [{"question": q, "answer": f"So.\n#### {a}"} for q, (a, _) in SAID.items()]}
    engine = {"train": shots, "test": [{"question": q, "answer": text} for q, (_, text) in SAID.items()]}
    for name, files in (("data", data), ("engine", engine)):
        for split, rows in files.items():
            path = folder / name / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep = kit.template()
    sweep["engines"]["sim"]["env"]["PDRIG_SIM_DATA"] = str(folder / "engine")
    plan = next(d for d in kit.planned(sweep, folder).deployments if d.kind == "monolithic")

    def evaluate(task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """cell.json, and the judged records in the order of the questions."""
        out = folder / task
        url = plan.servers[0].url
        command = [sys.executable, "-m", "rig", "eval", url, "--task", task, "--data", str(folder / "data")]
        done = subprocess.run(
            [*command, "--out", str(out)], cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        judged = sorted(kit.rows(out / "judged.jsonl"), key=lambda row: row["sample_id"])
        return json.loads((out / "cell.json").read_text()), judged

    with kit.engines(plan, folder):
        yield evaluate


def test_case_26_numbers_as_people_write_them(answers: Any) -> None:
    cell, judged = answers("gsm8k")
    assert [row["by_scorer"]["robust"] for row in judged] == ["correct"] * len(SAID)
    assert cell["accuracy"]["scorer"] == "gsm8k-strict" and cell["accuracy"]["by_scorer"]["robust"] == 1.0
    assert [row["outcome"] for row in judged] == ["unparsed", "unparsed", "wrong", "correct", "correct"], (
        "lm-eval's strict pattern knows no currency and no leading zero, and this scorer equals it"
    )


def test_case_27_a_bare_stop_word_within_an_answer(answers: Any) -> None:
    """vLLM's own harness stops at `Question`: the task that equals it loses this answer, as unparsed, not as wrong."""
    _, judged = answers("gsm8k-vllm")
    assert (judged[-1]["outcome"], judged[-1]["answer"]) == ("unparsed", None)
    assert set(judged[-1]["by_scorer"].values()) == {"unparsed"}
