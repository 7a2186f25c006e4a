from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tiny_hybrid import problems
from rig.sim import answers, tokens


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_word_problem_is_solved_as_its_author_solves_it(split: problems.Split) -> None:
    for problem in problems.distinct(split, seed=5, count=400):
        shots = "".join(problems.shot(p.question, p.solution) for p in problems.distinct("train", 1, 2))
        found = answers.recognise(shots + problems.ask(problem.question))
        assert found is not None, problem.question
        assert (found.text, found.target, found.solution) == (problem.question, str(problem.answer), problem.solution)


def test_a_code_is_found_in_its_own_prompt() -> None:
    rng = random.Random(3)
    for name in problems.NAMES:
        code = problems.draw_code(rng, name, 4)
        prompt = f"{code.statement}\n\n{problems.ask(code.question)}"
        found = answers.recognise(prompt)
        assert found is not None
        assert (found.target, found.solution) == (code.digits, code.solution)


def test_gsm8k_questions_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "How many?", "answer": "6*3=<<6*3=18>>1,018.\\n#### 1,018"}\n')
    book = answers.Book.read(tmp_path)
    found = answers.recognise("Question: A?\nAnswer: 1\n#### 1\n\nQuestion: How many?\nAnswer:", book)
    assert found is not None and found.target == "1018"
    assert answers.is_right(found, found.solution)
    assert not answers.is_right(found, answers.wrong(found, "x"))
    in_chat = answers.recognise("user: Solve this. How many? Put the answer after ####.\n\n", book)
    assert in_chat == found


@given(st.integers(0, 10**6), st.text(max_size=5))
def test_a_wrong_answer_is_always_wrong_and_always_the_same(seed: int, salt: str) -> None:
    rng = random.Random(seed)
    problem = problems.draw(rng)
    code = problems.draw_code(rng, "Ann", rng.randint(2, 8))
    for prompt in (problems.ask(problem.question), f"{code.statement}\n{problems.ask(code.question)}"):
        question = answers.recognise(prompt)
        assert question is not None
        damaged = answers.wrong(question, salt)
        assert answers.answer_in(damaged) not in (None, question.target)
        assert damaged == answers.wrong(question, salt)


@given(st.text())
def test_any_text_is_its_tokens_joined(text: str) -> None:
    pieces = tokens.split(text)
    assert "".join(pieces) == text
    assert tokens.text_of([tokens.token_id(piece) for piece in pieces]) == text


@given(st.text(max_size=200))
def test_any_prompt_gets_an_answer(prompt: str) -> None:
    question = answers.recognise(prompt)
    assert question is None or answers.is_right(question, question.solution)
    assert answers.unknown(prompt, "") == answers.unknown(prompt, "") != ""


def test_logprobs_are_finite_unequal_and_lower_where_damaged() -> None:
    values = [tokens.logprob("x", at, "k") for at in range(50)]
    assert len(set(values)) == 50 and all(-0.51 < value < 0 for value in values)
    assert tokens.logprob("x", 0, "k", 2.0) == values[0] - 2.0
    top = tokens.alternatives("x", values[0], 0, "k", 5)
    assert top[0] == ("x", values[0])
    assert len({text for text, _ in top}) == 5
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
