"""Which signals end the rig, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

TOLD = "from rig.ending import ending; print(*(number.name for number in ending()))"


@pytest.mark.parametrize(
    ("hangup", "names"), [(signal.SIG_DFL, "SIGINT SIGTERM SIGHUP"), (signal.SIG_IGN, "SIGINT SIGTERM")]
)
def test_what_nohup_started_outlives_its_terminal(hangup: signal.Handlers, names: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", TOLD],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == names
