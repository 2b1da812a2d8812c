"""A full queue, clients that go away, what Prometheus sees, and how a server ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import openai
import psutil
import pytest
from served import NAME, QUEUE, ROOT, SEQUENCES, Alone, Served, server, user

LONG = 1800  # tokens of an answer that takes a while
KEY = "a-key-that-nobody-guesses"


def idle(metrics: dict[str, float]) -> bool:
    return metrics["kforge_running"] == metrics["kforge_waiting"] == metrics["kforge_kv_pages_used"] == 0


def long_answers(client: openai.OpenAI, count: int, tokens: int = LONG) -> openai.Stream:
    """A stream whose answers the server has let in."""
    stream = client.chat.completions.create(model=NAME, messages=user("on and on"), n=count, max_tokens=tokens, seed=1,
                                            stream=True)
    next(stream)
    return stream


def test_a_full_queue_is_told_and_comes_free_when_a_client_goes_away(served: Served, client: openai.OpenAI):
    served.wait_for(idle)
    before = served.metrics()
    stream = long_answers(client, SEQUENCES + QUEUE)
    seen = served.metrics()
    assert seen["kforge_running"] + seen["kforge_waiting"] > 0
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model=NAME, prompt="me too", max_tokens=1)
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    stream.close()
    after = served.wait_for(idle)
    assert client.completions.create(model=NAME, prompt="me too", max_tokens=1).choices[0].finish_reason == "length"
    aborted = 'kforge_answers_total{end="aborted"}'
    assert after[aborted] - before.get(aborted, 0) > 0
    made = after["kforge_generated_tokens_total"] - before["kforge_generated_tokens_total"]
    assert made < (SEQUENCES + QUEUE) * LONG, "answers that nobody reads are not computed to their end"


def test_a_client_that_leaves_before_a_whole_answer_frees_its_pages(served: Served):
    served.wait_for(idle)
    aborted = 'kforge_answers_total{end="aborted"}'
    before = served.metrics().get(aborted, 0)
    body = json.dumps({"model": NAME, "prompt": "on", "max_tokens": LONG, "n": 3}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        served.wait_for(lambda seen: seen["kforge_running"] > 0)
    served.wait_for(lambda seen: idle(seen) and seen[aborted] > before)


def test_metrics_count_what_happened(served: Served, client: openai.OpenAI):
    before = served.wait_for(idle)
    client.completions.create(model=NAME, prompt=[1, 2, 3, 4, 5], max_tokens=7, temperature=0)
    served.post("/v1/completions", {"model": NAME, "prompt": "x", "frobnicate": 1})
    after = served.wait_for(idle)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("kforge_prompt_tokens_total") == 5
    assert grown("kforge_generated_tokens_total") == 7
    assert grown('kforge_answers_total{end="length"}') == 1
    assert grown('kforge_requests_total{endpoint="/v1/completions",status="200"}') == 1
    assert grown('kforge_requests_total{endpoint="/v1/completions",status="400"}') == 1
    assert grown("kforge_time_to_first_token_seconds_count") == 1
    assert 1 <= grown("kforge_inter_token_seconds_count") <= 6, "a step may bring several tokens"
    assert after["kforge_kv_pages"] == 64


def test_a_key_is_asked_for_and_a_running_answer_ends_before_the_server(tiny: Path, home: Path, alone: Alone):
    with server(tiny, home, KFORGE_API_KEY=KEY) as guarded:
        for wrong in (guarded.client("a wrong one"), guarded.client(KEY + "x")):
            with pytest.raises(openai.AuthenticationError):
                wrong.models.list()
        assert guarded.post("/v1/completions", {"model": NAME, "prompt": "x"}).status_code == 401
        assert httpx2.get(guarded.url + "/health", timeout=60).status_code == 200
        client = guarded.client(KEY)
        assert [model.id for model in client.models.list()] == [NAME]

        stream = long_answers(client, 1, 300)
        guarded.process.send_signal(signal.SIGTERM)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        expected = alone.answer(alone.user("on and on"), temperature=1.0, seed=1, max_tokens=300)
        assert text == expected.text
        assert guarded.process.wait(60) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(guarded.url + "/health", timeout=60)
        assert guarded.process.stdout is not None
        assert KEY not in guarded.log.read_text() + guarded.process.stdout.read()


def test_when_the_grace_is_over_answers_are_cut_off_and_told_so(tiny: Path, home: Path):
    with server(tiny, home, "--grace", "0", "--kernels", "none") as hasty:  # so slow that no answer ends by itself
        client = hasty.client()
        stream = long_answers(client, SEQUENCES)
        whole: list[Exception] = []

        def ask() -> None:
            try:
                client.chat.completions.create(model=NAME, messages=user("x"), max_tokens=LONG, n=QUEUE)
            except openai.APIError as error:
                whole.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        hasty.wait_for(lambda seen: seen["kforge_running"] + seen["kforge_waiting"] == SEQUENCES + QUEUE)
        began = time.monotonic()
        hasty.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        asking.join(60)
        assert isinstance(whole[0], openai.InternalServerError) and whole[0].status_code == 503
        assert hasty.process.wait(60) == 0
        assert time.monotonic() - began < 30
        assert "answers were cut off" in hasty.log.read_text()


@pytest.mark.slow
def test_when_the_kernels_process_dies_clients_are_told_and_the_server_ends(tiny: Path, home: Path):
    with server(tiny, home, "--isolate") as isolated:
        stream = long_answers(isolated.client(), 2)
        (warden,) = psutil.Process(isolated.process.pid).children()
        (executor,) = warden.children()
        executor.kill()
        with pytest.raises(openai.APIError, match="The engine failed"):
            list(stream)
        assert isolated.process.wait(60) == 2
        (line,) = isolated.log.read_text().strip().splitlines()
        assert line.startswith("kforge: ")


@pytest.mark.parametrize(("words", "says"), [
    (("--port", "{taken}"), "cannot be used"),
    (("--host", "192.0.2.1"), "cannot be used"),
    (("--port", "0", "--kernels", "best"), "none, default or tuned"),
    (("--port", "0", "--kv-tokens", "99999999999"), "memory is free"),
])
def test_a_server_that_cannot_be_is_one_sentence(tiny: Path, home: Path, words: tuple[str, ...], says: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "kforge.cli.main", "serve", str(tiny), "--kernels", "none"]
        done = subprocess.run([*command, *(port if word == "{taken}" else word for word in words)], capture_output=True,
                              text=True, timeout=250, check=False,
                              env={**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("kforge: ") and says in line
