"""The command line: parse, call, print, exit code."""

from __future__ import annotations

import shutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from evals.bounds import BOUNDS
from evals.errors import EvalError
from proxy.command import proxy_command
from proxy.errors import ProxyError
from rig import __version__
from rig.cli_common import interruptible, let_go_of_lost_readers, planned_sweep, reader_may_leave
from rig.cli_compare import baseline_command, compare_command
from rig.cli_selftest import selftest_command
from rig.errors import Interrupted, RigError, UsageError
from rig.machine import MOST_GPUS

T = TypeVar("T")
TABLE_WIDTH = 160
"""Columns of a table that does not go to a terminal."""

PATH = click.Path(path_type=Path)
UP_TO_GPUS = click.IntRange(0, MOST_GPUS)
RATE = click.FloatRange(min=0, min_open=True)
CONFIG = click.argument("config", type=PATH)
DATA = click.option("--data", type=PATH, help="Folder with train.jsonl and test.jsonl (default: the hub).")
CELL = click.option(
    "--cell", "cell_glob", metavar="GLOB", help="Only cells whose id matches; their baselines come too."
)

PARALLEL = click.option(
    "--parallel",
    type=UP_TO_GPUS,
    is_flag=False,
    flag_value=0,
    metavar="[N]",
    help="Run deployments side by side where GPUs and ports allow, N at most.",
)


def bounded(name: str) -> click.IntRange:
    """A whole number within bounds that sweep files have too, by its name in evals.bounds."""
    return click.IntRange(*BOUNDS[name])


