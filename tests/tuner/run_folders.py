"""Run folders as ``kforge tune`` leaves them, written through the same journal, with figures that a test can know."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kforge.core.trial import Decision, Failure, FailureClass, RejectReason, Timing, Trial, Verdict
from kforge.core.workload import attrs
from kforge.tuner.journal import Event, RunFolder, trial_to_json
from kforge.tuner.layouts import LayoutGain
from kforge.tuner.options import TuneOptions
from kforge.tuner.promotion import EngineVerdict

LINEAR = "linear(K=576,N=960,act=a8,bias=0,epilogue=none,weight=q4_1)"
WITH_ROWS = "linear(K=576,N=960,act=a8,bias=0,epilogue=none,rows={},weight=q4_1)"
NORM = "rms_norm(H=576,residual=1)"
TEMPLATE = "cpp/linear/a8_vnni.cc.j2"
MODES = ("decode batch 1 context 512", "decode batch 8 context 512", "prefill 512")
SETTINGS = ("decode batch 1 context 32-80", "decode batch 8 context 32-56", "prefill 512")
LIMITS = {1: 5e-5, 8: 5e-5}  # seconds at M=1 and M=8


def start(root: Path, model: str = "smollm2-135m") -> RunFolder:
    """A run that was killed right after its first line."""
    folder = RunFolder.create(root, model)
    options = TuneOptions(model=model, budget_seconds=480.0)
    folder.write(
        Event.STARTED,
        {
            "options": options.to_json(),
            "target": "host",
            "identity": "f00d",
            "bandwidth": 7e9,
            "peaks": {"int8_dot": 9e11, "fp32_fma": 2.3e11},
        },
    )
    return folder


def search(folder: RunFolder, trials: int = 24) -> None:
    """Two problems planned; ``trials`` trials of the linear at both buckets, each sixth one failing; the norm once."""
    _task(folder, LINEAR, [(f"{LINEAR}@M={m}", 0.3, limit) for m, limit in LIMITS.items()])
    _task(folder, NORM, [(f"{NORM}@T=1", 0.02, 1e-6)])
    for n in range(trials):
        rows = (16, 32, 64)[n % 3]
        params = {"m_tile": (8, 12, 16)[n % 3], "prefetch": 2048 * (n % 4), "compiler": ("gcc", "clang")[n % 2]}
        for m, limit in LIMITS.items():
            failure = _failures(n) if n % 6 == 5 else None
            seconds = limit * (1.15 + 2.5 / (1 + n) + 0.2 * ((7 * n) % 5) / 5)
            trial = Trial(
                f"c{n:015x}",
                f"{WITH_ROWS.format(rows)}@M={m}",
                attrs(params),
                TEMPLATE,
                None if failure else Timing(seconds, 0.02, 5, 40),
                failure,
                roofline_seconds=limit,
            )
            _trial(folder, LINEAR, f"{LINEAR}@M={m}", rows, trial)
            if failure:
                break
    timed = Trial(
        "n0", f"{NORM}@T=1", (), "cpp/rms_norm/portable.cc.j2", Timing(2e-6, 0.01, 5, 900), roofline_seconds=1e-6
    )
    _trial(folder, NORM, f"{NORM}@T=1", 0, timed)


def finish(folder: RunFolder, layout_gains: Sequence[float] = (0.041, 0.02, 0.01)) -> None:
    """Layout, two verdicts, the engine on the layout in each mode, promotion, the table."""
    folder.write(Event.LAYOUT, {"task": LINEAR, "rows": 32})
    for m, verdict in (
        (
            1,
            Verdict(
                Decision.ACCEPTED,
                "c" + 14 * "0" + "a",
                "d" * 16,
                0.214,
                0.183,
                0.246,
                50,
                5,
                0.01,
                text="faster: +21.4%",
            ),
        ),
        (
            8,
            Verdict(
                Decision.REJECTED,
                "c" + 14 * "0" + "b",
                "d" * 16,
                -0.031,
                -0.052,
                -0.011,
                50,
                5,
                0.01,
                RejectReason.SLOWER,
                text="slower than the incumbent: -3.1%",
            ),
        ),
    ):
        folder.write(
            Event.VERDICT,
            {
                "task": LINEAR,
                "workload": f"{WITH_ROWS.format(32)}@M={m}",
                "bucket": f"{LINEAR}@M={m}",
                "rows": 32,
                "verdict": dataclasses.asdict(verdict),
            },
        )
    folder.write(
        Event.SETTLED,
        {"task": LINEAR, "rows": 32, "before": 16, "buckets": ["M=1", "M=8"], "templates": "t", "accepted": 1},
    )
    for mode, gain in zip(MODES, layout_gains, strict=True):
        lower = gain - 0.009
        folder.write(Event.LAYOUT_GAIN, dataclasses.asdict(LayoutGain(LINEAR, mode, gain, lower, True, 0.008)))
    engine = EngineVerdict(WITH_ROWS.format(32), MODES[0], 0.062, 0.048, 0.077, True, 960, 16)
    folder.write(Event.PROMOTION, dataclasses.asdict(engine))
    rates = (("torch f32", 21.0, None), ("default", 84.0, 4.0), ("tuned", 96.6, 1.15))
    folder.write(
        Event.TABLE,
        {
            "bandwidth": {"median": 6.9e9, "spread": 0.03},
            "figures": [
                {
                    "kernels": kind,
                    "setting": setting,
                    "rate": {"median": rate, "spread": 0.02},
                    "python_share": 0.05,
                    "ratio": {"median": ratio, "spread": 0.01} if ratio else None,
                }
                for setting in SETTINGS
                for kind, rate, ratio in rates
            ],
        },
    )
    serving = {"promoted": 1, "kernels": 3, "relaid": 1}
    folder.write(Event.FINISHED, {"trials": 45, "accepted": 1, "kept": 2, "serving": serving})


def served(folder: RunFolder) -> None:
    """The end of a run that found everything settled: it measured nothing but the table."""
    folder.write(Event.TABLE, {"bandwidth": None, "figures": []})
    serving = {"promoted": 0, "kernels": 0, "relaid": 0}
    folder.write(Event.FINISHED, {"trials": 0, "accepted": 0, "kept": 11, "serving": serving})


def _task(folder: RunFolder, task: str, buckets: list[tuple[str, float, float]]) -> None:
    folder.write(
        Event.TASK,
        {
            "task": task,
            "points": 96,
            "promise": 0.1,
            "buckets": [
                {"bucket": key, "share": share, "limit": limit, "calls": {MODES[0]: 30.0}}
                for key, share, limit in buckets
            ],
            "refused": [
                {"template": "cpp/linear/f32_avx512.cc.j2", "reason": "the problem is outside \"act == 'f32'\""}
            ],
        },
    )


def _trial(folder: RunFolder, task: str, bucket: str, rows: int, trial: Trial) -> None:
    folder.write(
        Event.TRIAL,
        {"task": task, "bucket": bucket, "rows": rows, "proposer": "builtin", "trial": trial_to_json(trial)},
    )


def _failures(n: int) -> Failure:
    if n % 12 == 5:
        return Failure(FailureClass.COMPILE, "g++: kernel.cc:12: 'tile' was not declared in this scope", "12 | tile();")
    return Failure(
        FailureClass.INEXACT, "the output differs from the order specification", "out[0, 3] is 1, expected <2>"
    )
