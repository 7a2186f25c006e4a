"""The control endpoints, the pairs, the settings, the legs file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ProxyError
from proxy.legs import LegsWriter
from proxy.pairs import Pairs
from proxy.settings import Instance, Settings


async def test_health_tells_which_instances_are_up(deploy: Any, closed_port: int) -> None:
    async with deploy(decode=2, urls={"prefill": [f"http://127.0.0.1:{closed_port}"]}) as pd:
        pd.decode[1].healthy = False
        async with pd.client.get(pd.url + "/health") as answer:
            health = await answer.json()
        assert answer.status == 200 and health["status"] == "degraded" and health["mode"] == "pull"
        up = {i["name"]: (i["up"], i["detail"]) for i in health["instances"]}
        assert up["prefill-0"] == up["decode-0"] == (True, None)
        assert up["decode-1"] == (False, "HTTP 503")
        assert up["prefill-1"][0] is False and up["prefill-1"][1]
        assert health["instances"][0]["role"] == "prefill" and health["instances"][0]["url"] == pd.prefill[0].url
        pd.decode[0].healthy = False
        async with pd.client.get(pd.url + "/health") as answer:
            assert answer.status == 503 and (await answer.json())["status"] == "down"


async def test_models_come_from_decode(deploy: Any, closed_port: int) -> None:
    async with deploy() as pd:
        headers = {"Authorization": "Bearer k"}
        async with pd.client.get(pd.url + "/v1/models", headers=headers) as answer:
            assert (await answer.json())["data"] == [{"id": "m", "auth": "Bearer k"}]
        async with pd.client.get(pd.url + "/v1/models") as answer:
            assert (await answer.json())["data"] == [{"id": "m", "auth": None}]
    side = {"decode": [f"http://127.0.0.1:{closed_port}"]}
    async with deploy(decode=0, urls=side) as pd, pd.client.get(pd.url + "/v1/models") as answer:
        assert answer.status == 502 and answer.headers["x-pdrig-error-leg"] == "decode"


async def test_metrics_and_flush(pd: Any) -> None:
    async with pd.post() as answer:
        await answer.read()
    async with pd.post(n=2) as answer:
        assert answer.status == 400
    async with pd.client.post(pd.url + "/legs/flush") as answer:
        assert answer.status == 200
    assert len(pd.legs_file.read_text().splitlines()) == 2
    assert await pd.metric('pdrig_proxy_requests_total{endpoint="/v1/completions",outcome="ok"}') == 1
    assert await pd.metric('pdrig_proxy_errors_total{class="refused",leg="proxy"}') == 1
    assert await pd.metric('pdrig_proxy_leg_seconds_count{instance="decode-0",leg="decode"}') == 1


async def test_other_methods_and_paths(pd: Any) -> None:
    async with pd.client.get(pd.url + "/v1/completions") as answer:
        assert answer.status == 405
    async with pd.client.post(pd.url + "/v1/embeddings", json={}) as answer:
        assert answer.status == 404


@given(st.integers(1, 5), st.integers(1, 5))
def test_round_robin_is_even_and_meets_every_pair(x: int, y: int) -> None:
    pairs = Pairs(
        tuple(Instance(f"prefill-{i}", "prefill", "") for i in range(x)),
        tuple(Instance(f"decode-{i}", "decode", "") for i in range(y)),
    )
    seen = [pairs.next() for _ in range(x * y)]
    assert len({(p.name, d.name) for p, d in seen}) == x * y
    assert set(Counter(p.name for p, _ in seen).values()) == {y}
    assert set(Counter(d.name for _, d in seen).values()) == {x}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prefill": ()}, "no prefill"),
        ({"decode": ()}, "no decode"),
        ({"prefill": ("127.0.0.1:80",)}, "expected a URL"),
        ({"prefill": ("http://h:port",)}, "expected a URL"),
        ({"prefill": ("http://me:hunter2@h",)}, "credentials"),
        ({"prefill": ("http://d/",)}, "must be different"),
        ({"idle_timeout": 0}, "--idle-timeout"),
        ({"first_byte_timeout": float("nan")}, "--first-byte-timeout"),
        ({"port": 70000}, "--port"),
        ({"workers": 0}, "--workers"),
        ({"drain": -1}, "--drain"),
    ],
)
def test_settings_that_cannot_work(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ProxyError, match=says) as caught:
        Settings(**{"prefill": ("http://p",), "decode": ("http://d",), **changed})
    assert "\n" not in str(caught.value) and "hunter2" not in str(caught.value)


def test_names_follow_the_order_given() -> None:
    settings = Settings(prefill=("http://a/", "http://b"), decode=("http://c",))
    assert [(i.name, i.url) for i in settings.prefill_instances] == [
        ("prefill-0", "http://a"),
        ("prefill-1", "http://b"),
    ]


def test_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "new" / "legs.jsonl"
    writer = LegsWriter(path)
    for i in range(5000):
        writer.put({"i": i})
    writer.flush()
    assert len(path.read_text().splitlines()) == 5000
    for i in range(5000, 6000):
        writer.put({"i": i})
    writer.close()
    writer.close()
    assert [json.loads(line)["i"] for line in path.read_text().splitlines()] == list(range(6000))


def test_a_legs_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ProxyError, match="--legs"):
        LegsWriter(tmp_path)
