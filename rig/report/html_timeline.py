"""The timeline of a cell: every request as a bar, warm-up first, errors marked; pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from evals.records import RequestRecord
from rig.report.html_svg import Axis, coordinate, figure, svg, tag

WIDTH, TOP, BOTTOM = 1100, 14, 34
NAMES = {
    "warmup": "warm-up",
    "canary": "canary",
    "correct": "right",
    "wrong": "not right",
    "error": "error",
    "asked": "not judged",
}


def timeline(records: Sequence[RequestRecord], outcomes: Mapping[str, str]) -> str:
    """Requests in lanes, as many as were in flight at once; `outcomes` by request id. Empty without requests."""
    if not records:
        return ""
    ordered = sorted(records, key=lambda r: (r.t_submit, r.request_id))
    start, end = ordered[0].t_submit, max(r.t_end for r in ordered)
    axis = Axis("seconds", start, end if end > start else start + 1)
    lanes = _lanes(ordered)
    height = min(max(200 / (1 + max(lanes)), 2.0), 14.0)
    bars: dict[str, list[str]] = {}
    marks = []
    for record, lane in zip(ordered, lanes, strict=True):
        kind = _kind(record, outcomes)
        x, y = axis.share(record.t_submit) * WIDTH, TOP + (lane + 0.5) * height
        width = max(axis.share(record.t_end) * WIDTH - x, 1.0)
        bars.setdefault(kind, []).append(f"M{coordinate(x)} {coordinate(y)}h{coordinate(width)}")
        if kind == "error":
            at = axis.share(record.t_end) * WIDTH
            marks.append(f"M{coordinate(at)} {TOP}l-4 -9h8z")
    bottom = TOP + height * (1 + max(lanes))
    parts = [tag("path", class_="grid", d=f"M0 {coordinate(bottom + 2)}H{WIDTH}")]
    parts += [
        tag("path", class_=f"span {kind}", d="".join(bars[kind]), stroke_width=max(height - 0.8, 1.2))
        for kind in NAMES
        if kind in bars
    ]
    if marks:
        parts.append(tag("path", class_="fault", d="".join(marks)))
    for value in axis.ticks():
        x = axis.share(value) * WIDTH
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        parts.append(tag("text", f"{axis.text(value)} s", x=x, y=bottom + 18, text_anchor=anchor))
    counts = {kind: len(found) for kind, found in bars.items()}
    about = "Timeline: " + ", ".join(f"{NAMES[k]} {counts[k]}" for k in NAMES if k in counts)
    picture = tag(
        "div",
        svg("".join(parts), WIDTH, bottom + BOTTOM - 8, about, class_="wide"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Timeline",
    )
    keys = [(kind, f"{NAMES[kind]} ({counts[kind]})") for kind in NAMES if kind in counts]
    note = "One bar a request, from submit to end; one lane a request in flight. Triangles mark where requests failed."
    return figure(picture, "Timeline", note if marks else note.split(" Triangles")[0], keys)


def _kind(record: RequestRecord, outcomes: Mapping[str, str]) -> str:
    """What a request is drawn as. An error that is known without judging is one, too."""
    if record.kind in ("warmup", "preflight"):
        return "error" if record.error else "warmup"
    outcome = outcomes.get(record.request_id)
    if record.error is not None or outcome == "error":
        return "error"
    if record.kind == "canary":
        return "canary" if outcome in (None, "right") else "wrong"
    return "asked" if outcome is None else "correct" if outcome == "correct" else "wrong"


def _lanes(ordered: Sequence[RequestRecord]) -> list[int]:
    """The lowest free lane for each request."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = []
    for record in ordered:
        while busy and busy[0][0] <= record.t_submit:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (record.t_end, lane))
        lanes.append(lane)
    return lanes
