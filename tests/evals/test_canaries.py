"""Canaries: codes that cannot be taken for one another, prompts that state them once, and how answers are read."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals.canaries import (
    ANSWER_TOKENS,
    DISTANCE,
    MOST,
    TINY_CHARACTERS,
    Canary,
    canary_params,
    check,
    default_count,
    make_canaries,
    mix,
    read_code,
)
from evals.canary_text import EXAMPLE_CODES, EXAMPLES
from evals.errors import BadParams
from evals.tasks import TASK_NAMES, Endpoint, build_task
from evals.tiny_hybrid.problems import split_of

PARAMS = {"max_tokens": 96, "temperature": 0.0, "stop": ["\n\n", "Question:"]}
SALTS = st.text(max_size=12)
NAMES = st.sampled_from(TASK_NAMES)


def make(name: str, count: int, salt: str = "cell/0", lengths: list[int] | None = None) -> list[Canary]:
    return make_canaries(name, count, salt, PARAMS, "completions", lengths)


def apart(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def near(code: str) -> str:
    """The code with its last two digits changed."""
    return code[:-2] + "".join(str((int(digit) + 1) % 10) for digit in code[-2:])


@settings(max_examples=25)
@given(NAMES, SALTS)
def test_codes_of_a_list_are_far_apart(name: str, salt: str) -> None:
    canaries = make(name, 100, salt)
    assert all(apart(one.code, other.code) >= DISTANCE for one, other in combinations(canaries, 2))
    digits = 6 if name == "gsm-tiny" else 8
    for canary in canaries:
        assert len(canary.code) == digits and canary.code.isdigit() and canary.code[0] != "0"
        assert name != "gsm-tiny" or len(set(canary.code)) == digits


@given(NAMES, SALTS, st.integers(0, 12), st.integers(0, 12))
def test_a_longer_list_begins_with_the_shorter(name: str, salt: str, short: int, more: int) -> None:
    assert make(name, short + more, salt)[:short] == make(name, short, salt)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_codes_come_from_salt_and_index_alone(name: str) -> None:
    plain = [c.code for c in make(name, 20)]
    assert plain == [c.code for c in make(name, 20, lengths=[7])]
    assert plain == [c.code for c in make_canaries(name, 20, "cell/0", {"max_tokens": 9}, "chat")]
    other = [c.code for c in make(name, 20, "cell/1")]
    assert not set(plain) & set(other)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_most_canaries_can_be_made(name: str) -> None:
    canaries = make(name, MOST)
    assert [c.sample.sample_id for c in canaries] == [f"canary-{i:04d}" for i in range(MOST)]
    assert {c.sample.kind for c in canaries} == {"canary"}


@given(SALTS)
def test_a_tiny_prompt_states_one_code_once_among_training_problems(salt: str) -> None:
    for canary in make("gsm-tiny", 12, salt):
        prompt, spaced = canary.sample.prompt, " ".join(canary.code)
        assert prompt.count("The code of") == 1 == prompt.count(f" is {spaced}.\n\n")
        assert canary.code not in prompt
        name = prompt.split("The code of ")[1].split(" ")[0]
        assert prompt.endswith(f"Question: What is the code of {name}?\nAnswer:")
        assert canary.sample.target_text == f"The code of {name} is {spaced}.\n#### {canary.code}"
        assert prompt[round(canary.position * len(prompt)) :].startswith(spaced)
        questions = [part.split("\nAnswer:")[0] for part in prompt.split("Question: ")[1:-1]]
        assert 2 <= len(questions) == len(set(questions)) <= 12
        assert {split_of(question) for question in questions} == {"train"}
        assert len(prompt) <= TINY_CHARACTERS + 100


@given(SALTS)
def test_other_prompts_show_examples_whose_codes_are_nobodys(salt: str) -> None:
    for canary in make("gsm8k", 12, salt):
        prompt = canary.sample.prompt
        assert prompt.count("Question: ") == EXAMPLES + 1 == prompt.count("\nAnswer:")
        assert prompt.count(canary.code) == 1 and prompt.endswith("?\nAnswer:")
        assert prompt.index(canary.code) == round(canary.position * len(prompt)) > prompt.rindex("Question: ")
        assert sum(prompt.count(code) == 3 for code in EXAMPLE_CODES) == EXAMPLES
        asked = prompt.split("What is the code of ")[-1].split("?")[0]
        assert prompt.count(f"The code of {asked} is {canary.code}.") == 1 == prompt.count(f"of {asked} is")
        assert canary.sample.target_text == f"The code of {asked} is {canary.code}.\n#### {canary.code}"
    assert all(code[0] == "0" for code in EXAMPLE_CODES)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_lengths_and_positions_spread_and_are_the_same_for_every_salt(name: str) -> None:
    canaries = make(name, 100)
    lengths = sorted(len(c.sample.prompt) for c in canaries)
    assert lengths[-1] > 3 * lengths[0] and len(set(lengths)) > 80
    places = sorted(
        (c.sample.prompt.count("Question: ", 0, round(c.position * len(c.sample.prompt)))) for c in canaries
    )
    assert places[0] == (0 if name == "gsm-tiny" else EXAMPLES + 1)
    assert max(c.position for c in canaries) > 0.9 and len({round(c.position, 1) for c in canaries}) > 6
    # Words differ in length, so equal shapes are equal in about as many characters.
    for one, other in zip(canaries, make(name, 100, "cell/1"), strict=True):
        assert 0.5 < len(one.sample.prompt) / len(other.sample.prompt) < 2


def test_given_lengths_are_taken_in_turn() -> None:
    shots = [c.sample.prompt.count("Question: ") - 1 for c in make("gsm-tiny", 6, lengths=[2, 5])]
    assert shots == [2, 5] * 3
    sizes = [len(c.sample.prompt.split()) for c in make("gsm8k", 6, lengths=[0, 500])]
    assert all(480 < long - short < 540 for short, long in zip(sizes[::2], sizes[1::2], strict=True))


@pytest.mark.parametrize(
    ("name", "count", "lengths", "said"),
    [
        ("gsm8k", -1, None, "-1 asked for"),
        ("gsm8k", MOST + 1, None, f"{MOST + 1} asked for"),
        ("gsm-tiny", 1, [13], "a length of 13; it must be 2 to 12 worked examples"),
        ("gsm8k", 1, [-5], "a length of -5; it must be 0 to 600 words"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, count: int, lengths: list[int] | None, said: str) -> None:
    with pytest.raises(BadParams, match=said):
        make(name, count, lengths=lengths)


@pytest.mark.parametrize(
    ("given", "endpoint", "expected"),
    [
        (PARAMS, "completions", {**PARAMS, "max_tokens": ANSWER_TOKENS}),
        ({"max_tokens": 9}, "completions", {"max_tokens": ANSWER_TOKENS, "temperature": 0.0}),
        ({"temperature": 0.7, "min_tokens": 90}, "completions", {"max_tokens": ANSWER_TOKENS, "temperature": 0.0}),
        ({"max_tokens": 4096, "logprobs": True}, "chat", {"max_tokens": 4096, "logprobs": True, "temperature": 0.0}),
        ({"max_completion_tokens": 9}, "chat", {"max_completion_tokens": ANSWER_TOKENS, "temperature": 0.0}),
    ],
)
def test_parameters_are_the_tasks_with_room_for_the_code(
    given: dict[str, Any], endpoint: Endpoint, expected: dict[str, Any]
) -> None:
    before = dict(given)
    assert canary_params(given, endpoint) == expected and given == before
    assert make_canaries("gsm8k", 1, "", given, endpoint)[0].params == expected


def test_parameters_keep_what_divergence_asks_for() -> None:
    task = build_task("gsm-tiny", limit=1, divergence="logprobs")
    [canary] = make_canaries("gsm-tiny", 1, "", task.params, task.endpoint)
    assert (canary.params["return_token_ids"], canary.params["logprobs"]) == (True, 1)


CODE = make("gsm-tiny", 1)[0].code
A, B, C, D, E, F = list(CODE)
OTHER = make("gsm-tiny", 2)[1].code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f" The code of Ann is {A} {B} {C} {D} {E} {F}.\n#### {CODE}", CODE),
        (f"The code is {OTHER}.\n#### {CODE}", CODE),
        (f"#### {A}{B}{C} {D}{E}{F}", CODE),
        (f"#### {A}{B}{C},{D}{E}{F}.", CODE),
        (f"#### {A}{B}{C}-{D}{E}{F}", CODE),
        (f"#### {A}, {B}, {C}, {D}, {E}, {F}", CODE),
        (f"####{CODE}", CODE),
        (f"#### **{CODE}**\n\nQuestion: What is the code of Ben?\nAnswer: {OTHER}", CODE),
        (f"It is {CODE}.", CODE),
        (f"{CODE}, as stated: {OTHER}", CODE),
        (f"It is 2 times {CODE}", CODE),
        (f"<think>is it {OTHER}?</think>{CODE}", CODE),
        (f"The code of Ann is {CODE}.\n####", CODE),
        (f"#### 42. It is {CODE}", CODE),
        (f"#### {CODE}7", None),
        (f"#### {CODE[:5]}", None),
        (f"#### {A} {B} {C} {D} {E} {F} {A}", None),
        (f"#### {A} {B} {C}\n{D} {E} {F}", None),
        ("I do not know.\n\nQuestion: What?\nAnswer: #### 123456", None),
        ("no digits", None),
        ("", None),
        (None, None),
    ],
)
def test_reading_a_code(text: str | None, code: str | None) -> None:
    assert read_code(make("gsm-tiny", 1)[0], text) == code


@given(NAMES, st.text("0123456789 ,.-#\nQA:", max_size=80))
def test_any_text_gives_a_whole_code_made_of_its_digits_or_none(name: str, text: str) -> None:
    [canary] = make(name, 1)
    code = read_code(canary, text)
    assert code is None or len(code) == len(canary.code)
    assert code is None or code in "".join(c for c in text if c.isdigit())


@pytest.mark.parametrize("name", TASK_NAMES)
def test_what_an_answer_shows(name: str) -> None:
    canaries = make(name, 30)
    owners = {c.code: c.sample.sample_id for c in canaries}
    first, second = canaries[0], canaries[1]
    assert check(first, first.sample.target_text, owners) == ("right", first.code, None)
    assert check(first, second.sample.target_text, owners) == ("crossed", second.code, "canary-0001")
    garbled = f"The code of Ann is {' '.join(second.code)}.\n#### {near(second.code)}"
    assert check(first, garbled, owners) == ("crossed", second.code, "canary-0001")
    assert check(first, f"#### {near(first.code)}", owners) == ("wrong", near(first.code), None)
    assert check(first, "#### 7", owners) == ("wrong", None, None) == check(first, None, owners)


def test_a_code_of_an_earlier_cell_is_crossed_but_a_near_miss_of_ones_own_is_not() -> None:
    first = make("gsm8k", 1)[0]
    [earlier] = make_canaries("gsm8k", 1, "an earlier cell", PARAMS, "completions")
    owners = {earlier.code: "canary-0000", near(first.code): "canary-0009"}
    assert check(first, f"#### {earlier.code}", owners) == ("crossed", earlier.code, "canary-0000")
    assert check(first, f"#### {near(first.code)}", owners) == ("wrong", near(first.code), None)


@settings(max_examples=25)
@given(NAMES, SALTS, st.data())
def test_misread_digits_are_never_another_canarys(name: str, salt: str, data: st.DataObject) -> None:
    canaries = make(name, 100, salt)
    owners = {c.code: c.sample.sample_id for c in canaries}
    canary = data.draw(st.sampled_from(canaries))
    digits = list(canary.code)
    for at in data.draw(st.lists(st.integers(0, len(digits) - 1), min_size=1, max_size=DISTANCE - 1)):
        digits[at] = data.draw(st.sampled_from("0123456789"))
    outcome, answer, crossed_with = check(canary, f"#### {''.join(digits)}", owners)
    assert outcome == ("right" if answer == canary.code else "wrong") and crossed_with is None


@given(st.lists(st.integers(0), max_size=60), st.integers(0, 40), st.integers())
@example([], 3, 0)
@example([1, 2], 0, 0)
def test_mixing_loses_nothing_and_keeps_both_orders(questions: list[int], count: int, seed: int) -> None:
    canaries = [-1 - i for i in range(count)]
    mixed = mix(questions, canaries, seed)
    assert [x for x in mixed if x >= 0] == questions
    assert [x for x in mixed if x < 0] == canaries
    assert mixed == mix(questions, canaries, seed)
    bounds = [k * len(mixed) // count for k in range(count + 1)] if count else []
    for k, (start, end) in enumerate(pairwise(bounds)):
        assert [x for x in mixed[start:end] if x < 0] == [canaries[k]]


def test_places_depend_on_the_seed() -> None:
    orders = Counter(tuple(mix(range(40), [-1, -2], seed)) for seed in range(50))
    assert len(orders) > 25


@pytest.mark.parametrize(
    ("questions", "count"), [(0, 0), (5, 5), (8, 8), (9, 8), (160, 8), (180, 9), (400, 20), (1319, 65), (5000, 100)]
)
def test_default_count(questions: int, count: int) -> None:
    assert default_count(questions) == count
