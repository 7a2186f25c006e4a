"""What ran of the model families, as a table made from results: family, connector, shape, engine, device, verdict.

    python scripts/families_table.py RUNS... [--write docs/families.md]

RUNS are folders of runs, or folders that hold such (`results/runs`, a folder that `make test-real` kept). A row is one
prefill/decode cell, the newest where several runs have the same; the family is the sweep file's `models.NAME.family`.
Cells of the simulated engine are left out. With --write the table replaces what stands between the two markers of that
file. Exit status: 0, 1 when no run is found, 2 when the file has no markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rig.errors import RigError
from rig.records import CellResult, RunInfo
from rig.store import RunFolder, write_text

BEGIN, END = "<!-- what ran: begin -->", "<!-- what ran: end -->"
HEAD = ("family", "model", "connector", "prefill / decode", "engine", "device", "questions", "equal outputs", "verdict")


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


def row(info: RunInfo, cell: CellResult) -> tuple[str, ...] | None:
    """A cell as a row; None for one that is no hand-off of a real engine, or that was never judged."""
    labels, config = cell.labels, config_of(info)
    version = info.engines.get(str(labels.get("engine")), {}).get("vllm")
    if cell.kind != "pd" or cell.verdict is None or version is None or "simulated" in str(version):
        return None
    device = part(config, "engines", labels.get("engine")).get("device")
    gpus = info.host.get("gpus") or []
    names = sorted({str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping) and gpu.get("name")})
    where = "CPU" if device == "cpu" else ", ".join(names) or "GPU"
    equal = [c.output_agreement for c in cell.comparisons if c.output_agreement is not None]
    sizes = " / ".join(
        f"{labels.get(f'{side}_instances')} x TP {labels.get(f'{side}_tp')}" for side in ("prefill", "decode")
    )
    return (
        str(part(config, "models", labels.get("model")).get("family") or "not said"),
        str(labels.get("model")),
        str(labels.get("connector")),
        sizes,
        f"vLLM {version}",
        where,
        "none" if cell.task is None or cell.task.n is None else str(cell.task.n),
        "not known" if not equal else f"{100 * equal[0]:.1f} %",
        cell.verdict.state,
    )


def rows(folders: Iterable[Path]) -> Iterator[tuple[str, ...]]:
    """The rows of all runs, sorted; the newest run's where two differ only in what came of them."""
    newest: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
    for folder in folders:
        result = RunFolder(folder).read()
        for cell in result.cells:
            made = None if cell.rerun_of is not None else row(result.info, cell)
            if made is not None and (made[:6] not in newest or newest[made[:6]][0] <= result.info.started):
                newest[made[:6]] = (result.info.started, made)
    return (made for _, (_, made) in sorted(newest.items()))


def table(lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (HEAD, ("---",) * len(HEAD), *lines))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    folders = runs_in(args.runs)
    if not folders:
        print(
            f"no run is in {', '.join(map(str, args.runs))}: give folders with a run.json below them", file=sys.stderr
        )
        return 1
    try:
        text = table(rows(folders))
    except RigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.write is None:
        print(text)
        return 0
    whole = args.write.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        print(f"{args.write}: needs one {BEGIN} and one {END} after it", file=sys.stderr)
        return 2
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    write_text(args.write, f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
