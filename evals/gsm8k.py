"""The GSM8K prompts of lm-evaluation-harness and of vLLM. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evals.data import Row

LM_EVAL_SEED = 1234
"""lm-eval 0.4.13's default seed of the few-shot sampler and of the request."""

LM_EVAL_PARAMS = {
    "max_tokens": 256,
    "temperature": 0.0,
    "stop": ["Question:", "</s>", "<|im_end|>"],
    "seed": LM_EVAL_SEED,
}
"""What its local-completions client sends with a concurrency above 1; with 1 it adds the tokenizer's EOS."""

VLLM_PARAMS = {"max_tokens": 256, "temperature": 0.0, "stop": ["Question", "Assistant:", "<|separator|>"], "seed": 42}
"""vLLM's tests/evals/gsm8k/gsm8k_eval.py."""


def lm_eval_prompts(train: Sequence[Row], test: Sequence[Row], shots: int) -> list[str]:
    """Prompts in test order; one generator draws the shots of all, so each depends on those before it.

    The question asked is not in the pool it draws from, so lm-eval does not draw one more to drop it.
    """
    rng = random.Random(LM_EVAL_SEED)
    return ["".join(map(_shot, rng.sample(train, shots))) + _ask(row) for row in test]


def vllm_prompts(train: Sequence[Row], test: Sequence[Row], shots: int) -> list[str]:
    """Prompts in test order, all with the first rows of train as shots."""
    examples = "".join(f"Question: {row.question}\nAnswer: {row.answer}\n\n" for row in train[:shots])
    return [examples + _ask(row) for row in test]


def _shot(row: Row) -> str:
    # lm-eval puts its delimiters between the texts as they are; jinja keeps a value's own whitespace.
    return f"{_ask(row)} {row.answer}\n\n"


def _ask(row: Row) -> str:
    return f"Question: {row.question}\nAnswer:"
