"""The scorers that claim to equal another tool's, against that tool; the outcomes; the hashes."""

from __future__ import annotations

import importlib.resources
import itertools
import sys
from typing import Any

import pytest
import regex
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval import filters as _registers_the_filters  # noqa: F401
from lm_eval.api import metrics as _registers_the_metrics  # noqa: F401
from lm_eval.api.registry import get_filter, get_metric

from evals.errors import BadParams, DataError
from evals.scorers import NUMBER_SCORERS, SCORERS, get_scorer, score

NUMBERS = [
    "18", "-18", "+18", "\u221218", "\u201318", "08", "00", "0", "18.", "18..", "5...", "18.0", "18.50", ".5", "1.2.3",
    "1,234", "1,234.50", "1,2,3", ",5", "5,", "1 234", "1\u202f234", "$29.00", "$-5", "-$5", "$1,000", "$", "$$5", "€7",
    "50%", "3/4", "1 1/2", "½", "1e3", "18apples", "18th", "\u0661\u0668", "１８", "1\u0663", "9" * 30,
    "7:30", "x18", "- 5",
]  # fmt: skip
FRAMES = [
    "{}", "#### {}", "Steps.\n#### {}", "####{}", "####  {}", "#### **{}**", "#### {} (see step 2)",
    "#### \\boxed{{{}}}",
    "The answer is {}.", "So 3 + 4 = {} apples in all.", "#### {}\n\nQuestion: and then?\nAnswer: #### 7",
    "#### Step 1: add\n#### {}", "#### $ {}\n", "#### {} dollars, 3 cents", "\n#### {}\n.\n",
]  # fmt: skip
ODD = [
    "", " ", "\n", "no number", "####", "#### ", "#### none", "#### .", "#### ,", "#### -", "#### ...", "$", "$.",
    "..", "-",
    "[invalid]", "#### [invalid]", "18\x00", "#### 18\x00", "\ud800 #### 4", "####\t18", "####\u00a018", "#### 1#### 2",
    "<<3+4=7>>7", "Identify the Question 5", "1-2", "10-5", "-", "--5", "---5", "#### --5", "#### 5-3",
    "Answer: [1, 2]",
    "9" * 4300, "9" * 4301, "#### " + "0" * 50, "x\u0967\u0968", "1\u00b2", "5\u20ac", "A. B. C.", "1.\n2.\n3.",
    "₅", "Ⅷ",
]  # fmt: skip
CORPUS = [frame.format(number) for frame, number in itertools.product(FRAMES, NUMBERS)] + ODD
TARGETS = [
    "Steps.\n#### 18",
    "#### 1,234",
    "a #### b #### -5",
    "#### 29",
    "18",
    "#### 08",
    "#### 7.",
    "$18 is\n#### $18",
]

GSM8K = yaml.safe_load((importlib.resources.files("lm_eval") / "tasks/gsm8k/gsm8k.yaml").read_text())
FILTERS = {
    entry["name"]: get_filter("regex")(**{k: v for k, v in entry["filter"][0].items() if k != "function"})
    for entry in GSM8K["filter_list"]
}
METRIC_OPTIONS = {
    k: v for k, v in GSM8K["metric_list"][0].items() if k not in ("metric", "aggregation", "higher_is_better")
}
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("#### 0123456789.,-$%/=\n()*aQ:\u2212\u0663"), max_size=60),
    st.lists(st.sampled_from([*NUMBERS, "#### ", "####", "Question:", "\n", " ", "answer is "]), max_size=8).map(
        "".join
    ),
)


def lm_eval_outcome(name: str, text: str, answer_text: str) -> tuple[str | None, bool]:
    """What lm-eval's own filter and metric make of a text: the answer or None, and whether it is right."""
    answer = FILTERS[name].apply([[text]], [{}])[0][0]
    result = get_metric("exact_match")(references=[answer_text], predictions=[answer], **METRIC_OPTIONS)
    return (None if answer == "[invalid]" else answer), bool(result["exact_match"])


def agree(name: str, text: str, answer_text: str) -> None:
    scorer = SCORERS[f"gsm8k-{name.split('-')[0]}"]
    answer, right = lm_eval_outcome(name, text, answer_text)
    outcome, ours = score(scorer, text, "stop", scorer.target(answer_text))
    assert ours == answer, (text, answer_text)
    assert (outcome == "correct") == right, (text, answer_text)
    assert (outcome == "unparsed") == (answer is None)


def test_the_corpus_is_large_enough_and_distinct() -> None:
    assert len(set(CORPUS)) >= 600
    assert [f["name"] for f in GSM8K["filter_list"]] == ["strict-match", "flexible-extract"]
    assert GSM8K["metadata"]["version"] == float(SCORERS["gsm8k-strict"].version)


