"""The harness checks kernels of an imported operator as it checks all others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.trial import Candidate, Failure, FailureClass, NumericsClass
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.check import CheckResult
from kforge.harness.held_out import HeldOut
from kforge.operators import get, import_file
from kforge.operators.import_record import write
from kforge.operators.imported import Imported
from kforge.targets import host

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))
from imported_graphs import gemm_relu, record_of, softmax

# Softmax in one pass, then a second one that divides: not the graph's order. It starts at the
# lowest finite number and not at -inf, since a row may begin with -inf, and -inf less -inf is no number.
SOFTMAX = """
#include <kforge/abi.h>
#include <kforge/math.h>
extern "C" void kforge_kernel(const kf_launch *l) {
    const float *x = (const float *)l->tensors[0].data;
    float *out = (float *)l->tensors[1].data;
    for (int64_t b = l->thread; b < l->axes[0]; b += l->threads) {
        float m = -__FLT_MAX__, total = 0;
        for (int i = 0; i < 37; ++i) {
            const float v = x[b * 37 + i];
            if (v > m) { total = total * kf::exp(m - v) + 1; m = v; } else total += kf::exp(v - m);
        }
        for (int i = 0; i < 37; ++i) out[b * 37 + i] = kf::exp(x[b * 37 + i] - m) / total;
    }
}
"""
GEMM = """
#include <kforge/abi.h>
extern "C" void kforge_kernel(const kf_launch *l) {
    const float *x = (const float *)l->tensors[0].data, *w = (const float *)l->tensors[1].data;
    const float *bias = (const float *)l->tensors[2].data;
    float *out = (float *)l->tensors[3].data;
    for (int64_t b = l->thread; b < l->axes[0]; b += l->threads)
        for (int n = 0; n < 10; ++n) {
            float sum = 0;
            for (int k = 0; k < 48; ++k) sum += x[b * 48 + k] * w[n * 48 + k];
            sum += bias[n];
            out[b * 10 + n] = sum > 0 ? sum : 0;
        }
}
"""
WRONG = {
    "the last column is left out of the sum": (SOFTMAX, "i < 37; ++i) {", "i < 36; ++i) {"),
    "no maximum is taken off": (SOFTMAX, "if (v > m) {", "if (i == 0) {"),
    "the last row is left out": (SOFTMAX, "b < l->axes[0];", "b < l->axes[0] - 1;"),
    "one term is left out": (GEMM, "k < 48", "k < 47"),
    "no bias": (GEMM, "sum += bias[n];", "sum += 1.0f;"),
    "no ReLU": (GEMM, "sum > 0 ? sum : 0", "sum"),
    "weights in another order": (GEMM, "w[n * 48 + k]", "w[k * 10 + n]"),
}


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with Harness(host(), min(2, len(os.sched_getaffinity(0)))) as made:
        yield made


@pytest.fixture(autouse=True)
def kept(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    write(record_of(softmax(37), "soft"), import_file("soft"))
    write(record_of(gemm_relu(48, 10), "gemm"), import_file("gemm"))


def candidate(source: str, numerics: NumericsClass = NumericsClass.RELAXED) -> Candidate:
    made = get("soft" if "37" in source else "gemm")
    assert isinstance(made, Imported)
    return Candidate(made.problem, "cpp", "file:test", "", (), source, numerics, ())


@pytest.mark.parametrize("source", [SOFTMAX, GEMM], ids=["softmax", "gemm"])
@pytest.mark.parametrize("batch", [1, 20])
def test_a_right_kernel_passes(harness: Harness, source: str, batch: int) -> None:
    made = candidate(source)
    result = harness.check(made, Workload.of(made.problem, B=batch))
    assert isinstance(result, CheckResult) and 0 < result.max_error_ratio < 0.7, result


@pytest.mark.parametrize(("source", "what", "to"), WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_fails(harness: Harness, source: str, what: str, to: str) -> None:
    assert what in source
    made = candidate(source.replace(what, to))
    result = harness.check(made, Workload.of(made.problem, B=20))
    assert isinstance(result, Failure) and result.kind is FailureClass.INCORRECT, result


def test_a_right_kernel_passes_the_held_out_check_and_is_timed(harness: Harness) -> None:
    made = candidate(GEMM)
    workload = Workload.of(made.problem, B=20)
    found = harness.check_held_out(made, workload)
    assert isinstance(found, HeldOut) and found.row_counts > 10, found
    trial = harness.evaluate(made, workload)
    assert trial.failure is None and trial.timing is not None


def test_an_exact_kernel_is_refused(harness: Harness) -> None:
    made = candidate(SOFTMAX, NumericsClass.EXACT)
    with pytest.raises(KforgeError, match="declare its kernels relaxed"):
        harness.check(made, Workload.of(made.problem, B=4))
