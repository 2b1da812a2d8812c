"""An hour under clients that behave, leave, and misbehave: does the server leak, hang, or say anything wrong?

    python bench/soak.py [MODEL] [--minutes 60] [--clients 24] [--kernels default] [--seed 0] [--json soak.json]

MODEL is by default a small one with random weights, so that most of the time goes where the server's own faults would
be. The server gets a KV cache that is too small for what it runs, so answers are preempted; every answer that comes to
its end is compared with the one that the same engine gives alone. Exit code 1 when anything is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
from measuring import write_json
from prometheus_client.parser import text_string_to_metric_families

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.models import load
from kforge.models.synth import synth
from kforge.server.plan import Planner
from kforge.server.schema import ChatRequest, CompletionRequest, parse
from kforge.server.serving import served_name

SEQUENCES, QUEUE, KV_TOKENS = 16, 16, 1536
PATIENCE = 120.0  # seconds after which a request counts as stuck
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "minimum": 0,
          "maximum": 99}, "names": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}},
          "required": ["kind", "legs", "names"], "additionalProperties": False}
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "rain", "falls", "on", "grey")


@dataclass(frozen=True)
class Ask:
    """A request, and what the engine says to it alone, by choice."""

    path: str
    body: dict[str, Any]
    expected: tuple[str, ...]


@dataclass
class Tally:
    """What came of the requests."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def wrongly(self, what: str) -> None:
        self.ended["wrong"] += 1
        if len(self.wrong) < 20:
            self.wrong.append(what)


@dataclass(frozen=True)
class Verdict:
    name: str
    holds: bool
    told: str


@dataclass(frozen=True)
class Sample:
    seconds: float
    resident: int  # bytes
    handles: int


