"""What Prometheus may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kforge.server.engine_thread import Snapshot
from kforge.server.exchange import Event, Exchange

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
_NEXT_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """Counters and histograms of one server, in a registry of its own; docs/server.md has the table."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("kforge_requests", "HTTP requests by endpoint and status.", ("endpoint", "status"),
                                 registry=registry)
        self._prompt = Counter("kforge_prompt_tokens", "Tokens of prompts, once an answer.", registry=registry)
        self._answers = Counter("kforge_answers", "Answers by what ended them.", ("end",), registry=registry)
        self._first = Histogram("kforge_time_to_first_token_seconds", "From a request's arrival to its first token.",
                                buckets=_FIRST_TOKEN, registry=registry)
        self._next = Histogram("kforge_inter_token_seconds", "Between two steps that brought an answer tokens.",
                               buckets=_NEXT_TOKEN, registry=registry)

    def request(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def admitted(self, exchange: Exchange) -> None:
        self._prompt.inc(sum(len(job.prompt) for job in exchange.jobs))

    def token(self, exchange: Exchange, event: Event) -> None:
        """A token came; several of one step count once."""
        before = exchange.latest[event.index]
        if before is None:
            self._first.observe(event.at - exchange.arrived)
        elif event.at > before:
            self._next.observe(event.at - before)
        exchange.latest[event.index] = event.at

    def ended(self, event: Event) -> None:
        finish = event.output.finish if event.output is not None else None
        self._answers.labels("aborted" if finish is None else str(finish)).inc()

    def watch(self, snapshot: Callable[[], Snapshot | None], pages: int) -> None:
        """Shows the engine, too: what ``snapshot`` says when asked."""
        self._registry.register(_EngineMetrics(snapshot, pages))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineMetrics(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot | None], pages: int) -> None:
        self._snapshot, self._pages = snapshot, pages

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        if now is None:
            return
        stats = now.stats
        gauges: tuple[tuple[str, str, float], ...] = (
            ("kforge_waiting", "Answers that wait for room.", now.waiting),
            ("kforge_running", "Answers that are being computed.", now.running),
            ("kforge_kv_pages", "Pages of the KV cache.", self._pages),
            ("kforge_kv_pages_used", "Pages of the KV cache that running answers hold.", now.pages_in_use),
            ("kforge_kv_pages_kept", "Free pages that a prompt may still find.", now.pages_kept),
        )
        counters: tuple[tuple[str, str, float], ...] = (
            ("kforge_steps", "Steps of the engine.", stats.steps),
            ("kforge_step_seconds", "Time in the engine's steps.", stats.seconds),
            ("kforge_computed_tokens", "Tokens computed, of prompts and answers, recomputed ones too.",
             stats.computed_tokens),
            ("kforge_generated_tokens", "Tokens of answers.", stats.generated_tokens),
            ("kforge_preemptions", "Answers that lost their pages and started over.", stats.preemptions),
            ("kforge_prefix_query_tokens", "Tokens that were looked for in the prefix cache.",
             stats.prefix_query_tokens),
            ("kforge_prefix_hit_tokens", "Tokens that were found there.", stats.prefix_hit_tokens),
            ("kforge_passes", "Passes of single answers, for their next tokens.", stats.passes),
            ("kforge_drafted_tokens", "Tokens guessed ahead and checked.", stats.drafted_tokens),
            ("kforge_accepted_tokens", "Guessed tokens that were right.", stats.accepted_tokens),
            ("kforge_draft_seconds", "Time in the draft model's kernels.", stats.draft_seconds),
        )
        for name, help, value in gauges:
            yield GaugeMetricFamily(name, help, value=value)
        for name, help, value in counters:
            yield CounterMetricFamily(name, help, value=value)
