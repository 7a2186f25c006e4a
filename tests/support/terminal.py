"""Runs a command in a terminal of its own, as a window does: `python terminal.py COMMAND...`.

What is written there comes out here. SIGINT is a Ctrl-C in the window, SIGHUP closes it. Ends with the command's code.
"""

from __future__ import annotations

import os
import pty
import signal
import sys

CTRL_C = b"\x03"


def main(command: list[str]) -> int:
    pid, window = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)

    def close(*_: object) -> None:
        os.close(window)

    signal.signal(signal.SIGINT, lambda *_: os.write(window, CTRL_C))
    signal.signal(signal.SIGHUP, close)
    try:
        while said := os.read(window, 65536):
            os.write(1, said)
    except OSError:
        pass  # The last that had the terminal open is gone, or it was closed here.
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
