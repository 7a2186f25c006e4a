"""The run folder survives a kill at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evals.records import RequestRecord
from evals.sink import JsonlWriter
from rig.errors import DataError
from rig.records import CellResult, Judged, JudgedCanary, Pair, Reason, RunInfo, TaskInfo, Verdict
from rig.store import RunFolder, new_run_id, write_text


def info(run_id: str, cells: list[str]) -> RunInfo:
    return RunInfo(
        run_id=run_id, name="x", config_file="x.yaml", config_text="name: x",
        resolved={"cells": [{"id": c} for c in cells]},
        started="2026-01-31T00:00:00Z", ended=None, argv=["pdrig"], versions={}, host={}, git=None,
    )  # fmt: skip


def result(cell_id: str) -> CellResult:
    verdict = Verdict("pass", (Reason("accuracy", "no worse"),))
    return CellResult(cell_id, {"tp": 1}, "pd", "d", "ok", verdict=verdict)


def test_a_run_reads_back_as_it_was_written_in_the_order_of_the_plan(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "my sweep")
    folder.write_info(info(folder.path.name, ["b", "a"]))
    for cell_id in ("a", "b"):
        folder.write_cell(result(cell_id))
    run = RunFolder.open(folder.path).read()
    assert run.cells == (result("b"), result("a"))
    assert run.info.run_id == folder.path.name


def test_judged_records_read_back(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    judged = [Judged("r1", "s1", "strict", "18", "18", "correct", ("lease",), {"strict": "correct"})]
    folder.write_judged("c", judged)
    assert folder.read_judged("c") == judged


def test_pairs_and_canaries_read_back_whatever_the_baseline_is_called(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    assert folder.read_pairs("c") == {} and folder.read_canaries("c") == []
    pair = Pair("s1", "r1", "b1", "wrong", "correct", equal=False, first_token=3, shift=0.5, order=7)
    for baseline in ("mono-tp1.a", "itself", "results/baselines/a b%.json"):
        folder.write_pairs("c", baseline, [pair])
    assert folder.read_pairs("c") == {n: [pair] for n in ("itself", "mono-tp1.a", "results/baselines/a b%.json")}
    canary = JudgedCanary("canary-0000-x", "canary-0000", "K7", "Q2", "crossed", "canary-0001", order=3)
    folder.write_canaries("c", [canary])
    assert folder.read_canaries("c") == [canary]
    (folder.cell("c") / "pairs.mono.jsonl").write_text('{"sample_id": "s"}\n')
    with pytest.raises(DataError, match=r"pairs.mono.jsonl:1: request_id: "):
        folder.read_pairs("c")


def test_two_runs_in_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, "x").path != RunFolder.create(tmp_path, "x").path


def test_run_ids_sort_by_time_and_are_safe_as_names() -> None:
    early = new_run_id("a/b c", datetime(2026, 1, 31, 9, tzinfo=UTC))
    assert early == "20260131-090000-a_b_c"
    assert early < new_run_id("a", datetime(2026, 1, 31, 10, tzinfo=UTC))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a run folder \(it has no run.json\)"):
        RunFolder.open(tmp_path)


def test_a_cell_of_another_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    write_text(folder.cell("a") / "cell.json", '{"cell_id": "a"}')
    with pytest.raises(DataError, match="written by another version of the rig") as error:
        folder.read_cell("a")
    assert "\n" not in str(error.value)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    folder.cell("a").mkdir(parents=True)
    (folder.cell("a") / "judged.jsonl").write_text('{"request_id": "r"}\n')
    with pytest.raises(DataError, match=r"judged.jsonl:1: sample_id: "):
        folder.read_judged("a")


def test_a_replaced_file_leaves_no_half_behind(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "one")
    write_text(tmp_path / "x", "two")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "two"


def test_a_place_that_cannot_hold_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file: no run can be written there"):
        RunFolder.create(tmp_path / "file", "x")


@pytest.mark.parametrize("resolved", [{"cells": 5}, {"cells": [1]}, {"reference": 5}, {"reference": [1]}])
def test_a_run_json_that_no_sweep_wrote_is_refused(tmp_path: Path, resolved: dict[str, object]) -> None:
    folder = RunFolder.create(tmp_path, "x")
    folder.write_info(replace(info("x", []), resolved=resolved))
    with pytest.raises(DataError, match="not what a sweep writes"):
        folder.read()


def test_files_with_fewer_rows_than_the_result_was_made_from_are_damaged(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    whole = replace(result("a"), task=TaskInfo("t", "1", "p", "s", "h", 2))
    folder.new_requests("a").write_text("")
    folder.write_judged("a", [])
    assert folder.damage(whole) == "its files are damaged: 2 questions, 0 whole records, 0 judged"
    assert folder.damage(result("a")) is None


def test_files_that_cannot_be_read_are_damaged_with_the_line(
    tmp_path: Path, make_record: Callable[..., RequestRecord]
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    whole = replace(result("a"), task=TaskInfo("t", "1", "p", "s", "h", 1))
    folder.write_judged("a", [])
    with JsonlWriter(folder.new_requests("a")) as sink:
        for text in ("#### 1", "#### 2"):
            sink.append_record(make_record("q", text=text))
    where = folder.requests("a")
    assert str(folder.damage(whole)).startswith(f"its files are damaged: {where}:2: another record of r-q than in line")
