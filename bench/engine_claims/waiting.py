"""Which part of a decode step of one sequence is spent waiting for memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from engine_claims.finding import Finding
from engine_claims.setting import Setting
from kforge.core.layout import Layout
from kforge.core.summary import Summary
from kforge.core.target import Target
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.engine.weights import Weights
from kforge.models.graph import StepOptions
from kforge.models.model import Model
from kforge.models.roles import Matrix, WeightRef
from kforge.models.workloads import workloads
from kforge.operators import get
from kforge.targets.files import load_target
from kforge.targets.probe import BandwidthProbe, measure_peak
from kforge.targets.roofline import time_limit

PART = "waiting"
CONTEXT, STEPS = 128, 96


class OneLayer(Weights):
    """Every layer's weights are those of the first layer that stores them alike: what a step reads of the layers is
    then small enough to stay in cache, and all else is as it was. What it computes means nothing."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._of = model
        self._sizes: dict[tuple[object, ...], int] = {}
        self._first: dict[tuple[object, ...], int] = {}

    def matrix(self, refs: tuple[WeightRef, ...], layout: Layout, experts: int = 1) -> np.ndarray:
        refs = self._stand_in(refs)
        packed = super().matrix(refs, layout, experts)
        if refs[0].layer is not None:
            self._sizes[refs, layout] = packed.nbytes
        return packed

    def vector(self, refs: tuple[WeightRef, ...]) -> np.ndarray:
        return super().vector(self._stand_in(refs))

    @property
    def layer_bytes(self) -> int:
        """Of all matrices that a step reads of its layers."""
        return sum(self._sizes.values())

    def _stand_in(self, refs: tuple[WeightRef, ...]) -> tuple[WeightRef, ...]:
        layer = refs[0].layer
        if layer is None:
            return refs
        kind = tuple((ref.role, self._of.format(ref.role, layer) if isinstance(ref.role, Matrix) else None)
                     for ref in refs)
        return tuple(dataclasses.replace(ref, layer=self._first.setdefault(kind, layer)) for ref in refs)


@dataclass(frozen=True)
class Needs:
    """What a step must at least do: bytes from memory, and seconds of arithmetic at the peaks measured just before."""

    streamed: int
    arithmetic: float


def needs(model: Model, target: Target, threads: int, context: int) -> Needs:
    streamed, arithmetic = 0, 0.0
    for row in workloads(model, (1,), (context,), 0, StepOptions()):
        cost = get(row.workload.problem.operator).cost(row.workload)
        # The arithmetic alone: bandwidth is held against whole steps, measured beside them.
        arithmetic += row.workload.count * time_limit(cost, target, threads, 1.0).compute_seconds
        streamed += round(row.workload.count * cost.streamed_bytes)
    return Needs(streamed, arithmetic)


def seconds_a_step(engine: Engine, context: int, steps: int, seed: int) -> list[float]:
    """Of decode steps of one sequence around ``context`` positions. The engine must be idle."""
    prompt = np.random.default_rng(seed).integers(0, engine.model.config.vocab, context - steps // 2).tolist()
    engine.forget_prefixes()
    engine.add(prompt, SamplingParams(max_tokens=steps + 1, ignore_eos=True))
    while not engine.step():
        pass
    out = []
    while not engine.idle:
        began = perf_counter()
        engine.step()
        out.append(perf_counter() - began)
    return out


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    host = load_target("host")
    setting.say(f"{PART}: peaks")
    peaks = tuple((name, measure_peak(name, setting.threads)) for name, _ in host.peaks)
    # Peaks were measured with these threads: a target of as many cores leaves them as they are.
    target = dataclasses.replace(host, peaks=peaks, cores=setting.threads)
    context = setting.context(CONTEXT)
    least = needs(setting.model, target, setting.threads, context)
    cached_weights = OneLayer(setting.model)
    options = {"kv_tokens": 4 * context, "max_sequences": 1}
    engines = {"as it is": setting.engine(**options),
               "layers from cache": setting.engine(weights=cached_weights, **options)}
    steps = min(setting.count(STEPS, 16), context)
    seen: dict[str, list[list[float]]] = {name: [] for name in engines}
    bandwidth: list[float] = []
    with BandwidthProbe(setting.threads) as probe:
        for number, name in setting.turns(tuple(engines)):
            setting.say(f"{PART}: round {number} of {setting.rounds}, {name}")
            before = probe.measure(0.1).value
            times = seconds_a_step(engines[name], context, steps, number)
            if number:
                seen[name].append(times)
            if number and name == "as it is":
                bandwidth.append((before + probe.measure(0.1).value) / 2)
    for engine in engines.values():
        engine.close()
    size = cached_weights.layer_bytes
    figures: dict[str, object] = {
        "streamed_bytes": least.streamed, "arithmetic_seconds": least.arithmetic, "bandwidth": bandwidth,
        "cached_layer_bytes": size, "seconds_a_step": {name: [median(t) for t in runs] for name, runs in seen.items()}}
    return _findings(seen, bandwidth, least, size, setting), figures


def _findings(seen: dict[str, list[list[float]]], bandwidth: list[float], least: Needs, size: int,
              setting: Setting) -> list[Finding]:
    whole = [median(times) for times in seen["as it is"]]
    cached = [median(times) for times in seen["layers from cache"]]
    streaming = Summary.of([100 * least.streamed / speed / t for speed, t in zip(bandwidth, whole, strict=True)])
    standing = Summary.of([100 * (1 - least.arithmetic / t) for t in whole])
    gained = Summary.of([100 * (1 - c / t) for c, t in zip(cached, whole, strict=True)])
    claim = "a step of one sequence waits for memory"
    claimed, who = "up to 90 %", "said of decoding at large, without a source that we found"
    cache = load_target("host").caches[-1].bytes
    fits = "" if size < cache / 2 else " (it does NOT fit: this figure says little for this model)"
    return [
        Finding(PART, f"{claim}: the bytes that it must read", who, claimed, streaming, "%",
                f"{least.streamed / 1e6:.0f} MB at {median(bandwidth) / 1e9:.1f} GB/s in a step of "
                f"{1e3 * median(whole):.2f} ms, {setting.threads} threads",
                "This is the part of the step in which memory is as busy as the probe could make it. Arithmetic goes "
                "on at the same time, so it is not all lost; more than 100 % means that some bytes came from cache."),
        Finding(PART, f"{claim}: time in which arithmetic could stand still", who, claimed, standing, "%",
                f"arithmetic at the measured peaks takes {1e3 * least.arithmetic:.2f} ms of it",
                "The most that waiting can be: the rest of the step, however it is spent. Formats of 4 bits make it "
                "less than with 16: a byte that comes brings four times the arithmetic, and unpacking is not counted."),
        Finding(PART, f"{claim}: what goes when the layers come from cache", who, claimed, gained, "%",
                f"{1e3 * median(cached):.2f} ms with one layer's weights ({size / 1e6:.1f} MB) in place of "
                f"all layers'{fits}",
                "The least that waiting is: caches take time, too, and the head still comes from memory.")]
