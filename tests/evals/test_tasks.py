from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals import data as data_module
from evals.errors import BadParams, DataError, EvalError, UnknownTask
from evals.scorers import NUMBER_SCORERS, SCORERS
from evals.tasks import TASK_NAMES, build_task
from evals.tiny_hybrid.problems import distinct, problems, split_of

TINY_SHA256 = "da967db03c6595f967553683bdf6d2f973659cfaae0fd66f110465208adb4116"


def write(folder: Path, train: list[Any], test: list[Any]) -> Path:
    for name, rows in (("train", train), ("test", test)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def row(n: int) -> dict[str, str]:
    return {"question": f"What is {n}?  ", "answer": f"It is {n}.\n#### {n}"}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path, [row(n) for n in range(20)], [row(n) for n in range(100, 108)])


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_task_is_whole(name: str, small: Path) -> None:
    task = build_task(name, data=small, limit=8)
    assert task.name == name and task.endpoint == "completions"
    assert task.scorers[0] == task.scorer and set(task.scorers) == set(NUMBER_SCORERS)
    assert len(task.samples) == 8 == len({s.sample_id for s in task.samples})
    for sample in task.samples:
        assert sample.kind == "question"
        assert sample.prompt.count("Question: ") == 6 and sample.prompt.endswith("\nAnswer:")
        for scorer in task.scorers:
            assert SCORERS[scorer].target(sample.target_text)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_limit_asks_the_first_of_the_same_list(name: str, small: Path) -> None:
    whole, some = build_task(name, data=small, limit=8), build_task(name, data=small, limit=3)
    assert whole.samples[:3] == some.samples
    assert whole.prompt_sha256 != some.prompt_sha256
    assert build_task(name, data=small, limit=3) == some


def test_parameters(small: Path) -> None:
    assert build_task("gsm8k", data=small).params == {
        "max_tokens": 256,
        "temperature": 0.0,
        "stop": ["Question:", "</s>", "<|im_end|>"],
        "seed": 1234,
    }
    assert build_task("gsm8k-vllm", data=small).params == {
        "max_tokens": 256,
        "temperature": 0.0,
        "stop": ["Question", "Assistant:", "<|separator|>"],
        "seed": 42,
    }
    assert build_task("gsm-tiny", limit=1).params == {
        "max_tokens": 96,
        "temperature": 0.0,
        "stop": ["\n\n", "Question:"],
    }
    task = build_task("gsm8k", data=small, max_tokens=9, params={"top_p": 0.9, "seed": None, "temperature": 0.6})
    assert task.params == {
        "max_tokens": 9,
        "temperature": 0.6,
        "top_p": 0.9,
        "stop": ["Question:", "</s>", "<|im_end|>"],
    }
    assert task.prompt_sha256 != build_task("gsm8k", data=small).prompt_sha256


@pytest.mark.parametrize(
    ("divergence", "endpoint", "more"),
    [
        ("off", "completions", {}),
        ("tokens", "completions", {"return_token_ids": True}),
        ("tokens", "chat", {"return_token_ids": True}),
        ("logprobs", "completions", {"return_token_ids": True, "logprobs": 1}),
        ("logprobs", "chat", {"return_token_ids": True, "logprobs": True}),
    ],
)
def test_token_ids_and_logprobs_are_asked_for(divergence: Any, endpoint: Any, more: dict[str, Any]) -> None:
    plain = build_task("gsm-tiny", limit=1, endpoint=endpoint)
    task = build_task("gsm-tiny", limit=1, endpoint=endpoint, divergence=divergence)
    assert task.params == {**plain.params, **more}
    assert task.prompt_sha256 == plain.prompt_sha256


def test_parameters_win_over_what_divergence_asks_for() -> None:
    task = build_task("gsm-tiny", limit=1, divergence="logprobs", params={"logprobs": 5, "return_token_ids": None})
    assert task.params["logprobs"] == 5 and "return_token_ids" not in task.params


def test_chat_sends_no_stop_words_of_its_own(small: Path) -> None:
    task = build_task("gsm8k", data=small, endpoint="chat")
    assert task.endpoint == "chat" and "stop" not in task.params
    assert build_task("gsm8k", data=small, endpoint="chat", params={"stop": ["x"]}).params["stop"] == ["x"]


