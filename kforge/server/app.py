"""The HTTP interface: endpoints, what is refused at the door, and answers on their way out."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kforge.server.desk import Desk
from kforge.server.errors import ApiError, bad_request
from kforge.server.exchange import Exchange
from kforge.server.metrics import Metrics
from kforge.server.plan import Plan, Planner
from kforge.server.schema import AnyRequest, ChatRequest, CompletionRequest, parse
from kforge.server.shapes import ChatShape, CompletionShape, Shape

MOST_BODY = 8 << 20  # bytes
_BODY_PATIENCE = 30.0  # seconds for a body to arrive
_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_CLIENT_GONE = 499  # what is counted where nobody is left to be told


@dataclass(frozen=True)
class Door:
    """Who may come in. ``key``: what clients must show (None: nothing). ``local``: the server listens on loopback only,
    so a request for another name comes from a page that made its own name lead here."""

    key: str | None
    local: bool

    def check(self, request: Request) -> None:
        """Raises ``ApiError`` 401 or 421."""
        if self.key is not None:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            # A header's bytes are read as Latin-1; the key is as the environment's bytes were read.
            shown, key = given.strip().encode("latin-1"), os.fsencode(self.key)
            if scheme.lower() != "bearer" or not secrets.compare_digest(shown, key):
                raise ApiError(401, "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.",
                               code="invalid_api_key")
        elif self.local and _host(request) not in _LOCAL_NAMES:
            raise ApiError(421, "This server answers for the machine's own names only: 127.0.0.1 or localhost.",
                           code="unknown_host")


class Server:
    """The endpoints of one served model."""

    def __init__(self, name: str, planner: Planner, desk: Desk, metrics: Metrics, door: Door) -> None:
        self._name, self._planner, self._desk, self._metrics, self._door = name, planner, desk, metrics, door
        self._started = int(time.time())

    def app(self) -> ASGIApp:
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        handlers: dict[Any, Callable[..., Response]] = {
            ApiError: lambda request, error: _refusal(error),
            HTTPException: lambda request, error: _refusal(_of_starlette(error)),
            ClientDisconnect: lambda request, error: Response(status_code=_CLIENT_GONE),
            Exception: lambda request, error: _refusal(ApiError(500, "The server made a mistake; its log has more.")),
        }
        counted = Middleware(_Counted, metrics=self._metrics)
        return Starlette(routes=routes, exception_handlers=handlers, middleware=[counted])

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, ChatRequest, self._planner.chat, ChatShape)

    async def completion(self, request: Request) -> Response:
        return await self._generate(request, CompletionRequest, self._planner.completion, CompletionShape)

    async def models(self, request: Request) -> Response:
        self._door.check(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._door.check(request)
        self._require_served(request.path_params["name"])
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        if self._desk.serving:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "shutting down" if self._desk.failure is None else "failed"}, 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _generate(self, request: Request, kind: type[AnyRequest], plan: Callable[[AnyRequest], Plan],
                        shape: Callable[..., Shape]) -> Response:
        arrived = perf_counter()
        self._door.check(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "The body must be JSON: send 'Content-Type: application/json'.", code="not_json")
        body = await _read(request)

        def prepare() -> tuple[AnyRequest, Plan]:
            asked = parse(kind, body)
            self._require_served(asked.model)
            return asked, plan(asked)

        asked, planned = await run_in_threadpool(prepare)  # may tokenise a lot of text, or compile a grammar
        exchange = Exchange(planned.jobs, arrived)
        answer = shape(self._name, planned, self._planner.tokenizer.vocabulary)
        headers = {"x-request-id": answer.id}
        self._desk.submit(exchange)
        if asked.stream:
            chunks = _chunks(exchange, answer, asked.include_usage)
            return _Stream(chunks, lambda: self._desk.drop(exchange), headers)
        try:
            if not await _unless_gone(request.receive, _whole(exchange, answer)):
                return Response(status_code=_CLIENT_GONE)
        finally:
            self._desk.drop(exchange)
        return JSONResponse(answer.whole(), headers=headers)

    def _require_served(self, name: str) -> None:
        if name != self._name:
            raise ApiError(404, f"The model '{name}' does not exist here; this server has '{self._name}'.",
                           param="model", code="model_not_found")

    def _model(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._started, "owned_by": "kforge"}


class _Stream(StreamingResponse):
    """Server-sent events. ``close`` runs however it ends: to its end, cut short, or left by the client."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[bytes], close: Callable[[], None], headers: dict[str, str]) -> None:
        super().__init__(chunks, headers={**headers, "cache-control": "no-cache"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


class _Counted:
    """Counts requests by endpoint and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # unless a response says otherwise

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = scope.get("route")
            self._metrics.request(route.path if isinstance(route, Route) else "other", status)


async def _whole(exchange: Exchange, answer: Shape) -> None:
    """Waits for every choice. Raises ``ApiError`` when one cannot be had."""
    while events := await exchange.next():
        for event in events:
            if event.error is not None:
                raise event.error
            if event.output is not None:
                answer.add(event.index, event.output)


async def _chunks(exchange: Exchange, answer: Shape, include_usage: bool) -> AsyncIterator[bytes]:
    for choice in answer.opening():
        yield _event(answer.chunk(choice, include_usage=include_usage))
    while events := await exchange.next():
        for event in events:
            if event.error is not None:
                yield _event(event.error.body)
                return
            if event.output is not None:
                answer.add(event.index, event.output)
        said = [choice for index in sorted({event.index for event in events}) for choice in answer.pending(index)]
        if said:
            yield b"".join(_event(answer.chunk(choice, include_usage=include_usage)) for choice in said)
    if include_usage:
        yield _event(answer.last_chunk())
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _read(request: Request) -> bytes:
    """The body. Raises ``ApiError`` for one that is too long or too slow."""
    too_long = ApiError(413, f"The body is longer than {MOST_BODY} bytes.", code="body_too_long")
    if int(request.headers.get("content-length", 0)) > MOST_BODY:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise too_long
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {_BODY_PATIENCE:.0f} s.") from None
    if not body:
        raise bad_request("The body is empty: send a JSON object.", code="invalid_json")
    return bytes(body)


async def _unless_gone(receive: Receive, work: Any) -> bool:
    """Waits for ``work``, whose exceptions are raised; False, and it is cancelled, if the client goes away first."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def _refusal(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, headers=error.headers)


def _of_starlette(error: HTTPException) -> ApiError:
    """No such path, or not with this method."""
    return ApiError(error.status_code, f"{error.detail}; see docs/server.md for what there is.")


def _host(request: Request) -> str:
    """The Host header without its port, in small letters."""
    host = request.headers.get("host", "").lower()
    return host if host.endswith("]") else host.rpartition(":")[0] or host