@pytest.mark.parametrize("name", ["strict-match", "flexible-extract"])
def test_equal_to_lm_eval_on_the_corpus(name: str) -> None:
    for text in CORPUS:
        agree(name, text, TARGETS[0])
    for text, target in itertools.product(CORPUS[::7], TARGETS):
        agree(name, text, target)


@settings(max_examples=150)
@given(TEXTS, st.sampled_from(TARGETS))
def test_equal_to_lm_eval_on_random_texts(text: str, target: str) -> None:
    for name in FILTERS:
        agree(name, text, target)


def vllm_value(text: str) -> int | None:
    """What vLLM's script reads: the last run of \\d as the `regex` module means it, as Python reads a literal."""
    runs = regex.findall(r"\d+", text.replace(",", ""))
    if not runs:
        return None
    last = runs[-1]
    plain = last.isascii() and (last[0] != "0" or set(last) == {"0"})
    return int(last) if plain and len(last) <= sys.get_int_max_str_digits() else None


def agree_vllm(text: str, answer_text: str) -> None:
    scorer = SCORERS["gsm8k-vllm"]
    value = vllm_value(text)
    outcome, ours = score(scorer, text, "stop", scorer.target(answer_text))
    assert ours == (None if value is None else str(value)), text
    assert (outcome == "correct") == (value == vllm_value(answer_text)), text
    assert (outcome == "unparsed") == (value is None), text


def test_equal_to_vllm_on_the_corpus() -> None:
    for text, target in itertools.product(CORPUS, ["Steps.\n#### 18", "#### 1,234", "#### -5"]):
        agree_vllm(text, target)
    readings = {text: SCORERS["gsm8k-vllm"].extract(text) for text in ("08", "18.00", "12.50", "-5", "1,2", "1\u0663")}
    assert readings == {"08": None, "18.00": "0", "12.50": "50", "-5": "5", "1,2": "12", "1\u0663": None}


@given(TEXTS)
def test_equal_to_vllm_on_random_texts(text: str) -> None:
    # Digits that are newer than this Python's Unicode are the one known difference; see docs/scoring.md.
    if regex.findall(r"\d", text) == [c for c in text if c.isdecimal()]:
        agree_vllm(text, "#### 18")


@pytest.mark.parametrize("name", ["gsm8k-vllm", "robust"])
def test_a_reference_answer_without_a_number_is_bad_data(name: str) -> None:
    with pytest.raises(DataError, match="no answer"):
        SCORERS[name].target("none")


@given(TEXTS, st.sampled_from([None, "stop", "length", "abort"]))
def test_every_text_has_one_outcome(text: str, finish: str | None) -> None:
    for scorer in SCORERS.values():
        outcome, answer = score(scorer, text, finish, scorer.target("#### 18"))
        if not scorer.judges:
            assert (outcome, answer) == ("unscored", None)
            continue
        assert outcome in ("correct", "wrong", "unparsed", "truncated")
        assert (answer is None) == (outcome in ("unparsed", "truncated"))
        assert (outcome == "truncated") <= (finish == "length")


@pytest.mark.parametrize("name", NUMBER_SCORERS)
@pytest.mark.parametrize(
    ("text", "finish", "outcome"),
    [
        ("a\n#### 18", "length", "correct"),
        ("a\n#### 17", "length", "wrong"),
        ("first we", "length", "truncated"),
        ("first we", "stop", "unparsed"),
        (None, "length", "truncated"),
        ("", None, "unparsed"),
    ],
)
def test_case_27_text_is_scored_first(name: str, text: str | None, finish: str | None, outcome: str) -> None:
    scorer = SCORERS[name]
    assert score(scorer, text, finish, scorer.target("x\n#### 18"))[0] == outcome


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" green\n", "green"),
        ("\n\ngreen.\nQuestion: and now?", "green"),
        ("<think>red\n</think>\ngreen .", "green"),
        ("Green", "Green"),
        ("\n .\n", None),
        ("", None),
    ],
)
def test_first_line_is_the_whole_answer(text: str, answer: str | None) -> None:
    scorer = SCORERS["first-line"]
    assert scorer.extract(text) == answer
    outcome, _ = score(scorer, text, "stop", scorer.target(" green."))
    assert outcome == ("unparsed" if answer is None else "correct" if answer == "green" else "wrong")


def test_case_28_a_scorers_hash_is_its_definition() -> None:
    hashes = {scorer.name: scorer.sha256 for scorer in SCORERS.values()}
    assert len(set(hashes.values())) == len(hashes)
    assert hashes == {s.name: s.sha256 for s in SCORERS.values()}
    one: Any = SCORERS["robust"]
    changed = type(one)(one.name, one.version, (*one.patterns, "x"), one.target, one.extract, one.equal)
    assert changed.sha256 != one.sha256


def test_an_unknown_scorer_names_those_there_are() -> None:
    assert get_scorer("robust").name == "robust"
    with pytest.raises(BadParams, match="gsm8k-strict"):
        get_scorer("gsm9k")
