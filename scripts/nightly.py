"""The nightly sweep: go on with tonight's run where there is one, hold it against the stored baselines, say what came.

    python scripts/nightly.py --config configs/hybrid_ssm.yaml --state DIR --key 2026-01-31

DIR outlives the job (a folder of the runner, or one that a cache brings back); runs are in DIR/KEY. Called again with
the same key it resumes the run, or only reports it where it is finished, so a lost runner costs the cell it was at.
Cells that have no baseline or are undecided are not green. DIR/KEY/nightly.md is the report with the comparisons and
the trend. Exit status: that of `pdrig sweep --strict`; also 1 for a regression against a stored baseline, and 3 for one
that cannot be compared any more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
from contextlib import redirect_stderr
from pathlib import Path

from compare_builds import Tee, latest

from rig.cli import main as pdrig
from rig.errors import RunError
from rig.reporting import append_step_summary, format_report
from rig.store import RunFolder, write_text

NIGHTS = 30
"""As many as a trend draws."""


def own(*args: str) -> subprocess.CompletedProcess[str]:
    """A command of pdrig's, whose output is kept."""
    return subprocess.run(
        [sys.executable, "-m", "rig", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def sweep(args: argparse.Namespace, runs: Path, errors: Tee) -> tuple[Path | None, int]:
    """Run or resume; returns the run's folder, None where none began, and the exit status."""
    before = latest(runs)
    options = ["--strict", "--out", str(runs)]
    for name, value in (("--data", args.data), ("--cell", args.cell), ("--limit", args.limit), ("--resume", before)):
        options += [] if value is None else [name, str(value)]
    try:
        pdrig(["sweep", str(args.config), *options])
    except SystemExit as done:
        return latest(runs), int(done.code or 0)
    except Exception:
        traceback.print_exc(file=errors)
    return latest(runs), RunError.exit_code


def compared(run: Path, folder: Path) -> tuple[str, int]:
    """The run against every stored baseline, as Markdown, and the worst exit status of them: 1, then 3, then 0."""
    parts, codes = [], set()
    for file in sorted(folder.glob("*.json")):
        done = own("compare", str(run), str(file), "--format", "md")
        codes.add(done.returncode if done.stdout else 0)
        parts.append(f"### Against {file.name}\n\n{done.stdout or done.stderr.strip().removeprefix('pdrig: ')}")
    text = "\n\n".join(parts) or f"No baseline is stored in `{folder}`: `pdrig baseline save` stores one."
    return text, 1 if 1 in codes else RunError.exit_code if codes - {0} else 0


def trend(state: Path) -> str:
    """The trend of each cell over the stored nights, as Markdown;"""
    nights = sorted((path.parent for path in state.glob("*/*/run.json")), key=lambda run: run.name)
    done = own("report", *map(str, nights[-NIGHTS:]), "--history", "--format", "md")
    return done.stdout if done.returncode == 0 else f"No trend: {done.stderr.strip().removeprefix('pdrig: ')}"


def report(run: Path | None, code: int, said: str, args: argparse.Namespace) -> tuple[str, int]:
    """The night in Markdown, and the exit status of all of it."""
    if run is None:
        last = said.strip().splitlines()[-1:] or ["nothing was said; see the job's log"]
        return f"**The nightly sweep did not run** (exit {code}).\n\n```\n{last[0]}\n```\n", code
    against, worst = compared(run, args.baselines)
    more = f"{against.rstrip()}\n\n{trend(args.state).rstrip()}\n"
    append_step_summary(f"\n{more}", os.environ)
    codes = (code, worst)
    return f"{format_report(RunFolder.open(run), 'md')}\n{more}", 1 if 1 in codes else code or worst


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="the sweep file")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="a folder that outlives the job")
    parser.add_argument("--key", required=True, help="names the night, and what was built for it")
    parser.add_argument("--baselines", type=Path, default=Path("results/baselines"), help="the stored baselines")
    parser.add_argument("--data", type=Path, help="as of pdrig sweep")
    parser.add_argument("--cell", metavar="GLOB", help="as of pdrig sweep")
    parser.add_argument("--limit", type=int, help="as of pdrig sweep")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    out = args.state / args.key
    with redirect_stderr(Tee(sys.stderr)) as errors:
        run, code = sweep(args, out, errors)
    text, code = report(run, code, errors.getvalue(), args)
    write_text(out / "nightly.md", text)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
