"""The logs of failed cells on their way into the Markdown report."""

from __future__ import annotations

from collections.abc import Callable

from rig.records import Reason, Verdict
from rig.reporting import LINE_CHARS, LOG_LINES, format_report, read_logs
from rig.store import RunFolder


def failed(store_run: Callable[..., RunFolder], log: str) -> RunFolder:
    verdict = Verdict("failed", (Reason("errors", "decode-0 ended: RuntimeError: gone", "RuntimeError: gone"),))
    run = store_run("r", {"pd": {"n": 2, "status": "failed", "verdict": verdict}, "sound": {"n": 2}})
    logs = run.deployment("d") / "logs"
    logs.mkdir(parents=True)
    (logs / "decode-0.log").write_bytes(log.encode("utf-8", "surrogateescape"))
    (logs / "prefill-0.log").write_text("INFO ready\n")
    return run


def test_the_last_lines_of_a_failed_cell_are_read_and_masked(store_run: Callable[..., RunFolder]) -> None:
    lines = [*(f"line {i}" for i in range(3000)), "", "HF_TOKEN=hf_x", f"said s3cr3t {'x' * 999}", "RuntimeError: gone"]
    run = failed(store_run, "\n".join(lines) + "\n")
    cells = {cell.cell_id: cell for cell in run.read().cells}
    assert read_logs(run, cells["sound"]) == ()
    decode, prefill = read_logs(run, cells["pd"], {"API_KEY": "s3cr3t", "HOME": "line"})
    assert (decode.server, decode.file) == ("decode-0", "deployments/d/logs/decode-0.log")
    assert len(decode.lines) == LOG_LINES
    assert decode.lines[-3:] == ("HF_TOKEN=***", f"said *** {'x' * (LINE_CHARS - 12)}", "RuntimeError: gone")
    assert prefill.lines == ("INFO ready",)


def test_they_are_folded_into_the_report(store_run: Callable[..., RunFolder]) -> None:
    run = failed(store_run, "Traceback\nRuntimeError: gone\n\udcff\n")
    text = format_report(run, "md")
    assert "<summary>Log of decode-0: the last 3 lines of deployments/d/logs/decode-0.log</summary>" in text
    assert "```text\nTraceback\nRuntimeError: gone\n" in text
    assert "Log of prefill-0" not in text


def test_a_cell_without_logs_has_none(store_run: Callable[..., RunFolder]) -> None:
    run = store_run("r", {"pd": {"n": 2, "status": "failed", "state": "failed"}})
    assert read_logs(run, run.read().cells[0]) == ()
