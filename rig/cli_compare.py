"""The commands `compare` and `baseline`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from rig.cli_common import reader_may_leave

PATH = click.Path(path_type=Path)
STORED = Path("results/baselines")
FOLDER = click.option("--folder", type=PATH, default=STORED, show_default=True, help="Where they are stored.")


@click.command(name="compare")
@click.argument("candidate")
@click.argument("baseline")
@click.option("--format", "form", type=click.Choice(["table", "md", "json"]), default="table")
@click.option("--scorer", metavar="NAME", help="Outcomes that `pdrig rescore RUN --scorer NAME` wrote, on both sides.")
def compare_command(candidate: str, baseline: str, form: str, scorer: str | None) -> None:
    """Hold CANDIDATE against BASELINE, question by question.

    Each is a run, a cell (RUN:CELL_ID, or its folder), or a stored baseline (FILE.json, FILE.json:NAME). Cells of two
    runs are matched by their labels; two single cells are compared whatever differs, which is named.

    Exit codes: 0 no worse, or undecided; 1 a regression; 2 something cannot be compared; 3 something could not be
    judged.
    """
    from evals.scorers import SCORERS
    from rig.comparing import compare_sides, exit_code
    from rig.errors import UsageError
    from rig.report import compare as reports
    from rig.report.text import WIDTH
    from rig.sides import read_sides

    if scorer is not None and scorer not in SCORERS:
        raise UsageError(f"--scorer {scorer}: no such scorer; there are {', '.join(SCORERS)}")
    found = compare_sides(read_sides(candidate, scorer), read_sides(baseline, scorer))
    with reader_may_leave():
        if form == "json":
            click.echo(reports.format_compare_json(found))
        elif form == "md":
            click.echo(reports.format_compare_markdown(found), nl=False)
        else:
            terminal = sys.stdout.isatty()
            width = shutil.get_terminal_size().columns if terminal else WIDTH
            click.echo(reports.format_compare_table(found, width, terminal))
    sys.exit(exit_code(found))


@click.group(name="baseline")
def baseline_command() -> None:
    """Stored baselines: small files that are reviewed and committed."""


@baseline_command.command(name="save")
@click.argument("run", type=PATH)
@click.option("--cell", "cell_glob", metavar="GLOB", help="Only cells whose id matches.")
@click.option("--out", type=PATH, default=STORED, show_default=True, help="Where they are stored.")
def save(run: Path, cell_glob: str | None, out: Path) -> None:
    """Store the sound cells of RUN as baselines, one file a model and task; says what was replaced.

    Exit code 3 when a cell was refused; the others are stored all the same.
    """
    from rig.errors import RunError
    from rig.saving import save as save_run
    from rig.store import RunFolder

    refused = False
    for said in save_run(RunFolder.open(run), out, cell_glob):
        click.echo(said.text)
        refused |= not said.saved
    sys.exit(RunError.exit_code if refused else 0)


@baseline_command.command(name="list")
@FOLDER
def list_baselines(folder: Path) -> None:
    """Show which baselines are stored."""
    from rig.baselines import read_all
    from rig.report.baselines import format_list

    click.echo(format_list(read_all(folder), str(folder)))


@baseline_command.command(name="show")
@click.argument("name")
@FOLDER
def show(name: str, folder: Path) -> None:
    """Print a baseline in words: NAME is that of a baseline or of a file, as `list` shows them, or a path."""
    from rig.baselines import choose, read, read_all
    from rig.report.baselines import format_show

    path = Path(name)
    files = {name: read(path)} if path.is_file() else read_all(folder)
    click.echo("\n\n".join(format_show(file, where, some) for where, file, some in choose(files, name)))
