"""What ran of the model families and connectors, as a table made from results.

    python scripts/families_table.py [RUNS...] [--rows results/what_ran.json] [--write docs/families.md]

RUNS are folders of runs, or folders that hold such (`results/runs`, a folder that `make test-real` kept). A row is one
judged cell whose servers have a KV connector, the newest where several runs have the same; the family is the sweep
file's `models.NAME.family`. Cells of the simulated engine and of runs with planted faults are left out. With --rows the
rows of that file come in too, and all are written back to it; with --write the table replaces what stands between the
two markers of that file. Exit status: 0, 1 when there is neither a run nor a row, 2 when a file cannot be used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from rig.connectors import children
from rig.errors import RigError
from rig.faults.control import ENVIRONMENT
from rig.records import CellResult, RunInfo, Verdict
from rig.store import RunFolder, write_text

BEGIN, END = "<!-- what ran: begin -->", "<!-- what ran: end -->"
HEAD = (
    *("family", "model", "connector", "prefill / decode", "setting", "engine", "device"),
    *("task", "questions", "equal outputs", "verdict", "why"),
)
_IN_COLUMNS = ("model", "engine", "connector", "async_scheduling", "pass")
_NOT_SHOWN = ("task", "concurrency", "schedule", "router")
_SIZES = ("prefill_tp", "decode_tp", "prefill_instances", "decode_instances")


@dataclass(frozen=True)
class Row:
    """One line of the table, column by column, and when its run began."""

    family: str
    model: str
    connector: str
    sizes: str
    setting: str
    engine: str
    device: str
    task: str
    questions: str
    equal: str
    verdict: str
    why: str
    started: str

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from other rows: all but what came of it."""
        return astuple(self)[:8]


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Every run's folder at or below these."""
    return sorted({file.parent for folder in folders for file in folder.rglob("run.json")})


def config_of(info: RunInfo) -> Mapping[str, Any]:
    config = info.resolved.get("config")
    return config if isinstance(config, Mapping) else {}


def part(config: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    """One model or engine of the sweep as it was resolved; empty where the run does not say."""
    found = (config.get(kind) or {}).get(name)
    return found if isinstance(found, Mapping) else {}


def with_faults(info: RunInfo) -> bool:
    """Whether a server of the run looked for faults to plant."""
    return any(ENVIRONMENT in env for servers in info.server_env.values() for env in servers.values())


def connector_of(cell: CellResult) -> str:
    """The connector, with those inside it as the servers' commands have them."""
    name = str(cell.labels.get("connector"))
    for command in cell.commands.values():
        if "--kv-transfer-config" in command:
            inside = children(json.loads(command[command.index("--kv-transfer-config") + 1]))
            return f"{name} ({', '.join(inside)})" if inside else name
    return name


def sizes_of(labels: Mapping[str, Any]) -> str:
    sides = [(labels.get(f"{side}_instances"), labels.get(f"{side}_tp")) for side in ("prefill", "decode")]
    if sides[0][0] == 0:
        return f"one server, TP {sides[1][1]}"
    return " / ".join(f"{instances} x TP {tp}" for instances, tp in sides)


def setting_of(labels: Mapping[str, Any]) -> str:
    """What else tells the cell from others: labels of its sweep's own, by the last part of their names."""
    told = [] if labels.get("async_scheduling") is not False else ["async off"]
    told += [] if labels.get("pass") is None else [f"pass {labels['pass']}"]
    for name, value in sorted(labels.items()):
        if value is not None and name not in (*_IN_COLUMNS, *_NOT_SHOWN, *_SIZES):
            text = value if isinstance(value, str) else json.dumps(value)
            told.append(f"{name.rpartition('.')[2]} {text}")
    return without_folders(", ".join(told))


def without_folders(text: str) -> str:
    """A text whose absolute paths are only their last part: the machine's folders mean nothing elsewhere."""
    return re.sub(r"(?<![\w.])/[^\s):\"]*/", "", text)


def why_of(verdict: Verdict) -> str:
    """The first reasons of a verdict that is no pass."""
    if verdict.state == "pass":
        return ""
    text = " ".join(reason.text for reason in verdict.reasons[:2])
    return without_folders(re.sub(r" ?\(log: [^)]*\)", "", text))


def row(info: RunInfo, cell: CellResult) -> Row | None:
    """A cell as a row; None for one without a connector or a real engine, and one that was never judged."""
    labels, config = cell.labels, config_of(info)
    version = info.engines.get(str(labels.get("engine")), {}).get("vllm")
    # One server whose connector stores blocks and loads them again has no prefill instance beside it.
    moves = cell.kind == "pd" or (labels.get("connector") is not None and labels.get("prefill_instances") == 0)
    if not moves or cell.verdict is None or version is None or "simulated" in str(version):
        return None
    device = part(config, "engines", labels.get("engine")).get("device")
    gpus = info.host.get("gpus") or []
    names = sorted({str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping) and gpu.get("name")})
    equal = [c.output_agreement for c in cell.comparisons if c.output_agreement is not None]
    return Row(
        family=str(part(config, "models", labels.get("model")).get("family") or "not said"),
        model=str(labels.get("model")),
        connector=connector_of(cell),
        sizes=sizes_of(labels),
        setting=setting_of(labels),
        engine=f"vLLM {version}",
        device="CPU" if device == "cpu" else ", ".join(names) or "GPU",
        task=str(labels.get("task")),
        questions="none" if cell.task is None or cell.task.n is None else str(cell.task.n),
        equal="not known" if not equal else f"{100 * equal[0]:.1f} %",
        verdict=cell.verdict.state,
        why=why_of(cell.verdict),
        started=info.started,
    )


def rows_of(folders: Iterable[Path]) -> Iterator[Row]:
    """The rows of all runs that plant no fault."""
    for folder in folders:
        result = RunFolder(folder).read()
        for cell in () if with_faults(result.info) else result.cells:
            made = None if cell.rerun_of is not None else row(result.info, cell)
            if made is not None:
                yield made


def newest(rows: Iterable[Row]) -> list[Row]:
    """The rows in order, the newest of those that differ only in what came of them."""
    return [row for _, row in sorted({row.key: row for row in sorted(rows, key=lambda row: row.started)}.items())]


def table(rows: Iterable[Row]) -> str:
    cells = ([text.replace("|", "\\|").replace("\n", " ") for text in astuple(row)[: len(HEAD)]] for row in rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in (HEAD, ("---",) * len(HEAD), *cells))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    parser.add_argument("--rows", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    folders = runs_in(args.runs)
    stored = args.rows is not None and args.rows.exists()
    if not folders and (args.runs or not stored):
        where = ", ".join(map(str, args.runs)) or "these arguments"
        print(f"no run is in {where}: give folders with a run.json below them", file=sys.stderr)
        return 1
    try:
        known = [Row(**line) for line in json.loads(args.rows.read_text(encoding="utf-8"))] if stored else []
        rows = newest([*known, *rows_of(folders)])
    except RigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (TypeError, ValueError):
        print(f"{args.rows}: is no list of rows; remove it and give all runs", file=sys.stderr)
        return 2
    if args.rows is not None:
        write_text(args.rows, json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")
    if args.write is None:
        print(table(rows))
        return 0
    whole = args.write.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        print(f"{args.write}: needs one {BEGIN} and one {END} after it", file=sys.stderr)
        return 2
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    write_text(args.write, f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
