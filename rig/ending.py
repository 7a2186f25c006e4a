"""The signals that end the rig in good order, wherever it waits for its work."""

from __future__ import annotations

import signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending() -> tuple[signal.Signals, ...]:
    """Those of ENDING that this process is to end by: what `nohup` started outlives its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in ENDING if number != signal.SIGHUP or not ignored)
