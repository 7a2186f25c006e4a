"""Files that state a task: what comes of a good one, and the line that a bad one gets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.tasks import build_task
from rig.config import load_config
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.task_file import read_task_file

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "sums",
    "version": "2",
    "scorer": "robust",
    "ask": "Q: {question}\nA:",
    "rows": [{"question": "1 + 1?", "answer": 2}, {"question": "2 + 2?", "answer": "#### 4"}],
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "sums.yaml"
    stated = {**GOOD, **changes}
    path.write_text(yaml.safe_dump({k: v for k, v in stated.items() if v is not None}, sort_keys=False))
    return path


def test_a_file_becomes_a_task(tmp_path: Path) -> None:
    shot = {"shot": "Q: {question}\nA: {answer}\n\n", "shots": 1, "examples": [{"question": "3 + 3?", "answer": 6}]}
    found = read_task_file(write(tmp_path, **shot, params={"max_tokens": 8, "stop": ["Q:"]}))
    task = build_task("", stated=found.task)
    assert [s.prompt for s in task.samples] == [
        "Q: 3 + 3?\nA: 6\n\nQ: 1 + 1?\nA:",
        "Q: 3 + 3?\nA: 6\n\nQ: 2 + 2?\nA:",
    ]
    assert [s.target_text for s in task.samples] == ["2", "#### 4"]
    assert task.params == {"temperature": 0.0, "max_tokens": 8, "stop": ["Q:"]}
    assert (task.name, task.version, task.scorer) == ("sums", "2", "robust")


def test_rows_in_a_file_of_their_own_are_part_of_the_hash(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in GOOD["rows"])
    (tmp_path / "rows.jsonl").write_text(lines)
    path = write(tmp_path, rows=None, rows_file="rows.jsonl")
    found = read_task_file(path)
    assert found.task.rows == read_task_file(write(tmp_path / "..", name="sums")).task.rows
    assert read_task_file(path) == found
    (tmp_path / "rows.jsonl").write_text(lines.replace("1 + 1", "1 + 2"))
    assert read_task_file(path).sha256 != found.sha256


def test_questions_without_an_answer_need_none(tmp_path: Path) -> None:
    found = read_task_file(write(tmp_path, scorer="none", rows=[{"question": "why?"}]))
    task = build_task("", stated=found.task)
    assert (task.scorers, task.samples[0].target_text) == (("none",), "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scorer": "robsut"}, 'sums.yaml: scorer: no scorer is called "robsut"; did you mean "robust"? (line 3)'),
        ({"prompts": 3}, "sums.yaml: prompts: unknown key"),
        ({"version": 2}, "sums.yaml: version: expected text, got 2 (line 2)"),
        ({"version": None}, "sums.yaml: version: is required"),
        ({"rows": None}, "give either `rows`, in this file, or `rows_file`"),
        ({"rows": []}, "sums.yaml: rows: must not be empty"),
        ({"rows_file": "x.jsonl"}, "give either `rows`, in this file, or `rows_file`"),
        ({"rows": [{"question": "?"}]}, "sums.yaml: rows[0]: has no `answer`; it has question (line 8)"),
        ({"rows": [{"answer": "1"}]}, "sums.yaml: rows[0]: has no `question`; it has answer"),
        ({"rows": [{"question": "?", "answer": "x"}]}, "rows[0]: `answer` is nothing that robust can read"),
        ({"rows": [{"question": True, "answer": "1"}]}, "sums.yaml: rows[0].question: expected text, got true"),
        ({"ask": "{question.x}"}, "sums.yaml: ask: `{question.x}` is not a field's name in braces"),
        ({"ask": "{question}{answer}"}, "sums.yaml: ask: gives the answer away"),
        ({"ask": ""}, "sums.yaml: ask: must not be empty"),
        ({"shots": 1}, "sums.yaml: shots: 1 shots; there are 0 examples"),
        ({"examples": [{"question": "?", "answer": "1"}]}, "the examples belong together"),
        ({"shot": "{question}"}, "the examples belong together"),
        ({"shot": "{hint}", "examples": [{"question": "?"}]}, "sums.yaml: examples[0]: has no `hint`"),
        ({"params": {"stream": True}}, "sums.yaml: params: stream cannot be set here"),
        ({"rows": None, "rows_file": "none.jsonl"}, "none.jsonl cannot be read: No such file"),
    ],
)
def test_a_mistake_is_one_line_that_says_where_and_what(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_task_file(write(tmp_path, **changes))
    line = str(caught.value)
    assert said in line and "\n" not in line


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "is empty; expected one JSON object a line"),
        ("[1]\n", "rows.jsonl:1: expected a JSON object"),
        ('{"question": "?", "answer": [1]}\n', "rows.jsonl:1: `answer`: expected text or a number, got [1]"),
        ('{"question": "?"}\n', "rows.jsonl:1: has no `answer`; it has question"),
        ('{"question": "?", "answer": 1}\n{"quest', "its last line does not end"),
    ],
)
def test_a_mistake_in_the_rows_names_their_file_and_line(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "rows.jsonl").write_text(lines)
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_task_file(write(tmp_path, rows=None, rows_file="rows.jsonl"))


def test_a_task_file_that_is_not_there_is_told_by_the_sweep_file_and_its_key(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    asked = yaml.safe_load((ROOT / "configs" / "sim.yaml").read_text())
    asked["tasks"]["gsm-tiny"] = {"task": {"file": "gone.yaml"}}
    sweep.write_text(yaml.safe_dump(asked, sort_keys=False))
    line = next(n for n, text in enumerate(sweep.read_text().splitlines(), 1) if "gone.yaml" in text)
    for there, said in ((None, "no such file"), (b"\xff", "not a UTF-8 text file")):
        if there is not None:
            (tmp_path / "gone.yaml").write_bytes(there)
        with pytest.raises(ConfigError) as caught:
            load_config(sweep)
        where = f"{sweep}: tasks.gsm-tiny.task.file: {tmp_path / 'gone.yaml'}"
        assert str(caught.value) == f"{where}: {said}; name another task file (line {line})"


def test_a_sweep_names_the_file_and_its_plan_says_what_was_in_it(tmp_path: Path) -> None:
    sweep = yaml.safe_load((ROOT / "configs" / "sim.yaml").read_text())
    sweep["tasks"]["gsm-tiny"] = {"task": {"file": "sums.yaml"}, "limit": 1}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(ConfigError, match=r"sums\.yaml: no such file"):
        load_config(tmp_path / "sweep.yaml")
    path = write(tmp_path)
    plan = plan_sweep(load_config(tmp_path / "sweep.yaml"), Machine(gpus=(), hostname="a"))
    tasks = {(c.task.label, c.task.name, c.task.file, c.task.file_sha256) for c in plan.cells}
    assert tasks == {("gsm-tiny", "sums", str(path), read_task_file(path).sha256)}


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"task": {"path": "x"}}, "tasks.gsm-tiny.task: expected a task's name, or `file:` with the path"),
        ({"task": 5}, "tasks.gsm-tiny.task: expected a task's name (gsm8k, gsm8k-vllm, gsm-tiny, prefill-heavy"),
        ({"task": "gsm-tiny", "words": 5}, "`words` is an option of prefill-heavy, needles; drop it"),
        ({"task": "needles", "depths": [200]}, "depths[0]: expected per cent of the filler, 0 to 100, got 200"),
        ({"task": "prefill-heavy", "shared": 2.0}, "shared: expected a number from 0 to 1, got 2.0"),
        ({"task": "boundaries", "questions": "x"}, "questions: expected 'gsm8k', 'gsm8k-vllm' or 'gsm-tiny', got"),
    ],
)
def test_options_belong_to_their_tasks(tmp_path: Path, task: dict[str, Any], said: str) -> None:
    sweep = yaml.safe_load((ROOT / "configs" / "sim.yaml").read_text())
    sweep["tasks"]["gsm-tiny"] = task
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "sweep.yaml")
    assert said in str(caught.value)


def test_the_shipped_task_is_what_its_script_makes() -> None:
    found = read_task_file(ROOT / "configs" / "tasks" / "ledger.yaml").task
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_ledger.py")], capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(found.rows)
    assert len(found.rows) == len({row["question"] for row in (*found.rows, *found.examples)}) - len(found.examples)
    for row in (*found.rows, *found.examples):
        asked = re.findall(r"to the (\w+) on (\w+)", row["question"])
        counts = [int(re.search(rf"^{day}, {place}: (\d+) ", row["table"], re.M)[1]) for place, day in asked]  # type: ignore[index]
        assert len(counts) == 2 and row["answer"].endswith(f"\n#### {sum(counts)}")
