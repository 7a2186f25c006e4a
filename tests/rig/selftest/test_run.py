"""The self-test over its cases, with servers that never come up: which cases a resumed one still has to ask."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from rig import launching
from rig.cli_common import planned_sweep
from rig.errors import StartFailed
from rig.progress import Display
from rig.records import CellResult, RunInfo, Verdict
from rig.selftest.run import SelfTest
from rig.store import RunFolder

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "selftest_sim.yaml"
INFO = RunInfo("r", "s", "x", "", {}, "", None, [], {}, {}, None)


async def test_a_red_case_of_an_older_rig_that_does_not_say_where_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_result: Callable[..., CellResult]
) -> None:
    async def launch(*_: object) -> None:
        raise StartFailed("decode-0 did not come up", "decode-0")

    monkeypatch.setattr(launching, "launch", launch)
    run = RunFolder(tmp_path)
    run.write_info(INFO)
    test = SelfTest(planned_sweep(CONFIG), run, None, Display(StringIO()), short=True)
    old = next(case.name for case in test.cases if case.fault)
    kinds = {test.baseline.id: "monolithic"} | {case.name: "pd" for case in test.cases}
    for name, kind in kinds.items():
        alarms = None if name == old else ("damage",)
        verdict = None if kind == "monolithic" else Verdict("regression", (), alarms)  # type: ignore[arg-type]
        run.write_judged(name, [])
        run.requests(name).touch()
        run.write_cell(make_result(name, kind=kind, verdict=verdict))
    rows = {row.case: row for row in await test.all()}
    assert [name for name, row in rows.items() if row.state == "failed"] == [old]
    assert all(row.channels == ("damage",) for name, row in rows.items() if name != old)
