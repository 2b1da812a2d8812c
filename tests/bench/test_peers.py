"""``bench/peers.py``: the loop that replays a trace, its figures, settings that are tried, drivers that refuse or die,
and kforge's own driver beside itself."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "drivers")]

from peers import models  # noqa: E402
from peers.goals import GOALS, beside  # noqa: E402
from peers.process import Process, Refused  # noqa: E402
from peers.serving import SATURATED, STEADY, print_serving, serve  # noqa: E402
from peers.settings import settle  # noqa: E402
from peers.steps import Row, compare, depth_rows, moe_rows, print_steps, rows_for  # noqa: E402
from peers.trace import BETTER, Arrival, Served, Trace, full, mixed, ratios  # noqa: E402
from replay import Request, replay  # noqa: E402
from rich.console import Console  # noqa: E402

from kforge.core.summary import Summary  # noqa: E402
from kforge.models import load  # noqa: E402
from kforge.models.synth import synth  # noqa: E402
from kforge.models.synth_plan import SHAPES  # noqa: E402

VOCAB = 1024


def quiet() -> Console:
    return Console(file=io.StringIO(), width=240)


class Clockwork:
    """An engine on a clock of its own: a step takes a second, prompts take a step for every 100 tokens."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.most = 0
        self._left: dict[int, list[int]] = {}  # steps until the first token, tokens to come

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def add(self, index: int, prompt: list[int], output: int) -> None:
        self._left[index] = [math.ceil(len(prompt) / 100), output]

    def step(self) -> list[int]:
        self.most = max(self.most, len(self._left))
        self.now += 1.0
        got = []
        for index, left in list(self._left.items()):
            left[0] -= 1
            if left[0] <= 0:
                left[1] -= 1
                got.append(index)
            if not left[1]:
                del self._left[index]
        return got


def request(arrival: float, prompt: int, output: int) -> Request:
    return {"arrival": arrival, "prompt": [7] * prompt, "output": output}


def test_requests_wait_for_their_arrival_and_for_a_slot() -> None:
    engine = Clockwork()
    times = replay(
        engine,
        [request(10.0, 1, 2), request(0.0, 150, 3), request(10.5, 1, 1), request(0.0, 1, 1)],
        slots=2,
        clock=engine.clock,
        sleep=engine.sleep,
    )
    assert times[1] == [2.0, 3.0, 4.0]  # two steps for its prompt
    assert times[3] == [1.0]
    assert engine.slept == [6.0]  # nobody was there from 4 to 10
    assert times[0] == [11.0, 12.0]
    assert times[2] == [12.0]  # came amid a step
    assert engine.most == 2


def test_of_more_requests_than_slots_the_first_ones_run_first() -> None:
    engine = Clockwork()
    times = replay(engine, [request(0.0, 1, 2)] * 3, slots=1, clock=engine.clock, sleep=engine.sleep)
    assert times == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert engine.most == 1


def test_an_engine_that_gives_too_many_tokens_is_found_out() -> None:
    class Generous(Clockwork):
        def step(self) -> list[int]:
            return [0, 0, 0]

    with pytest.raises(RuntimeError, match="more than the 2 tokens"):
        replay(Generous(), [request(0.0, 1, 2)], slots=1)


def test_figures_of_a_run_are_those_of_its_times() -> None:
    asked = {"requests": [request(1.0, 5, 3), request(2.0, 5, 2)]}
    served = Served.of(asked, [[2.0, 2.5, 5.0], [4.0, 5.0]])
    assert served.seconds == 4.0
    assert served.throughput == 5 / 4
    assert served.first == 1.5 and served.first_worst == 2.0
    assert served.gap == 1.0  # of 0.5, 2.5, 1.0
    assert served.gap_p99 == pytest.approx(1.0 + 0.98 * 1.5)  # between the last two of three, at 0.99 of 2 steps
    with pytest.raises(ValueError, match="request 1 got 1 of 2"):
        Served.of(asked, [[2.0, 2.5, 5.0], [4.0]])


def test_ratios_are_above_one_where_ours_are_better() -> None:
    fast, slow = Served(1.0, 8.0, 1.0, 2.0, 0.5, 0.5), Served(4.0, 2.0, 3.0, 4.0, 1.0, 2.0)
    found = ratios([fast, fast], [slow, slow])
    assert {name: r.median for name, r in found.items()} == {
        "throughput": 4.0,
        "first token": 3.0,
        "slowest first token": 2.0,
        "between tokens": 2.0,
        "between tokens, p99": 4.0,
    }
    assert set(found) == set(BETTER)


