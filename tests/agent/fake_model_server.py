"""A loopback server that speaks the protocols of the SDKs, well or badly, as a script tells it."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROUTES = {"/v1/messages": "anthropic", "/v1/chat/completions": "chat", "/v1/responses": "responses"}
MODEL = "model-as-served"


@dataclass(frozen=True)
class Answer:
    """What a model says. ``calls``: names of tools with their arguments as text. ``stop``: done, truncated, refused.

    ``usage``: prompt tokens outside the cache, read from it, written to it, and output. ``cut``: the number of events
    after which something happens: the server falls silent ("stall"), the connection breaks ("drop"), ends without an
    end ("end"), or an error event comes ("error").
    """

    calls: tuple[tuple[str, str], ...] = ()
    text: str = ""
    stop: str = "done"
    refusal: str = ""
    usage: tuple[int, int, int, int] | None = (100, 30, 7, 20)
    streamed: bool = True
    cut: int | None = None
    then: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    spoil: int | None = None  # a seed: one value somewhere becomes another

    def but(self, **changes: Any) -> Answer:
        return replace(self, **changes)


@dataclass(frozen=True)
class Status:
    """An HTTP error. ``echo``: the message repeats the request's headers."""

    code: int
    message: str = "something is wrong"
    headers: tuple[tuple[str, str], ...] = ()
    kind: str = "some_error"
    echo: bool = False


@dataclass(frozen=True)
class Raw:
    """Bytes, again and again when ``forever``."""

    body: bytes
    forever: bool = False
    content_type: str = "text/event-stream"
    code: int = 200


@dataclass(frozen=True)
class Hang:
    """Takes the request and says nothing."""


@dataclass(frozen=True)
class HangUp:
    """Takes the request and closes the connection."""