@dataclass
class Seen:
    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)  # at the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--asks", type=int, default=120, help="different requests, each answered alone first")
    parser.add_argument("--kernels", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if model is None:
            model = str(Path(folder) / "tiny.gguf")
            synth("tiny-llama-test", "q4_0", Path(model))
        asks = catalogue(model, given.kernels, given.asks, random.Random(given.seed))
        print(f"{len(asks)} requests answered alone", flush=True)
        verdicts, figures = soak(model, given, asks, Path(folder) / "stderr.txt")
    for verdict in verdicts:
        print(f"{'holds' if verdict.holds else 'FAILS':6} {verdict.name}: {verdict.told}")
    command = f"python bench/soak.py {given.model or ''} --minutes {given.minutes:g} --clients {given.clients}"
    write_json(given.json, command, {**figures, "verdicts": [asdict(verdict) for verdict in verdicts]})
    sys.exit(0 if all(verdict.holds for verdict in verdicts) else 1)


def catalogue(name: str, kernels: str, count: int, rng: random.Random) -> list[Ask]:
    """Random requests with their answers from an engine that runs each alone."""
    model = load(name)
    engine = Engine(model, kernels, kv_tokens=KV_TOKENS, max_sequences=SEQUENCES)
    planner = Planner(model, engine.limits.context)
    asks = []
    for _ in range(count):
        path, body = random_body(served_name(name), rng)
        chat = path.endswith("chat/completions")
        raw = httpx2.Request("POST", "http://localhost", json=body).read()
        plan = planner.chat(parse(ChatRequest, raw)) if chat else planner.completion(parse(CompletionRequest, raw))
        said = [engine.generate([job.prompt], job.params)[0].text for job in plan.jobs]
        echoes = plan.echoes or ("",) * len(said)
        asks.append(Ask(path, body, tuple(echo + text for echo, text in zip(echoes, said, strict=True))))
    engine.close()
    return asks


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


def soak(model: str, given: argparse.Namespace, asks: list[Ask], log: Path) -> tuple[list[Verdict], dict[str, object]]:
    """Starts a server, lets the clients loose on it, ends it; what holds of it, and the figures."""
    command = [sys.executable, "-m", "kforge.cli.main", "serve", model, "--port", "0", "--kernels", given.kernels,
               "--kv-tokens", str(KV_TOKENS), "--max-sequences", str(SEQUENCES), "--max-queue", str(QUEUE),
               "--speculate", "ngram"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise KforgeError(f"the server did not start: {log.read_text()}")
        seen = asyncio.run(load_on(found.group(), process.pid, given, asks))
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
    told = ", ".join(f"{count} {what}" for what, count in sorted(seen.tally.ended.items()))
    print(f"{given.minutes:g} minutes, {given.clients} clients: {told}; "
          f"{seen.metrics['kforge_generated_tokens_total']:.0f} tokens, "
          f"{seen.metrics['kforge_preemptions_total']:.0f} preemptions")
    samples = [asdict(sample) for sample in seen.samples[:: max(1, len(seen.samples) // 200)]]
    figures: dict[str, object] = {"requests": dict(seen.tally.ended), "samples": samples, "metrics": seen.metrics}
    return judged(seen, code, log.read_text()), figures


def judged(seen: Seen, code: int, log: str) -> list[Verdict]:
    ended, metrics = seen.tally.ended, seen.metrics
    first, begin, end = seen.samples[0], seen.samples[len(seen.samples) // 5], seen.samples[-1]
    complete = ended["whole"] + ended["streamed"]
    return [
        Verdict("answers equal to those alone", complete > 0 and not ended["wrong"],
                f"{complete} compared, {ended['wrong']} differ {seen.tally.wrong or ''}"),
        Verdict("no request is stuck", not ended["stuck"], f"{ended['stuck']} took longer than {PATIENCE:g} s"),
        Verdict("no answer is left over", metrics["kforge_running"] == metrics["kforge_waiting"] == 0,
                f"{metrics['kforge_running']:g} run, {metrics['kforge_waiting']:g} wait"),
        Verdict("no page of the KV cache is lost", metrics["kforge_kv_pages_used"] == 0,
                f"{metrics['kforge_kv_pages_used']:g} of {metrics['kforge_kv_pages']:g} in use at the end"),
        Verdict("no file handle is lost", end.handles <= first.handles + 2,
                f"{first.handles} before, {end.handles} after"),
        Verdict("memory is bounded", end.resident - begin.resident <= max(begin.resident // 20, 32 << 20),
                f"{begin.resident >> 20} MiB after a fifth of the time, {end.resident >> 20} MiB at the end"),
        Verdict("it ends well", code == 0 and "Traceback" not in log, f"exit code {code}; {log[-300:]}"),
    ]


async def load_on(url: str, pid: int, given: argparse.Namespace, asks: list[Ask]) -> Seen:
    """Lets the clients loose until the time is over, then waits for the server to come to rest."""
    began, process = time.monotonic(), psutil.Process(pid)
    deadline = began + 60 * given.minutes
    seen = Seen()

    def look() -> None:
        seen.samples.append(Sample(time.monotonic() - began, process.memory_info().rss, process.num_fds()))

    look()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        loops = [client_loop(url, client, asks, random.Random(f"{given.seed}/{i}"), deadline, seen.tally)
                 for i in range(given.clients)]
        workers = [asyncio.create_task(loop) for loop in loops]
        while time.monotonic() < deadline:
            await asyncio.sleep(min(1.0, max(deadline - time.monotonic(), 0)))
            look()
        await asyncio.gather(*workers)
    for _ in range(100):
        await asyncio.sleep(0.2)
        seen.metrics = metrics = await read_metrics(url)
        if metrics["kforge_running"] == metrics["kforge_waiting"] == metrics["kforge_kv_pages_used"] == 0:
            break
    await asyncio.sleep(1)  # connections that clients have closed
    look()
    return seen


async def client_loop(url: str, client: openai.AsyncOpenAI, asks: list[Ask], rng: random.Random, deadline: float,
                      tally: Tally) -> None:
    while time.monotonic() < deadline:
        act = rng.choices((whole, streamed, left, half_sent, bad), (30, 30, 20, 5, 15))[0]
        try:
            tally.ended[await asyncio.wait_for(act(url, client, rng.choice(asks), rng, tally), PATIENCE)] += 1
        except (openai.RateLimitError, _Full):
            tally.ended["429"] += 1
            await asyncio.sleep(0.05 * rng.random())
        except (TimeoutError, openai.APITimeoutError):
            tally.ended["stuck"] += 1
        except (openai.APIError, httpx2.HTTPError, OSError) as error:
            tally.wrongly(f"{act.__name__}: {error!r}")


class _Full(Exception):
    pass


async def whole(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    said = await client.post(ask.path.removeprefix("/v1"), cast_to=dict[str, Any], body=ask.body)
    compare(ask, [_text(choice) for choice in said["choices"]], tally)
    return "whole"


async def streamed(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    texts = [""] * len(ask.expected)
    async for chunk in await _stream(client, ask):
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
        if rng.random() < 0.01:
            await asyncio.sleep(0.05)  # a slow reader
    compare(ask, texts, tally)
    return "streamed"


async def left(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """A client that goes away: out of a stream after some chunks, or before a whole answer has come."""
    if rng.random() < 0.5:
        stream = await _stream(client, ask)
        chunks = rng.randint(0, 20)
        async for _ in stream:
            chunks -= 1
            if chunks < 0:
                break
        await stream.close()
        return "left"
    try:
        await asyncio.wait_for(whole(url, client, ask, rng, tally), rng.random() * 0.3)
    except TimeoutError:
        return "left"
    return "whole"


async def half_sent(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """Half a request, then nothing."""
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {ask.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += "Content-Length: 500\r\n\r\n{"
    writer.write(head[: rng.randint(1, len(head))].encode())
    await writer.drain()
    writer.close()
    return "half sent"


async def bad(url: str, client: openai.AsyncOpenAI, ask: Ask, rng: random.Random, tally: Tally) -> str:
    """A request that must be refused, with the status that it must get."""
    content, status, path = rng.choice((
        (b"{", 400, ask.path),
        (_json({**ask.body, "temperature": "warm"}), 400, ask.path),
        (_json({**ask.body, "frobnicate": 1}), 400, ask.path),
        (_json({**ask.body, "max_tokens": 10**6}), 400, ask.path),
        (_json({**ask.body, "model": "other"}), 404, ask.path),
        (_json({**ask.body}), 404, "/v1/nothing"),
        (b"x" * (9 << 20), 413, ask.path),
    ))
    async with httpx2.AsyncClient(timeout=PATIENCE) as plain:
        answer = await plain.post(url + path, content=content, headers={"content-type": "application/json"})
    if answer.status_code != status or set(answer.json()["error"]) != {"message", "type", "param", "code"}:
        tally.wrongly(f"status {answer.status_code} for what should get {status}: {answer.text[:200]}")
    return "refused"


def compare(ask: Ask, texts: list[str], tally: Tally) -> None:
    if tuple(texts) != ask.expected:
        tally.wrongly(f"{ask.body} said {texts}, alone {ask.expected}")


async def _stream(client: openai.AsyncOpenAI, ask: Ask) -> Any:
    kind = client.chat.completions if "messages" in ask.body else client.completions
    return await kind.create(**ask.body, stream=True)


def _text(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def _json(body: dict[str, Any]) -> bytes:
    return httpx2.Request("POST", "http://localhost", json=body).read()


async def read_metrics(url: str) -> dict[str, float]:
    async with httpx2.AsyncClient() as plain:
        text = (await plain.get(f"{url}/metrics")).text
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples if not s.labels}


if __name__ == "__main__":
    main()
