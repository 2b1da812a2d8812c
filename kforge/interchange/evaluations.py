"""What the registry knows of a kernel or a trial, as an evaluation.

The schema has one latency, one reference latency and the worst errors. A kernel's speed-up is the judge's, from
interleaved pairs over the default kernel, and not the ratio of the two latencies, which the search timed each at its
own moment; the log says so. Errors of an exact kernel are those of its order specification, which it equals bit for
bit, against the float64 reference; those of other kernels are not on record, and are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord
from kforge.core.trial import FailureClass, NumericsClass
from kforge.core.workload import Workload
from kforge.interchange.schema import Correctness, Environment, Evaluation, Performance, Status
from kforge.operators import Distribution, get
from kforge.registry.trials import Recorded

_MOST_OPERATIONS = 4e9  # of a call whose errors are worked out here
_ROWS = 4

STATUS = {
    FailureClass.TEMPLATE: Status.COMPILE_ERROR,
    FailureClass.COMPILE: Status.COMPILE_ERROR,
    FailureClass.COMPILE_LIMIT: Status.COMPILE_ERROR,
    FailureClass.ADMISSION: Status.COMPILE_ERROR,
    FailureClass.LOAD: Status.RUNTIME_ERROR,
    FailureClass.CRASH: Status.RUNTIME_ERROR,
    FailureClass.TIMEOUT: Status.TIMEOUT,
    FailureClass.FORBIDDEN: Status.RUNTIME_ERROR,
    FailureClass.MEMORY: Status.RUNTIME_ERROR,
    FailureClass.FENCE: Status.RUNTIME_ERROR,
    FailureClass.INPUT_MODIFIED: Status.RUNTIME_ERROR,
    FailureClass.BACKGROUND: Status.RUNTIME_ERROR,
    FailureClass.INCORRECT: Status.INCORRECT_NUMERICAL,
    FailureClass.INEXACT: Status.INCORRECT_NUMERICAL,
    FailureClass.NONDETERMINISTIC: Status.INCORRECT_NUMERICAL,
}  # not HARNESS: that says nothing of the candidate


def of_kernel(
    kernel: KernelRecord, evidence: Mapping[str, Any], engine: str, environment: Environment, correctness: Correctness
) -> Evaluation:
    """``evidence``: of its acceptance; ``engine``: the reason of its last state. The search must have timed it."""
    lines = [
        _judged(kernel, evidence.get("verdict")),
        f"now {kernel.state}: {engine}" if engine else f"now {kernel.state}",
    ]
    lines.append(
        "latency_ms and reference_latency_ms: the search's, each timed at its own moment; the reference is "
        "kforge's default kernel, not the definition's reference. speedup_factor: the judge's"
    )
    performance = Performance(
        latency_ms=1e3 * kernel.seconds,
        reference_latency_ms=1e3 * kernel.default_seconds,
        speedup_factor=1 + kernel.gain,
    )
    return Evaluation(
        status=Status.PASSED,
        environment=environment,
        timestamp=kernel.created,
        log="\n".join(lines),
        correctness=correctness,
        performance=performance,
    )


def _judged(kernel: KernelRecord, verdict: Mapping[str, Any] | None) -> str:
    gain = f"{100 * kernel.gain:+.2f} % over the default kernel, at least {100 * kernel.gain_lower:+.2f} %"
    if not verdict:
        return f"judged: {gain}"
    over = f"against {verdict.get('incumbent_hash', '?')} in {verdict.get('pairs', '?')} interleaved pairs of "
    return (
        f"judged: {gain}; {over}{verdict.get('zygotes', '?')} processes, floor "
        f"{100 * float(verdict.get('floor', 0)):.2f} %: {verdict.get('text', '')}"
    ).rstrip(": ")


def of_trial(trial: Recorded, environment: Environment, correctness: Correctness, default_seconds: float) -> Evaluation:
    """``default_seconds``: of the default kernel in the same run, 0 where it was not timed. Raises KeyError for a
    failure of the harness."""
    if trial.failure is not None:
        status = STATUS[trial.failure]
        wrong = Correctness(
            max_relative_error=math.nan,
            max_absolute_error=math.nan,
            extra={"not_measured": "the check ends at the first element beyond its bound"},
        )
        return Evaluation(
            status=status,
            environment=environment,
            timestamp=trial.created,
            log=f"{trial.failure}: {trial.reason}",
            correctness=wrong if status is Status.INCORRECT_NUMERICAL else None,
        )
    seconds = trial.seconds or 0.0
    lines = [f"timed by the search, spread {100 * (trial.spread or 0):.1f} %; a trial, not judged"]
    lines.append(
        "reference: kforge's default kernel in the same run, not the definition's reference"
        if default_seconds
        else "no reference was timed: its latency and the speed-up stand at 0"
    )
    performance = Performance(
        latency_ms=1e3 * seconds,
        reference_latency_ms=1e3 * default_seconds,
        speedup_factor=default_seconds / seconds if seconds else 0.0,
    )
    return Evaluation(
        status=Status.PASSED,
        environment=environment,
        timestamp=trial.created,
        log="\n".join(lines),
        correctness=correctness,
        performance=performance,
    )


def correctness_of(workload: Workload, numerics: NumericsClass) -> Correctness:
    """Errors at a small shape of the workload's bucket."""
    unknown = Correctness(max_relative_error=math.nan, max_absolute_error=math.nan)
    if numerics is not NumericsClass.EXACT:
        return unknown.model_copy(update={"extra": {"checked": "within the error bound, at every checked shape"}})
    at = small(workload)
    said = {
        "compared": "the order specification, which the kernel equals bit for bit, with the float64 reference",
        "at": at.key,
    }
    if sum(n for _, n in get(at.problem.operator).cost(at).operations) > _MOST_OPERATIONS:
        return unknown.model_copy(update={"extra": {**said, "not_measured": "the call is too large"}})
    try:
        return _errors(at, said)
    except KforgeError as error:  # no compiler for the specification
        return unknown.model_copy(update={"extra": {**said, "not_measured": str(error)}})


def _errors(at: Workload, said: dict[str, str]) -> Correctness:
    import numpy as np

    from kforge.operators import numerics

    operator = get(at.problem.operator)
    inputs = operator.inputs(at, 0, Distribution.NORMAL)
    types = {spec.name: spec.dtype for spec in operator.tensors(at)}
    exact = operator.spec(at, inputs)
    absolute = relative = ratio = 0.0
    for name, bound in operator.reference(at, inputs).items():
        error = np.abs(numerics.widen(exact[name], types[name]) - bound.reference)
        known = np.isfinite(error) & np.isfinite(bound.reference)
        sized = known & (bound.reference != 0)
        absolute = max(absolute, float(error[known].max(initial=0.0)))
        relative = max(relative, float((error[sized] / np.abs(bound.reference[sized])).max(initial=0.0)))
        held = known & (bound.bound > 0)
        ratio = max(ratio, float((error[held] / bound.bound[held]).max(initial=0.0)))
    return Correctness(
        max_relative_error=relative,
        max_absolute_error=absolute,
        extra={**said, "max_error_ratio": ratio, "error_ratio": "error over the operator's bound"},
    )


def small(workload: Workload) -> Workload:
    """A few rows of a workload, or its bucket's smallest shape."""
    operator = get(workload.problem.operator)
    if not operator.row_axis:
        return operator.shapes(workload, 0)[0]
    axes = workload.axes
    axes[operator.row_axis] = min(axes[operator.row_axis], _ROWS)
    return Workload.of(workload.problem, workload.count, workload.phase, **axes)
