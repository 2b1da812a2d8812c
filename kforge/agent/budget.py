"""What calls of models may cost and what they have cost, in a file that a killed process can be resumed from."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from kforge.agent.calls import CallFailure, CallFailureKind, Role, Usage
from kforge.agent.prices import Prices
from kforge.agent.providers.router import Router
from kforge.core.errors import KforgeError, sentence_of

_NAME = "spending.jsonl"
_GLANCE = 0.1  # seconds between two looks at the cancel event
_DUST = 1e-9  # USD: sums of floats


@dataclass(frozen=True)
class Limits:
    """Of a whole run. None: unlimited."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def require_prices(self, router: Router, prices: Prices) -> None:
        """Raises KforgeError where spending would have no bound, or the bound could not be kept."""
        if self.usd is None and self.tokens is None:
            raise KforgeError("a model costs money: give --max-usd or --max-tokens")
        if self.usd is None:
            return
        for role, provider in router.by_role.items():
            model = provider.model_for(role)
            if prices.of(provider.name, model) is None:
                raise KforgeError(
                    f"no price is known for {provider.name}:{model}: give --max-tokens instead of --max-usd, "
                    "or its price in $KFORGE_HOME/prices.toml"
                )


@dataclass(frozen=True)
class Spent:
    """``assumed``: the part of ``usd`` and of ``tokens`` that is an upper bound, because nobody said what was used.

    ``usd``: 0 for tokens without a price.
    """

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    assumed_usd: float = 0.0
    assumed_tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.usage + other.usage,
            self.usd + other.usd,
            self.assumed_usd + other.assumed_usd,
            self.assumed_tokens + other.assumed_tokens,
        )


@dataclass(frozen=True)
class Payee:
    """Whom money went to."""

    role: Role
    provider: str
    model: str


@dataclass(frozen=True)
class Reservation:
    """The most that a call can cost, set aside before it is made."""

    id: int
    payee: Payee
    bound: Usage
    usd: float


class Ledger:
    """Every call is reserved at its worst before it is made and settled at its cost after it: limits are never overrun.

    A reservation that nobody settled, because its process was killed, counts in full. Thread-safe.
    """

    def __init__(self, path: Path, out: FileIO, limits: Limits, prices: Prices, book: _Book):
        self._path = path
        self._out = out  # open for appending and locked
        self._limits = limits
        self._prices = prices
        self._book = book
        self._open: set[int] = set()  # reservations of this process that are still to be settled
        self._changed = threading.Condition()

    @classmethod
    def open(cls, run: Path, limits: Limits, prices: Prices) -> Ledger:
        """Of the run in this folder, begun or resumed. A last line torn by a kill is dropped. Raises KforgeError."""
        path = run / _NAME
        try:
            run.mkdir(parents=True, exist_ok=True)
            out = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the run
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                out.close()
                raise KforgeError(f"another process spends money of the run {run}; wait for it or end it") from None
            raw = path.read_bytes()
            whole = raw[: raw.rfind(b"\n") + 1]
            out.truncate(len(whole))
        except OSError as error:
            raise KforgeError(f"cannot keep account of the run: {sentence_of(error)}") from error
        try:
            return cls(path, out, limits, prices, _Book.of(whole, path))
        except KforgeError:
            out.close()
            raise

    def reserve(self, payee: Payee, bound: Usage, cancel: threading.Event) -> Reservation | CallFailure:
        """Waits while money that other calls hold could still be enough; a failure once it cannot be."""
        price = self._prices.of(payee.provider, payee.model)
        if price is None and self._limits.usd is not None:
            return CallFailure(CallFailureKind.BUDGET, f"no price is known for {payee.provider}:{payee.model}")
        if price and price.prompt and self._limits.usd is not None and bound.input > price.prompt:
            reason = f"a prompt of up to {bound.input} tokens: the price of {payee.model} holds up to {price.prompt}"
            return CallFailure(CallFailureKind.REJECTED, reason)
        usd = price.most(bound) if price else 0.0
        with self._changed:
            while not cancel.is_set():
                settled, held = self._book.spent(besides=self._open), self._book.spent(only=self._open)
                if short := self._short(settled, bound, usd):
                    return CallFailure(CallFailureKind.BUDGET, short)
                if not self._short(settled + held, bound, usd):
                    return self._reserved(payee, bound, usd)
                self._changed.wait(_GLANCE)
        return CallFailure(CallFailureKind.CANCELLED, "the call was stopped before it was made")

    def settle(self, reservation: Reservation, usage: Usage, *, assumed: bool = False) -> float | None:
        """Notes what a call has cost; USD, None where its tokens have no price. Raises KforgeError."""
        payee = reservation.payee
        price = self._prices.of(payee.provider, payee.model)
        usd = 0.0 if price is None else price.most(usage) if assumed else price.cost(usage)
        line = _Settled(reservation.id, usage, usd, assumed)
        with self._changed:
            try:
                self._write("settle", dataclasses.asdict(line))
                self._book.settled[line.id] = line
            finally:
                self._open.discard(reservation.id)
                self._changed.notify_all()
        return None if price is None else usd

    @property
    def spent(self) -> Spent:
        """By settled calls, by open ones at their worst, and by those that nobody settled."""
        with self._changed:
            return self._book.spent()

    @property
    def by_payee(self) -> dict[Payee, Spent]:
        with self._changed:
            return self._book.by_payee()

    def close(self) -> None:
        self._out.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _short(self, taken: Spent, bound: Usage, usd: float) -> str:
        """What is too little for one more call beside what is taken; "" where nothing is."""
        limits = self._limits
        if limits.usd is not None and taken.usd + usd > limits.usd + _DUST:
            return f"the call may cost {usd:.4f} USD, and of {limits.usd:g} USD {taken.usd:.4f} are spent"
        if limits.tokens is not None and taken.usage.total + bound.total > limits.tokens:
            return f"the call may take {bound.total} tokens, and of {limits.tokens} {taken.usage.total} are used"
        if limits.calls is not None and taken.calls >= limits.calls:
            return f"all {limits.calls} calls were made"
        return ""

    def _reserved(self, payee: Payee, bound: Usage, usd: float) -> Reservation:
        reservation = Reservation(self._book.next_id, payee, bound, usd)
        self._write("reserve", dataclasses.asdict(reservation))
        self._book.reserved[reservation.id] = reservation
        self._open.add(reservation.id)
        return reservation

    def _write(self, kind: str, data: dict[str, Any]) -> None:
        """One line, on the disk before anything is done about it, or no part of it."""
        line = (json.dumps({"kind": kind, **data}) + "\n").encode()
        size = os.fstat(self._out.fileno()).st_size
        try:
            if self._out.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._out.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._out.truncate(size)
            raise KforgeError(f"cannot write {self._path}: {error.strerror}; free some space") from error


