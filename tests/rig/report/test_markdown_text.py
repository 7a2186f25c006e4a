"""Any text as Markdown: it is shown, and does nothing else; and what has room within a limit."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rig.report.markdown_fit import Part, fit, fixed, optional, units
from rig.report.markdown_text import block, code, folded, inline, one_line, plain, shortened

SIGNS = st.text(alphabet=st.sampled_from("a1 -+=#@_*`[]()<>|\\~&$:/.!w\n\t\r\x00\x1b\u202e\ud83dé😀GH"), max_size=30)


def shown(markdown: str) -> str:
    """What a reader sees: the text of the page, zero-width spaces taken out."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u200b", "").strip()


@given(SIGNS)
def test_any_text_is_one_paragraph_that_reads_as_it_is(text: str) -> None:
    expected = one_line(text)
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(plain(text))
    assert shown(plain(text)) == expected
    assert page.replace("<span>$</span>", "").count("<") == (2 if expected else 0)


@given(SIGNS, SIGNS)
def test_any_text_is_one_field_of_a_table(one: str, other: str) -> None:
    text = f"| a | b |\n| --- | --- |\n| {inline(one)} | {code(other)} |"
    page = MarkdownIt("commonmark").enable("table").render(text)
    fields = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    read = [html.unescape(re.sub(r"<[^>]*>", "", f)).replace("\u200b", "").strip() for f in fields]
    assert read == [one_line(one), one_line(other)]


@given(SIGNS)
def test_a_block_is_one_block(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"before\n\n{block(text, 'text')}\n\nafter")
    assert [t.type for t in tokens if t.type == "fence" or t.content in ("before", "after")] == [
        "inline",
        "fence",
        "inline",
    ]


@given(SIGNS)
def test_a_title_is_text(title: str) -> None:
    heading = re.fullmatch(r"<details><summary>(.*)</summary>\n\nx\n\n</details>", folded(title, "x"), re.DOTALL)
    assert heading is not None
    assert "<" not in heading[1]
    assert html.unescape(heading[1]).replace("\u200b", "") == one_line(title)


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("@user", "@&#8203;user"),
        ("see #12 and gh-3, not # or ghost", "see #&#8203;12 and gh-&#8203;3, not # or ghost"),
        ("https://a.b/c www.d.e", "https:\\//a.b/c www\\.d.e"),
        ("1. one", "1\\. one"),
        ("- one", "\\- one"),
        ("<!-- x -->", "&lt;!-- x --&gt;"),
        ("a|b", "a&#124;b"),
        ("\x1b[31mred\u202e", "red"),
    ],
)
def test_signs(text: str, markdown: str) -> None:
    assert plain(text) == markdown


def test_a_name_is_code_where_code_can_hold_it() -> None:
    assert code("a-b_c*") == "`a-b_c*`"
    assert code("a`b") == "a\\`b"
    assert code("a|b") == "a&#124;b"


@given(st.text(max_size=40), st.integers(3, 30))
def test_a_shortened_text_is_no_longer(text: str, most: int) -> None:
    assert len(shortened(text, most)) <= most
    assert shortened(text, 100) == one_line(text)


@given(
    st.lists(st.tuples(st.text("x", max_size=20), st.text("y", max_size=300), st.integers(0, 5)), max_size=12),
    st.integers(0, 2000),
)
def test_what_fits_is_within_the_limit_and_keeps_every_shortest_form(
    given_parts: list[tuple[str, str, int]], limit: int
) -> None:
    parts = [Part((short, short + long), (rank,)) for short, long, rank in given_parts]
    text = fit(parts, limit, "CUT")
    least = units("\n\n".join([*(short for short, _, _ in given_parts if short), "CUT"]))
    assert units(text) <= max(limit, least + 2)
    assert text.count("x") == sum(len(short) for short, _, _ in given_parts)
    whole = all(short + long in text for short, long, _ in given_parts)
    assert ("CUT" in text) or whole


def test_the_lower_rank_has_its_place_first() -> None:
    parts = [fixed("head"), optional("late " * 20, 2), optional("early " * 20, 1)]
    text = fit(parts, 160, "CUT")
    assert "early" in text and "late" not in text
    assert text.endswith("\n\nCUT\n")
