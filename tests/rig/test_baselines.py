"""Stored baselines: what is saved, what is refused, what a change says, and which one fits a cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import baselines
from rig.baselines import BaselineFile
from rig.errors import DataError, UsageError
from rig.records import Sequential
from rig.report.baselines import format_list, format_show
from rig.saving import save
from rig.store import RunFolder

StoreRun = Callable[..., RunFolder]

ASYNC = {"labels": {"async_scheduling": True}}


def saved(run: RunFolder, out: Path, glob: str | None = None) -> list[str]:
    return [said.text for said in save(run, out, glob)]


def file_of(out: Path) -> BaselineFile:
    return baselines.read(out / "tiny.math.json")


def test_a_run_is_saved_as_one_file_a_model_and_task(store_run: StoreRun, tmp_path: Path) -> None:
    other = {"labels": {"model": "org/Big 1.5"}}
    run = store_run("r1", {"mono": {"wrong": {3}}, "pd": {"wrong": {3, 5}, "failed": {7}}, "pd-big": other})
    out = tmp_path / "b"
    assert saved(run, out) == [
        f"{out}/org_Big_1_5.math.json: pd-big: new: accuracy 1.0000, n 200",
        f"{out}/tiny.math.json: mono: new: accuracy 0.9950, n 200",
        f"{out}/tiny.math.json: pd: new: accuracy 0.9899, n 200",
    ]
    file = file_of(out)
    mono, pd = file.baselines
    assert (mono.verdict, pd.verdict) == (None, "pass")
    assert pd.missed == {"wrong": ["q0003", "q0005"], "unparsed": [], "truncated": [], "error": ["q0007"]}
    assert file.questions["q0009"] == "a" + "9".rjust(63, "0") and len(file.questions) == 200
    result = run.read_cell("pd")
    assert result is not None and file.task_info(pd) == result.task
    judged = {j.sample_id: j.outcome for j in run.read_judged("pd")}
    assert pd.outcomes(file.questions) == judged
    assert pd.machine == {"machine": "x86_64", "cpus": 2, "gpus": [], "environment": {}}
    assert (pd.origin.run, pd.origin.cell, pd.origin.argv) == ("r1", "pd", ["pdrig", "sweep", "x.yaml"])
    assert pd.latency_ms["ttft"].p50 == pytest.approx(result.latency_ms["ttft"].p50, abs=1e-6)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"status": "interrupted"}, "it was interrupted: finish the run with `pdrig sweep --resume`"),
        ({"status": "failed", "state": "failed"}, "it failed"),
        ({"state": "failed"}, "it failed"),
        ({"status": "invalid", "state": "invalid"}, "its verdict is invalid"),
        ({"state": "invalid"}, "its verdict is invalid"),
        ({"state": "regression"}, "its verdict is regression: only pass, improved, and sound monolithic cells"),
        ({"state": "inconclusive"}, "its verdict is inconclusive"),
        ({"state": "no_baseline"}, "its verdict is no_baseline"),
        ({"state": "xfail"}, "its verdict is xfail"),
        ({"state": "xpass"}, "its verdict is xpass"),
        ({"sequential": Sequential(120, 400, "pass", 0.1, 30.0)}, "it ran with early_stop"),
        ({"rerun_of": "pd-red"}, "it repeats pd-red, which was red"),
        ({"failed": range(200)}, "it has no accuracy"),
        ({"labels": {"task": None}}, "it has no labels of model and task"),
        ({"task": {"n": 201}}, "its files are damaged: 201 questions, 200 whole records, 200 judged"),
    ],
)
def test_what_cannot_be_a_baseline_is_refused_in_a_line(
    store_run: StoreRun, tmp_path: Path, about: dict[str, Any], words: str
) -> None:
    run = store_run("r1", {"mono": {}, "pd": about})
    refused, stored = save(run, tmp_path / "b")
    assert not refused.saved and stored.saved
    assert refused.text.startswith("pd: not saved: ") and words in refused.text and "\n" not in refused.text
    assert [s.name for s in file_of(tmp_path / "b").baselines] == ["mono"]


def test_a_cut_judged_file_and_one_with_a_torn_line_are_damage(store_run: StoreRun, tmp_path: Path) -> None:
    run = store_run("r1", {"mono": {}, "pd": {}})
    judged = run.cell("pd") / "judged.jsonl"
    judged.write_text("".join(judged.read_text().splitlines(keepends=True)[:-1]))
    assert "its files are damaged" in saved(run, tmp_path / "b")[0]
    judged.write_text("{\n")
    assert "judged.jsonl:1: expected a JSON object" in saved(run, tmp_path / "b")[0]


def test_a_baseline_is_replaced_with_a_word_on_what_changed(store_run: StoreRun, tmp_path: Path) -> None:
    out = tmp_path / "b"
    saved(store_run("r1", {"mono": {}, "pd": {"wrong": {1, 2}}, "pd-async": ASYNC}), out)
    before = (out / "tiny.math.json").read_text()
    again = store_run("r2", {"pd-renamed": {"wrong": {2, 3, 4}, "state": "improved"}})
    assert saved(again, out) == [
        f"{out}/tiny.math.json: pd-renamed: replaced (was from run r1): accuracy 0.9900 -> 0.9850, n 200 -> 200; of "
        "the questions of both, 2 right no more, 1 right now that were not"
    ]
    assert [s.name for s in file_of(out).baselines] == ["mono", "pd-async", "pd-renamed"]
    gone = {line for line in before.splitlines() if '"q' in line}
    now = {line for line in (out / "tiny.math.json").read_text().splitlines() if '"q' in line}
    assert len(gone ^ now) <= 6, "a changed question is a changed line, and no other question is"


def test_the_same_run_gives_the_same_bytes_but_for_when(store_run: StoreRun, tmp_path: Path) -> None:
    run = store_run("r1", {"mono": {"wrong": {1}}, "pd": {}})
    texts = []
    for name in ("b", "c"):
        saved(run, tmp_path / name)
        text = (tmp_path / name / "tiny.math.json").read_text()
        texts.append([line for line in text.splitlines() if '"saved"' not in line])
        assert baselines.dump(file_of(tmp_path / name)) == text
    assert texts[0] == texts[1]


def test_cells_asked_different_numbers_of_questions_share_a_file(store_run: StoreRun, tmp_path: Path) -> None:
    out = tmp_path / "b"
    saved(store_run("r1", {"mono": {"n": 50, "wrong": {3}}, "pd": {"n": 80, "wrong": {60}}}), out)
    file = file_of(out)
    mono, pd = file.baselines
    assert mono.not_asked == [f"q{i:04d}" for i in range(50, 80)] and pd.not_asked == []
    assert len(mono.outcomes(file.questions)) == 50 and pd.outcomes(file.questions)["q0060"] == "wrong"
    saved(store_run("r2", {"mono": {"n": 90}}), out)
    mono, pd = file_of(out).baselines
    assert mono.n == 90 and pd.not_asked == [f"q{i:04d}" for i in range(80, 90)]


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"words": "b"}, "the prompt of q0000 changed"),
        ({"task": {"params": {"max_tokens": 1}}}, "the task, its parameters or its scorer changed"),
        ({"task": {"scorer": "robust"}}, "the task, its parameters or its scorer changed"),
    ],
)
def test_a_baseline_that_stays_is_not_left_behind_with_other_questions(
    store_run: StoreRun, tmp_path: Path, about: dict[str, Any], words: str
) -> None:
    out = tmp_path / "b"
    saved(store_run("r1", {"mono": {}, "pd": {}}), out)
    before = (out / "tiny.math.json").read_text()
    with pytest.raises(UsageError, match=f"tiny.math.json: {words}, and mono would no longer fit: save all of"):
        saved(store_run("r2", {"pd": about}), out)
    assert (out / "tiny.math.json").read_text() == before
    saved(store_run("r3", {"mono": about, "pd": about}), out)
    assert all(s.origin.run == "r3" for s in file_of(out).baselines)


def test_a_glob_chooses_and_one_that_matches_nothing_names_the_cells(store_run: StoreRun, tmp_path: Path) -> None:
    run = store_run("r1", {"mono": {}, "pd": {}})
    assert len(saved(run, tmp_path / "b", "m*")) == 1
    with pytest.raises(UsageError, match=r"no finished cell matches --cell x\*; it has mono, pd"):
        saved(run, tmp_path / "b", "x*")


def test_two_models_whose_labels_give_one_file_name_are_kept_apart(store_run: StoreRun, tmp_path: Path) -> None:
    saved(store_run("r1", {"pd": {"labels": {"model": "a b"}}}), tmp_path / "b")
    with pytest.raises(UsageError, match="the file holds a b and math"):
        saved(store_run("r2", {"pd": {"labels": {"model": "a/b"}}}), tmp_path / "b")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.pop("model"), "model: Field required"),
        (lambda d: d.update(more=1), "more: Unexpected keyword argument"),
        (lambda d: d["baselines"][0].update(tolerance=0.05), "baselines.0.tolerance: Unexpected keyword argument"),
        (lambda d: d.update(schema=9), "schema 9, this version of the rig reads 1"),
        (lambda d: d.update(schema=9, more=1), "schema 9, this version of the rig reads 1"),
        (lambda d: d["questions"].pop("q0001"), "mono: n is 200, its lists say 199 questions"),
        (lambda d: d["baselines"][0]["missed"]["wrong"].append("q9999"), "name q9999, which was not asked"),
    ],
)
def test_a_file_that_was_edited_wrongly_is_named_with_its_key(
    store_run: StoreRun, tmp_path: Path, edit: Callable[[dict[str, Any]], Any], words: str
) -> None:
    saved(store_run("r1", {"mono": {}}), tmp_path / "b")
    path = tmp_path / "b" / "tiny.math.json"
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(DataError) as error:
        baselines.read(path)
    assert str(error.value).startswith(f"{path}: ") and words in str(error.value)


@given(st.lists(st.sampled_from(["correct", "wrong", "unparsed", "truncated", "error"]), max_size=30))
def test_outcomes_survive_being_listed(outcomes: list[Any]) -> None:
    asked = {f"q{i}": outcome for i, outcome in enumerate(outcomes)}
    missed = baselines.missed_of(asked.items())
    stored = replace(TEMPLATE, missed=missed, n=len(asked))
    assert stored.outcomes({**dict.fromkeys(asked, "x"), "other": "x"}) == {**asked, "other": "correct"}
    assert replace(stored, not_asked=["other"]).outcomes({**dict.fromkeys(asked, "x"), "other": "x"}) == asked
    assert all(samples == sorted(samples) for samples in missed.values())


TEMPLATE = baselines.Stored(
    name="pd",
    labels={},
    kind="pd",
    verdict="pass",
    accuracy=baselines.Accuracy("s", 1.0, None),
    n=0,
    prompt_sha256="",
    counts=baselines.Counts(0, 0, 0, 0),
    evidence=baselines.Proof(True, None, None, None, None),
    latency_ms={},
    throughput=None,
    warmup_requests=None,
    gates=baselines.Gates(),
    commands={},
    machine={},
    versions={},
    origin=baselines.Origin("r", "pd", "", "", [], None),
    missed={},
)


def test_the_baseline_that_fits_is_found_and_the_one_that_nearly_does_named(
    store_run: StoreRun, tmp_path: Path
) -> None:
    run = store_run("r1", {"mono": {}, "pd": {}, "pd-async": ASYNC})
    saved(run, tmp_path / "b")
    files = baselines.read_all(tmp_path / "b")
    result = run.read_cell("pd-async")
    assert result is not None and result.task is not None
    fit = baselines.find({**result.labels, "pass": None}, result.task, files)
    assert fit is not None and fit.exact and fit.stored.name == "pd-async"
    assert fit.file == str(tmp_path / "b" / "tiny.math.json")

    near = baselines.find({**result.labels, "decode_tp": 2}, result.task, files)
    assert near is not None and not near.exact and near.stored.name == "pd-async"
    assert [(d.label, d.candidate, d.baseline) for d in near.differences] == [("decode_tp", 2, 1)]

    longer = replace(result.task, params={**result.task.params, "max_tokens": 512})
    decoded = baselines.find(result.labels, longer, files)
    assert decoded is not None and [d.label for d in decoded.differences] == ["max_tokens"]

    fewer = replace(result.task, n=100, prompt_sha256="q" * 64)
    asked = baselines.find(result.labels, fewer, files)
    assert asked is not None and asked.exact, "how many questions were asked does not matter"

    assert baselines.find({**result.labels, "model": "other"}, result.task, files) is None
    assert baselines.find(result.labels, result.task, {}) is None
    assert baselines.read_all(tmp_path / "nowhere") == {}


def test_a_list_and_a_baseline_in_words(store_run: StoreRun, tmp_path: Path) -> None:
    out = tmp_path / "b"
    assert format_list({}, "b") == "b: no baselines; `pdrig baseline save RUN` writes them"
    saved(store_run("r1", {"mono": {}, "pd": {"wrong": {3}}}), out)
    files = baselines.read_all(out)
    path = str(out / "tiny.math.json")
    listed = format_list(files, str(out)).splitlines()
    assert [line.split()[:3] for line in listed[-2:]] == [
        ["tiny.math.json", "mono", "1.000"],
        ["tiny.math.json", "pd", "0.995"],
    ]
    for name in (path, "tiny.math", "tiny.math.json"):
        ((_, _, stored),) = baselines.choose(files, name)
        assert [s.name for s in stored] == ["mono", "pd"]
    ((where, file, stored),) = baselines.choose(files, "pd")
    words = format_show(file, where, stored)
    for text in (
        "tiny, math",
        "task: gsm8k version 3.0, completions, max_tokens 256",
        "pd: pass",
        "of 200 questions (wrong 1, unparsed 0, truncated 0, error 0)",
        "async_scheduling off",
        "from run r1 of 2026-01-31T00:00:00Z, commit cccccccccccc, saved 20",
        "decode-0: vllm serve tiny",
    ):
        assert text in words
    with pytest.raises(UsageError, match="no baseline is called x: mono, pd"):
        baselines.choose(files, "x")
