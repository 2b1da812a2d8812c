"""What an engine did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """Totals since the start (or ``reset_stats``). Seconds are wall time inside ``step``."""

    steps: int = 0
    computed_tokens: int = 0  # prompt and decode; recomputation and refused drafts included
    generated_tokens: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    runner_seconds: float = 0.0  # inside the program (or torch)
    prefix_queries: int = 0  # admissions that asked the prefix cache
    prefix_query_tokens: int = 0  # what they wanted in the cache
    prefix_hit_tokens: int = 0  # what of it was there
    passes: int = 0  # of single sequences, for their next token: at least one came of each
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of those drafted
    draft_passes: int = 0  # of a draft model
    draft_seconds: float = 0.0  # inside its programs

    @property
    def python_share(self) -> float:
        """Part of the time that scheduling, filling buffers, sampling and detokenising took."""
        return 1.0 - (self.runner_seconds + self.draft_seconds) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """1 without speculation."""
        return self.generated_tokens / self.passes if self.passes else 0.0
