from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from evals.errors import DataError
from evals.records import RequestError, RequestRecord
from evals.sink import JsonlWriter, ends_whole, read_jsonl, read_records


def record(n: int) -> RequestRecord:
    return RequestRecord(
        kind="question",
        sample_id=f"s-{n}",
        request_id=f"r-{n}",
        endpoint="completions",
        prompt_sha256="00",
        t_submit=0.5,
        t_end=1.5,
        text="naïve\n\u2028 #### 18",
        token_ids=(1, 2),
        itl_ms=(0.5, 12.25),
        error=RequestError("decode", "reset", "gone") if n % 2 else None,
    )


def test_a_record_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    writer = JsonlWriter(path)
    for n in range(4):
        writer.append_record(record(n))
        assert read_records(path).records == tuple(record(i) for i in range(n + 1))
    writer.close()
    writer.close()


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(len(data)) or real(fd, data))
    with JsonlWriter(tmp_path / "x.jsonl") as writer:
        writer.append({"text": "x" * 300_000})
    assert len(writes) == 1


def test_a_short_write_is_an_error_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path) as writer:
        writer.append({"n": 1})
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
        with pytest.raises(OSError, match="only 3 of"):
            writer.append({"n": 2})
        monkeypatch.undo()
        writer.append({"n": 3})
    assert read_jsonl(path).rows == ({"n": 1}, {"n": 3})


@pytest.mark.parametrize("whole", [0, 1, 3])
@pytest.mark.parametrize("cut", [b"", b"{", b'{"n": 1, "text": "' + b"x" * 200_000, b'{"n": 9}'])
def test_a_cut_last_line_is_told_and_taken_off(tmp_path: Path, whole: int, cut: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n":0}\n' * whole + cut)
    lines = read_jsonl(path)
    assert (len(lines.rows), lines.cut_bytes) == (whole, len(cut))
    assert ends_whole(path) == (not cut)
    with JsonlWriter(path) as writer:
        assert writer.removed_bytes == len(cut)
        writer.append({"n": 5})
    after = read_jsonl(path)
    assert (len(after.rows), after.cut_bytes) == (whole + 1, 0)


@pytest.mark.parametrize("line", [b"", b"[1]", b"{", b"nul\x00"])
def test_a_damaged_line_within_the_file_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n":0}\n' + line + b"\n" + b'{"n":0}\n')
    with pytest.raises(DataError, match=r"x\.jsonl:2: expected a JSON object"):
        read_jsonl(path)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path) as writer:
        writer.append_record(record(0))
        writer.append({"n": 1})
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a record"):
        read_records(path)


def test_a_line_that_is_there_twice_is_one_record_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path) as writer:
        for n in (0, 1, 0, 2, 0):
            writer.append_record(record(n))
    found = read_records(path)
    assert found.records == (record(0), record(1), record(2))
    assert found.repeated == (3, 5)


def test_two_records_of_one_request_are_damage_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path) as writer:
        for one in (record(0), record(1), replace(record(0), text="#### 19")):
            writer.append_record(one)
    with pytest.raises(DataError, match=r"x\.jsonl:3: another record of r-0 than in line 1: ") as error:
        read_records(path)
    assert "\n" not in str(error.value)


def test_records_written_before_itl_was_kept_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    old = record(0).to_json()
    del old["itl_ms"]
    with JsonlWriter(path) as writer:
        writer.append(old)
    assert read_records(path).records[0].itl_ms is None


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_jsonl(tmp_path / "none.jsonl")
