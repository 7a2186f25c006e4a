"""`pdrig compare` and `pdrig baseline` as a user calls them: what is printed, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.cli import main
from rig.store import RunFolder

StoreRun = Callable[..., RunFolder]


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in argv])
    out, err = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, out, err


def test_each_format_and_each_exit_code(store_run: StoreRun, capsys: pytest.CaptureFixture[str]) -> None:
    old = store_run("old", {"pd": {}}).path
    same, worse = store_run("same", {"pd": {}}).path, store_run("worse", {"pd": {"wrong": range(20)}}).path
    dead = store_run("dead", {"pd": {"status": "failed", "failure": "OOM"}}).path
    mute = store_run("mute", {"pd": {"failed": range(200)}}).path

    code, out, err = run(capsys, "compare", same, old)
    assert (code, err) == (0, "")
    assert out.startswith("1 cell is shown to be no worse than the baseline by the margin.\n")
    code, out, _ = run(capsys, "compare", worse, old, "--format", "md")
    assert code == 1 and out.startswith("**Worse than the baseline: pd.**\n") and out.endswith("</details>\n")
    code, out, _ = run(capsys, "compare", f"{dead}:pd", old, "--format", "json")
    assert code == 2
    assert json.loads(out)["held"][0]["refused"] == "dead:pd cannot be compared: it failed (OOM): run it again"
    code, out, _ = run(capsys, "compare", same, mute)
    assert code == 3 and out.startswith("Could not be judged: pd.")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["compare", "nowhere", "nowhere"], "nowhere: neither a run"),
        (["compare", "nowhere", "nowhere", "--scorer", "guess"], "--scorer guess: no such scorer; there are"),
        (["compare", "one"], "Missing argument 'BASELINE'"),
        (["baseline", "save", "nowhere"], "nowhere: not a run folder"),
        (["baseline", "show", "nothing", "--folder", "nowhere"], "no baseline is called nothing: none are stored"),
    ],
)
def test_bad_usage_is_exit_2_and_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    code, out, err = run(capsys, *argv)
    (line,) = err.splitlines()
    assert (code, out) == (2, "") and line.startswith("pdrig: ") and words in line


def test_baselines_are_saved_listed_and_shown(
    store_run: StoreRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "stored"
    code, out, _ = run(capsys, "baseline", "list", "--folder", folder)
    assert (code, out) == (0, f"{folder}: no baselines; `pdrig baseline save RUN` writes them\n")
    red = store_run("r", {"mono": {}, "pd": {"state": "regression"}}).path
    code, out, _ = run(capsys, "baseline", "save", red, "--out", folder)
    assert code == 3 and [line.split(": ")[1] for line in out.splitlines()] == ["not saved", "mono"]
    code, out, _ = run(capsys, "baseline", "save", red, "--out", folder, "--cell", "m*")
    assert code == 0 and "mono: replaced (was from run r): " in out
    code, out, _ = run(capsys, "baseline", "list", "--folder", folder)
    assert code == 0 and "tiny.math.json" in out and "mono" in out
    code, out, _ = run(capsys, "baseline", "show", "mono", "--folder", folder)
    assert code == 0 and "mono: baseline\n" in out
    assert run(capsys, "baseline", "show", folder / "tiny.math.json")[1] == out


def test_a_folder_that_cannot_be_written_is_one_line(
    store_run: StoreRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    code, _, err = run(capsys, "baseline", "save", store_run("r", {"mono": {}}).path, "--out", taken)
    (line,) = err.splitlines()
    assert code != 0 and str(taken) in line
