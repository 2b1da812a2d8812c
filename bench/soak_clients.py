"""The clients of ``bench/soak.py``: those that behave, leave, or send nonsense, and what answers they should get."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.request import FinishReason, Output
from kforge.models import load
from kforge.server.plan import Plan, Planner
from kforge.server.schema import ChatRequest, CompletionRequest, parse
from kforge.server.serving import served_name

PATIENCE = 120.0  # seconds after which a request counts as stuck
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "minimum": 0,
          "maximum": 99}, "names": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}},
          "required": ["kind", "legs", "names"], "additionalProperties": False}
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "rain", "falls", "on", "grey")


@dataclass(frozen=True)
class Answer:
    """One choice as a client sees it. ``logprobs``: of its tokens, those of an echoed prompt first; None where nobody
    asked for them."""

    text: str
    finish: str | None
    logprobs: tuple[float | None, ...] | None

    def begins(self, whole: Answer) -> bool:
        """Whether this may be what had come of ``whole`` when somebody left."""
        ours, theirs = self.logprobs or (), whole.logprobs or ()
        return (whole.text.startswith(self.text) and self.finish in (None, whole.finish)
                and ours == theirs[: len(ours)])


@dataclass(frozen=True)
class Ask:
    """A request, and what the engine says to it alone: by choice, and the tokens of all answers."""

    path: str
    body: dict[str, Any]
    expected: tuple[Answer, ...]
    tokens: int


@dataclass
class Tally:
    """What came of the requests. ``slowest``: seconds of the longest one that came to an end."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def wrongly(self, what: str) -> None:
        self.ended["wrong"] += 1
        if len(self.wrong) < 20:
            self.wrong.append(what)


# What is asked, and what should come


def catalogue(name: str, kernels: str, kv_tokens: int, count: int, rng: random.Random) -> list[Ask]:
    """Random requests, answered by an engine that runs each choice alone, without guesses or shared pages."""
    model = load(name)
    engine = Engine(model, kernels, kv_tokens=kv_tokens, max_sequences=1, prefix_cache=False)
    planner = Planner(model, engine.limits.context)
    asks = []
    for _ in range(count):
        path, body = random_body(served_name(name), rng)
        chat = path.endswith("chat/completions")
        raw = _json(body)
        plan = planner.chat(parse(ChatRequest, raw)) if chat else planner.completion(parse(CompletionRequest, raw))
        said = [list(engine.stream(job.prompt, job.params)) for job in plan.jobs]
        answers = tuple(_answer(plan, at, outputs, chat) for at, outputs in enumerate(said))
        asks.append(Ask(path, body, answers, sum(len(outputs) for outputs in said)))
    engine.close()
    return asks


def _answer(plan: Plan, at: int, outputs: list[Output], chat: bool) -> Answer:
    """What a client should see of a choice."""
    if failed := outputs[-1].error:
        raise KforgeError(f"a request of the catalogue cannot be answered: {failed}")
    text = "".join(output.text for output in outputs)
    finish = "length" if outputs[-1].finish is FinishReason.LENGTH else "stop"
    logprobs: tuple[float | None, ...] | None = None
    if plan.jobs[at].params.logprobs is not None:
        shown = [o for o in outputs if not (chat and o.finish is FinishReason.END)]
        logprobs = tuple(o.logprobs[0][1] for o in shown if o.logprobs is not None)
        if outputs[0].prompt_logprobs is not None:
            logprobs = (None, *(row[0][1] for row in outputs[0].prompt_logprobs), *logprobs)
    return Answer((plan.echoes[at] if plan.echoes else "") + text, finish, logprobs)


