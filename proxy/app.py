"""The proxy as one ASGI app: FastAPI for the control endpoints, the hand-off route for the two hot ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from proxy.errors import LegError, error_body
from proxy.legs import LegsWriter
from proxy.metrics import Metrics
from proxy.route import HandoffRoute
from proxy.settings import Instance, Settings
from proxy.upstream import Upstream

HOT_PATHS = ("/v1/completions", "/v1/chat/completions")


class ProxyApp(FastAPI):
    """FastAPI whose two completion endpoints are reached without its middleware and router, for speed.

    They stand among its routes too, so that other methods are answered with 405.
    """

    handoff: HandoffRoute

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in HOT_PATHS:
            await self.handoff(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings) -> ProxyApp:
    """The app; connections and the legs file are opened when it starts, within the server's loop."""
    metrics = Metrics()
    handoff = HandoffRoute(settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        handoff.legs = LegsWriter(settings.legs)
        handoff.upstream = Upstream(settings)
        try:
            # Looks are rare: an idle connection could be closed just as it is used again.
            once = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(timeout=settings.health_timeout, trust_env=False, limits=once) as client:
                app.state.client = client
                yield
        finally:
            handoff.upstream.close()
            await asyncio.to_thread(handoff.legs.close)

    app = ProxyApp(title="pdrig proxy", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.handoff = handoff
    for path in HOT_PATHS:
        app.router.routes.append(Route(path, endpoint=_ClassEndpoint(handoff), methods=["POST"]))

    @app.get("/health")
    async def health(request: Request) -> JSONResponse:
        """200 if a hand-off is possible, 503 if one side is down; each instance with what is wrong with it."""
        instances = settings.prefill_instances + settings.decode_instances
        found = await asyncio.gather(*(_probe(request.app.state.client, instance) for instance in instances))
        able = all(any(i["up"] for i in found if i["role"] == role) for role in ("prefill", "decode"))
        status = "ok" if all(i["up"] for i in found) else "degraded" if able else "down"
        return JSONResponse(
            {"status": status, "mode": settings.mode, "lenient": settings.lenient, "instances": found},
            status_code=200 if able else 503,
        )

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.post("/legs/flush")
    async def flush() -> dict[str, bool]:
        """Answers once the lines of all legs that ended before are in the file."""
        await asyncio.to_thread(handoff.legs.flush)
        return {"flushed": True}

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The first decode instance that answers, as it answers."""
        kept = {name: value for name in ("authorization", "x-api-key") if (value := request.headers.get(name))}
        problem = ""
        for instance in settings.decode_instances:
            try:
                answer = await request.app.state.client.get(f"{instance.url}/v1/models", headers=kept)
            except httpx.HTTPError as error:
                problem = f"{instance.name} ({instance.url}): {_says(error)}"
                continue
            kind = answer.headers.get("content-type", "application/json")
            return Response(answer.content, answer.status_code, headers={"content-type": kind})
        failure = LegError("decode", "connect", problem)
        marks = {"x-pdrig-error-leg": "decode", "x-pdrig-error-class": "connect"}
        return Response(error_body(failure), 502, headers=marks, media_type="application/json")

    return app


class _ClassEndpoint:
    """Lets a Starlette route take an ASGI application for an endpoint."""

    def __init__(self, app: HandoffRoute) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _probe(client: httpx.AsyncClient, instance: Instance) -> dict[str, Any]:
    up, detail = False, None
    try:
        answer = await client.get(f"{instance.url}/health")
        up = answer.status_code == 200
        detail = None if up else f"HTTP {answer.status_code}"
    except httpx.HTTPError as error:
        detail = _says(error)
    return {"name": instance.name, "role": instance.role, "url": instance.url, "up": up, "detail": detail}


def _says(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
