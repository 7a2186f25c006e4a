"""Tasks made for a kind of load or of fault: long prompts, needles, edges of blocks, and tasks that a file states."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.boundaries import fitted
from evals.custom import Custom, custom, fields
from evals.errors import BadParams
from evals.records import Kind
from evals.scorers import NO_SCORER, get_scorer, score
from evals.shapes import Task
from evals.tasks import OPTIONS, build_task
from rig.sim import tokens

QUESTION: Kind = "question"


def start(one: str, other: str) -> str:
    """What two texts begin with alike."""
    return "".join(a for a, _ in itertools.takewhile(lambda ab: ab[0] == ab[1], zip(one, other, strict=False)))


def build(name: str, limit: int = 12, **more: Any) -> Task:
    options = {"questions": "gsm-tiny", **more} if name == "boundaries" else more
    return build_task(name, limit=limit, options=options)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_workload_is_the_same_every_time_and_a_longer_list_begins_with_the_shorter(name: str) -> None:
    whole, some = build(name, 12), build(name, 5)
    assert whole.samples[:5] == some.samples
    assert whole == build(name, 12) and whole.prompt_sha256 != some.prompt_sha256
    assert len({s.sample_id for s in whole.samples}) == len({s.prompt for s in whole.samples}) == 12
    assert {s.kind for s in whole.samples} == {QUESTION}
    assert whole.params["temperature"] == 0.0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("prefill-heavy", {"words": 0}, "words is 0"),
        ("prefill-heavy", {"shared": 1.5}, "shared is 1.5"),
        ("prefill-heavy", {"depths": [1]}, "no option depths; it has words, shared"),
        ("needles", {"depths": []}, "depths are"),
        ("needles", {"depths": [101]}, "depths are"),
        ("needles", {"words": -1}, "words is -1"),
        ("needles", {"questions": "gsm8k"}, "questions is 'gsm8k'"),
        ("boundaries", {"multiples": 0}, "multiples is 0"),
        ("boundaries", {"questions": "mmlu"}, "questions is 'mmlu'"),
        ("gsm-tiny", {"words": 5}, "no option words"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadParams, match=said):
        build_task(name, limit=3, options={"questions": "gsm-tiny", **options} if name == "boundaries" else options)


def test_workloads_have_no_shots_but_questions_with_filler_do() -> None:
    for name in ("prefill-heavy", "needles"):
        with pytest.raises(BadParams, match="drop `shots`"):
            build_task(name, shots=2)
    task = build_task("boundaries", limit=1, shots=3, options={"questions": "gsm-tiny"})
    assert task.samples[0].prompt.count("Question: ") == 4


@given(st.integers(1, 3000), st.floats(0, 1))
@settings(max_examples=30)
def test_prefill_heavy_has_the_words_and_the_share_that_were_asked_for(words: int, shared: float) -> None:
    task = build("prefill-heavy", 3, words=words, shared=shared)
    assert task.scorer == NO_SCORER and task.scorers == (NO_SCORER,)
    prompts = [s.prompt for s in task.samples]
    common = min(len(start(a, b).split()) for a, b in itertools.combinations(prompts, 2))
    for prompt in prompts:
        assert words <= len(prompt.split()) <= words + 40
    assert round(words * shared) <= common + 1
    assert common <= round(words * shared) + 25


def test_prompts_that_share_nothing_part_at_once() -> None:
    prompts = [s.prompt for s in build("prefill-heavy", 20).samples]
    assert max(len(start(a, b)) for a, b in itertools.combinations(prompts, 2)) <= len("Notebook 001")
    assert {p.split("\n\n")[-1] for p in prompts} == {"The notes above tell mainly of"}


@pytest.mark.parametrize("questions", [None, "gsm-tiny"])
def test_needles_lie_where_they_should(questions: str | None) -> None:
    task = build("needles", 50, **({"words": 800} if questions is None else {"questions": questions}))
    assert task.group_by == "depth" and task.canaries == (questions or "needles")
    assert Counter(s.meta["depth"] for s in task.samples) == dict.fromkeys(["0 %", "25 %", "50 %", "75 %", "100 %"], 10)
    places: dict[str, list[float]] = {}
    for sample in task.samples:
        code = get_scorer(task.scorer).target(sample.target_text)
        spoken = " ".join(code) if questions else code
        assert sample.prompt.count(f" is {spoken}.") == 1
        places.setdefault(sample.meta["depth"], []).append(sample.prompt.index(spoken) / len(sample.prompt))
        assert places[sample.meta["depth"]][-1] == pytest.approx(sample.meta["position"])
        assert score(get_scorer(task.scorer), f" {sample.target_text}", "stop", code)[0] == "correct"
        other = f"{(int(code[0]) % 9) + 1}{code[1:]}"
        assert score(get_scorer(task.scorer), f" It is {other}.\n#### {other}", "stop", code)[0] == "wrong"
    assert all(max(places[a]) < min(places[b]) for a, b in pairwise(["0 %", "25 %", "50 %", "75 %", "100 %"]))
    assert max(places["100 %"]) > 0.9


def test_depths_and_words_can_be_chosen() -> None:
    task = build("needles", 4, words=100, depths=[10, 90])
    assert [s.meta["depth"] for s in task.samples] == ["10 %", "90 %"] * 2
    assert all(100 < len(s.prompt.split()) < 300 for s in task.samples)


def simulated(text: str) -> int:
    return len(tokens.split(text))


def by_threes(text: str) -> int:
    """Tokens of three characters whatever they are: what stands before moves all that follows."""
    return -(-len(text) // 3)


def by_bytes(text: str) -> int:
    return len(text.encode()) + 1


@pytest.mark.parametrize("count", [simulated, by_threes, by_bytes])
@pytest.mark.parametrize("block", [16, 528])
async def test_prompts_end_at_blocks_and_beside_them(count: Callable[[str], int], block: int) -> None:
    async def counted(text: str) -> int:
        return count(text)

    task = build("boundaries", 24, multiples=2)
    assert task.edges is not None and task.group_by == "offset" and task.canaries == "gsm-tiny"
    ready = await fitted(task, counted, block, None)
    assert ready.edges is None and ready.prompt_sha256 != task.prompt_sha256
    assert ready == await fitted(task, counted, block, None)
    for i, (bare, sample) in enumerate(zip(task.samples, ready.samples, strict=True)):
        length = count(sample.prompt)
        assert length == sample.meta["prompt_tokens"] == sample.meta["k"] * block + int(sample.meta["offset"])
        assert int(sample.meta["offset"]) == (-1, 0, 1)[i % 3]
        assert sample.prompt.endswith(bare.prompt) and sample.prompt != bare.prompt
        assert (sample.sample_id, sample.target_text) == (bare.sample_id, bare.target_text)
        assert 12 - 1 <= length - count(bare.prompt) <= 3 * block + 12
    assert len({s.meta["k"] for s in ready.samples}) > 1


async def test_a_prompt_that_the_server_cannot_take_is_refused() -> None:
    async def counted(text: str) -> int:
        return simulated(text)

    with pytest.raises(BadParams, match="raise max-model-len"):
        await fitted(build("boundaries", 24), counted, 528, 600)


async def test_a_tokenizer_that_cannot_make_a_length_is_said() -> None:
    async def in_pairs(text: str) -> int:
        return 2 * simulated(text)

    with pytest.raises(BadParams, match="no filler makes boundary-0000"):
        await fitted(build("boundaries", 1), in_pairs, 16, None)


ROWS = tuple({"question": f"What is {n}{{}}?", "answer": f"#### {n}"} for n in range(6))
STATED = Custom("sums", "2", "robust", ROWS, "Q: {question}\nA:", "Q: {question}\nA: {answer}\n\n", ROWS[4:], 1)


def test_a_stated_task_is_built_like_the_others() -> None:
    task = build_task("x", stated=STATED, limit=3)
    assert (task.name, task.version, task.scorer) == ("sums", "2", "robust")
    assert set(task.scorers) == {"robust", "gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm"}
    assert [s.sample_id for s in task.samples] == ["sums-0000", "sums-0001", "sums-0002"]
    assert task.samples[1].prompt == "Q: What is 4{}?\nA: #### 4\n\nQ: What is 1{}?\nA:"
    assert build_task("x", stated=STATED, shots=0).samples[1].prompt == "Q: What is 1{}?\nA:"
    with pytest.raises(BadParams, match="3 shots; the file has 2 examples"):
        custom(STATED, None, 3)
    with pytest.raises(BadParams, match="no option words"):
        build_task("x", stated=STATED, options={"words": 3})


def test_fields_are_plain_names() -> None:
    assert fields("{a} {{b}} {c}{a}") == ["a", "c", "a"]
    for text in ("{a.b}", "{a[0]}", "{}", "{0}", "{a!r}", "{a:>5}", "{a", "}"):
        with pytest.raises(ValueError, match=r"."):
            fields(text)