def test_the_mixed_trace_is_the_same_every_time_and_within_its_bounds() -> None:
    trace = mixed(VOCAB)
    assert trace == mixed(VOCAB)
    assert all(20 <= len(a.prompt) <= 2000 and 10 <= a.output <= 300 for a in trace.arrivals)
    assert max(len(a.prompt) for a in trace.arrivals) > 1000 and min(len(a.prompt) for a in trace.arrivals) < 50
    assert all(0 <= t < VOCAB for a in trace.arrivals for t in a.prompt)
    assert [a.at for a in trace.arrivals] == sorted({a.at for a in trace.arrivals})
    assert trace.arrivals[0].at == 0.0


def test_a_span_scales_the_arrivals_and_nothing_else() -> None:
    trace = Trace("t", 2, (Arrival(0.0, (1,), 2), Arrival(1.0, (2, 3), 1), Arrival(4.0, (4,), 3)))
    asked = trace.request(20.0)
    assert [r["arrival"] for r in asked["requests"]] == [0.0, 5.0, 20.0]  # type: ignore[index, union-attr]
    at_once = trace.request(0.0)
    assert [r["arrival"] for r in at_once["requests"]] == [0.0] * 3  # type: ignore[index, union-attr]
    assert (trace.prompt_tokens, trace.output_tokens) == (4, 6)


def test_a_shortened_trace_keeps_its_longest_request_whole() -> None:
    trace = mixed(VOCAB)
    short = trace.shortened(prompt=50, output=4)
    whole = [a for a, b in zip(trace.arrivals, short.arrivals, strict=True) if a == b and len(a.prompt) > 50]
    assert whole == [max(trace.arrivals, key=lambda a: len(a.prompt) + a.output)]
    assert all(len(a.prompt) <= 50 and a.output <= 4 for a in short.arrivals if a not in whole)


def test_a_full_trace_has_more_requests_than_slots() -> None:
    for slots in (1, 4, 32):
        trace = full(VOCAB, slots)
        assert trace.slots == slots < len(trace.arrivals)
        assert all(a.at == 0.0 for a in trace.arrivals)


def test_every_goal_names_a_row_that_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"")
    rows = {
        "moe": moe_rows(quick=False),
        "depth": depth_rows(quick=False),
        "steps": rows_for(file, quick=False),
    }
    for goal in GOALS:
        if goal.group in rows:
            assert goal.row in {r.name for r in rows[goal.group]} and goal.figure == "speed"
        else:
            assert goal.row in (SATURATED, STEADY) and goal.figure in BETTER


def test_a_goal_stands_beside_what_was_measured() -> None:
    assert "reaches 2" in beside("serving", SATURATED, "throughput", Summary(2.5, 0.0, 3))
    assert "MISSES 2" in beside("serving", SATURATED, "throughput", Summary(1.9, 0.0, 3))
    assert "(" not in beside("serving", STEADY, "throughput", Summary(1.9, 0.0, 3))


FAKE = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if "open" in asked:
        settings = asked["settings"]
        answer = {"error": "no such type"} if settings.get("kv") == "q1" else {"version": "1"}
    elif asked["mode"] == "die":
        sys.exit("out of memory")
    else:
        step = {"slow": 0.02, "fast": 0.01}[settings["way"]]
        answer = {"times": [[step * (i + 1) for i in range(r["output"])] for r in asked["requests"]]}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    file = tmp_path / "fake_driver.py"
    file.write_text(FAKE)
    return file


def opened(fake: Path, settings: dict[str, object]) -> Process:
    return Process("fake", Path(sys.executable), str(fake), {"open": "x", "settings": settings})


def test_settings_that_are_faster_are_kept_and_those_refused_are_not(fake: Path) -> None:
    trial = full(VOCAB, 2)
    settled = settle(
        lambda s: opened(fake, s), {"way": ("slow", "fast"), "kv": ("f16", "q1", "q8_0")}, trial, quiet()
    )
    assert settled.settings == {"way": "fast", "kv": "f16"}  # q8_0 is no faster
    longest = max(a.output for a in trial.arrivals)
    assert settled.speed == pytest.approx((trial.prompt_tokens + trial.output_tokens) / (0.01 * longest))
    assert [("refused" in t, t["way"], t["kv"]) for t in settled.tried] == [
        (False, "slow", "f16"), (False, "fast", "f16"), (True, "fast", "q1"), (False, "fast", "q8_0")
    ]
    settled.process.close()


