"""What a reader finds in each report who has nothing but it: state, reasons, command and log of each cell."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree


@dataclass(frozen=True)
class Told:
    """What a report tells of one cell; empty where it tells nothing. `channel` is that of the first reason."""

    state: str
    channel: str
    why: str
    command: str
    log: str = ""


def of_markdown(text: str) -> dict[str, Told]:
    """Cells that need a look, and those that failed as expected."""
    found = {}
    for part in re.split(r"^#{3,4} ", text, flags=re.MULTILINE):
        head = re.match(r"\S+ ([a-z ]+): `([^`]+)`\n", part)
        if head is None:
            continue
        bullets = re.findall(r"^- \*\*(\w+)\*\*: (.*)$", part, re.MULTILINE)
        [command] = re.findall(r"^```sh\n(.*)\n```$", part, re.MULTILINE)
        log = "\n".join(re.findall(r"^```text\n(.*?)\n```$", part, re.MULTILINE | re.DOTALL))
        channels = [channel for channel, _ in bullets]
        why = plain("\n".join(f"{channel}: {said}" for channel, said in bullets))
        found[head[2]] = Told(head[1].replace(" ", "_"), channels[0], why, command, log)
    expected = text.partition("### Failed as expected\n\n")[2].partition("\n\n")[0]
    for entry in re.split(r"^- 🔶 ", expected, flags=re.MULTILINE)[1:]:
        name, said = re.match(r"`([^`]+)`: (.*)", entry, re.DOTALL).groups()  # type: ignore[union-attr]
        channel, command = re.findall(r"this time \*\*(\w+)\*\*", said)[0], re.findall(r"run it again: `(.*)`", said)[0]
        found[name] = Told("xfail", channel, plain(said), command)
    return found


def of_junit(text: str) -> dict[str, Told]:
    """Every test case."""
    found = {}
    for case in ElementTree.fromstring(text.encode()).iter("testcase"):
        facts = {p.get("name"): p.get("value") or "" for p in case.iter("property")}
        said = [case.find(tag) for tag in ("failure", "error", "skipped", "system-out")]
        why = "\n".join(element.text or "" for element in said if element is not None)
        reasons, _, command = why.partition("\n\nRun it again: ")
        log = "".join(element.text or "" for element in case.iter("system-err"))
        found[str(case.get("name"))] = Told(
            str(facts.get("state", "")), reasons.partition(":")[0], reasons, command, log
        )
    return found


def of_html(text: str) -> dict[str, Told]:
    """Every cell's section."""
    cells = re.search(r'<section id="cells">.*?</section>', text, re.DOTALL)
    assert cells
    found = {}
    for part in ElementTree.fromstring(cells[0].encode()).findall("details"):
        name, _, badge = "".join(part.find("summary/h3").itertext()).partition(" ")  # type: ignore[union-attr]
        reasons = ["".join(item.itertext()) for item in part.findall("ul[@class='reasons']/li")]
        command = part.findtext("p[@class='again']/code") or ""
        logs = [d.findtext("pre") or "" for d in part.findall("details") if d.findtext("summary", "").startswith("Log")]
        state = badge.split(" ", 1)[1].replace(" ", "_")
        found[name] = Told(state, (reasons or [":"])[0].partition(":")[0], "\n".join(reasons), command, "\n".join(logs))
    return found


def of_table(text: str) -> dict[str, Told]:
    """Every cell, from the list of verdicts; commands stand in a list of their own."""
    verdicts = text.partition("\nVerdicts\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^  (pdrig .*--cell (\S+).*)$", text, re.MULTILINE)
    by_cell = {name: command for command, name in commands}
    found = {}
    for part in re.split(r"^  (?=\S)", verdicts, flags=re.MULTILINE)[1:]:
        head, *reasons = part.rstrip("\n").split("\n    ")
        name, state = head.rsplit(": ", 1)
        why = re.sub(r"\n +", " ", "\n".join(r if r[0] != " " else f"\0{r}" for r in reasons)).replace("\n\0 ", "")
        why = re.sub(r"\s*\0\s+", " ", why)
        found[name] = Told(state, why.partition(":")[0], why, by_cell.get(name, ""))
    return found


def of_csv(text: str) -> dict[str, Told]:
    """Every row; of the reasons it has the first one, and errors by class."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return {
        row["cell_id"]: Told(row["state"], row["channel"], f"{row['reason']}\n{row['errors_by_class']}", row["command"])
        for row in rows
    }


def plain(markdown: str) -> str:
    """Escaped Markdown as it is shown."""
    return re.sub(r"\\([^A-Za-z0-9\s])", r"\1", html.unescape(markdown)).replace("\u200b", "")


READERS: Mapping[str, Callable[[str], dict[str, Told]]] = {
    "md": of_markdown,
    "html": of_html,
    "junit": of_junit,
    "csv": of_csv,
    "table": of_table,
}
