"""The control file as the engine sees it: read when it changes, and one line when it cannot be used."""

from __future__ import annotations

from pathlib import Path

from rig.faults.control import Control, Fault
from rig.faults.watch import Watch


def test_a_change_is_seen_and_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    said: list[str] = []
    watch = Watch(path, said.append)
    first, second = Control((Fault("late_zeroing", 1.0),)), Control((Fault("blocks_swapped", 0.5),))
    first.write(path)
    seen = watch.control()
    assert seen == first
    assert watch.control() is seen
    second.write(path)
    assert watch.control() == second
    assert said == []


def test_a_missing_file_plants_nothing_and_is_said_once_each_time(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    said: list[str] = []
    watch = Watch(path, said.append)
    for _ in range(2):
        assert watch.control() == Control()
        assert watch.control() == Control()
        Control((Fault("late_zeroing", 1.0),)).write(path)
        assert watch.control().faults
        path.unlink()
    assert len(said) == 2
    assert all(str(path) in line and "\n" not in line for line in said)


def test_a_broken_file_plants_nothing_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    said: list[str] = []
    watch = Watch(path, said.append)
    Control((Fault("late_zeroing", 1.0),)).write(path)
    assert watch.control().faults
    for broken in (b'{"faults": [{"fault": "nothing"}]}', b"\xff\xfe"):
        path.write_bytes(broken)
        assert watch.control() == Control()
        assert watch.control() == Control()
    assert len(said) == 2
    Control((Fault("late_zeroing", 1.0),)).write(path)
    assert watch.control().faults


def test_a_fault_that_cannot_exist_here_is_refused_once_and_the_others_are_planted(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    said: list[str] = []
    watch = Watch(path, said.append)
    possible = Fault("late_zeroing", 1.0)
    Control((Fault("stale_blocks", 1.0), possible)).write(path)
    for _ in range(2):
        found = watch.control(lambda fault: "it is pushed" if fault.fault == "stale_blocks" else None)
        assert found == Control((possible,))
    assert said == ["stale_blocks is not planted: it is pushed"]
