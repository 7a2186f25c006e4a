from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.robust import read_answer, read_target, same_number
from evals.scorers import SCORERS, score


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # The mark comes first, whatever follows.
        ("Steps.\n#### 18", "18"),
        ("#### 18 (see step 2)", "18"),
        ("#### 18\nThat is 3 a day.", "18"),
        ("####18", "18"),
        ("####\n18", "18"),
        ("#### **18**", "18"),
        ("#### $18$", "18"),
        ("#### \\boxed{18}", "18"),
        ("#### Answer: 18", "18"),
        ("#### The final answer is 18", "18"),
        ("#### x = 18", "18"),
        ("#### = 18", "18"),
        ("#### 20 + 4 = 24", "24"),
        ("#### 48/2 = 24 apples", "24"),
        ("#### Step 1: add 3\n3 + 4 = 7\n#### 7", "7"),
        ("#### 1. First we add\n3 + 4 = 7\n#### 7", "7"),
        ("#### 1. First we add", "1"),
        # Money, separators, decimals, zeros, dots, units.
        ("#### $29.00", "29"),
        ("#### $1,234.50", "1234.5"),
        ("#### \\$1{,}234", "1234"),
        ("#### USD 7", "7"),
        ("#### 7€", "7"),
        ("#### 1\u202f234", "1234"),
        ("#### 12,34,567", "1234567"),
        ("#### 08", "8"),
        ("#### 5...", "5"),
        ("#### 5.", "5"),
        ("#### .50", "0.5"),
        ("#### 18 apples", "18"),
        ("#### 5km", "5"),
        ("#### 50%", "50"),
        ("#### 50\\%", "50"),
        ("#### 1.5e3", "1500"),
        # Signs.
        ("#### -5", "-5"),
        ("#### \u22125", "-5"),
        ("#### \u20135", "-5"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### -0", "0"),
        ("It is -5.", "-5"),
        ("It is \u22125.", "-5"),
        ("That is 10 - 5", "5"),
        ("That is 10-5", "5"),
        ("That is (10)-5", "5"),
        # Fractions.
        ("#### 3/4", "0.75"),
        ("#### 1 1/2", "1.5"),
        ("#### 1½", "1.5"),
        ("#### ½", "0.5"),
        ("#### \\frac{1}{2}", "0.5"),
        ("#### 2\\dfrac{1}{2}", "2.5"),
        ("#### -\\frac{1}{3}", "-1/3"),
        ("#### 2/6", "1/3"),
        ("#### 5/0", "5"),
        # Digits of other scripts.
        ("#### １８", "18"),
        ("#### \u0661\u0668", "18"),
        ("#### 5\u00b2", "5"),
        # No mark: box, phrase, last number.
        ("So \\boxed{7} of the 9", "7"),
        ("The answer is 18. I used 3 steps.", "18"),
        ("The answer is 3 + 5 = 8.", "8"),
        ("The answer is **$1,000**, or 3 a day", "1000"),
        ("Answer: 7", "7"),
        ("3 and 4 make <<3+4=7>>7 apples", "7"),
        ("3 and 4 make 7 <<3+4=7>>", "7"),
        ("It was H2O, twice", None),
        ("so...18", "18"),
        # Thinking, and questions that the model invents.
        ("<think>3 or 4</think>18", "18"),
        ("<think>3 or 4", None),
        ("#### 18\n\nQuestion: And then?\nAnswer: 7\n#### 7", "18"),
        ("It is 18.\nQ: and 3?", "18"),
        ("It is 18.\n**Question 2:** and 3?", "18"),
        ("No idea.\nQuestion: 3?\n#### 3", None),
        ("Question: 3 and 15?\nAnswer: #### 18", "18"),
        ("Identify the Question. It is 18.", "18"),
        ("", None),
        ("nothing", None),
        ("#### " + "9" * 5000, None),
    ],
)
def test_readings(text: str, answer: str | None) -> None:
    assert read_answer(text) == answer


def test_case_25_the_first_mark_counts() -> None:
    robust = SCORERS["robust"]
    text = "16 + 2 = 18\n#### 18\n\nQuestion: Ann has 7 apples. How many?\nAnswer: 7\n#### 7"
    assert score(robust, text, "length", robust.target("#### 18")) == ("correct", "18")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("#### $29.00", "29"),
        ("#### $1,234.50", "1234.5"),
        ("#### 08", "8"),
        ("#### 5...", "5"),
        ("#### -5", "-5"),
        ("#### \u22125", "-5"),
        ("#### 18 (see step 2)", "18"),
    ],
)
def test_case_26_spellings_of_the_same_number(text: str, target: str) -> None:
    robust = SCORERS["robust"]
    assert score(robust, text, "stop", robust.target(f"#### {target}"))[0] == "correct"
    assert score(robust, text, "stop", robust.target("#### 3"))[0] == "wrong"


@given(st.fractions(max_denominator=10**6))
def test_a_canonical_number_reads_as_itself(value: Fraction) -> None:
    once = read_answer(f"#### {value}")
    assert once is not None and Fraction(once) == value
    assert read_answer(f"#### {once}") == once
    assert read_target(once) == once
    assert same_number(once, once)


@given(st.decimals(-(10**9), 10**9, places=4), st.sampled_from(["{}", "{:,}", "{}00", "$ {}", "{} apples", "{}%"]))
def test_spellings_do_not_matter(value: object, spelling: str) -> None:
    assert read_answer(f"#### {value}") == read_answer("#### " + spelling.format(value))


@pytest.mark.parametrize(
    "text",
    [
        "#" * 20000, "#### " * 4000, "#### " + " " * 20000, "1" * 20000, "1," * 10000, "answer " * 4000, " " * 20000,
        "1/" * 10000, "- " * 10000, "#### " + "1 + " * 5000, "\\boxed{" * 3000, "#### " + "a" * 20000, "<<" * 10000,
        "answer" + "*" * 20000, "#### the answer" + " " * 20000, "Q" + " " * 20000, "1 " * 10000,
    ],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """In time of the processor: what else a machine does is no slowness of the reader's."""
    begun_s = time.process_time()
    read_answer(text)
    assert time.process_time() - begun_s < 5