def random_body(model: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model, "max_tokens": rng.choice((1, 8, 24, 60, 150)),
                            "seed": rng.randrange(1 << 32), "temperature": rng.choice((0, 0, 0.7, 1.0, 1.4))}
    if rng.random() < 0.3:
        body["top_p"] = rng.choice((0.5, 0.9))
    if rng.random() < 0.25:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.25:
        body["stop"] = rng.sample("etaoinshr", 2)
    # Some prompts begin alike, so that pages are shared.
    text = " ".join(rng.choices(WORDS, k=rng.choice((1, 5, 30, 120))))
    if rng.random() < 0.4:
        text = " ".join(WORDS * 4) + " " + text
    if rng.random() < 0.5:
        body["prompt"] = text
        if rng.random() < 0.3:
            body |= {"echo": True, "logprobs": 1}
        return "/v1/completions", body
    body["messages"] = [{"role": "user", "content": text}]
    if rng.random() < 0.25:
        wanted = {"name": "pet", "schema": SCHEMA}
        body |= {"response_format": {"type": "json_schema", "json_schema": wanted}, "max_tokens": 150}
        body.pop("stop", None)
    elif rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": 2}
    return "/v1/chat/completions", body


# What clients do


async def client_loop(url: str, client: openai.AsyncOpenAI, asks: list[Ask], rng: random.Random, deadline: float,
                      tally: Tally) -> None:
    """One client after the other until the time is over."""
    while time.monotonic() < deadline:
        act = rng.choices((whole, streamed, left, half_sent, unread, bad), (30, 30, 20, 4, 4, 15))[0]
        began = time.monotonic()
        try:
            tally.ended[await asyncio.wait_for(act(url, client, rng.choice(asks), rng, tally), PATIENCE)] += 1
            tally.slowest = max(tally.slowest, time.monotonic() - began)
        except openai.RateLimitError as error:
            tally.ended["429"] += 1
            if "retry-after" not in error.response.headers:
                tally.wrongly("a refusal with status 429 does not say when to come back")
            await asyncio.sleep(0.05 * rng.random())
        except (TimeoutError, openai.APITimeoutError):
            tally.ended["stuck"] += 1
        except (openai.APIError, httpx2.HTTPError, OSError, KeyError, ValueError) as error:
            tally.wrongly(f"{act.__name__}: {error!r}")