def test_a_driver_that_refuses_or_dies_says_why(fake: Path) -> None:
    with pytest.raises(Refused, match="fake: no such type"):
        opened(fake, {"kv": "q1"})
    process = opened(fake, {"way": "slow"})
    with pytest.raises(Refused, match=r"(?s)code 1 during .*out of memory"):
        process.ask({"mode": "die"})
    process.close()


def test_rows_are_served_without_kforge_too(fake: Path) -> None:
    peer = settle(lambda s: opened(fake, s), {"way": ("fast",)}, full(VOCAB, 2), quiet())
    console = quiet()
    results = serve("vllm-w8a8", "m", [full(VOCAB, 2)], mixed(VOCAB, count=3), [peer], 2, console)
    assert [r.row for r in results] == ["2 at a time", SATURATED, STEADY]
    assert all(not r.ratios and r.figures["fake"]["throughput"].median > 0 for r in results)
    print_serving(results, console)
    peer.process.close()


def test_a_bf16_folder_is_the_shape_that_it_is_named_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path))
    folder = models.folder("tiny-llama-test", "bf16")
    assert models.folder("tiny-llama-test", "bf16") == folder
    config, shape = load(folder).config, SHAPES["tiny-llama-test"]
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied_head", "rms_eps"):
        assert getattr(config, name) == getattr(shape, name), name
    assert config.rope.frequencies(64) == shape.rope.frequencies(64)
    assert models.vocabulary(folder) == VOCAB
    with pytest.raises(Refused, match="no folder in q3"):
        models.folder("tiny-llama-test", "q3")


@pytest.mark.slow
def test_kforge_beside_itself(tmp_path: Path) -> None:
    """Its driver twice: the second one stands where a peer would."""
    path = tmp_path / "tiny.gguf"
    synth("tiny-llama-test", "q4_0", path)

    def start(name: str) -> Process:
        opening = {"open": str(path), "threads": 1, "kernels": "default"}
        return Process(name, Path(sys.executable), "kforge_driver.py", opening)

    console = quiet()
    trial = full(VOCAB, 2)
    ours = settle(lambda _: start("kforge"), {}, trial, console)
    theirs = settle(lambda _: start("gcc"), {}, trial, console)
    results = serve("serving", "tiny", [full(VOCAB, 4)], mixed(VOCAB, 4, 3), [ours, theirs], 1, console)
    for result in results:
        assert set(result.ratios) == set(BETTER)
        assert all(0.02 < r.median < 50 and r.count >= 1 for r in result.ratios.values())
    # At one load nobody is faster than the requests come.
    steady = results[-1].figures["kforge"]["seconds"].median
    assert steady >= results[-1].span > 0
    sides = [ours.process, theirs.process]
    rows = [Row("batch 3", "decode", 3, 70, 5), Row("prefill 40", "prefill", 1, 0, 40)]
    steps = compare("steps", path, rows, sides, 2, 1, console)
    assert [r.peer for r in steps] == ["gcc", "gcc"]
    assert all(r.tokens_per_second["kforge"].median > 0 for r in steps)
    assert steps[0].share_of_bandwidth and not steps[1].share_of_bandwidth
    print_steps(steps, console)
    print_serving(results, console)
    assert ours.process.ask({"used": True})["kernels"]
    for side in sides:
        side.close()


def test_the_tables_of_a_run_can_be_written_down(fake: Path, tmp_path: Path) -> None:
    from dataclasses import asdict

    from measuring import write_json

    peer = settle(lambda s: opened(fake, s), {"way": ("fast",)}, full(VOCAB, 2), quiet())
    results = serve("vllm-bf16", "m", [], mixed(VOCAB, count=3), [peer], 1, quiet())
    peer.process.close()
    write_json(tmp_path / "out.json", "bench/peers.py", {"serving": [asdict(r) for r in results]})
    written = json.loads((tmp_path / "out.json").read_text())["serving"]
    assert written[0]["row"] == SATURATED and written[0]["figures"]["fake"]["throughput"]["count"] == 1
