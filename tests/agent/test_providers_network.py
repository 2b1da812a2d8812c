"""Real SDKs against a server and a network in trouble: retries, limits of time, Ctrl-C, keys that nobody may see."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from asking import DIALECTS, GOOD, KEY, QUICK, ask, point_at, provider, request
from fake_model_server import FakeModelServer, Hang, HangUp, Status

from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Usage
from kforge.agent.providers.access import Access
from kforge.agent.providers.patience import Patience, asked_delay

PROTOCOLS = pytest.mark.parametrize("dialect", list(DIALECTS))


@PROTOCOLS
@pytest.mark.parametrize("step", [Status(429), Status(500), Status(503), Status(529), Status(408), HangUp()],
                         ids=["429", "500", "503", "529", "408", "hangup"])
def test_what_passes_is_tried_again_and_costs_nothing(dialect, step, monkeypatch):
    with FakeModelServer(step, step, GOOD).running() as server:
        reply = ask(dialect, server, monkeypatch)
    assert isinstance(reply, Reply), reply
    assert (reply.attempts, len(server.asked)) == (3, 3)  # no SDK retried on its own
    assert reply.usage == Usage(100, 30, 7, 20)


@PROTOCOLS
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
def test_it_waits_as_long_as_the_server_asks(dialect, header, monkeypatch):
    value = "1" if header == "retry-after" else "1000"
    with FakeModelServer(Status(429, headers=((header, value),)), GOOD).running() as server:
        began = time.monotonic()
        reply = ask(dialect, server, monkeypatch)
    assert isinstance(reply, Reply)
    assert time.monotonic() - began >= 1.0


@PROTOCOLS
def test_it_does_not_wait_longer_than_a_call_may_take(dialect, monkeypatch):
    with FakeModelServer(Status(429, headers=(("retry-after", "100000"),)), GOOD).running() as server:
        began = time.monotonic()
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.RATE_LIMITED
    assert "asks to wait 100000 s" in failure.reason
    assert time.monotonic() - began < 60
    assert len(server.asked) == 1


@PROTOCOLS
@pytest.mark.parametrize(("code", "kind"), [(429, CallFailureKind.RATE_LIMITED), (500, CallFailureKind.UNAVAILABLE)])
def test_trouble_without_end_ends(dialect, code, kind, monkeypatch):
    with FakeModelServer(Status(code, "come back later")).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is kind
    assert f"answers {code}" in failure.reason
    assert "come back later" in failure.reason
    assert (failure.attempts, len(server.asked)) == (QUICK.attempts, QUICK.attempts)
    assert failure.usage == Usage()
    assert not failure.final


@PROTOCOLS
def test_nobody_at_the_address_is_unavailable_after_all_attempts(dialect, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = FakeModelServer()
        nobody.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        failure = ask(dialect, nobody, monkeypatch)
    assert failure.kind is CallFailureKind.UNAVAILABLE
    assert nobody.url in failure.reason
    assert (failure.attempts, failure.usage) == (QUICK.attempts, Usage())


@PROTOCOLS
@pytest.mark.parametrize("then", ["drop", "end"])
def test_a_stream_that_breaks_off_is_paid_for_and_left_to_the_caller(dialect, then, monkeypatch):
    with FakeModelServer(GOOD.but(cut=3, then=then)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.UNAVAILABLE
    assert len(server.asked) == 1
    assert failure.assumed
    prompt = Usage(100, 30, 7, 500) if dialect == "anthropic" else request().bound  # it counts the prompt at once
    assert failure.usage == prompt


@PROTOCOLS
@pytest.mark.parametrize(("kind", "expected"), [
    ("overloaded_error", CallFailureKind.UNAVAILABLE),
    ("server_error", CallFailureKind.UNAVAILABLE),
    ("rate_limit_error", CallFailureKind.RATE_LIMITED),
    ("authentication_error", CallFailureKind.UNAUTHORISED),
    ("invalid_request_error", CallFailureKind.REJECTED),
])
def test_an_error_in_mid_stream_is_what_the_server_calls_it(dialect, kind, expected, monkeypatch):
    error = {"type": kind, "code": kind, "message": "sorry"}
    with FakeModelServer(GOOD.but(cut=2, then="error", error=error)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is expected, failure.reason
    assert "sorry" in failure.reason


@PROTOCOLS
@pytest.mark.parametrize("step", [Hang(), GOOD.but(cut=3, then="stall")], ids=["no answer", "mid-stream"])
@pytest.mark.parametrize("limit", ["silence", "seconds"])
def test_a_server_that_falls_silent_ends_in_a_timeout(dialect, step, limit, monkeypatch):
    patience = replace(QUICK, **{limit: 0.7})
    with FakeModelServer(step).running() as server:
        began = time.monotonic()
        failure = ask(dialect, server, monkeypatch, patience)
        assert time.monotonic() - began < 30
        assert server.hung_up.wait(30)
    assert failure.kind is CallFailureKind.TIMEOUT
    assert failure.assumed
    assert failure.usage.output == 500
    assert len(server.asked) == 1


@PROTOCOLS
@pytest.mark.parametrize("step", [Hang(), GOOD.but(cut=3, then="stall")], ids=["no answer", "mid-stream"])
def test_cancel_ends_a_call_and_its_connection_soon(dialect, step, monkeypatch):
    with FakeModelServer(step).running() as server:
        point_at(server, monkeypatch)
        cancel = threading.Event()
        results: list = []
        model = provider(dialect)
        asking = threading.Thread(target=lambda: results.append(model.complete(request(), cancel)))
        asking.start()
        deadline = time.monotonic() + 60
        while not server.asked and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        began = time.monotonic()
        cancel.set()
        asking.join(30)
        took = time.monotonic() - began
        assert server.hung_up.wait(30)
    assert results[0].kind is CallFailureKind.CANCELLED
    assert took < 5  # about half a second; this machine may be busy
    assert results[0].assumed
    assert results[0].usage.output == 500


@PROTOCOLS
def test_cancel_ends_a_pause_between_attempts(dialect, monkeypatch):
    patience = Patience(attempts=3, first=60, longest=60, seconds=600)
    with FakeModelServer(Status(500)).running() as server:
        point_at(server, monkeypatch)
        cancel = threading.Event()
        threading.Timer(1.0, cancel.set).start()
        began = time.monotonic()
        failure = provider(dialect, patience).complete(request(), cancel)
    assert failure.kind is CallFailureKind.CANCELLED
    assert time.monotonic() - began < 20
    assert failure.usage == Usage()


@PROTOCOLS
@pytest.mark.parametrize("code", [401, 403])
def test_a_wrong_key_is_told_without_the_key(dialect, code, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    with FakeModelServer(Status(code, f"Incorrect API key provided: {KEY}", echo=True)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.UNAUTHORISED
    assert failure.final
    assert "ANTHROPIC_API_KEY" in failure.reason or "OPENAI_API_KEY" in failure.reason
    assert_hidden(repr(failure))
    assert_hidden(caplog.text)
    assert len(server.asked) == 1


@PROTOCOLS
@pytest.mark.parametrize("step", [
    Status(400, f"cannot serve {KEY}", echo=True),
    Status(400, f"key {KEY[:14]}... is odd"),
    Status(500, f"crashed with {KEY}", echo=True),
    Status(429, f"too many requests of {KEY[3:]}"),
    Status(403, f"not for {KEY}"),
    GOOD.but(calls=(), text=f"Your key is {KEY}."),
    GOOD.but(calls=((KEY, "{}"),)),
    GOOD.but(calls=(("propose", f'{{"bottleneck": "{KEY}", "gain": -1}}'),)),
    GOOD.but(cut=2, then="error", error={"type": "server_error", "message": f"bad {KEY}"}),
], ids=["400", "part", "500", "429", "403", "prose", "tool", "arguments", "mid-stream"])
def test_no_failure_holds_the_key(dialect, step, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    with FakeModelServer(step).running() as server:
        failure = ask(dialect, server, monkeypatch)
        assert_hidden(repr(provider(dialect).__dict__))
    assert isinstance(failure, CallFailure)
    assert_hidden(repr(failure))
    assert_hidden(caplog.text)


@PROTOCOLS
def test_no_answer_holds_the_key(dialect, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    calls = (("propose", f'{{"bottleneck": "{KEY}", "gain": 1}}'),)
    with FakeModelServer(GOOD.but(calls=calls, text=KEY)).running() as server:
        reply = ask(dialect, server, monkeypatch)
    assert isinstance(reply, Reply)
    assert_hidden(repr(reply))
    assert_hidden(caplog.text)


def test_an_access_shows_no_secret():
    shown = Access("OPENAI_API_KEY", KEY, "https://me:password99@models.example/v1", ("another-secret",))
    assert_hidden(repr(shown))
    assert "password99" not in repr(shown) + shown.server
    assert "another" not in repr(shown)


def assert_hidden(text: str) -> None:
    """No eight characters of the key in a row."""
    assert [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in text] == []


@PROTOCOLS
@pytest.mark.parametrize("key", [None, "", "  ", "two words", "line\nbreak", "schlüssel-schlüssel"])
def test_without_a_key_nobody_is_called(dialect, key, monkeypatch):
    name = "ANTHROPIC_API_KEY" if dialect == "anthropic" else "OPENAI_API_KEY"
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        monkeypatch.delenv(name) if key is None else monkeypatch.setenv(name, key)
        model = provider(dialect)
        failure = model.complete(request(), threading.Event())
        assert name in model.missing_key()
    assert failure.kind is CallFailureKind.UNAUTHORISED
    assert name in failure.reason
    assert server.asked == []


def test_anthropics_token_serves_where_there_is_no_key(monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
        reply = provider("anthropic").complete(request(), threading.Event())
    assert isinstance(reply, Reply)
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@PROTOCOLS
@pytest.mark.parametrize("code", [400, 404, 413, 422])
def test_a_request_that_is_wrong_is_not_repeated(dialect, code, monkeypatch):
    with FakeModelServer(Status(code, "no such model")).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.REJECTED
    assert "no such model" in failure.reason
    assert len(server.asked) == 1
    assert failure.usage == Usage()


@PROTOCOLS
@pytest.mark.parametrize("step", [Status(402, "pay first"), Status(429, "you exceeded it", kind="insufficient_quota")])
def test_an_account_that_cannot_pay_ends_it_all(dialect, step, monkeypatch):
    with FakeModelServer(step).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.UNAUTHORISED
    assert failure.final
    assert len(server.asked) == 1


@PROTOCOLS
def test_no_key_follows_a_redirect(dialect, monkeypatch):
    with FakeModelServer(GOOD).running() as other:
        moved = Status(307, headers=(("location", f"{other.url}/v1/messages"),))
        with FakeModelServer(moved).running() as server:
            failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.REJECTED
    assert "307" in failure.reason
    assert other.asked == []


def test_several_threads_ask_at_once(monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        models = [provider(dialect) for dialect in DIALECTS]
        results: list = []
        threads = [threading.Thread(target=lambda m=m, i=i: results.append(
            m.complete(request(ordinal=i), threading.Event()))) for i in range(3) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == len(server.asked) == 9
    assert all(isinstance(r, Reply) for r in results)


def test_delays_double_up_to_a_limit_and_heed_the_server():
    patience = Patience(first=1.0, longest=8.0)
    for failed, most in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0), (5000, 8.0)]:
        drawn = [patience.delay(failed, None) for _ in range(50)]
        assert most / 2 <= min(drawn) < max(drawn) <= most
    assert patience.delay(1, 30.0) == 30.0
    assert patience.delay(4, 0.1) >= 4.0


def test_a_delay_may_be_asked_for_in_three_ways():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert asked_delay({"retry-after": "2.5"}) == 2.5
    assert asked_delay({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert 80 < asked_delay({"retry-after": soon}) <= 90
    assert asked_delay({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}) == 0
    assert asked_delay({"retry-after": "soon"}) is None
    assert asked_delay({}) is None
