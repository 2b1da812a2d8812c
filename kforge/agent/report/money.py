"""What a run's models cost, and what their accepted kernels are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kforge.agent.budget import Payee, Spent
from kforge.agent.calls import Role
from kforge.agent.transcripts import Transcript


@dataclass(frozen=True)
class Payment:
    """``priced``: whether its tokens have a price; where not, ``spent.usd`` says nothing."""

    payee: Payee
    spent: Spent
    priced: bool


@dataclass(frozen=True)
class Won:
    """A bucket at which the judge accepted a kernel that a model wrote, so that it was stored.

    ``gain``: over what served before, as a ratio minus one. ``saved``: share of a step, averaged over the modes, that
    the gain saves. ``beside``: gain over the fastest of the templates that no model wrote, by the search's times; None
    where none of them was timed.
    """

    idea: str
    task: str
    bucket: str
    gain: float
    saved: float
    beside: float | None
    promoted: bool


@dataclass(frozen=True)
class Money:
    """``recorded``: USD of the calls on record; the rest of what was spent is of calls whose process was killed."""

    payments: tuple[Payment, ...]
    recorded: float
    won: tuple[Won, ...]

    @property
    def spent(self) -> Spent:
        return sum((payment.spent for payment in self.payments), Spent())

    @property
    def priced(self) -> bool:
        return all(payment.priced for payment in self.payments)

    @property
    def saved(self) -> float:
        """Share of a step."""
        return sum(won.saved for won in self.won)

    @property
    def promoted(self) -> float:
        return sum(won.saved for won in self.won if won.promoted)

    @property
    def per_percent(self) -> float | None:
        """USD (tokens where there is no price) for each percent of a step that accepted kernels save."""
        return self._per(self.saved)

    @property
    def per_promoted_percent(self) -> float | None:
        return self._per(self.promoted)

    def _per(self, share: float) -> float | None:
        if share <= 0:
            return None
        return (self.spent.usd if self.priced else self.spent.usage.total) / (100 * share)


def saved(share: float, gain: float) -> float:
    """Share of a step that a bucket of this share gives back once its kernel is faster by ``gain``."""
    return share * (1 - 1 / (1 + gain))


def payments(spent: Mapping[Payee, Spent], transcripts: Sequence[Transcript]) -> tuple[Payment, ...]:
    """In the order of roles."""
    unpriced = {Payee(t.request.role, t.provider, t.model) for t in transcripts if t.usd is None}
    roles = list(Role)
    order = sorted(spent, key=lambda payee: (roles.index(payee.role), payee.provider, payee.model))
    return tuple(Payment(payee, spent[payee], payee not in unpriced) for payee in order)
