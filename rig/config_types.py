"""The kinds of values in a sweep file: names, options, variables, numbers with bounds. Keys are in `config_models`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from evals.bounds import BOUNDS
from rig.config_errors import PROBLEM, shown
from rig.machine import MOST_GPUS

OWNED_ARGS = {
    "model": "the model of the cell",
    "host": "`listen`",
    "port": "`port` of prefill and decode",
    "tp": "`tp` of prefill and decode",
    "tensor-parallel-size": "`tp` of prefill and decode",
    "served-model-name": "`served_name` of the model",
    "async-scheduling": "`async_scheduling` of the cell",
    "kv-transfer-config": "`kv_transfer_config` of the cell",
    "api-key": "the variable VLLM_API_KEY of your shell",
}
"""Options that the plan writes itself, and what to set instead."""

SHORT_ARGS = {
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpl": "data-parallel-size-local",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "cc": "compilation-config",
    "sc": "speculative-config",
}
"""vLLM's short options, which need one dash: their long names are asked for instead."""

OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": "GPUs are assigned by the plan; narrow them with CUDA_VISIBLE_DEVICES in your shell",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "set `side_channel_host` instead",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "set `side_channel_port` of prefill and decode instead",
}


def problem(text: str) -> PydanticCustomError:
    """An error whose text is shown as it is."""
    return PydanticCustomError(PROBLEM, "{text}", {"text": text})


def bounded(name: str) -> Any:
    """The bounds of a whole number, by its name in evals.bounds."""
    least, most = BOUNDS[name]
    return Field(ge=least, le=most)


def canonical(name: str, value: Any) -> tuple[str, Any]:
    """One spelling for one option: dashes, and `no-x: true` as `x: false`."""
    head, dot, rest = name.partition(".")
    name = head.replace("_", "-") + dot + rest
    if name.startswith("no-") and isinstance(value, bool):
        return name.removeprefix("no-"), not value
    return name, value


def _arg_name(name: str) -> str:
    plain = name.replace("_", "-")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_.-]+)?", name):
        raise problem("an option's name without dashes in front, such as max-model-len, is expected")
    bare = plain.removeprefix("no-")
    for candidate in (plain, bare):
        if candidate in OWNED_ARGS:
            raise problem(f"pdrig writes this option itself; set {OWNED_ARGS[candidate]} instead")
        if candidate in SHORT_ARGS:
            raise problem(f"write the long name, {SHORT_ARGS[candidate]}")
    return name


def json_value(value: Any) -> Any:
    """The value itself, if JSON can hold it: no infinite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        raise problem(f"expected a finite number, got {value}")
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        json_value(child)
    return value


def _arg_value(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise problem("an empty list; null drops an inherited option")
    return json_value(value)


def _one_spelling(args: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, str] = {}
    for raw, value in args.items():
        name = canonical(raw, value)[0]
        if name in seen:
            raise problem(f"{seen[name]} and {raw} are the same option; keep one")
        seen[name] = raw
    return args


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise problem("not a name for an environment variable")
    if name in OWNED_ENV:
        raise problem(OWNED_ENV[name])
    return name


def _env_value(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem(f"expected text or a number, got {shown(value)}; write true as 1 or in quotes")
    return str(value)


def _no_nul(value: str | None) -> str | None:
    if value is not None and "\0" in value:
        raise problem("must not contain a NUL character")
    return value


def matching(pattern: str, expected: str, then: str = "") -> AfterValidator:
    """A check that a text matches from end to end; `expected` is said where it does not, and `then` behind it."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise problem(f"expected {expected}, got {shown(text)}{then}")
        return text

    return AfterValidator(check)


def _url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise problem(f"expected a URL such as http://127.0.0.1:8100, got {shown(url)}")
    try:
        address = urlsplit(url)
        named = bool(address.hostname) and address.port != 0
    except ValueError:
        named = False
    if not named:
        raise problem(f"no host, or no port from 1 to 65535, in {shown(url)}")
    return url.rstrip("/")


Name = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, dots, dashes and underscores")
]
Address = Annotated[
    str,
    matching(
        r"([A-Za-z0-9]|::|\{hostname\}|\{node\d+\})([A-Za-z0-9._:%-]|\{hostname\}|\{node\d+\})*",
        "a host's name or address, such as 10.0.0.11 or {hostname}",
    ),
]
HubName = Annotated[
    str,
    matching(r"[A-Za-z0-9_][^\s]*", "a model's name on the hub, such as Qwen/Qwen3-0.6B", "; a folder is a `path`"),
]
ModelName = Annotated[str, matching(r"[^\s-][^\s]*", "a name without spaces that does not begin with a dash")]
"""What requests call the model."""
Args = Annotated[
    dict[Annotated[str, AfterValidator(_arg_name)], Annotated[Any, AfterValidator(_arg_value)]],
    AfterValidator(_one_spelling),
]
"""Options of the server by name without dashes: see rig.plan_args for how each kind of value is written."""
Env = dict[
    Annotated[str, AfterValidator(_env_name)],
    Annotated[str | None, BeforeValidator(_env_value), AfterValidator(_no_nul)],
]
JsonObject = dict[str, Annotated[Any, AfterValidator(json_value)]]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Ranks = Annotated[int, Field(ge=1, le=MOST_GPUS)]
InFlight = Annotated[int, bounded("concurrency")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Url = Annotated[str, AfterValidator(_url)]


class Strict(BaseModel):
    """A part of the file whose keys are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
