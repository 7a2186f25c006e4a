"""What is known of routers that are not the rig's own: vllm-router's options, and what its answers tell. Pure.

Read from vllm-router 0.1.17 (PyPI; https://github.com/vllm-project/router): `py_src/vllm_router/router_args.py` for the
options, `src/routers/http/vllm_pd_router.rs` (`generate_vllm_request_id`) for the ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from evals.records import RequestRecord

PDRIG = "pdrig"
"""The name of the rig's own proxy, which needs no entry under `routers`."""

VLLM_ROUTER = "vllm-router"

VLLM_ROUTER_COMMAND = (
    *("--vllm-pd-disaggregation", "--host", "{host}", "--port", "{port}"),
    *("--prefill", "{prefill}", "--decode", "{decode}", "--prometheus-port", "{metrics_port}"),
)
"""The options that the plan writes itself. Its metrics have a port of their own, which two of them cannot share."""

VLLM_ROUTER_ARGS: Mapping[str, Any] = MappingProxyType({"policy": "round_robin", "disable-retries": True})
"""Options that `args` may change: turns as the rig's own proxy takes them, and no retries.

A hand-off that the router begins again hides the first one's failure, and its transfer counts all the same.
"""

VLLM_ROUTER_OWNED = (
    *("host", "port", "prefill", "decode", "prometheus-port", "vllm-pd-disaggregation"),
    *("worker-urls", "mini-lb", "service-discovery", "vllm-discovery-address"),
)
"""Options that `args` may not hold: the plan writes them, or they are of another kind of routing."""

VLLM_ROUTER_CONNECTORS: Mapping[str, str] = MappingProxyType({"NixlConnector": "nixl", "NixlPullConnector": "nixl"})
"""Its `--kv-connector` by vLLM's connector; `nixl` is NIXL's pull alone."""

_PLACES = re.compile(r"___prefill_addr_(?P<prefill>.+?)___decode_addr_(?P<decode>.+)_[0-9a-f]{32}$")
_ENGINE_TAIL = re.compile(r"(?:-\d+)?-[0-9a-f]{8}$")


def served(records: Iterable[RequestRecord], urls: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Who served each leg of a request, where the id of its answer tells; `urls` are the servers', by name.

    vllm-router sends engines an id made of both addresses, which comes back in the answer.
    """
    names = {urlsplit(url).netloc: name for name, url in urls.items()}
    found: dict[tuple[str, str], str] = {}
    for record in records:
        match = _PLACES.search(record.response_id or "")
        for leg in ("prefill", "decode") if match else ():
            assert match is not None
            if (name := names.get(match[leg])) is not None:
                found[record.request_id, leg] = name
    return found


def under_rig_ids(
    taints: Mapping[str, tuple[str, ...]], records: Sequence[RequestRecord]
) -> dict[str, tuple[str, ...]]:
    """What logs say against requests, with an engine's ids made the rig's where an answer bore the same one.

    A router may give engines ids of its own. vLLM answers with the id that it was sent, and appends `-0` (completions
    alone) and 8 hex digits within.
    """
    known = {r.response_id: r.request_id for r in records if r.response_id is not None}
    return {known.get(_ENGINE_TAIL.sub("", name), name): against for name, against in taints.items()}
