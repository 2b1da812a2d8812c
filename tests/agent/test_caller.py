"""A call from the loop's side: budget, second chances, files, kills; through real SDKs wherever a model is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from asking import ARGUMENTS, DIALECTS, GOOD, KEY, point_at, provider, request
from fake_model_server import Answer, FakeModelServer, Hang, Status

from kforge.agent.budget import Ledger, Limits, Payee, Spent, spent_in
from kforge.agent.caller import Caller, corrected
from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Role, Usage
from kforge.agent.prices import Price, Prices
from kforge.agent.providers.replay import Replay
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts, load

PROTOCOLS = pytest.mark.parametrize("dialect", list(DIALECTS))
NEVER = threading.Event()
PRICES = Prices(tuple(Price(p, ("*",), 3.0, 0.3, 3.75, 15.0, "a test", "2026-11-30") for p in ("anthropic", "openai")))
ONCE = Usage(100, 30, 7, 20)
COST = (100 * 3 + 30 * 0.3 + 7 * 3.75 + 20 * 15) / 1e6
WORST = PRICES.entries[0].most(request().bound)
MALFORMED = GOOD.but(calls=(("propose", '{"gain": 1}'),))


def caller(tmp_path, dialect="anthropic", **limits) -> Caller:
    ledger = Ledger.open(tmp_path, Limits(**(limits or {"usd": 1})), PRICES)
    return Caller(Router.of(provider(dialect)), ledger, Transcripts(tmp_path), pause=0.01)


def spent(tmp_path) -> Spent:
    return sum(spent_in(tmp_path).values(), Spent())


@PROTOCOLS
def test_an_answer_is_paid_for_and_on_the_disk(dialect, tmp_path, monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        reply = caller(tmp_path, dialect).call(request(), NEVER)
    assert isinstance(reply, Reply)
    assert spent(tmp_path) == Spent(1, ONCE, pytest.approx(COST))
    (written,) = load(tmp_path)
    assert (written.request, written.answer, written.first) == (request(), reply, None)
    assert written.usd == pytest.approx(COST)
    assert KEY not in "".join(p.read_text() for p in tmp_path.rglob("*") if p.is_file())


@PROTOCOLS
@pytest.mark.parametrize("bad", [
    MALFORMED, GOOD.but(calls=(("propose", "{"),)), Answer(), Answer(text="Well."), GOOD.but(calls=(("other", "{}"),)),
    GOOD.but(stop="truncated"),
], ids=["schema", "json", "empty", "prose", "tool", "truncated"])
def test_a_bad_answer_costs_one_more_try_with_a_word_on_what_was_wrong(dialect, bad, tmp_path, monkeypatch):
    with FakeModelServer(bad, GOOD).running() as server:
        point_at(server, monkeypatch)
        reply = caller(tmp_path, dialect).call(request(), NEVER)
    assert isinstance(reply, Reply)
    assert reply.arguments == ARGUMENTS
    assert (reply.usage, reply.attempts) == (ONCE + ONCE, 2)
    (written,) = load(tmp_path)
    assert written.request == request()
    assert isinstance(written.first, CallFailure)
    assert written.first.reason.split(":")[0] in json.dumps(server.asked[1].body)
    assert spent(tmp_path) == Spent(2, ONCE + ONCE, pytest.approx(2 * COST))
    assert written.usd == pytest.approx(2 * COST)


@PROTOCOLS
def test_a_second_bad_answer_is_a_failure_that_cost_both(dialect, tmp_path, monkeypatch):
    with FakeModelServer(MALFORMED).running() as server:
        point_at(server, monkeypatch)
        failure = caller(tmp_path, dialect).call(request(), NEVER)
    assert failure.kind is CallFailureKind.MALFORMED
    assert failure.usage == ONCE + ONCE
    assert len(server.asked) == 2


@PROTOCOLS
def test_a_refusal_is_not_argued_with(dialect, tmp_path, monkeypatch):
    with FakeModelServer(Answer(stop="refused", refusal="No.")).running() as server:
        point_at(server, monkeypatch)
        failure = caller(tmp_path, dialect).call(request(), NEVER)
    assert failure.kind is CallFailureKind.REFUSED
    assert len(server.asked) == 1


@PROTOCOLS
def test_a_dropped_stream_is_asked_again_once_and_both_are_paid_for(dialect, tmp_path, monkeypatch):
    with FakeModelServer(GOOD.but(cut=3, then="drop"), GOOD).running() as server:
        point_at(server, monkeypatch)
        reply = caller(tmp_path, dialect).call(request(), NEVER)
    assert isinstance(reply, Reply)
    assert reply.attempts == 2
    assert reply.assumed
    total = spent(tmp_path)
    assert total.calls == 2
    assert total.assumed_usd > 0
    assert total.usd == pytest.approx(COST + total.assumed_usd)
    assert total.usage == reply.usage


@PROTOCOLS
def test_streams_that_always_drop_end_after_two(dialect, tmp_path, monkeypatch):
    with FakeModelServer(GOOD.but(cut=3, then="drop")).running() as server:
        point_at(server, monkeypatch)
        failure = caller(tmp_path, dialect).call(request(), NEVER)
    assert failure.kind is CallFailureKind.UNAVAILABLE
    assert len(server.asked) == 2


def test_what_the_model_said_goes_back_to_it_unless_it_was_too_long():
    failure = CallFailure(CallFailureKind.PROSE, "text instead of a call", answer="Well, x.")
    messages = corrected(request(), failure).messages
    assert [(m.by, "Well, x." in m.text) for m in messages] == [("user", False), ("assistant", True), ("user", False)]
    cut = replace(failure, kind=CallFailureKind.TRUNCATED)
    assert [m.by for m in corrected(request(), cut).messages] == ["user", "user"]


@PROTOCOLS
def test_money_that_would_not_suffice_asks_nobody(dialect, tmp_path, monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        failure = caller(tmp_path, dialect, usd=WORST * 0.9).call(request(), NEVER)
    assert failure.kind is CallFailureKind.BUDGET
    assert server.asked == []
    assert spent(tmp_path) == Spent()
    assert load(tmp_path)[0].answer == failure


@PROTOCOLS
def test_money_that_runs_out_stops_before_the_limit(dialect, tmp_path, monkeypatch):
    limit = WORST + COST * 3.5
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        ask = caller(tmp_path, dialect, usd=limit)
        answers = [ask.call(request(ordinal=i), NEVER) for i in range(6)]
    assert [isinstance(a, Reply) for a in answers] == [True] * 4 + [False] * 2
    assert answers[-1].kind is CallFailureKind.BUDGET
    assert spent(tmp_path).usd <= limit


def test_no_second_try_that_the_money_does_not_allow(tmp_path, monkeypatch):
    with FakeModelServer(MALFORMED, GOOD).running() as server:
        point_at(server, monkeypatch)
        failure = caller(tmp_path, usd=WORST).call(request(), NEVER)
    assert failure.kind is CallFailureKind.MALFORMED
    assert failure.usage == ONCE
    assert len(server.asked) == 1


def test_several_threads_stay_within_the_money(tmp_path, monkeypatch):
    limit = WORST * 2.5
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        ask = caller(tmp_path, "chat", usd=limit)
        answers: list = []
        threads = [threading.Thread(target=lambda i=i: answers.append(ask.call(request(ordinal=i), NEVER)))
                   for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(isinstance(a, Reply) for a in answers)  # they waited for one another's change
    assert spent(tmp_path).usd == pytest.approx(8 * COST)
    assert len(load(tmp_path)) == 8


def test_roles_are_paid_for_apart(tmp_path, monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        router = Router({**Router.of(provider("anthropic")).by_role, Role.REPAIRER: provider("chat")})
        ask = Caller(router, Ledger.open(tmp_path, Limits(usd=1), PRICES), Transcripts(tmp_path))
        for role in Role:
            ask.call(request(role=role), NEVER)
    assert {payee: s.calls for payee, s in spent_in(tmp_path).items()} == {
        Payee(Role.ANALYST, "anthropic", "some-model"): 1, Payee(Role.GENERATOR, "anthropic", "some-model"): 1,
        Payee(Role.REPAIRER, "openai", "some-model"): 1}


def test_a_resumed_run_does_not_pay_for_an_answer_twice(tmp_path, monkeypatch):
    with FakeModelServer(GOOD).running() as server:
        point_at(server, monkeypatch)
        first = caller(tmp_path)
        reply = first.call(request(), NEVER)
        first._ledger.close()
        again = caller(tmp_path)
        assert again.call(request(), NEVER) == reply
        assert isinstance(again.call(request(ordinal=1), NEVER), Reply)
    assert len(server.asked) == 2
    assert spent(tmp_path).calls == 2


def test_a_recorded_run_is_replayed_with_all_its_failures(tmp_path, monkeypatch):
    steps = (GOOD, MALFORMED, GOOD.but(text="second try"), Answer(text="no"), Answer(text="no"), Status(400, "wrong"))
    with FakeModelServer(*steps).running() as server:
        point_at(server, monkeypatch)
        ask = caller(tmp_path)
        live = [ask.call(request(ordinal=i), NEVER) for i in range(4)]
    assert [getattr(a, "kind", "reply") for a in live] == ["reply", "reply", "prose", "rejected"]
    again = Caller(Router.of(Replay(tmp_path)))
    assert [again.call(request(ordinal=i), NEVER) for i in range(4)] == live


def test_cancel_in_mid_call_settles_and_is_recorded(tmp_path, monkeypatch):
    with FakeModelServer(GOOD.but(cut=3, then="stall")).running() as server:
        point_at(server, monkeypatch)
        cancel = threading.Event()
        threading.Timer(1.0, cancel.set).start()
        failure = caller(tmp_path).call(request(), cancel)
    assert failure.kind is CallFailureKind.CANCELLED
    total = spent(tmp_path)
    assert total.usage == Usage(100, 30, 7, 500)
    assert total.assumed_tokens == total.usage.total
    assert load(tmp_path)[0].answer == failure


CALLING = """
import os, signal, sys, threading
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test run in the background has off
sys.path.insert(0, {tests!r})
from test_caller import caller, request
caller(Path({run!r})).call(request(), threading.Event())
"""


def calling(server: FakeModelServer, tmp_path) -> subprocess.Popen:
    """A process in the middle of a call."""
    env = {**os.environ, "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}
    code = CALLING.format(tests=os.path.dirname(__file__), run=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not server.asked and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert server.asked, process.communicate()
    return process


def test_ctrl_c_in_mid_call_ends_at_once_and_counts_the_call_in_full(tmp_path):
    with FakeModelServer(Hang()).running() as server:
        process = calling(server, tmp_path)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 20
    assert "KeyboardInterrupt" in errors
    assert KEY not in errors
    assert spent(tmp_path) == Spent(1, request().bound, pytest.approx(WORST), pytest.approx(WORST),
                                    request().bound.total)
    with Ledger.open(tmp_path, Limits(usd=1), PRICES) as again:
        assert again.spent.usd == pytest.approx(WORST)


def test_kill_9_in_mid_call_counts_the_call_in_full_and_the_run_goes_on(tmp_path, monkeypatch):
    with FakeModelServer(Hang(), GOOD).running() as server:
        process = calling(server, tmp_path)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert load(tmp_path) == []
        point_at(server, monkeypatch)
        reply = caller(tmp_path, usd=WORST * 2).call(request(), NEVER)
    assert isinstance(reply, Reply)
    assert spent(tmp_path).usd == pytest.approx(WORST + COST)
    assert len(load(tmp_path)) == 1


class Interrupted:
    """A provider in whose call somebody presses Ctrl-C."""

    name = "anthropic"

    def model_for(self, role: Role) -> str:
        return "some-model"

    def complete(self, request, cancel):
        raise KeyboardInterrupt


def test_an_interrupted_call_is_spent_in_full_and_keeps_nobody_waiting(tmp_path):
    ask = Caller(Router.of(Interrupted()), Ledger.open(tmp_path, Limits(usd=WORST * 1.5), PRICES))
    with pytest.raises(KeyboardInterrupt):
        ask.call(request(), NEVER)
    assert ask.call(request(ordinal=1), NEVER).kind is CallFailureKind.BUDGET
    assert spent(tmp_path).usd == pytest.approx(WORST)
