"""From what a tune was asked to do to a proposer that asks models: checked before a run begins, opened inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kforge.agent.budget import Ledger, Limits
from kforge.agent.caller import Caller
from kforge.agent.loop import ModelProposer
from kforge.agent.memory import Memory
from kforge.agent.prices import Prices
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts
from kforge.agent.transfer import Abroad
from kforge.core.target import Target
from kforge.registry.database import Registry
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions

REPLAY = "replay:"


@dataclass(frozen=True)
class Agent:
    """Models that may be asked, with keys and prices at hand."""

    router: Router
    limits: Limits
    prices: Prices
    replays: bool  # from recorded calls: for nothing

    @classmethod
    def of(cls, options: TuneOptions) -> Agent | None:
        """None where no model was asked for. Raises KforgeError for what cannot work: no key, no limit, no price."""
        if not options.agent:
            return None
        router = Router.parse(options.agent)
        router.require_keys()
        limits = Limits(options.max_usd or None, options.max_tokens or None, options.max_calls or None)
        prices = Prices.load()
        replays = options.agent.startswith(REPLAY)
        if not replays:
            limits.require_prices(router, prices)
        return cls(router, limits, prices, replays)

    @contextmanager
    def proposing(self, folder: RunFolder, registry: Registry, target: Target) -> Iterator[ModelProposer]:
        """The proposer of a run, begun or resumed. Raises KforgeError where the folder cannot be written.

        Lessons are recalled and learned, and other targets looked at, except in a replay, whose prompts are to be those
        of its run.
        """
        with ExitStack() as stack:
            if self.replays:
                caller = Caller(self.router)
            else:
                ledger = Ledger.open(folder.path, self.limits, self.prices)
                stack.callback(ledger.close)
                caller = Caller(self.router, ledger, Transcripts(folder.path))
            known = {data["id"] for data in folder.of(Event.PROPOSAL)}
            memory = None if self.replays else Memory(registry, folder.id, target)
            abroad = None if self.replays else Abroad(registry)
            proposer = ModelProposer(caller, folder.path, known=known, memory=memory, abroad=abroad)
            stack.callback(proposer.close)
            yield proposer
