"""`gsm-tiny`: held-out problems of the tiny model, each after shots of its own. Pure."""

from __future__ import annotations

from evals.tiny_hybrid.problems import Problem, ask, distinct, shot

SEED = 7
"""Of the questions, and the first of the seeds of the shots."""

PARAMS = {"max_tokens": 96, "temperature": 0.0, "stop": ["\n\n", "Question:"]}
MOST = 20_000
"""Questions; the held-out split has more, but draws of new ones get long."""


def tiny_questions(count: int, seed: int = SEED) -> list[Problem]:
    """The first `count` held-out problems; a longer list begins with the shorter."""
    return distinct("test", seed, count)


def tiny_prompt(problem: Problem, index: int, shots: int, seed: int = SEED) -> str:
    """The prompt of question `index`: its own training problems, all different, then the question."""
    examples = distinct("train", seed * 1_000_003 + index, shots) if shots else []
    return "".join(shot(p.question, p.solution) for p in examples) + ask(problem.question)
