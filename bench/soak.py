"""An hour under clients that behave, leave, and misbehave: does the server leak, hang, or say anything wrong?

    python bench/soak.py [MODEL] [--minutes 60] [--clients 24] [--kernels default] [--seed 0] [--json soak.json]

MODEL is by default a small one with random weights, so that most of the time goes where the server's own faults would
be. The server gets a KV cache that is too small for what it runs, so answers are preempted, and guesses tokens. Every
answer that comes to its end is compared with the one that an engine gives alone, without guesses or shared pages: text,
why it ended, number of tokens, log probabilities to the bit; what had come when a client left must be its beginning.
When the time is over everything is asked once more, one by one. Exit code 1 when anything is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx2
import openai
import psutil
from measuring import write_json
from prometheus_client.parser import text_string_to_metric_families
from soak_clients import PATIENCE, Ask, Tally, catalogue, client_loop, whole

from kforge.core.errors import KforgeError
from kforge.models.synth import synth

SEQUENCES, QUEUE, KV_TOKENS = 16, 16, 1536
HEALTH_PATIENCE = 10.0  # seconds in which the server must say that it is well, whatever it does
ALLOWED_GROWTH = 0.03, 6 << 20  # of resident memory, from the middle of the time to its end: the larger of the two


@dataclass(frozen=True)
class Verdict:
    name: str
    holds: bool
    told: str


@dataclass(frozen=True)
class Sample:
    """The server's process. ``resident``: bytes; ``requests``: that clients have made until then."""

    seconds: float
    resident: int
    handles: int
    threads: int
    children: int
    requests: int


@dataclass
class Seen:
    """``after``: what came of asking everything once more. ``health``: seconds that each look at /health took."""

    tally: Tally = field(default_factory=Tally)
    after: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)  # at the end

    @property
    def rest(self) -> bool:
        """Whether nothing is held or waited for."""
        return not any(self.metrics[f"kforge_{what}"] for what in ("running", "waiting", "kv_pages_used"))


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
        asks = catalogue(model, given.kernels, KV_TOKENS, given.asks, random.Random(given.seed))
        print(f"{len(asks)} requests answered alone", flush=True)
        verdicts, figures = soak(model, given, asks, Path(folder) / "stderr.txt")
    for verdict in verdicts:
        print(f"{'holds' if verdict.holds else 'FAILS':6} {verdict.name}: {verdict.told}")
    command = (f"python bench/soak.py {given.model or ''} --minutes {given.minutes:g} --clients {given.clients} "
               f"--seed {given.seed}")
    write_json(given.json, command, {**figures, "verdicts": [asdict(verdict) for verdict in verdicts]})
    sys.exit(0 if all(verdict.holds for verdict in verdicts) else 1)


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
    figures: dict[str, object] = {"requests": dict(seen.tally.ended), "slowest": seen.tally.slowest,
                                  "slowest_health": max(seen.health, default=0.0), "samples": samples,
                                  "metrics": seen.metrics}
    return judged(seen, code, log.read_text(), len(asks)), figures


async def load_on(url: str, pid: int, given: argparse.Namespace, asks: list[Ask]) -> Seen:
    """Lets the clients loose until the time is over, waits for the server to come to rest, and asks all once more."""
    began, process = time.monotonic(), psutil.Process(pid)
    deadline = began + 60 * given.minutes
    seen = Seen()

    def look() -> None:
        with process.oneshot():
            seen.samples.append(Sample(time.monotonic() - began, process.memory_info().rss, process.num_fds(),
                                       process.num_threads(), len(process.children()),
                                       sum(seen.tally.ended.values())))

    look()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        loops = [client_loop(url, client, asks, random.Random(f"{given.seed}/{i}"), deadline, seen.tally)
                 for i in range(given.clients)]
        workers = [asyncio.create_task(loop) for loop in loops]
        while time.monotonic() < deadline:
            await asyncio.sleep(min(1.0, max(deadline - time.monotonic(), 0)))
            seen.health.append(await health(url))
            look()
        await asyncio.gather(*workers)
        await rest(url, seen)
        calm = random.Random(0)
        for ask in asks:
            try:
                await whole(url, client, ask, calm, seen.after)
                seen.after.ended["whole"] += 1
            except openai.APIError as error:
                seen.after.wrongly(f"{ask.body}: {error!r}")
        await fill(client, seen.after, asks[0].body["model"])
    await rest(url, seen)
    await asyncio.sleep(1)  # connections that clients have closed
    look()
    return seen


async def health(url: str) -> float:
    """Seconds until the server says that it is well; infinite where it does not."""
    began = time.monotonic()
    try:
        async with httpx2.AsyncClient(timeout=HEALTH_PATIENCE) as plain:
            answer = await plain.get(f"{url}/health")
    except httpx2.HTTPError:
        return float("inf")
    return time.monotonic() - began if answer.status_code == 200 else float("inf")


