"""Engines that misbehave on command, and a proxy before them, all on real sockets of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web

from proxy.app import ProxyApp, create_app
from proxy.serve import listen, raise_open_files
from proxy.settings import Settings

Behaviour = Callable[["Engine", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """One request as an engine got it."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


@dataclass
class Engine:
    """A server that plays one side. `behave` replaces what it would do; `left` counts clients that went away."""

    role: str
    behave: Behaviour | None = None
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    healthy: bool = True
    hold: float = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append(Seen(request.path, request.headers.copy(), raw))
        self.arrived.set()
        try:
            return await (self.behave or ordinary)(self, request, json.loads(raw))
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "m", "auth": request.headers.get("Authorization")}]}
        )


def params(engine: Engine, request: web.Request) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1], [2]],
        "remote_engine_id": f"engine-of-{engine.url}",
        "remote_request_id": f"cmpl-{request.headers['X-Request-Id']}-0-abcdef01",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
    }


def vllm_refuses(body: dict[str, Any]) -> str | None:
    """What vLLM 0.32 rejects among the parameters that a hand-off touches."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    if body.get("min_tokens", 0) > limit or body.get("min_completion_tokens", 0) > limit:
        return f"min_tokens must be less than or equal to max_tokens={limit}"
    return None


async def ordinary(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if (problem := vllm_refuses(body)) is not None:
        return refuse(400, problem)
    if engine.hold:
        await asyncio.sleep(engine.hold)
    if engine.role == "prefill":
        return web.json_response({"choices": [{"text": "x"}], "kv_transfer_params": params(engine, request)})
    if not body.get("stream"):
        return web.json_response({"choices": [{"text": text_for(body), "finish_reason": "stop"}]})
    response = await begin_stream(request)
    for word in text_for(body).split(" "):
        await send_token(response, word)
    await response.write(b"data: [DONE]\n\n")
    return response


def text_for(body: dict[str, Any]) -> str:
    prompt = body.get("prompt") or body["messages"][-1]["content"]
    return f"answer to {prompt}"


def refuse(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status)


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def send_token(response: web.StreamResponse, text: str) -> None:
    await response.write(b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n")


async def forever() -> None:
    await asyncio.Event().wait()


class Server(uvicorn.Server):
    """Leaves the signals alone and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        await self.stop.wait()


@dataclass
class Deployment:
    """A running proxy with its engines and a client."""

    url: str
    app: ProxyApp
    client: aiohttp.ClientSession
    prefill: list[Engine]
    decode: list[Engine]
    legs_file: Path

    async def legs(self) -> list[dict[str, Any]]:
        await asyncio.to_thread(self.app.handoff.legs.flush)
        return [json.loads(line) for line in self.legs_file.read_text().splitlines()]

    def post(self, path: str = "/v1/completions", **body: Any) -> Any:
        headers = body.pop("headers", {})
        body = {"model": "m", **({} if "messages" in body else {"prompt": "hi"}), **body}
        return self.client.post(self.url + path, json=body, headers=headers)

    async def metric(self, line: str) -> float:
        async with self.client.get(self.url + "/metrics") as answer:
            text = await answer.text()
        return next((float(row.split()[-1]) for row in text.splitlines() if row.startswith(line)), 0.0)


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path, prefill: int = 1, decode: int = 1, urls: dict[str, list[str]] | None = None, **options: Any
) -> AsyncIterator[Deployment]:
    """Starts engines and proxy; `urls` adds addresses that are not ours to a side.

    Unless `options` say otherwise, a health check may take long, and connections are kept, as on a machine with time.
    """
    raise_open_files()
    async with contextlib.AsyncExitStack() as stack:
        engines: dict[str, list[Engine]] = {"prefill": [], "decode": []}
        for role, count in (("prefill", prefill), ("decode", decode)):
            for _ in range(count):
                engine = Engine(role)
                engine.url = await stack.enter_async_context(serving(engine))
                engines[role].append(engine)
        extra = urls or {}
        legs = tmp_path / "legs.jsonl"
        settings = Settings(
            prefill=(*(e.url for e in engines["prefill"]), *extra.get("prefill", [])),
            decode=(*(e.url for e in engines["decode"]), *extra.get("decode", [])),
            legs=legs,
            **{"drain": 1.0, "health_timeout": 60.0, "keep_alive": 60.0, **options},
        )
        app = create_app(settings)
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", backlog=4096, timeout_graceful_shutdown=1
        )
        server = Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.up.wait()
        client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=60)
        )
        try:
            yield Deployment(url, app, client, engines["prefill"], engines["decode"], legs)
        finally:
            await client.close()
            server.stop.set()
            await task


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/completions", engine.handle)
    app.router.add_post("/v1/chat/completions", engine.handle)
    app.router.add_get("/health", engine.health)
    app.router.add_get("/v1/models", engine.models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture
def deploy(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Deployment]]:
    return lambda **options: running(tmp_path, **options)


@pytest.fixture
async def pd(tmp_path: Path) -> AsyncIterator[Deployment]:
    """One prefill, one decode, without options."""
    async with running(tmp_path) as deployment:
        yield deployment


@pytest.fixture
def play() -> Any:
    """The building blocks of an engine's behaviour."""
    return PLAY


class PLAY:
    ordinary = staticmethod(ordinary)
    refuse = staticmethod(refuse)
    begin_stream = staticmethod(begin_stream)
    send_token = staticmethod(send_token)
    forever = staticmethod(forever)
    params = staticmethod(params)
