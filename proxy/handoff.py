"""What goes to prefill, what goes to decode, and what cannot be handed off. Pure.

Shapes of `kv_transfer_params` as vLLM's NIXL connectors (0.32) read and write them.
"""

from __future__ import annotations

from typing import Any

import orjson

from proxy.errors import LegError, Refused
from proxy.settings import Mode

Body = dict[str, Any]
Params = dict[str, Any]

REMOTE_DECODE: Params = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Tells a prefill engine to keep the KV cache of this request for a decode engine."""

# vLLM rejects stream_options without stream, and min_tokens above max_tokens, which is 1 on this leg.
# Every other parameter stays: several of them (tools, truncation, chat template) decide the prompt's tokens.
NOT_ON_PREFILL = frozenset({"stream_options", "min_tokens", "min_completion_tokens"})

PUSH_NEEDS = ("remote_engine_id", "remote_host", "remote_port", "tp_size")

_TRUE_WORDS = frozenset({"true", "1", "on", "t", "y", "yes"})


def parse(raw: bytes) -> Body:
    """The client's body as a JSON object. Raises Refused."""
    try:
        body = orjson.loads(raw)
    except ValueError as error:
        raise Refused(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(f"the body must be a JSON object, not {type(body).__name__}")
    return body


def check(body: Body) -> None:
    """Raises Refused for a request whose KV cache one hand-off cannot carry.

    Prefill gives the parameters of one sequence only: with several prompts or several sequences a prompt the
    rest would silently be computed on decode, and beam search drops them altogether.
    """
    for name in ("n", "best_of"):
        if _more_than_one(body.get(name)):
            raise Refused(
                f"{name} must be 1 through prefill/decode hand-off: the KV cache of one sequence is handed over, "
                f"not of {body[name]}; send {name} separate requests",
                name,
            )
    if _is_true(body.get("use_beam_search")):
        raise Refused("beam search cannot be handed off: its engine requests carry no KV transfer", "use_beam_search")
    prompts = _count_prompts(body.get("prompt")) + _count_embeds(body.get("prompt_embeds"))
    if prompts > 1:
        raise Refused(
            f"one prompt per request through prefill/decode hand-off, not {prompts}: prefill gives the KV cache of "
            "the first only; send one request for each prompt",
            "prompt",
        )


def prefill_body(body: Body) -> bytes:
    """The prefill leg: the client's request made to end after one token, its KV cache kept for decode.

    Raises Refused for a body that is nested too deeply to be written again.
    """
    leg = {name: value for name, value in body.items() if name not in NOT_ON_PREFILL}
    leg["stream"] = False
    leg["max_tokens"] = 1
    if "max_completion_tokens" in leg:
        leg["max_completion_tokens"] = 1
    leg["kv_transfer_params"] = REMOTE_DECODE
    return _dump(leg)


def decode_body(raw: bytes, body: Body, params: Params | None) -> bytes:
    """The decode leg: the client's bytes as they came, with `params` added as `kv_transfer_params`.

    `body` is `raw` parsed. Parameters that the client itself sent are replaced, or dropped if `params` is None:
    only prefill's own answer may name KV blocks. Raises Refused as `prefill_body` does.
    """
    if "kv_transfer_params" in body:
        leg = {name: value for name, value in body.items() if name != "kv_transfer_params"}
        if params is not None:
            leg["kv_transfer_params"] = params
        return _dump(leg)
    if params is None:
        return raw
    head = raw.rstrip()[:-1]
    return b"%b%b%b}" % (head, b',"kv_transfer_params":' if body else b'"kv_transfer_params":', orjson.dumps(params))


def params_for_decode(answer: bytes, mode: Mode) -> tuple[Params | None, str | None]:
    """From prefill's whole answer: the parameters for decode, and the prefill engine's id.

    The parameters are None where prefill gave none that would make decode read remote KV. Push mode sends no
    `remote_block_ids`: prefill learns decode's blocks and writes into them. Raises LegError with class
    `bad_response` for an answer that is no JSON object, or that belongs to the other mode.
    """
    try:
        data = orjson.loads(answer)
    except ValueError:
        raise LegError("prefill", "bad_response", f"prefill's answer is not JSON: {answer[:120]!r}") from None
    if not isinstance(data, dict):
        raise LegError("prefill", "bad_response", f"prefill's answer is not a JSON object: {answer[:120]!r}")
    params = data.get("kv_transfer_params")
    if not isinstance(params, dict) or not params:
        return None, None
    engine_id = params.get("remote_engine_id")
    engine_id = engine_id if isinstance(engine_id, str) else None
    if params.get("do_remote_prefill", True) is not True:
        return None, engine_id
    if params.get("transfer_mode", mode) != mode:
        raise LegError(
            "prefill",
            "bad_response",
            f"prefill's connector works in {params['transfer_mode']} mode, the proxy in {mode} mode: change --mode",
        )
    if mode == "push":
        missing = [name for name in PUSH_NEEDS if params.get(name) is None]
        if missing:
            raise LegError("prefill", "bad_response", f"push mode needs {', '.join(missing)} in kv_transfer_params")
        params = {name: value for name, value in params.items() if name != "remote_block_ids"}
    return params, engine_id


def _dump(body: Body) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise Refused(f"the body cannot be handed off: {error}") from None


def _more_than_one(value: object) -> bool:
    # Engines read "2" and 2.0 as 2.
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, int | float) and value > 1


def _is_true(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def _count_prompts(prompt: object) -> int:
    if isinstance(prompt, list):
        # A flat list of token ids is one prompt.
        if all(isinstance(item, int) for item in prompt):
            return 1 if prompt else 0
        return len(prompt)
    return 1 if isinstance(prompt, str) and prompt else 0


def _count_embeds(embeds: object) -> int:
    if isinstance(embeds, list):
        return len(embeds)
    return 1 if isinstance(embeds, str) and embeds else 0
