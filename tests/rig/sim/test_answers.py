from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import canaries
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


@pytest.mark.parametrize("task", ["gsm-tiny", "gsm8k"])
def test_canaries_are_answered_right_and_damaged_ones_are_wrong(task: str) -> None:
    made = canaries.make_canaries(task, 60, "a cell", {"max_tokens": 96}, "completions")
    codes = {canary.code: canary.sample.sample_id for canary in made}
    for canary in made:
        for prompt in (canary.sample.prompt, f"user: {canary.sample.prompt}\n\n"):
            found = answers.recognise(prompt)
            assert found is not None and found.code
            said = answers.told(found, accuracy=0.0, noise=0.5, seed=0, asking=1).text
            assert canaries.check(canary, said, codes)[0] == "right", "a code is copied, however weak the model"
            assert canaries.check(canary, answers.wrong(found, "x"), codes)[0] == "wrong"


def known(count: int) -> list[answers.Question]:
    found = [answers.recognise(problems.ask(p.question)) for p in problems.distinct("test", 1, count)]
    return [question for question in found if question is not None]


def test_noise_is_the_share_of_answers_that_differ_from_one_asking_to_the_next() -> None:
    questions = known(1500)
    once, again = ([answers.told(q, 0.8, 0.1, 0, asking) for q in questions] for asking in (1, 2))
    right = [[answers.is_right(q, t.text) for q, t in zip(questions, side, strict=True)] for side in (once, again)]
    lost = sum(a and not b for a, b in zip(*right, strict=True))
    won = sum(b and not a for a, b in zip(*right, strict=True))
    # 1500 x 0.1 = 150 flips expected, half each way; 4 standard deviations either way.
    assert 104 < lost + won < 196 and abs(lost - won) < 50
    for a, b in zip(once, again, strict=True):
        assert a.text == b.text or (a.text, a.rival) == (b.rival, b.text)
    assert once == [answers.told(q, 0.8, 0.1, 0, 1) for q in questions]
    quiet = [answers.told(q, 0.8, 0.0, 0, 1) for q in questions]
    assert quiet == [answers.told(q, 0.8, 0.0, 0, 2) for q in questions] and not any(t.rival for t in quiet)


def test_a_donor_has_another_answer_and_a_codes_is_a_code() -> None:
    def code(name: str, digits: str) -> tuple[str, answers.Question]:
        return name, answers.Question("What is the code of Ann?", digits, f"#### {digits}", code=True)

    problem = ("p", answers.Question("How many?", "7", "#### 7"))
    mine, first, second = code("mine", "123456"), code("first", "654321"), code("second", "415263")
    assert answers.donor(mine[1], [mine, problem, first, second]) == first
    assert answers.donor(mine[1], [mine, problem]) == problem
    assert answers.donor(problem[1], [problem, second, first]) == second
    assert answers.donor(problem[1], [problem]) is None
    assert answers.donor(None, [problem]) == problem


def test_tokens_of_a_near_tie_are_about_equally_likely() -> None:
    values = [tokens.near_tie(piece, at, "k") for piece in "0123456789" for at in range(20)]
    assert all(-0.705 < value < -0.693 for value in values)
