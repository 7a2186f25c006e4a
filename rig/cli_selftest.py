"""`pdrig selftest`: plant every fault and show which of them the rig catches."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from rig.cli_common import interruptible, machine_held, planned_sweep, reader_may_leave
from rig.errors import UsageError

CONFIGS = {"sim": "selftest_sim.yaml", "real": "selftest.yaml"}
OTHER = "is another self-test: give the same --engine, --config and --short, or start anew"
PATH = click.Path(path_type=Path)


@click.command(name="selftest")
@click.option("--engine", type=click.Choice(["sim", "real"]), default="sim", show_default=True)
@click.option("--config", type=PATH, help="What to plant on (default: configs/selftest*.yaml of the checkout).")
@click.option("--short", is_flag=True, help="One seed, and no faults at 2 %: minutes in place of an hour.")
@click.option("--out", type=PATH, default=Path("results/selftests"), show_default=True, help="Folder of the results.")
@click.option("--resume", type=PATH, metavar="RUN", help="Go on with this one: cases that are finished are kept.")
@click.option("--format", "form", type=click.Choice(["table", "md"]), default="table")
@click.option("--data", type=PATH, help="Folder of the task's data, where it needs any.")
def selftest_command(
    engine: str, config: Path | None, short: bool, out: Path, resume: Path | None, form: str, data: Path | None
) -> None:
    """Plant every fault on an engine and show which the rig catches, and that clean runs do not alarm.

    Exit code 1 where a fault was missed or a clean run alarmed.
    """
    from rig import run as runs
    from rig.progress import Display
    from rig.resuming import reopen
    from rig.selftest.run import SelfTest
    from rig.selftest.table import format_rows
    from rig.store import write_text

    file = config or Path(__file__).resolve().parent.parent / "configs" / CONFIGS[engine]
    if not file.is_file():
        raise UsageError(f"{file}: not there; give the deployment with --config")
    planned = planned_sweep(file)
    made_from = {**runs.resolved(planned), "selftest": "short" if short else "full"}
    earlier = reopen(resume, made_from, OTHER) if resume else None
    with machine_held(planned, earlier) as hold:
        folder = earlier or runs.begin(planned, file, out)
        if earlier is None:
            folder.write_info(replace(folder.read_info(), resolved=made_from))
        hold(folder.path)
        with Display(sys.stderr) as display:
            test = SelfTest(planned, folder, data, display, short)
            display.say(f"self-test {folder.path}: {len(test.cases)} cases")
            for fault, reason in test.left_out.items():
                display.say(f"{fault} is not planted: {reason}")
            rows = interruptible(test.all())
    machine = folder.read_info().host
    write_text(folder.path / "selftest.md", format_rows(rows, "md", machine))
    with reader_may_leave():
        click.echo(format_rows(rows, form, machine))
        click.echo(f"Run: {folder.path}")
    sys.exit(0 if all(row.as_expected for row in rows) else 1)
