"""The beginning of `pdrig` and of `python -m rig`: what is slow to import is imported where Ctrl-C is met."""

from __future__ import annotations

import sys

from rig.within import told


def main() -> None:
    """Run the command line. Interrupted before that is there, it ends as it does later: one line, exit code 130."""
    with told():
        try:
            from rig.cli import main as run
        except KeyboardInterrupt:
            print("\npdrig: interrupted", file=sys.stderr)
            sys.exit(130)
        run()


if __name__ == "__main__":
    main()
