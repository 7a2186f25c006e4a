"""The rows of a self-test as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rig.columns import aligned
from rig.selftest.rows import Row


def summary(rows: Sequence[Row]) -> str:
    """One line: how many faults were caught, how many clean runs alarmed."""
    faults, clean = [r for r in rows if r.fault], [r for r in rows if r.fault is None]
    caught = sum(r.as_expected for r in faults)
    alarms = sum(r.state == "regression" for r in clean)
    passed = sum(r.state in ("pass", "improved") for r in clean)
    missed = [r.case for r in rows if not r.as_expected]
    line = (
        f"{caught} of {len(faults)} planted faults caught; of {len(clean)} clean runs {alarms} alarmed and {passed} "
        f"passed"
    )
    return f"{line}. Not as expected: {', '.join(missed)}" if missed else line


def grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows of one fault, variant and rate together, whatever the seed."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = "clean" if row.fault is None else row.case.rsplit("-seed", 1)[0]
        groups.setdefault(name, []).append(row)
    return list(groups.items())


LEGEND = """struck: questions the engine damaged; lost: of those, right on the baseline only; points: change of accuracy
over questions answered on both sides; first evidence: what reached its level earliest, after so many requests;
5-point gate: what an accuracy within 0.05 of the baseline's, failed answers being wrong, would have said."""


def format_rows(rows: Sequence[Row], form: str, machine: Mapping[str, Any]) -> str:
    """The result for a terminal (`table`) or as the Markdown that is committed (`md`)."""
    return _markdown(rows, machine) if form == "md" else _plain(rows)


def _markdown(rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """A line a fault and rate, then a line a case."""
    named = {name: machine[name] for name in ("machine", "cpus", "memory_gib", "kernel") if machine.get(name)}
    head = [f"- {name}: {text}" for name, text in named.items()]
    short = [
        "| planted | runs | questions | struck | lost of those | accuracy change, points | verdicts | channels "
        "| first evidence | fixed 5-point gate |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_group_line(name, group) for name, group in grouped(rows)),
    ]
    every = [
        "| case | questions | struck | lost | accuracy | verdict | channels | first evidence | as expected |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join([f"{summary(rows)}.", "", *head, "", *short, "", "Every run:", "", *every]) + "\n"


def _plain(rows: Sequence[Row]) -> str:
    """The lines of the faults in columns."""
    titles = (
        "planted",
        "runs",
        "asked",
        "struck",
        "lost",
        "points",
        "verdicts",
        "channels",
        "first evidence",
        "5-point gate",
    )
    lines = [titles, *(_group(name, group) for name, group in grouped(rows))]
    rule = tuple("-" * max(len(line[i]) for line in lines) for i in range(len(titles)))
    text = aligned([titles, rule, *lines[1:]])
    missed = [f"{row.case}: {row.state or 'no result'}. {row.why}" for row in rows if not row.as_expected]
    return "\n".join([*text, "", LEGEND, *missed, summary(rows)])


def _group_line(name: str, rows: Sequence[Row]) -> str:
    return f"| {' | '.join(_group(name, rows))} |"


def _group(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    states = _counted([r.state or "-" for r in rows])
    channels = ", ".join(dict.fromkeys(c for r in rows for c in r.channels)) or "-"
    changes = [100 * r.change for r in rows if r.change is not None]
    change = _span([f"{c:+.1f}" for c in sorted(changes)])
    firsts = [r.first for r in rows if r.first is not None]
    first = "-"
    if firsts:
        span = _span([str(count) for count in sorted(f.requests for f in firsts)])
        first = f"{_counted([f.evidence for f in firsts])}, after {span}"
    gates = [r.gate for r in rows if r.gate is not None]
    gate = f"red in {sum(gates)} of {len(gates)}" if gates else "-"
    total, struck, lost = (sum(getattr(r, part) for r in rows) for part in ("questions", "struck", "struck_lost"))
    return (name, str(len(rows)), str(total), str(struck), str(lost), change, states, channels, first, gate)


def _line(row: Row) -> str:
    accuracy = "-" if row.accuracy is None else f"{row.accuracy:.3f}"
    first = "-" if row.first is None else f"{row.first.evidence} after {row.first.requests}"
    channels = ", ".join(row.channels) or "-"
    good = "yes" if row.as_expected else "**no**"
    fields = (row.case, row.questions, row.struck, row.struck_lost, accuracy, row.state or "-", channels, first, good)
    return f"| {' | '.join(map(str, fields))} |"


def _span(texts: Sequence[str]) -> str:
    """`A to B` of texts in order, one alone where both are the same, `-` for none."""
    if not texts:
        return "-"
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _counted(names: Sequence[str]) -> str:
    """`pass 9, inconclusive 1`; a word alone where all are the same."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{name} {k}" for name, k in counts.items())
