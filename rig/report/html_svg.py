"""Markup and small charts as SVG text; pure. Colours come from the style sheet, by class."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 360, 210
"""Of a chart, in its own units: about what a phone shows, so that its letters stay readable there."""
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 38

_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What a page cannot show or must not hold: control characters but tab and newline, halves of pairs."""
_ADDRESS = re.compile(r"(https?://[^\s<>\"')\]]*[^\s<>\"')\].,;:!?])")


def escape(text: str) -> str:
    """Text as it may stand between tags and in quoted attributes."""
    return html.escape(_UNSHOWN.sub("\ufffd", text), quote=True)


def with_links(text: str) -> str:
    """Text in which addresses can be followed. Of what the sweep's author wrote alone: a model may write any."""
    parts = _ADDRESS.split(text)
    return "".join(
        tag("a", escape(part), href=part, rel="noreferrer") if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def tag(name: str, content: str = "", **attributes: str | float) -> str:
    """An element; `content` is markup, attributes are escaped (`class_` is class, `_` becomes `-`)."""
    given = "".join(f' {k.rstrip("_").replace("_", "-")}="{_value(v)}"' for k, v in attributes.items())
    return f"<{name}{given}>{content}</{name}>"


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else coordinate(value)


def coordinate(value: float) -> str:
    """A position with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Axis:
    """A labelled range of values; with `log` both ends are above 0."""

    label: str
    low: float
    high: float
    log: bool = False
    unit: str = ""

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what is outside lies on the edge."""
        if self.log:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return min(max(value, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values within the range, three to six or so."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for parts in ((1,), (1, 3), (1, 2, 5)):
                found = [p * 10.0**k for k in powers for p in parts if self.low <= p * 10.0**k <= self.high]
                if len(found) >= 3:
                    return found[:: math.ceil(len(found) / 6)]
        step = _round_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def text(self, value: float) -> str:
        return f"{round(value, 9):,.10g}{self.unit}"


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= rough * 0.999)


def axis_over(label: str, values: Sequence[float], *, log: bool = False, zero: bool = True) -> Axis:
    """An axis that holds all values, from 0 where `zero` and not `log`."""
    top = max(values, default=1.0)
    if log:
        top = max(top, 1e-3)
        low = min((v for v in values if v > 0), default=top / 10)
        return Axis(label, max(min(low, top / 2), top / 1e4), top * 1.05, log=True)
    low = 0.0 if zero else min(values, default=0.0)
    return Axis(label, low, top if top > low else low + 1.0)


@dataclass(frozen=True)
class Plot:
    """The area of a chart between its axes."""

    x: Axis
    y: Axis

    def px(self, value: float) -> float:
        return LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)

    def py(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], class_: str) -> str:
        """A path through points."""
        path = "M" + "L".join(f"{coordinate(self.px(x))} {coordinate(self.py(y))}" for x, y in points)
        return tag("path", class_=f"line {class_}", d=path)

    def dot(self, x: float, y: float, class_: str, title: str) -> str:
        return tag("circle", tag("title", escape(title)), class_=f"dot {class_}", cx=self.px(x), cy=self.py(y), r=3.0)

    def whisker(self, x: float, low: float, high: float, class_: str) -> str:
        """A vertical interval."""
        path = f"M{coordinate(self.px(x))} {coordinate(self.py(low))}V{coordinate(self.py(high))}"
        return tag("path", class_=f"whisker {class_}", d=path)

    def bar(self, left: float, right: float, height: float, class_: str, title: str) -> str:
        """A bar from 0, between two values of the x-axis."""
        x, top = self.px(left) + 1, self.py(height)
        width = max(self.px(right) - x - 1, 1.0)
        shape = {"x": x, "y": top, "width": width, "height": self.py(0) - top}
        return tag("rect", tag("title", escape(title)), class_=f"bar {class_}", **shape)

    def svg(self, marks: Sequence[str], about: str, names: Sequence[tuple[float, str]] | None = None) -> str:
        """The whole chart; `names` stand below the x-axis in place of its ticks."""
        below = [(v, self.x.text(v)) for v in self.x.ticks()] if names is None else names
        grid, texts = [], []
        for value in self.y.ticks():
            y = self.py(value)
            grid.append(f"M{LEFT} {coordinate(y)}H{WIDTH - RIGHT}")
            texts.append(tag("text", escape(self.y.text(value)), x=LEFT - 5, y=y + 4, text_anchor="end"))
        for value, name in below:
            texts.append(tag("text", escape(name), x=self.px(value), y=HEIGHT - BOTTOM + 15, text_anchor="middle"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        texts.append(tag("text", escape(self.x.label), x=middle, y=HEIGHT - 5, text_anchor="middle", class_="name"))
        frame = tag("path", class_="grid", d="".join(grid))
        return svg(frame + "".join(texts) + "".join(marks), WIDTH, HEIGHT, about)


def svg(content: str, width: float, height: float, about: str, **attributes: str) -> str:
    """An SVG picture, with what it shows in words."""
    box = f"0 0 {coordinate(width)} {coordinate(height)}"
    return tag("svg", content, viewBox=box, role="img", aria_label=about, **attributes)


def figure(picture: str, title: str, note: str = "", keys: Sequence[tuple[str, str]] = ()) -> str:
    """A picture with its title, a legend of (class, name), and a note in small letters."""
    head = tag("figcaption", escape(title) + legend(keys))
    return tag("figure", head + picture + (tag("p", escape(note), class_="note") if note else ""))


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """What the colours mean, of (class, name)."""
    items = "".join(tag("li", tag("i", class_=f"key {class_}") + escape(name)) for class_, name in keys)
    return tag("ul", items, class_="legend") if items else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], class_: str = "") -> str:
    """A table of plain texts in a box that scrolls sideways; the first column heads its row."""
    top = tag("tr", "".join(tag("th", escape(name), scope="col") for name in head))
    body = [
        tag("tr", tag("th", escape(first), scope="row") + "".join(tag("td", escape(text)) for text in rest))
        for first, *rest in rows
    ]
    inner = tag("table", tag("thead", top) + tag("tbody", "".join(body)), class_=class_ or "facts")
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {head[0]}")