def spent_in(run: Path) -> dict[Payee, Spent]:
    """What a run has spent, for reports; it may still be going. Empty for a run that asked no model."""
    path = run / _NAME
    if not path.exists():
        return {}
    raw = path.read_bytes()
    return _Book.of(raw[: raw.rfind(b"\n") + 1], path).by_payee()


@dataclass(frozen=True)
class _Settled:
    id: int
    usage: Usage
    usd: float
    assumed: bool


@dataclass
class _Book:
    """What the file says."""

    reserved: dict[int, Reservation] = field(default_factory=dict)
    settled: dict[int, _Settled] = field(default_factory=dict)

    @classmethod
    def of(cls, text: bytes, path: Path) -> _Book:
        """Raises KforgeError for a line that cannot be read: what it cost is not known, so no limit could be kept."""
        book = cls()
        for number, line in enumerate(text.split(b"\n")[:-1], 1):
            try:
                book._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise KforgeError(f"{path}, line {number}, cannot be read, so what is left is not known; "
                                  "start a new run") from error
        return book

    def _take(self, line: dict[str, Any]) -> None:
        match line.pop("kind"):
            case "reserve":
                bound, usd = Usage(**line["bound"]), float(line["usd"])
                reservation = Reservation(int(line["id"]), _payee(line["payee"]), bound, usd)
                self.reserved[reservation.id] = reservation
            case "settle":
                settled = _Settled(int(line["id"]), Usage(**line["usage"]), float(line["usd"]), bool(line["assumed"]))
                self.settled[settled.id] = settled
            case kind:
                raise ValueError(kind)

    @property
    def next_id(self) -> int:
        return max(self.reserved, default=0) + 1

    def spent(self, *, only: Iterable[int] | None = None, besides: Iterable[int] = ()) -> Spent:
        ids = self.reserved.keys() if only is None else set(only)
        return sum((self._of(i) for i in ids - set(besides)), Spent())

    def by_payee(self) -> dict[Payee, Spent]:
        sums: dict[Payee, Spent] = {}
        for reservation in self.reserved.values():
            sums[reservation.payee] = sums.get(reservation.payee, Spent()) + self._of(reservation.id)
        return sums

    def _of(self, id: int) -> Spent:
        settled = self.settled.get(id)
        if settled is None:
            reservation = self.reserved[id]
            return Spent(1, reservation.bound, reservation.usd, reservation.usd, reservation.bound.total)
        assumed = settled.assumed
        return Spent(1, settled.usage, settled.usd, settled.usd if assumed else 0.0,
                     settled.usage.total if assumed else 0)


def _payee(data: dict[str, Any]) -> Payee:
    return Payee(Role(data["role"]), str(data["provider"]), str(data["model"]))