async def fill(client: openai.AsyncOpenAI, tally: Tally, model: str) -> None:
    """A request that takes the whole KV cache: it comes to an end only if no page is lost."""
    body = {"model": model, "prompt": [5] * (KV_TOKENS - 2), "max_tokens": 2, "temperature": 0}
    try:
        await client.post("/completions", cast_to=dict, body=body, options={"timeout": PATIENCE})
    except openai.APIError as error:
        tally.wrongly(f"a request for the whole KV cache: {error!r}")


async def rest(url: str, seen: Seen) -> None:
    """Waits, 20 s at most, until the server has nothing to do."""
    for _ in range(100):
        await asyncio.sleep(0.2)
        async with httpx2.AsyncClient() as plain:
            text = (await plain.get(f"{url}/metrics")).text
        seen.metrics = {}
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                if not s.labels or s.name == "kforge_answers_total":
                    seen.metrics[" ".join([s.name, *s.labels.values()])] = s.value
        if seen.rest:
            return


def judged(seen: Seen, code: int, log: str, asks: int) -> list[Verdict]:
    """What must hold, and whether it does."""
    ended, after, metrics = seen.tally.ended, seen.after, seen.metrics
    first, end = seen.samples[0], seen.samples[-1]
    early = seen.samples[len(seen.samples) // 5]
    complete = ended["whole"] + ended["streamed"]
    slowest = max(seen.health, default=float("inf"))
    return [
        Verdict("answers equal to those alone", complete > 0 and not ended["wrong"],
                f"{complete} compared, {ended['wrong']} differ {seen.tally.wrong or ''}"),
        Verdict("afterwards everything is answered as before", not after.wrong and after.ended["whole"] == asks,
                f"{after.ended['whole']} of {asks}, and one that needs the whole KV cache {after.wrong or ''}"),
        Verdict("no request is stuck", not ended["stuck"],
                f"{ended['stuck']} took longer than {PATIENCE:g} s, the slowest other {seen.tally.slowest:.1f} s"),
        Verdict("it always says that it is well", slowest <= HEALTH_PATIENCE,
                f"{len(seen.health)} times, within {slowest:.2f} s"),
        Verdict("no answer is left over", metrics["kforge_running"] == metrics["kforge_waiting"] == 0,
                f"{metrics['kforge_running']:g} run, {metrics['kforge_waiting']:g} wait"),
        Verdict("no page of the KV cache is lost", metrics["kforge_kv_pages_used"] == 0,
                f"{metrics['kforge_kv_pages_used']:g} of {metrics['kforge_kv_pages']:g} in use at the end"),
        Verdict("no file handle is lost", end.handles <= first.handles + 2,
                f"{first.handles} before, {end.handles} after"),
        Verdict("no thread or process is lost", end.threads <= early.threads + 2 and end.children <= first.children,
                f"{early.threads} threads after a fifth of the time, {end.threads} at the end; "
                f"{first.children} processes before, {end.children} after"),
        grown(seen.samples),
        exercised(seen),
        Verdict("it ends well", code == 0 and "Traceback" not in log, f"exit code {code}; {log[-300:]}"),
    ]


def grown(samples: list[Sample]) -> Verdict:
    """Resident memory from the middle of the time to its end: the first half is for what fills up once (pools, caches
    of grammars, the allocator's own), a leak goes on at the same pace."""
    tenth = max(len(samples) // 10, 1)
    middle = samples[len(samples) // 2 - tenth : len(samples) // 2] or samples[:1]
    last = samples[-tenth:]
    before, after = (statistics.median(s.resident for s in some) for some in (middle, last))
    requests = last[0].requests - middle[0].requests
    allowed = max(ALLOWED_GROWTH[0] * before, ALLOWED_GROWTH[1])
    each = f"{(after - before) / requests:.0f} bytes a request" if requests else "no request in between"
    return Verdict("memory is bounded", after - before <= allowed,
                   f"{before / 2**20:.1f} MiB in the middle of the time, {after / 2**20:.1f} MiB at its end; {each}, "
                   f"{allowed / 2**20:.0f} MiB allowed")


def exercised(seen: Seen) -> Verdict:
    """A run in which nothing happened proves nothing."""
    counts = {what: float(seen.tally.ended[what]) for what in
              ("whole", "streamed", "left", "half sent", "unread", "refused")}
    counts |= {what: seen.metrics.get(f"kforge_{name}_total", 0.0) for what, name in (
        ("preemptions", "preemptions"), ("prefix hits", "prefix_hit_tokens"), ("guesses", "drafted_tokens"),
        ("accepted guesses", "accepted_tokens"))}
    counts["aborted answers"] = seen.metrics.get("kforge_answers_total aborted", 0.0)
    missing = [what for what, count in counts.items() if not count]
    told = ", ".join(f"{count:.0f} {what}" for what, count in counts.items())
    return Verdict("all that could go wrong was tried", not missing, told)


if __name__ == "__main__":
    main()
