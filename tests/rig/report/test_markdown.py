from __future__ import annotations

from dataclasses import replace

from rig.metrics import METRIC_FORMULAS
from rig.records import RunResult, Verdict
from rig.report.markdown import format_markdown, headline


def test_the_first_line_is_the_verdict_in_words(run: RunResult) -> None:
    assert format_markdown(run, "runs/id").splitlines()[0] == (
        "**Worse than the baseline:** `pd-on`. **Could not be judged:** `pd-dead`. "
        "**1 cell is shown to be no worse than the baseline by the margin.**"
    )


def test_headlines(run: RunResult) -> None:
    mono, cell = run.cells[:2]
    assert headline([mono, cell, cell]) == "**2 cells are shown to be no worse than the baseline by the margin.**"
    assert headline([mono]) == headline([]) == "**Nothing was judged.**"
    assert headline([replace(cell, verdict=Verdict("xpass"))]) == "**Passed though expected to fail:** `pd-off`."
    assert headline([replace(cell, verdict=Verdict("xfail"))]) == "Failed as expected: `pd-off`."
    assert headline([replace(cell, verdict=Verdict("no_baseline"))]) == "**Not decided:** `pd-off`."


def test_the_grid(run: RunResult) -> None:
    lines = format_markdown(run, "runs/id").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| served"))
    assert lines[start : start + 3] == [
        "| served | prefill<br>tp | async<br>scheduling | accuracy<br>[95 %] | invalid | errors | requests<br>/s "
        "| output<br>tokens/s | TTFT ms<br>p50/p99 | TPOT ms<br>p50/p99 | change, points<br>[95 %] | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| whole | - | on | 0.975 [0.955, 0.986] | 2 (1+1) | 0 | 7.89 | 812 | 12.3/346 | 12.3/346 | - | baseline |",
    ]


def test_every_line_of_the_grid_has_as_many_fields(run: RunResult) -> None:
    cells = (replace(run.cells[0], labels={"odd": "a|b\\|c\nd"}), *run.cells[1:])
    lines = format_markdown(replace(run, cells=cells), "runs/id").splitlines()
    grid = [line for line in lines if line.startswith("|")]
    first = grid[: next(i for i, line in enumerate(grid) if "pd" in line or line.startswith("| model"))]
    counts = {line.replace("\\\\", "").replace("\\|", "").count("|") for line in first[:6]}
    assert len(counts) == 1


def test_reasons_latencies_commands_and_formulas(run: RunResult) -> None:
    text = format_markdown(run, "runs/id")
    assert "- `pd-off`: **pass**\n  - accuracy: No worse by 2.00 points. [judged.jsonl]\n" in text
    assert "| pd-off | ttft | 12.3 | 20.0 | 346 | 15.0 |" in text
    assert '# prefill-0\nvllm serve tiny --kv-transfer-config \'{"kv_role":"kv_both"}\'\n' in text
    assert "| big | 0.865 | 4 |" in text
    assert all(f"- {name}: " in text for name in METRIC_FORMULAS)
    assert text.endswith("Run: `runs/id`\n")


def test_retries_and_errors_are_told(run: RunResult) -> None:
    cells = (replace(run.cells[0], retried=3), *run.cells[1:])
    text = format_markdown(replace(run, cells=cells), "x")
    assert "  - requests: 400 questions; 3 took more than one attempt to connect\n" in text
    assert "  - requests: 400 questions; errors: reset 1\n" in text


def test_signs_of_markdown_are_shown_as_they_are(run: RunResult) -> None:
    cells = (replace(run.cells[0], labels={"odd": "a*b_c<d|e"}), *run.cells[1:])
    text = format_markdown(replace(run, cells=cells), "runs/id")
    assert "a\\*b\\_c&lt;d\\|e" in text


def test_a_run_without_cells(run: RunResult) -> None:
    text = format_markdown(replace(run, cells=(), reference=()), "runs/id")
    assert text.splitlines()[0] == "**Nothing was judged.**"