def test_deciding_scorers() -> None:
    assert build_task("gsm-tiny", limit=1).scorer == "gsm8k-strict"


def test_shots(small: Path) -> None:
    lm_eval, vllm = (build_task(n, data=small, shots=3) for n in ("gsm8k", "gsm8k-vllm"))
    heads = [s.prompt.rsplit("Question: ", 1)[0] for s in lm_eval.samples]
    assert len(set(heads)) == len(heads)
    assert {s.prompt.rsplit("Question: ", 1)[0] for s in vllm.samples} == {
        "".join(f"Question: {row(n)['question']}\nAnswer: {row(n)['answer']}\n\n" for n in range(3))
    }
    assert build_task("gsm8k", data=small, shots=0).samples[0].prompt == "Question: What is 100?  \nAnswer:"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"shots": -1}, "shots is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"params": {"stream": True, "n": 2}}, "n, stream"),
        ({"limit": 10**6}, "there are"),
        ({"limit": 10**6 + 1}, "limit is 1000001; it must be 1 to 1000000"),
        ({"shots": 1001}, "shots is 1001; it must be 0 to 1000"),
        ({"max_tokens": 10**30}, "it must be 1 to 10000000"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadParams, match=said):
        build_task("gsm-tiny", **options)


def test_an_unknown_task_names_those_there_are() -> None:
    with pytest.raises(UnknownTask, match="gsm8k, gsm8k-vllm, gsm-tiny"):
        build_task("mmlu")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"question": "q"}, "test.jsonl:2: `answer` is missing"),
        ({"answer": "#### 1"}, "test.jsonl:2: `question` is missing"),
        ({"question": "q", "answer": 5}, "test.jsonl:2: `answer` is not a text"),
        ({"question": " ", "answer": "#### 1"}, "test.jsonl:2: `question` is empty"),
        ({"question": "q", "answer": "no mark 5"}, "test.jsonl:2: `answer` has no `#### number`"),
        ({"question": "q", "answer": "#### none"}, "test.jsonl:2: `answer` has no `#### number`"),
        ('{"question": "\\ud800", "answer": "#### 1"}', "test.jsonl:2: `question` holds half of a surrogate pair"),
        ("[1, 2]", "test.jsonl:2: expected an object with `question` and `answer`, found list"),
        ("{oops", "test.jsonl:2: not JSON"),
    ],
)
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k-vllm"])
def test_bad_data_is_one_line_with_its_place(tmp_path: Path, name: str, bad: Any, said: str) -> None:
    folder = write(tmp_path, [row(n) for n in range(6)], [row(1), bad, row(2)])
    with pytest.raises(DataError) as caught:
        build_task(name, data=folder)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl: no such file; --data must name a folder"):
        build_task("gsm8k", data=tmp_path)
    write(tmp_path, [], [row(1)])
    with pytest.raises(DataError, match=r"train\.jsonl: empty"):
        build_task("gsm8k", data=tmp_path)
    write(tmp_path, [row(1), row(2)], [row(1)])
    with pytest.raises(DataError, match="2 training rows; 5 shots need"):
        build_task("gsm8k", data=tmp_path)
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        build_task("gsm8k", data=tmp_path)
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "train.jsonl").mkdir()
    with pytest.raises(EvalError):
        build_task("gsm8k", data=tmp_path)


def test_the_hub_is_used_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Hub:
        @staticmethod
        def load_dataset(*names: str) -> dict[str, list[dict[str, str]]]:
            asked.append(names)
            return {"train": [row(n) for n in range(9)], "test": [row(50)]}

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    assert build_task("gsm8k").samples[0].target_text == row(50)["answer"]
    assert asked == [("openai/gsm8k", "main")]


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def load_dataset(*names: str) -> None:
            raise ConnectionError("no\nroute")

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    with pytest.raises(DataError, match=r"ConnectionError: no route\); pass --data DIR") as caught:
        build_task("gsm8k-vllm")
    assert "\n" not in str(caught.value)
    assert data_module.HUB_NAME in str(caught.value)


