"""The reference that a disaggregation proxy is usually compared with: the plainest one that works.

FastAPI, one httpx client for each engine, the prefill leg awaited whole, the decode leg's bytes passed on as they
come. No checks, no deadlines, no records.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def create_app(prefill_url: str, decode_url: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with (
            httpx.AsyncClient(base_url=prefill_url, timeout=None, limits=limits) as prefill,
            httpx.AsyncClient(base_url=decode_url, timeout=None, limits=limits) as decode,
        ):
            app.state.prefill, app.state.decode = prefill, decode
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/completions")
    async def completions(request: Request) -> StreamingResponse:
        body: dict[str, Any] = await request.json()
        headers = {"X-Request-Id": str(uuid.uuid4())}
        first = {**body, "kv_transfer_params": REMOTE_DECODE, "stream": False, "max_tokens": 1}
        first.pop("stream_options", None)
        answer = await app.state.prefill.post("/v1/completions", json=first, headers=headers)
        answer.raise_for_status()
        second = {**body, "kv_transfer_params": answer.json()["kv_transfer_params"]}

        async def decoded() -> AsyncIterator[bytes]:
            async with app.state.decode.stream("POST", "/v1/completions", json=second, headers=headers) as reply:
                reply.raise_for_status()
                async for piece in reply.aiter_bytes():
                    yield piece

        kind = "text/event-stream" if body.get("stream") else "application/json"
        return StreamingResponse(decoded(), media_type=kind)

    return app


def main() -> int:
    parser = argparse.ArgumentParser(description="A toy prefill/decode proxy on 127.0.0.1.")
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    app = create_app(arguments.prefill, arguments.decode)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
