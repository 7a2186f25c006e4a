"""Labels that differ, and whose come nearest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.matching import Difference, decoding_differences, differ_text, differences, nearest, task_differences
from rig.records import TaskInfo

LABELS = st.dictionaries(st.sampled_from("abcd"), st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=2))
TASK = TaskInfo("gsm8k", "3.0", "p" * 64, "gsm8k-strict", "s" * 64, 400, {"max_tokens": 256, "stop": ["Q"]})


@given(LABELS, LABELS)
def test_labels_differ_where_their_values_do_and_none_is_absent(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = {d.label: (d.candidate, d.baseline) for d in differences(mine, theirs)}
    for name in {*mine, *theirs}:
        pair = (mine.get(name), theirs.get(name))
        same = type(pair[0]) is type(pair[1]) and pair[0] == pair[1]
        assert found.get(name) == (None if same else pair)
    assert {d.label: (d.baseline, d.candidate) for d in differences(theirs, mine)} == found


def test_true_is_not_1_and_nested_values_have_no_order() -> None:
    assert differences({"a": True}, {"a": 1}) == (Difference("a", True, 1),)
    assert differences({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}) == ()


def test_the_nearest_differs_in_the_fewest_labels_and_the_first_of_several_wins() -> None:
    others = {"far": {"a": 2, "b": 2}, "near": {"a": 1, "b": 2}, "as near": {"a": 2, "b": 1}}
    assert nearest({"a": 1, "b": 1}, others) == "near"
    assert nearest({"a": 1}, {}) is None


def test_differences_in_words() -> None:
    found = differences({"async_scheduling": True, "tp": 2}, {"async_scheduling": False})
    assert differ_text(found) == "async_scheduling (on here, off there), tp (2 here, none there)"


@pytest.mark.parametrize(
    ("changed", "labels"),
    [
        ({"version": "2.0"}, ["task version"]),
        ({"scorer_sha256": "t" * 64}, ["task scorer_sha256"]),
        ({"score_reasoning": True}, ["task score_reasoning"]),
        ({"endpoint": "chat"}, ["endpoint"]),
        ({"params": {"max_tokens": 128, "temperature": 0.0, "stop": ["Q"]}}, ["max_tokens", "temperature"]),
        ({"prompt_sha256": "q" * 64}, ["prompt_sha256"]),
        ({"prompt_sha256": "q" * 64, "n": 200}, []),
        ({"params": {**TASK.params, "return_token_ids": True, "logprobs": 1}}, []),
    ],
)
def test_what_makes_two_results_speak_of_different_things(changed: dict[str, Any], labels: list[str]) -> None:
    other = replace(TASK, **changed)
    assert [d.label for d in task_differences(TASK, other)] == labels
    assert [d.label for d in decoding_differences(TASK, other)] == [
        name for name in labels if name in ("endpoint", "max_tokens", "temperature", "stop")
    ]