class Commands(click.Group):
    """Where nobody reads any more what a command says, click itself would end it with 1, which is a regression."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(RigError.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pdrig")
def cli() -> None:
    """A test rig for prefill/decode disaggregation.

    Exit codes: 0 all as expected, 1 a regression or an unexpected pass, 2 bad usage, config or data,
    3 something could not be judged, 130 interrupted.
    """


@cli.command()
@CONFIG
@CELL
@click.option("--gpus", type=UP_TO_GPUS, help="Plan for so many GPUs instead of those of this machine.")
@PARALLEL
@click.option("--format", "form", type=click.Choice(["table", "json", "sh"]), default="table")
def plan(config: Path, cell_glob: str | None, gpus: int | None, parallel: int | None, form: str) -> None:
    """Show what would run: commands, environment, GPUs, ports.

    `sh` is a script that a person can run.
    """
    from rig.plan_text import format_plan

    planned = planned_sweep(config, cell_glob=cell_glob, gpus=gpus, enough_gpus=True, parallel=parallel)
    click.echo(format_plan(planned, form))


@cli.command()
@CONFIG
@CELL
@DATA
@click.option("--out", type=PATH, default=Path("results/runs"), show_default=True, help="Where runs are written.")
@click.option("--resume", type=PATH, metavar="RUN", help="Go on with this run: cells that are finished are kept.")
@click.option("--limit", type=click.IntRange(1), help="Ask at most so many questions in each cell.")
@click.option("--strict", is_flag=True, help="A cell that is undecided, or lacks a baseline, is not green: exit 3.")
@PARALLEL
def sweep(
    config: Path,
    cell_glob: str | None,
    data: Path | None,
    out: Path,
    resume: Path | None,
    limit: int | None,
    strict: bool,
    parallel: int | None,
) -> None:
    """Run every cell of CONFIG and judge it against its baseline."""
    from rig.cli_sweep import run_sweep
    from rig.deploy import sweep_in_allocation
    from rig.reporting import write_reports
    from rig.verdict import exit_code

    planned = planned_sweep(config, cell_glob=cell_glob, limit=limit, parallel=parallel)
    within = sweep_in_allocation(planned)
    if within is not None:
        sys.exit(within)
    folder = run_sweep(planned, config, data, out, resume)
    result = folder.read()
    write_reports(folder, strict)
    with reader_may_leave():
        _show(folder)
    sys.exit(exit_code(result.cells, strict))


@cli.command()
@click.argument("runs", type=PATH, nargs=-1, required=True, metavar="RUN...")
@click.option("--format", "form", type=click.Choice(["table", "md", "html", "junit", "csv"]), default="table")
@click.option("--history", is_flag=True, help="The trend of each cell over the runs in RUN's folder, or over several.")
@click.option("--out", type=PATH, metavar="FILE", help="Write it there in place of standard output.")
@click.option("--strict", is_flag=True, help="JUnit: a cell that is undecided, or lacks a baseline, is a failure.")
def report(runs: tuple[Path, ...], form: str, history: bool, out: Path | None, strict: bool) -> None:
    """Print the report of a stored RUN, or write it to a file.

    With --history: how each cell's figures went over the stored runs.
    """
    from rig.reporting import format_report, format_trend
    from rig.store import RunFolder, write_text

    if history:
        text = format_trend(runs, form)
    else:
        if len(runs) > 1:
            raise UsageError("several runs: give one, or --history for the trend over all of them")
        folder = RunFolder.open(runs[0])
        if form == "table" and out is None:
            _show(folder)
            return
        text = _table(folder) if form == "table" else format_report(folder, form, strict)
    if out is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        write_text(out, text if text.endswith("\n") else text + "\n")


@cli.command()
@click.argument("run", type=PATH)
@click.option("--scorer", help="Only this scorer (default: each task's own).")
def rescore(run: Path, scorer: str | None) -> None:
    """Score the stored texts of RUN again: writes a new judged file a cell, changes no record and no verdict.

    `pdrig compare --scorer` judges by what it wrote.
    """
    from rig.rescoring import rescore_run
    from rig.store import RunFolder

    for line in rescore_run(RunFolder.open(run), scorer):
        click.echo(line)


@cli.command(name="eval")
@click.argument("url")
@click.option("--task", "task_name", required=True, help="A task's name, such as gsm8k-vllm, or a task file.")
@click.option("--limit", type=click.IntRange(1), help="Ask the first so many questions.")
@click.option("--shots", type=click.IntRange(0), help="Worked examples in each prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option("--concurrency", type=bounded("concurrency"), help="Requests in flight, held exactly (default: 8).")
@click.option("--rate", type=RATE, help="Requests per second, evenly, in place of that.")
@click.option("--poisson", type=RATE, help="Requests per second on average, with Poisson arrivals.")
@click.option("--seed", type=click.IntRange(0), help="Seed of those arrivals (default: 0).")
@click.option("--ramp", type=(RATE, RATE, RATE), metavar="R1 R2 S", help="From R1 to R2 requests per second in S s.")
@click.option("--chat", is_flag=True, help="Ask /v1/chat/completions, the prompt as one message of the user.")
@click.option("--param", multiple=True, metavar="KEY=JSON", help="A request parameter; null takes the task's away.")
@click.option("--score-reasoning", is_flag=True, help="Score the reasoning of answers that have no other text.")
@click.option("--timeout", multiple=True, metavar="NAME=S", help="Of connect, first_byte, idle and total, in seconds.")
@click.option("--retries", type=bounded("retries"), default=0, help="Further attempts to connect, none after that.")
@click.option("--no-stream", is_flag=True, help="Ask for whole answers; there is no TTFT, TPOT or ITL then.")
@click.option(
    "--warmup", type=bounded("warmup"), default=0, show_default=True, help="Requests before the clock starts."
)
@click.option("--model", help="Model name to ask for (default: the one that the server says it has).")
@click.option(
    "--out", type=PATH, help="Folder for requests, judged and cell files (default: a new one in results/evals)."
)
@DATA
def evaluate(**options: Any) -> None:
    """Ask a task of any OpenAI-compatible server at URL and print what came out.

    A key for the server is read from the environment variable OPENAI_API_KEY.
    """
    from rig.evaluate import EvalOptions, evaluate_url
    from rig.progress import Display

    wanted = EvalOptions(**options)
    with Display(sys.stderr) as display:
        text, code = interruptible(evaluate_url(wanted, display))
    with reader_may_leave():
        click.echo(text)
    sys.exit(code)


@cli.command()
@click.argument("config", type=PATH, required=False)
@DATA
def doctor(config: Path | None, data: Path | None) -> None:
    """Say what is installed here, what works, and what to do about the rest.

    With a CONFIG: its engines and ports.
    """
    from rig import doctor as doctors

    planned = planned_sweep(config, enough_gpus=True) if config else None
    checks = []
    for check in doctors.examine(planned, data):
        checks.append(check)
        click.echo(doctors.format_check(check))
    sys.exit(3 if any(check.grade == "missing" for check in checks) else 0)


cli.add_command(proxy_command)
cli.add_command(selftest_command)
cli.add_command(compare_command)
cli.add_command(baseline_command)


def _show(folder: Any) -> None:
    terminal = sys.stdout.isatty()
    click.echo(_table(folder, shutil.get_terminal_size().columns if terminal else TABLE_WIDTH, terminal))


def _table(folder: Any, width: int = TABLE_WIDTH, color: bool = False) -> str:
    from rig.report.table import format_table

    return format_table(folder.read(), str(folder.path), width=width, color=color)


def main(argv: list[str] | None = None) -> None:
    """Run a command; whatever the user can mend is one line on stderr and an exit code, never a traceback.

    A fault of the program itself is a traceback, and like all that could not be judged exit code 3: 1 is a regression.
    """
    code: Any
    said = ""
    try:
        code = cli.main(args=argv, prog_name="pdrig", standalone_mode=False)
    except SystemExit as done:
        code = done.code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (click.Abort, KeyboardInterrupt):
        said, code = "pdrig: interrupted", Interrupted.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        said, code = error.format_message(), UsageError.exit_code
    except click.ClickException as error:
        said, code = f"pdrig: {error.format_message()}", UsageError.exit_code
    except EvalError as error:
        said, code = f"pdrig: {error}", UsageError.exit_code
    except (RigError, ProxyError) as error:
        said, code = f"pdrig: {error}", error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        said, code = f"pdrig: {where}{error.strerror or error}", RigError.exit_code
    except Exception:
        said, code = traceback.format_exc().rstrip(), RigError.exit_code
    if said:
        # Where that cannot be said, the exit code still tells.
        with suppress(OSError):
            click.echo(said, err=True)
    let_go_of_lost_readers()
    sys.exit(code if isinstance(code, int) else 0)
