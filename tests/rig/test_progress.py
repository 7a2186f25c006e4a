"""Plain lines where there is no terminal: bounded in number, and true. Nobody has to stay to read them."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.progress import PLAIN_INTERVAL_S, Display, Tally


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_running_line_leaves_errors_out_of_accuracy() -> None:
    tally = Tally(total=10, begun=0)
    for outcome in ("correct", "wrong", "correct", "error"):
        tally.add(outcome)  # type: ignore[arg-type]
    assert tally.text(2.0) == "4/10, accuracy 0.667, 1 errors, 2.0/s, 3 s left"


def test_nothing_scored_is_not_zero() -> None:
    tally = Tally(total=2, begun=0)
    assert tally.text(0.0) == "0/2, accuracy -, 0 errors"
    tally.add("error")
    assert "accuracy -, 1 errors" in tally.text(1.0)


def test_plain_lines_come_at_intervals_and_at_the_end() -> None:
    clock, stream = FakeClock(), io.StringIO()
    with Display(stream, clock) as display:
        display.server("decode-0", "loading", "weights")
        display.evaluation("cell a", 3)
        clock.now += 1
        display.answered("cell a", "correct")
        clock.now += PLAIN_INTERVAL_S
        display.answered("cell a", "wrong")
        display.answered("cell a", "correct")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "  decode-0: loading, weights"
    assert lines[1].startswith("  cell a: 2/3, accuracy 0.500")
    assert lines[2].startswith("  cell a: 3/3, accuracy 0.667")
    assert len(lines) == 3


def closed_terminal() -> tuple[int, Callable[[], None]]:
    window, terminal = pty.openpty()
    return terminal, lambda: os.close(window)


def closed_pipe() -> tuple[int, Callable[[], None]]:
    read, write = os.pipe()
    return write, lambda: os.close(read)


@pytest.mark.parametrize("opened", [closed_terminal, closed_pipe])
def test_a_reader_that_leaves_is_no_reason_to_end(opened: Callable[[], tuple[int, Callable[[], None]]]) -> None:
    end, leave = opened()
    # Closing it would write what is left to nobody once more.
    stream = os.fdopen(end, "w", closefd=False)
    try:
        with Display(stream) as display:
            display.say("somebody is there")
            leave()
            display.say("nobody is")
            display.server("decode-0", "loading", "weights")
            display.evaluation("cell a", 1)
            display.answered("cell a", "correct")
            display.server("decode-0", "stopped", "")
            display.evaluated("cell a")
        with pytest.raises(OSError):
            stream.flush()
    finally:
        os.dup2(os.open(os.devnull, os.O_WRONLY), end)
        stream.close()
        os.close(end)


def test_a_full_disk_is_no_reader_that_left() -> None:
    with Path("/dev/full").open("w") as full, pytest.raises(OSError, match="No space left"):
        try:
            Display(full).say("a line")
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
