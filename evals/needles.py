"""`needles`: a code at a chosen depth of a long prompt, to be repeated at its end. Pure.

The texts are those of the canaries (evals.canaries). Their codes are the same for every cell, so that cell and
baseline are asked the same questions: KV that an earlier cell left behind can be right here, in a canary it cannot.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from evals.canaries import ANSWER_TOKENS, tiny_text
from evals.canary_text import canary_text
from evals.errors import BadParams
from evals.shapes import Draft, Sample
from evals.tiny_hybrid.problems import draw_code

PROMPTS = 200
WORDS = 2000
MOST_WORDS = 200_000
DEPTHS = (0, 25, 50, 75, 100)
"""Per cent of the filler that stand before the code."""

TINY_SHOTS = 12
PARAMS = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0, "stop": ["\n\n", "Question:"]}
SCORERS = ("robust", "gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm")
DEPTH = "depth"


def needles(count: int, words: int, depths: Sequence[int], tiny: bool) -> Draft:
    """`count` prompts with about `words` words of filler, the depths in turn; a longer list begins with the shorter.

    `tiny`: in the shape that the tiny model was trained on, codes of six digits among TINY_SHOTS worked examples at
    most, whatever `words` says. Raises BadParams.
    """
    if not 0 <= words <= MOST_WORDS:
        raise BadParams(f"needles: words is {words}; it must be 0 to {MOST_WORDS}")
    if not depths or not all(0 <= depth <= 100 for depth in depths):
        raise BadParams(f"needles: depths are {list(depths)}; they are per cent of the filler, 0 to 100")
    samples = []
    for i in range(count):
        depth = depths[i % len(depths)]
        rng = random.Random(f"needles/1/{i}")
        code = draw_code(rng, "", 6 if tiny else 8, distinct_digits=tiny).digits
        make = tiny_text if tiny else canary_text
        prompt, solution, at = make(rng, code, TINY_SHOTS if tiny else words, depth / 100)
        meta = {DEPTH: f"{depth} %", "position": at / len(prompt)}
        samples.append(Sample(f"needle-{i:04d}", prompt, solution, meta=meta))
    return Draft("1", PARAMS, SCORERS, tuple(samples), group_by=DEPTH, canaries="gsm-tiny" if tiny else "")
