"""The simulated prefix cache and storage: whole blocks, the oldest forgotten; and the count of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from rig.series import CACHED_TOKENS, EXTERNAL_TOKENS, LOCAL_TOKENS, OFFLOAD_LOADED, parse
from rig.sim.prefix import PrefixCache
from rig.sim.tokens import split

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=12)


@given(PROMPTS, st.integers(1, 4))
def test_a_cache_that_holds_all_knows_the_longest_common_beginning_in_whole_blocks(
    prompts: list[list[int]], size: int
) -> None:
    cache = PrefixCache(10_000, size)
    for i, prompt in enumerate(prompts):
        common = [
            next(
                (k for k, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(len(prompt), len(other))
            )
            for other in prompts[:i]
        ]
        whole = max((k // size * size for k in common), default=0)
        assert cache.use(prompt) == min(whole, max(len(prompt) - 1, 0) // size * size)


def test_a_small_cache_forgets_the_oldest() -> None:
    cache = PrefixCache(2, 2)
    one, two, three = [1, 1, 0], [2, 2, 0], [3, 3, 0]
    assert [cache.use(p) for p in (one, two, one, three, two, three)] == [0, 0, 2, 0, 0, 2]


def counters(url: str) -> tuple[float | None, ...]:
    found = parse(httpx.get(f"{url}/metrics", trust_env=False).text)
    return tuple(found[name] for name in (CACHED_TOKENS, EXTERNAL_TOKENS, LOCAL_TOKENS, OFFLOAD_LOADED))


def ask(url: str, prompt: str) -> None:
    body = {"prompt": prompt, "max_tokens": 1}
    assert httpx.post(f"{url}/v1/completions", json=body, trust_env=False).status_code == 200


def test_what_the_pool_forgot_the_storage_loads(start: Callable[..., Any]) -> None:
    config = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
    small = ("--enable-prefix-caching", "--num-gpu-blocks-override", "3", "--block-size", "4")
    sim = start(*small, "--kv-transfer-config", config)
    one, two = " a" * 9, " b" * 9
    for prompt in (one, one, two, one):
        ask(sim.url, prompt)
    # Two whole blocks a prompt, three in the pool: the second prompt takes the first one's beginning out of it.
    assert counters(sim.url) == (8, 8, 9 + 1 + 9 + 1, 8 * 1024)


def test_without_the_option_nothing_is_cached(start: Callable[..., Any]) -> None:
    sim = start()
    for _ in range(2):
        ask(sim.url, " a" * 40)
    assert counters(sim.url) == (0, 0, 80, None)


def test_tokens_are_counted_as_the_answer_counts_them(start: Callable[..., Any]) -> None:
    sim = start("--max-model-len", "500")
    url = f"{sim.url}/tokenize"
    told = httpx.post(url, json={"prompt": "Ann has 12 pens."}, trust_env=False).json()
    assert told["count"] == len(told["tokens"]) == len(split("Ann has 12 pens.")) and told["max_model_len"] == 500
    messages = [{"role": "user", "content": "Ann has 12 pens."}]
    chat = httpx.post(url, json={"messages": messages}, trust_env=False).json()
    answer = httpx.post(
        f"{sim.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 1}, trust_env=False
    ).json()
    assert chat["count"] == answer["usage"]["prompt_tokens"]
    assert httpx.post(url, json={"model": "other", "prompt": "x"}, trust_env=False).status_code == 404
    assert httpx.post(url, content=b"{", trust_env=False).status_code == 400
    assert httpx.post(url, json=[1], trust_env=False).status_code == 400
