"""Which versions an engine has, asked on the machine where it is; `rig.deploy.remote` sends this there as text.

Standard library alone, Python 3.9 and newer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def output(*command: str, cwd: Path | None = None, timeout_s: float = 20) -> str | None:
    """What a program says; None where it is not there, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, stdin=subprocess.DEVNULL
        )
    except (OSError, UnicodeError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def learn(words: Sequence[str], probe: str, timeout_s: float) -> dict[str, Any]:
    """What the Python beside the program of a command tells by the script `probe`, or the command by its `--version`.

    Empty where the program is not there.
    """
    program = shutil.which(words[0])
    if program is None:
        return {}
    # As the shell would find it first: a link to a venv's script has no Python beside it, the script itself does.
    for folder in (Path(program).parent, Path(program).resolve().parent):
        if Path(program).name == "vllm":
            told = output(str(folder / "python"), "-I", probe, timeout_s=timeout_s)
            if told is not None:
                return json_object(told)
    told = output(*words, "--version", timeout_s=timeout_s)
    return {"vllm": told.splitlines()[-1].strip()[:200]} if told else {}


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in the last line of a text; empty where there is none."""
    try:
        data = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return data if isinstance(data, dict) else {}


def main(message: Mapping[str, Any]) -> None:
    """Print what is learnt of the command `words` by the text of a `probe`, as one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.py"
        probe.write_text(message["probe"], encoding="utf-8")
        print(json.dumps(learn(message["words"], str(probe), message["timeout_s"])))