def test_the_tiny_prompts_are_fixed() -> None:
    task = build_task("gsm-tiny")
    assert (len(task.samples), task.prompt_sha256) == (1000, TINY_SHA256)
    assert len({s.prompt for s in task.samples}) == 1000
    questions = [s.prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:") for s in task.samples]
    assert len(set(questions)) == 1000
    assert {split_of(q) for q in questions} == {"test"}
    heads = [s.prompt.rsplit("Question: ", 1)[0] for s in task.samples]
    assert len(set(heads)) == 1000
    shots = {line.removeprefix("Question: ") for head in heads for line in head.splitlines() if "Question: " in line}
    assert {split_of(q) for q in shots} == {"train"}
    for head in heads:
        asked = [line for line in head.splitlines() if line.startswith("Question: ")]
        assert len(asked) == len(set(asked)) == 5


@pytest.mark.parametrize("seed", [0, 1, 7, 20260101, -3])
def test_no_question_of_the_test_split_can_come_in_training(seed: int) -> None:
    held_out = {p.question for p in distinct("test", seed, 2000)}
    generator = problems("train", seed)
    drawn = {next(generator).question for _ in range(5000)}
    assert held_out.isdisjoint(drawn)
    assert {hashlib.sha256(q.encode()).digest()[0] < 26 for q in held_out} == {True}
    assert {hashlib.sha256(q.encode()).digest()[0] < 26 for q in drawn} == {False}


def lm_eval_task(folder: Path, cache: Path) -> Any:
    from lm_eval.api.task import ConfigurableTask

    config = yaml.safe_load((importlib.resources.files("lm_eval") / "tasks/gsm8k/gsm8k.yaml").read_text())
    files = {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}
    config |= {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(cache)},
    }
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    return task


def assert_equal_to_lm_eval(folder: Path, cache: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval.utils
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    # lm-eval compiles its templates anew for every text; the same template is the same text here.
    monkeypatch.setattr(lm_eval.utils.env, "from_string", functools.cache(lm_eval.utils.env.from_string))
    theirs = lm_eval_task(folder, cache)
    theirs.build_all_requests()
    ours = build_task("gsm8k", data=folder)
    assert len(theirs.instances) == len(ours.samples) == count
    client = LocalCompletionsAPI(
        base_url="http://127.0.0.1:1/v1/completions", model="m", tokenizer_backend=None, tokenized_requests=False
    )
    for instance, sample in zip(theirs.instances, ours.samples, strict=True):
        prompt, options = instance.args
        assert sample.prompt == prompt
        assert sample.target_text == instance.doc["answer"]
        payload = client._create_payload(prompt, generate=True, gen_kwargs=json.loads(json.dumps(options)))
        assert payload == {"model": "m", "prompt": prompt, **ours.params}


def test_prompts_equal_lm_evals_on_rows_with_odd_whitespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(n: int) -> dict[str, str]:
        return {"question": f" {n}?\n{{{{x}}}} ", "answer": f"{n} <b> & 'q'\r\n\n#### {n}\n \n"}

    folder = write(tmp_path, [odd(n) for n in range(12)], [odd(n) for n in range(100, 130)])
    assert_equal_to_lm_eval(folder, tmp_path / "cache", 30, monkeypatch)


@pytest.mark.gsm8k
def test_all_prompts_equal_lm_evals(gsm8k_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal_to_lm_eval(gsm8k_folder, tmp_path, 1319, monkeypatch)


@pytest.mark.gsm8k
def test_every_scorer_reads_every_reference_answer_alike(gsm8k_folder: Path) -> None:
    task = build_task("gsm8k-vllm", data=gsm8k_folder)
    assert len(task.samples) == 1319
    first = task.samples[0].prompt.rsplit("Question: ", 1)[0]
    assert all(s.prompt.startswith(first) for s in task.samples)
    for sample in task.samples:
        number = sample.target_text.rsplit("#### ", 1)[1].replace(",", "").strip()
        for name in ("gsm8k-strict", "gsm8k-flexible", "robust"):
            assert SCORERS[name].target(sample.target_text) == number
        assert SCORERS["gsm8k-vllm"].target(sample.target_text) == number.lstrip("-")
        for scorer in map(SCORERS.__getitem__, task.scorers):
            answer = scorer.extract(sample.target_text)
            assert answer is not None and scorer.equal(answer, scorer.target(sample.target_text))