Step = Answer | Status | Raw | Hang | HangUp


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class FakeModelServer:
    """Plays its steps one after another, and the last one for ever."""

    def __init__(self, *steps: Step):
        self.steps = list(steps)
        self.asked: list[Asked] = []
        self.closed = threading.Event()
        self.hung_up = threading.Event()  # somebody closed the connection of a silent answer
        self._lock = threading.Lock()

    def next_step(self, asked: Asked) -> Step:
        with self._lock:
            self.asked.append(asked)
            return self.steps[min(len(self.asked), len(self.steps)) - 1]

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeModelServer]:
        handler = type("Handler", (_Handler,), {"fake": self})
        server = _Server(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            self.closed.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients may go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeModelServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        step = self.fake.next_step(asked)
        match step:
            case Status():
                said = step.message + (f" {dict(asked.headers)}" if step.echo else "")
                error = {"type": step.kind, "message": said, "code": step.kind}
                self._whole(step.code, json.dumps({"type": "error", "error": error}).encode(), step.headers)
            case Raw():
                self._raw(step)
            case Hang():
                self._stall()
            case HangUp():
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            case Answer():
                self._answer(ROUTES[self.path.partition("?")[0]], step)

    def _whole(self, code: int, data: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _begin(self, content_type: str = "text/event-stream", *, chunked: bool = True, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked") if chunked else self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = not chunked

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _raw(self, step: Raw) -> None:
        self._begin(step.content_type, code=step.code)
        self._chunk(step.body)
        with contextlib.suppress(OSError):
            while step.forever and not self.fake.closed.is_set():
                self._chunk(step.body)
        self._chunk(b"")

    def _stall(self) -> None:
        self.close_connection = True
        self.connection.settimeout(0.02)
        while not self.fake.closed.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        if not self.fake.closed.is_set():
            self.fake.hung_up.set()

    def _answer(self, protocol: str, step: Answer) -> None:
        whole, events = _PROTOCOLS[protocol](step)
        if step.spoil is not None:
            whole, events = _spoilt(whole, step.spoil), _spoilt(events, step.spoil)
        if not step.streamed:
            self._whole(200, json.dumps(whole).encode())
            return
        self._begin(chunked=step.then != "end")
        send = self.wfile.write if step.then == "end" else self._chunk
        for name, data in events[: step.cut]:
            send((f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data)}\n\n".encode())
        match step.then:
            case "stall":
                self._stall()
            case "drop":
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()
            case "error":
                name = "error" if protocol != "chat" else ""
                data = {"type": "error", "error": step.error, **(step.error if protocol == "responses" else {})}
                self._chunk(f"event: {name}\n".encode() * bool(name) + f"data: {json.dumps(data)}\n\n".encode())
                self._chunk(b"")
            case "":
                if protocol == "chat":
                    self._chunk(b"data: [DONE]\n\n")
                self._chunk(b"")


Events = list[tuple[str, dict[str, Any]]]


def _pieces(text: str) -> list[str]:
    return [text[i : i + 7] for i in range(0, len(text), 7)]


def _anthropic(step: Answer) -> tuple[dict[str, Any], Events]:
    stops = {"done": "tool_use" if step.calls else "end_turn", "truncated": "max_tokens", "refused": "refusal"}
    details = {"type": "refusal", "category": None, "explanation": step.refusal} if step.refusal else None
    fresh, read, written, output = step.usage or (0, 0, 0, 0)
    prompt = {"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": step.text}] if step.text else []
    blocks += [{"type": "tool_use", "id": f"t{i}", "name": n, "input": a} for i, (n, a) in enumerate(step.calls)]
    message = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
    start = {**message, "content": [], "stop_reason": None, "usage": {**prompt, "output_tokens": 1}}
    events: Events = [("message_start", {"type": "message_start", "message": start}), ("ping", {"type": "ping"})]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        opened = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append(("content_block_start",
                       {"type": "content_block_start", "index": index, "content_block": opened}))
        for piece in _pieces(block["text"] if is_text else block["input"]):
            delta = {"type": "text_delta", "text": piece} if is_text else {
                "type": "input_json_delta", "partial_json": piece}
            events.append(("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}))
        events.append(("content_block_stop", {"type": "content_block_stop", "index": index}))
    ended = {"stop_reason": stops[step.stop], "stop_sequence": None, "stop_details": details}
    events.append(("message_delta", {"type": "message_delta", "delta": ended, "usage": {"output_tokens": output}}))
    events.append(("message_stop", {"type": "message_stop"}))
    content = [b if b["type"] == "text" else {**b, "input": json.loads(b["input"])} for b in blocks
               if not step.streamed]
    return {**message, **ended, "content": content, "usage": {**prompt, "output_tokens": output}}, events


def _chat(step: Answer) -> tuple[dict[str, Any], Events]:
    reason = {"done": "tool_calls" if step.calls else "stop", "truncated": "length", "refused": "content_filter"}
    base = {"id": "c", "created": 1, "model": MODEL}
    calls = [{"id": f"t{i}", "type": "function", "function": {"name": n, "arguments": a}}
             for i, (n, a) in enumerate(step.calls)]

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, dict[str, Any]]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {**base, "object": "chat.completion.chunk", "choices": [choice]}

    events: Events = [chunk({"role": "assistant", "content": None})]
    events += [chunk({"content": piece}) for piece in _pieces(step.text)]
    events += [chunk({"refusal": piece}) for piece in _pieces(step.refusal)]
    for index, call in enumerate(calls):
        function = call["function"]
        events.append(chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}))
        events += [chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                   for piece in _pieces(function["arguments"])]
    events.append(chunk({}, reason[step.stop]))
    whole: dict[str, Any] = {**base, "object": "chat.completion"}
    if step.usage:
        fresh, read, written, output = step.usage
        usage = {"prompt_tokens": fresh + read + written, "completion_tokens": output,
                 "total_tokens": fresh + read + written + output,
                 "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written}}
        events.append(("", {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        whole["usage"] = usage
    message = {"role": "assistant", "content": step.text or None, "refusal": step.refusal or None, "tool_calls": calls}
    return {**whole, "choices": [{"index": 0, "message": message, "finish_reason": reason[step.stop]}]}, events


def _responses(step: Answer) -> tuple[dict[str, Any], Events]:
    output: list[dict[str, Any]] = []
    if step.text or step.refusal:
        parts: list[dict[str, Any]] = [{"type": "output_text", "text": step.text, "annotations": []}]
        parts = parts if step.text else [{"type": "refusal", "refusal": step.refusal}]
        output.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": parts})
    output += [{"type": "function_call", "id": f"f{i}", "call_id": f"t{i}", "name": n, "arguments": a,
                "status": "completed"} for i, (n, a) in enumerate(step.calls)]
    incomplete = {"done": None, "truncated": {"reason": "max_output_tokens"}, "refused": {"reason": "content_filter"}}
    whole: dict[str, Any] = {
        "id": "r", "object": "response", "created_at": 1, "model": MODEL, "output": output, "error": None,
        "status": "completed" if step.stop == "done" else "incomplete", "incomplete_details": incomplete[step.stop],
        "instructions": None, "metadata": {}, "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
    }
    if step.usage:
        fresh, read, written, said = step.usage
        whole["usage"] = {"input_tokens": fresh + read + written, "output_tokens": said,
                          "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
                          "output_tokens_details": {"reasoning_tokens": 3},
                          "total_tokens": fresh + read + written + said}
    events: Events = []

    def event(kind: str, **fields: Any) -> None:
        events.append((kind, {"type": kind, "sequence_number": len(events), **fields}))

    event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(output):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
            for piece in _pieces(item["arguments"]):
                event("response.function_call_arguments.delta", delta=piece, **place)
        else:
            event("response.output_item.added", output_index=index, item={**item, "content": []})
            for piece in _pieces(step.text):
                event("response.output_text.delta", content_index=0, delta=piece, logprobs=[], **place)
            for piece in _pieces(step.refusal if not step.text else ""):
                event("response.refusal.delta", content_index=0, delta=piece, **place)
        event("response.output_item.done", output_index=index, item=item)
    event("response.completed" if step.stop == "done" else "response.incomplete", response=whole)
    return whole, events


def _spoilt(value: Any, seed: int) -> Any:
    """A copy in which one to three values were replaced, or fields left out."""
    chance = random.Random(seed)
    value = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        places = list(_places(value))
        if places:
            holder, key = chance.choice(places)
            if isinstance(holder, dict) and chance.random() < 0.3:
                del holder[key]
            else:
                holder[key] = chance.choice([None, 7, -1, 1e300, "", "x", "\ud800", [], ["a"], {}, {"a": None}, True])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):  # the name of an event
            yield value, key
        yield from _places(inner)


_PROTOCOLS = {"anthropic": _anthropic, "chat": _chat, "responses": _responses}
