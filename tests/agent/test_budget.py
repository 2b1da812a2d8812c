"""Limits hold whatever happens: several threads, models that take more than they may, kills, full disks, resumes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from kforge.agent.budget import Ledger, Limits, Payee, Reservation, Spent, spent_in
from kforge.agent.calls import CallFailure, CallFailureKind, Role, Usage
from kforge.agent.prices import Price, Prices
from kforge.agent.providers.router import Router
from kforge.core.errors import KforgeError

PRICE = Price("anthropic", ("m*",), 3.0, 0.3, 3.75, 15.0, "a test", "2026-11-30")
PRICES = Prices((PRICE,))
ANALYST = Payee(Role.ANALYST, "anthropic", "model")
REPAIRER = Payee(Role.REPAIRER, "anthropic", "mini")
BOUND = Usage(input=10_000, output=1_000)
DEAREST = (10_000 * 3.75 + 1_000 * 15) / 1e6  # of BOUND: all of the prompt written to the cache
USED = Usage(input=1_000, cache_read=2_000, cache_written=500, output=100)
COST = (1_000 * 3 + 2_000 * 0.3 + 500 * 3.75 + 100 * 15) / 1e6
NEVER = threading.Event()


def opened(tmp_path, **limits) -> Ledger:
    return Ledger.open(tmp_path, Limits(**limits), PRICES)


def test_a_price_counts_every_kind_of_token_once():
    assert PRICE.cost(USED) == pytest.approx(COST)
    assert PRICE.most(BOUND) == pytest.approx(DEAREST)


def test_the_worst_is_set_aside_and_the_rest_given_back(tmp_path):
    with opened(tmp_path, usd=1) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        assert isinstance(held, Reservation)
        assert ledger.spent == Spent(1, BOUND, pytest.approx(DEAREST), pytest.approx(DEAREST), 11_000)
        assert ledger.settle(held, USED) == pytest.approx(COST)
        assert ledger.spent == Spent(1, USED, pytest.approx(COST), 0, 0)


@pytest.mark.parametrize(("limits", "part"), [
    ({"usd": DEAREST * 0.99}, "USD"), ({"tokens": 10_999}, "tokens"), ({"calls": 0}, "calls"),
])
def test_a_call_that_might_not_fit_is_not_made(tmp_path, limits, part):
    with opened(tmp_path, **limits) as ledger:
        failure = ledger.reserve(ANALYST, BOUND, NEVER)
        assert isinstance(failure, CallFailure)
        assert failure.kind is CallFailureKind.BUDGET
        assert failure.final
        assert part in failure.reason
        assert ledger.spent == Spent()


@pytest.mark.parametrize("limits", [{"usd": DEAREST}, {"tokens": 11_000}, {"calls": 1}])
def test_a_call_that_just_fits_is_made_and_no_other(tmp_path, limits):
    with opened(tmp_path, **limits) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        assert isinstance(held, Reservation)
        ledger.settle(held, BOUND, assumed=True)
        assert isinstance(ledger.reserve(ANALYST, BOUND, NEVER), CallFailure)


def test_a_call_waits_for_money_that_another_holds_and_may_give_back(tmp_path):
    with opened(tmp_path, usd=DEAREST * 1.5) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        results: list = []
        waiting = threading.Thread(target=lambda: results.append(ledger.reserve(ANALYST, BOUND, NEVER)))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        ledger.settle(held, USED)
        waiting.join(30)
        assert isinstance(results[0], Reservation)


def test_a_call_that_waits_for_money_that_never_comes_fails_and_one_that_is_stopped_ends(tmp_path):
    with opened(tmp_path, usd=DEAREST * 1.5) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        stop = threading.Event()
        results: list = []
        threads = [threading.Thread(target=lambda e=e: results.append(ledger.reserve(ANALYST, BOUND, e)))
                   for e in (stop, NEVER)]
        for thread in threads:
            thread.start()
        stop.set()
        threads[0].join(30)
        assert results[0].kind is CallFailureKind.CANCELLED
        ledger.settle(held, BOUND)
        threads[1].join(30)
        assert results[1].kind is CallFailureKind.BUDGET


def test_many_threads_never_spend_more_than_there_is(tmp_path):
    limit = DEAREST * 7.3
    most: list[float] = []
    with opened(tmp_path, usd=limit) as ledger:
        def spend(seed: int) -> None:
            for i in range(100):
                held = ledger.reserve(REPAIRER if i % 2 else ANALYST, BOUND, NEVER)
                if isinstance(held, CallFailure):
                    return
                most.append(ledger.spent.usd)
                share = (seed * 7 + i * 3) % 10 / 10
                ledger.settle(held, Usage(cache_written=int(10_000 * share), output=int(1_000 * share)))

        threads = [threading.Thread(target=spend, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(most) <= limit + 1e-9
        total = ledger.spent
        assert limit - DEAREST < total.usd <= limit
        assert total.calls == len(most)
        assert sum((s for s in ledger.by_payee.values()), Spent()).usd == pytest.approx(total.usd)
    with opened(tmp_path, usd=limit) as again:
        assert again.spent == total


def test_a_model_that_takes_more_than_it_may_overruns_by_its_own_call_only(tmp_path):
    with opened(tmp_path, usd=DEAREST * 1.2) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        ledger.settle(held, Usage(input=10_000, output=50_000))
        assert ledger.spent.usd > DEAREST * 1.2
        assert ledger.reserve(ANALYST, Usage(output=1), NEVER).kind is CallFailureKind.BUDGET


def test_spending_goes_on_where_a_run_left_off(tmp_path):
    with opened(tmp_path, usd=1) as ledger:
        for payee in (ANALYST, REPAIRER, ANALYST):
            ledger.settle(ledger.reserve(payee, BOUND, NEVER), USED)
        left_open = ledger.reserve(REPAIRER, BOUND, NEVER)
        before = ledger.by_payee
    with opened(tmp_path, usd=1) as again:
        assert again.by_payee == before
        assert again.by_payee[ANALYST] == Spent(2, USED + USED, pytest.approx(2 * COST))
        assert again.by_payee[REPAIRER].assumed_usd == pytest.approx(DEAREST)  # nobody settled it
        assert again.reserve(ANALYST, BOUND, NEVER).id == left_open.id + 1
    assert spent_in(tmp_path)[ANALYST].calls == 3
    assert spent_in(tmp_path / "nothing") == {}


def test_what_an_unsettled_call_holds_is_gone_and_nobody_waits_for_it(tmp_path):
    with opened(tmp_path, usd=DEAREST * 1.5) as ledger:
        ledger.reserve(ANALYST, BOUND, NEVER)
    with opened(tmp_path, usd=DEAREST * 1.5) as again:
        assert again.reserve(ANALYST, BOUND, NEVER).kind is CallFailureKind.BUDGET
    with opened(tmp_path, usd=DEAREST * 2.5) as richer:  # more money given on resume
        assert isinstance(richer.reserve(ANALYST, BOUND, NEVER), Reservation)


KILLED = """
import os, sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_budget import ANALYST, BOUND, PRICES, USED, NEVER
from kforge.agent.budget import Ledger, Limits
ledger = Ledger.open(Path({run!r}), Limits(usd=1), PRICES)
ledger.settle(ledger.reserve(ANALYST, BOUND, NEVER), USED)
ledger.reserve(ANALYST, BOUND, NEVER)
print("calling", flush=True)
threading.Event().wait()
"""


def test_a_process_killed_in_mid_call_has_spent_what_it_had_set_aside(tmp_path):
    code = KILLED.format(tests=os.path.dirname(__file__), run=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "calling\n"
        with pytest.raises(KforgeError, match="another process spends money"):
            opened(tmp_path, usd=1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with opened(tmp_path, usd=1) as again:
        assert again.spent == Spent(2, USED + BOUND, pytest.approx(COST + DEAREST), pytest.approx(DEAREST), 11_000)


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_torn_last_line_costs_only_itself(tmp_path, cut):
    with opened(tmp_path, usd=1) as ledger:
        ledger.settle(ledger.reserve(ANALYST, BOUND, NEVER), USED)
        ledger.settle(ledger.reserve(ANALYST, BOUND, NEVER), USED)
    path = tmp_path / "spending.jsonl"
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole[: -min(cut, len(last))])
    with opened(tmp_path, usd=1) as again:
        assert again.spent.usd == pytest.approx(COST + DEAREST)  # the second call is not known to be settled
        again.settle(again.reserve(ANALYST, BOUND, NEVER), USED)
    with opened(tmp_path, usd=1) as again:
        assert again.spent.calls == 3


@pytest.mark.parametrize("line", [b"not json", b"{}", b"[]", b'{"kind": "reserve"}', b'{"kind": "gift", "id": 1}'])
def test_a_line_that_cannot_be_read_ends_in_one_sentence(tmp_path, line):
    path = tmp_path / "spending.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(KforgeError, match="line 1, cannot be read"):
        opened(tmp_path, usd=1)
    path.unlink()
    opened(tmp_path, usd=1).close()  # the lock was let go


def test_a_full_disk_ends_in_one_sentence_and_leaves_whole_lines(tmp_path):
    ledger = opened(tmp_path, usd=1)
    held = ledger.reserve(ANALYST, BOUND, NEVER)
    path = tmp_path / "spending.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
    try:
        with pytest.raises(KforgeError, match=r"cannot write .*spending.jsonl"):
            ledger.settle(held, USED)
        with pytest.raises(KforgeError, match=r"cannot write .*spending.jsonl"):
            ledger.reserve(ANALYST, BOUND, NEVER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert ledger.spent.usd == pytest.approx(DEAREST)
    ledger.settle(ledger.reserve(ANALYST, BOUND, NEVER), USED)
    ledger.close()
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["reserve", "reserve", "settle"]


def test_a_reservation_is_on_the_disk_before_the_call(tmp_path):
    with opened(tmp_path, usd=1) as ledger:
        ledger.reserve(ANALYST, BOUND, NEVER)
        line = json.loads((tmp_path / "spending.jsonl").read_text())
    assert line["kind"] == "reserve"
    assert line["usd"] == pytest.approx(DEAREST)


def test_tokens_without_a_price_are_counted_and_no_dollar_is_spent_on_them(tmp_path):
    unpriced = Payee(Role.ANALYST, "openai", "local")
    with opened(tmp_path, tokens=20_000) as ledger:
        assert ledger.settle(ledger.reserve(unpriced, BOUND, NEVER), USED) is None
        assert (ledger.spent.usage, ledger.spent.usd) == (USED, 0)
    with opened(tmp_path, usd=1) as ledger:
        assert ledger.reserve(unpriced, BOUND, NEVER).kind is CallFailureKind.BUDGET


def test_a_prompt_beyond_the_size_that_has_a_price_is_not_sent(tmp_path):
    short = Prices((Price("anthropic", ("m*",), 3.0, 0.3, 3.75, 15.0, "a test", "2026-11-30", prompt=9_999),))
    with Ledger.open(tmp_path, Limits(usd=10), short) as ledger:
        failure = ledger.reserve(ANALYST, BOUND, NEVER)
    assert failure.kind is CallFailureKind.REJECTED
    assert "9999" in failure.reason


def test_waiting_for_money_takes_no_processor(tmp_path):
    with opened(tmp_path, usd=DEAREST * 1.5) as ledger:
        held = ledger.reserve(ANALYST, BOUND, NEVER)
        waiting = threading.Thread(target=ledger.reserve, args=(ANALYST, BOUND, NEVER))
        before = time.process_time()
        waiting.start()
        waiting.join(1.0)
        assert time.process_time() - before < 0.5
        ledger.settle(held, USED)
        waiting.join(30)


# Limits and prices


def routed(text: str, monkeypatch) -> Router:
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return Router.parse(text)


def test_dollars_are_no_limit_for_a_model_without_a_price(monkeypatch):
    router = routed("anthropic:model,repairer=openai:local", monkeypatch)
    with pytest.raises(KforgeError, match="no price is known for openai:local: give --max-tokens"):
        Limits(usd=1).require_prices(router, PRICES)
    with pytest.raises(KforgeError, match="no price is known"):
        Limits(usd=1, tokens=5).require_prices(router, PRICES)
    Limits(tokens=5).require_prices(router, PRICES)
    Limits(usd=1).require_prices(routed("anthropic:model", monkeypatch), PRICES)


def test_no_limit_at_all_is_refused(monkeypatch):
    with pytest.raises(KforgeError, match="give --max-usd or --max-tokens"):
        Limits(calls=3).require_prices(routed("anthropic:model", monkeypatch), PRICES)


def test_shipped_prices_have_a_source_and_a_plausible_order(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    entries = Prices.load().entries
    assert {p.provider for p in entries} == {"anthropic", "openai"}
    for price in entries:
        assert price.source.startswith("https://")
        assert price.date >= "2026-11"
        assert 0 < price.cache_read < price.input < price.cache_write < price.output
    names = [(p.provider, model) for p in entries for model in p.models]
    assert len(names) == len(set(names))


def test_the_users_prices_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    shipped = Prices.load()
    known = shipped.entries[0]
    assert shipped.of("openai", "local-7b") is None
    assert shipped.of("anthropic", f"{known.models[0]}-unknown") is None
    (tmp_path / "prices.toml").write_text(
        f'[[price]]\nprovider = "{known.provider}"\nmodels = ["{known.models[0]}", "local-*"]\ninput = 1\n'
        'cache_read = 1\ncache_write = 1\noutput = 2\nsource = "my contract"\ndate = "2026-12-01"\n')
    own = Prices.load()
    assert own.of(known.provider, known.models[0]).output == 2
    assert own.of(known.provider, "local-7b").source == "my contract"
    assert own.of("replay", "anything").cost(USED) == 0


@pytest.mark.parametrize(("text", "part"), [
    ("[[price]", "cannot be read"), ("", "holds no"), ("price = 3", "holds no"), ("price = [3]", "price 1: no table"),
    ("[[price]]\ninput = 1", "cache_read must be"), ("[[price]]\nvalue = 1", "unknown field value"),
    ("[[price]]\ninput = -1\ncache_read = 1\ncache_write = 1\noutput = 1", "input must be"),
    ("[[price]]\ninput = inf\ncache_read = 1\ncache_write = 1\noutput = 1", "input must be"),
    ("[[price]]\ninput = true\ncache_read = 1\ncache_write = 1\noutput = 1", "input must be"),
    ("[[price]]\ninput = 1\ncache_read = 1\ncache_write = 1\noutput = 1", "provider must be"),
    ('[[price]]\ninput = 1\ncache_read = 1\ncache_write = 1\noutput = 1\nprovider = "openai"\nsource = ""\ndate = ""\n'
     "models = []", "models must be"),
])
def test_a_table_of_prices_that_is_wrong_is_named(tmp_path, monkeypatch, text, part):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(KforgeError, match=r"prices\.toml") as told:
        Prices.load()
    assert part in str(told.value)
