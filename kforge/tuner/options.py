"""What a tune was asked to do; written into the run's journal, so that a resumed run asks the same."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV
from kforge.core.errors import KforgeError
from kforge.tuner.strategies import DEFAULT


@dataclass(frozen=True)
class TuneOptions:
    """``budget_seconds`` is wall time for search, judging and promotion together, over all processes of the run."""

    model: str = ""
    budget_seconds: float = 600.0
    batches: tuple[int, ...] = (1, 8)
    context: int = 512
    prefill: int = 512
    threads: int = 2
    kv: str = DEFAULT_KV
    act: str = DEFAULT_ACT
    only: str = ""  # text that a problem's key must contain
    retune: bool = False  # also what the registry says is settled
    trust_candidates: bool = False  # run them where the sandbox's minimum is missing too
    seed: int = 0
    strategy: str = DEFAULT  # how points are searched for (kforge.tuner.strategies)
    max_trials: int = 0  # 0: as many as the time allows
    agent: str = ""  # models that propose templates, by role (kforge.agent.providers.router); "": none
    max_usd: float = 0.0  # of all calls of models; 0: no limit
    max_tokens: int = 0
    max_calls: int = 0
    target: str = "host"
    offline: bool = False  # the target is not here: candidates are built and checked, none is timed
    operator: str = ""  # an imported one instead of a model; then ``batches`` may be empty: those it was imported with

    @property
    def subject(self) -> str:
        """What is tuned, by the name that a person gave."""
        return self.operator or self.model

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> TuneOptions:
        """Raises KforgeError for a run of a version with other options."""
        try:
            return cls(**{**data, "batches": tuple(data["batches"])})
        except (KeyError, TypeError) as error:
            raise KforgeError(f"the run was started by another kforge ({error}); start a new run") from None


# Shares of the budget; what one stage leaves over, the next may use.
SEARCH_UNTIL = 0.4
JUDGE_UNTIL = 0.7
