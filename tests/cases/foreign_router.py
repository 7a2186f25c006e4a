"""A router that is not the rig's: engines get ids of its own, no answer names a server, no legs are written.

    python foreign_router.py --prefill URL ... --decode URL ... --port PORT [--alone-after N] [--die-after N] \
        [--prefill-answers]

Once it is up, it answers at /ready.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import uuid
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}
NONE = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))


class Router:
    def __init__(self, options: argparse.Namespace) -> None:
        self._prefills = itertools.cycle(options.prefill)
        self._decodes = itertools.cycle(options.decode)
        self._options = options
        self._count = 0
        self._session: ClientSession | None = None

    async def open(self, app: web.Application) -> Any:
        # An engine may close an idle connection just as it is used again.
        once = TCPConnector(force_close=True)
        async with ClientSession(timeout=ClientTimeout(total=None), connector=once) as self._session:
            yield

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self._count += 1
        options, session = self._options, self._session
        assert session is not None
        if options.die_after is not None and self._count > options.die_after:
            print("FATAL: the router has had enough", flush=True)
            os._exit(7)
        body, path = await request.json(), request.path
        headers = {"X-Request-Id": uuid.uuid4().hex}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        if options.alone_after is None or self._count <= options.alone_after:
            first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": {**REMOTE, **NONE}}
            first.pop("stream_options", None)
            async with session.post(next(self._prefills) + path, json=first, headers=headers) as reply:
                if reply.status != 200:
                    return web.Response(status=500, text=await reply.text())
                body["kv_transfer_params"] = (await reply.json())["kv_transfer_params"]
        last = next(self._decodes)
        if options.prefill_answers:
            shown = {**body, "stream": False, "max_tokens": 1}
            shown.pop("stream_options", None)
            async with session.post(last + path, json=shown, headers=headers) as reply:
                await reply.read()
            del body["kv_transfer_params"]
            last = next(self._prefills)
        async with session.post(last + path, json=body, headers=headers) as reply:
            answer = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
            await answer.prepare(request)
            async for piece in reply.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer


async def ready(request: web.Request) -> web.Response:
    return web.Response(text="up")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefill", action="append", required=True)
    parser.add_argument("--decode", action="append", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alone-after", type=int)
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--prefill-answers", action="store_true", help="hand over, but give prefill's own answer")
    router = Router(parser.parse_args())
    app = web.Application(client_max_size=2**26)
    app.cleanup_ctx.append(router.open)
    app.add_routes([web.post("/v1/{path:.*}", router.complete), web.get("/ready", ready)])
    web.run_app(app, host="127.0.0.1", port=router._options.port, print=None, loop=asyncio.new_event_loop())


if __name__ == "__main__":
    main()