async def whole(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    said = await client.post(ask.path.removeprefix("/v1"), cast_to=dict[str, Any], body=ask.body)
    answers = tuple(Answer(_text(choice), choice["finish_reason"], _logprobs([choice])) for choice in said["choices"])
    if answers != ask.expected or said["usage"]["completion_tokens"] != ask.tokens:
        tally.wrongly(f"{ask.body} said {answers} in {said['usage']}, alone {ask.expected} in {ask.tokens} tokens")
    return "whole"


async def streamed(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    parts: list[dict[str, Any]] = []
    async for chunk in await _stream(client, ask):
        parts += chunk["choices"]
        if rng.random() < 0.01:
            await asyncio.sleep(0.05)  # a slow reader
    if (answers := _joined(parts, len(ask.expected))) != ask.expected:
        tally.wrongly(f"{ask.body} streamed {answers}, alone {ask.expected}")
    return "streamed"


async def left(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """A client that goes away: out of a stream after some chunks, or before a whole answer has come."""
    if rng.random() < 0.5:
        try:
            await asyncio.wait_for(whole(url, client, ask, rng, tally), rng.random() * 0.3)
        except TimeoutError:
            return "left"
        return "whole"
    parts: list[dict[str, Any]] = []
    stream = await _stream(client, ask)
    chunks = rng.randint(0, 20)
    async for chunk in stream:
        parts += chunk["choices"]
        chunks -= 1
        if chunks < 0:
            break
    await stream.close()
    answers = _joined(parts, len(ask.expected))
    if not all(answer.begins(alone) for answer, alone in zip(answers, ask.expected, strict=True)):
        tally.wrongly(f"{ask.body} began {answers}, alone {ask.expected}")
    return "left"


async def half_sent(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """Half a request, then nothing, and after a while the client is gone."""
    body = _json(ask.body)
    request = _head(url, ask.path, len(body)) + body
    writer = await _send(url, request[: rng.randint(1, len(request) - 1)])
    await asyncio.sleep(rng.choice((0, 0, 0.2, 2)))
    writer.close()
    return "half sent"


async def unread(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """A client that asks for a stream, reads nothing of it, and hangs up after a while."""
    body = _json({**ask.body, "stream": True})
    writer = await _send(url, _head(url, ask.path, len(body)) + body)
    await asyncio.sleep(rng.choice((0, 0.1, 1)))
    if rng.random() < 0.5:
        writer.transport.abort()  # a reset, no orderly end
    else:
        writer.close()
    return "unread"


async def bad(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """A request that must be refused, with the status that it must get."""
    chat = "/v1/chat/completions"
    messages = {"model": ask.body["model"], "messages": [{"role": "user", "content": "x"}]}
    content, status, path = rng.choice((
        (b"{", 400, ask.path),
        (b"", 400, ask.path),
        (b"\xff\xfe{}", 400, ask.path),
        (b"[" * 100_000, 400, ask.path),
        (_json({**ask.body, "temperature": "warm"}), 400, ask.path),
        (_json({**ask.body, "temperature": -1}), 400, ask.path),
        (_json({**ask.body, "frobnicate": 1}), 400, ask.path),
        (_json({**ask.body, "max_tokens": 10**6}), 400, ask.path),
        (_json({**ask.body, "n": 0}), 400, ask.path),
        (_json({"model": ask.body["model"], "prompt": [10**8]}), 400, "/v1/completions"),
        (_json({**messages, "response_format": {"type": "json_schema", "json_schema": {
            "name": "never", "schema": {"$ref": "#"}}}}), 400, chat),
        (_json({**ask.body, "model": "other"}), 404, ask.path),
        (_json({**ask.body}), 404, "/v1/nothing"),
        (b"x" * (9 << 20), 413, ask.path),
    ))
    kind = "application/json"
    if rng.random() < 0.1:
        content, status, path, kind = _json(ask.body), 415, ask.path, "text/plain"
    async with httpx2.AsyncClient(timeout=PATIENCE) as plain:
        answer = await plain.post(url + path, content=content, headers={"content-type": kind})
    if answer.status_code != status or set(answer.json()["error"]) != {"message", "type", "param", "code"}:
        tally.wrongly(f"status {answer.status_code} for what should get {status}: {answer.text[:200]}")
    return "refused"


async def _stream(client: openai.AsyncOpenAI, ask: Ask) -> openai.AsyncStream[dict[str, Any]]:
    return await client.post(ask.path.removeprefix("/v1"), cast_to=dict[str, Any], body={**ask.body, "stream": True},
                             stream=True, stream_cls=openai.AsyncStream[dict[str, Any]])


def _joined(parts: Iterable[dict[str, Any]], choices: int) -> tuple[Answer, ...]:
    """The answers that a stream's parts come to."""
    mine: list[list[dict[str, Any]]] = [[] for _ in range(choices)]
    for part in parts:
        mine[part["index"]].append(part)
    return tuple(Answer("".join(map(_text, each)), next((p["finish_reason"] for p in each if p["finish_reason"]), None),
                        _logprobs(each)) for each in mine)


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta")
    return (choice["text"] if "text" in choice else (message or {}).get("content")) or ""


def _logprobs(parts: list[dict[str, Any]]) -> tuple[float | None, ...] | None:
    """Of a choice's parts (one, if it came whole)."""
    given = [part["logprobs"] for part in parts if part.get("logprobs") is not None]
    if not given:
        return None
    return tuple(itertools.chain.from_iterable(
        each["token_logprobs"] if "token_logprobs" in each else (entry["logprob"] for entry in each["content"])
        for each in given))


def _head(url: str, path: str, length: int) -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


async def _send(url: str, content: bytes) -> asyncio.StreamWriter:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(content)
    await writer.drain()
    return writer


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
