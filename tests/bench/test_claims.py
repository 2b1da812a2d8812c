"""``bench/claims.py``: its parts measure what they say, and the whole of it runs on a small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from engine_claims import batching, paging, prefixes, stalls, traces  # noqa: E402
from engine_claims.waiting import OneLayer, needs  # noqa: E402

from kforge.engine.engine import Engine  # noqa: E402
from kforge.engine.kernel_set import DefaultKernels  # noqa: E402
from kforge.engine.weights import Weights  # noqa: E402
from kforge.models import load  # noqa: E402
from kforge.models.model import Model  # noqa: E402
from kforge.models.synth import synth  # noqa: E402
from kforge.native import find_compilers  # noqa: E402
from tests.cli.cli_host import host_target  # noqa: E402

SHAPE = "tiny-llama-test"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny-synth.gguf"
    synth(SHAPE, "q4_0", path)
    return load(path)


@pytest.fixture(scope="module")
def kernels() -> DefaultKernels:
    if not find_compilers():
        pytest.skip("exact kernels need a C++ compiler, and there is none here")
    return DefaultKernels(host_target())


@pytest.fixture
def engine(model: Model, kernels: DefaultKernels) -> Iterator[Engine]:
    made = Engine(model, kernels, threads=1, text=False, kv_tokens=64 * 12, max_sequences=8, prefix_cache=False)
    yield made
    made.close()


def test_a_range_is_the_first_gap_that_is_long_enough():
    row = paging.Contiguous(100)
    first, second, third = row.take(30), row.take(40), row.take(30)
    assert (first, second, third) == (0, 30, 70)
    assert row.take(1) is None
    row.give(0)
    row.give(70)
    assert row.take(31) is None, "60 positions are free, but in two gaps"
    assert row.take(30) == 0 and row.take(10) == 70 and row.take(20) == 80


def test_reserved_ranges_serve_as_many_at_once_as_fit_and_pages_serve_more(engine: Engine):
    requests = [traces.Request([7] * 60, 60)] * 10  # two pages each, of twelve: six fit
    longest = paging.serve(engine, requests, paging.Contiguous(64 * 12), lambda request: 384)
    assert longest.at_once == pytest.approx(2) and longest.tokens == 600
    paged = paging.serve(engine, requests)
    assert 6 <= paged.at_once <= 8 and paged.tokens == 600, "one page each at first, two in the end"


def test_answers_of_a_batch_come_when_its_longest_is_done(engine: Engine):
    lengths = [2, 40, 2, 2]
    arrivals = [batching.Arrival(traces.Request([5 + n] * 8, length), 0.0) for n, length in enumerate(lengths)]
    waits = {way: batching.serve(engine, arrivals, way, 2).waits for way in batching.Way}
    ends = {way: sorted(wait * length for wait, length in zip(waits[way], lengths, strict=True))
            for way in (batching.Way.STATIC, batching.Way.PADDED)}
    for each in ends.values():  # two batches: the first two answers end together, then the other two
        assert each[0] == pytest.approx(each[1]) and each[2] == pytest.approx(each[3]) and each[0] < each[2]
    assert len(waits[batching.Way.CONTINUOUS]) == 4


def test_a_padded_batch_computes_what_nobody_asked_for(engine: Engine):
    arrivals = [batching.Arrival(traces.Request([5] * n, n), 0.0) for n in (4, 20)]
    computed = {}
    for way in batching.Way:
        engine.reset_stats()
        served = batching.serve(engine, arrivals, way, 2)
        assert served.tokens == 24
        computed[way] = engine.stats.computed_tokens
    assert computed[batching.Way.CONTINUOUS] == computed[batching.Way.STATIC] == 2 * 24 - 2
    assert computed[batching.Way.PADDED] == 2 * (20 + 20) - 2


def test_requests_that_come_later_are_waited_for_without_waiting(engine: Engine):
    arrivals = [batching.Arrival(traces.Request([5] * 4, 2), at) for at in (0.0, 3600.0)]
    for way in batching.Way:
        served = batching.serve(engine, arrivals, way, 2)
        assert 3600 < served.seconds < 3700 and max(served.waits) < 60


def test_the_prefix_cache_saves_the_system_prompt_of_every_turn(model: Model, kernels: DefaultKernels):
    talks = [prefixes.Talk(list(range(3, 203)), [[300 + who] * 10, [400 + who] * 10]) for who in range(2)]
    served = {}
    for cached in (True, False):
        engine = Engine(model, kernels, threads=1, text=False, kv_tokens=2048, max_sequences=2, prefix_cache=cached)
        served[cached] = prefixes.serve(engine, talks, 8)
        assert prefixes.serve(engine, talks, 8).computed == served[cached].computed, "earlier talks are forgotten"
        engine.close()
    assert served[True].texts == served[False].texts
    asked = 2 * (210 + 210 + 8 + 10)
    assert served[True].asked == served[False].asked == asked
    assert served[False].computed == asked + 4 * 7, "each answer's last token is not computed"
    # Three whole pages are found by the second talk, and by the second turn of each.
    assert served[True].computed == served[False].computed - 3 * 192
    assert len(served[True].first) == 4


def test_a_chunk_bounds_how_many_prompt_tokens_a_decoder_waits_for(model: Model, kernels: DefaultKernels):
    long = 300
    engine = Engine(model, kernels, threads=1, text=False, max_sequences=stalls.DECODERS + 1, prefix_cache=False,
                    max_tokens_per_step=64, max_prefill_tokens_per_step=32, kv_tokens=64 * 60)
    stalled = stalls.stall(engine, 1, long)
    assert engine.idle and stalled.usual > 0 and stalled.worst < stalled.first
    steps = -(-long // 32)
    assert stalled.first >= (steps - 1) * 0.5 * stalled.usual
    engine.close()


def test_traces_have_the_lengths_that_they_are_named_for():
    chat = traces.chat_trace(0, 4000, 1000, 4096)
    # A log-normal of sigma 1 has a standard deviation of 1.31 times its mean: four standard errors of 4000.
    for mean, values in ((161.31, [len(r.prompt) for r in chat]), (337.99, [r.answer for r in chat])):
        assert abs(np.mean(values) - mean) < 4 * 1.31 * mean / 4000**0.5 + 0.02 * mean  # a little is cut off
    orca = traces.orca_trace(0, 500, 1000, 640)
    assert {min(32, len(r.prompt)) for r in orca} == {32} and max(len(r.prompt) + r.answer for r in orca) <= 640
    assert max(len(r.prompt) + r.answer for r in traces.orca_trace(0, 500, 1000, 64)) <= 64


def test_pieces_are_as_long_as_asked_for(model: Model):
    found = traces.pieces(["one\ntwo\n" * 50, "short"], model.tokenizer, 20)
    assert len(found) > 3 and {len(piece) for piece in found} == {20}
    assert traces.documentation() and traces.library_sources()


def test_a_step_on_one_layers_weights_computes_as_much_and_reads_less(model: Model, kernels: DefaultKernels):
    weights, one = Weights(model), OneLayer(model)
    sizes = []
    for each in (weights, one):
        engine = Engine(model, kernels, threads=1, text=False, kv_tokens=256, weights=each)
        engine.add([5, 6, 7], batching.SamplingParams(max_tokens=3, ignore_eos=True))
        while not engine.idle:
            engine.step()
        sizes.append(each.bytes)
        engine.close()
    layers = model.config.layers
    assert sizes[0] - sizes[1] > one.layer_bytes * (layers - 1) * 0.9
    least = needs(model, host_target(), 2, 64)
    assert sizes[0] * 0.8 < least.streamed < sizes[0] * 1.5, "the weights, and a little of the cache"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_runs_on_a_small_model(tmp_path: Path):
    command = [sys.executable, str(ROOT / "bench" / "claims.py"), "--model", f"synth:{SHAPE}:q4_0", "--rounds", "1",
               "--scale", "0.1", "--json", str(tmp_path / "claims.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "claims.json").read_text())
    findings = written["findings"]
    assert {f["part"] for f in findings} == {"paging", "batching", "prefixes", "sharing", "stalls", "guessing",
                                             "waiting"}
    assert all(f["who"] and f["claimed"] and f["beside"] and f["why"] for f in findings)
    assert all(f["measured"]["median"] > 0 for f in findings if f["part"] != "waiting")
    assert all("synthetic" in f["claim"] for f in findings if f["part"] == "guessing")
