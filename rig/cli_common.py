"""What several commands need: a plan from a file, the machine it runs on, and work that a signal ends cleanly."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from rig.ending import ending
from rig.errors import Interrupted
from rig.readers import may_leave

T = TypeVar("T")


def planned_sweep(config: Path, *, parallel: int | None = None, **options: Any) -> Any:
    """The plan of a sweep file for this machine; in `parallel` lanes at most, where that is given.

    Raises ConfigError.
    """
    from rig.config import load_config
    from rig.machine import detect_machine
    from rig.plan import plan_sweep
    from rig.plan_lanes import side_by_side

    machine = detect_machine()
    planned = plan_sweep(load_config(config), machine, **options)
    if parallel is None:
        return planned
    wanted = options.get("gpus")
    return side_by_side(planned, machine.gpus if wanted is None else [str(i) for i in range(wanted)], parallel)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """For what is printed before an exit code: that is told also where nobody reads any more (`pdrig ... | head`)."""
    with may_leave():
        yield
        sys.stdout.flush()


def let_go_of_lost_readers() -> None:
    """What is still to be written to a reader that left is dropped; else Python ends with a code of its own, 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def machine_held(planned: Any, earlier: Any = None) -> Iterator[Callable[[Path], None]]:
    """Hold this machine's GPUs for a plan, once what an `earlier` attempt at its run left has been ended, and look
    whether all of it can start; yields what writes down the run's folder as the holder's.

    Raises UsageError and its kind, RunError for what could not be ended.
    """
    from rig import resuming
    from rig.deploy.lock import gpus_locked, require_unused
    from rig.run import check_startable

    with gpus_locked(planned) as hold:
        ended = resuming.clear(planned, earlier) if earlier else []
        for line in ended:
            click.echo(line, err=True)
        require_unused(planned, max(d.limits.gpu_free_s for d in planned.deployments) if ended else 0.0)
        check_startable(planned)
        yield hold


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; a signal that ends the rig cancels the work, which then cleans up. Raises Interrupted."""

    async def main() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in ending():
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise Interrupted("interrupted; what was finished is on disk") from None
