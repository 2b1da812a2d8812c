"""What a kernel of somebody's own is held against in ``kforge try``, and at which workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kforge.backends.building import launches
from kforge.backends.defaults import default_kernel
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, Tier
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Attr, Problem, Workload
from kforge.operators import get
from kforge.operators.axes import workload_of as axes_workload
from kforge.operators.imported import Imported
from kforge.registry.ask import ask
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store
from kforge.tuner.generated import untuned


@dataclass(frozen=True)
class Incumbent:
    """``kernel`` is None for the shipped default; ``label`` tells a person which it is."""

    candidate: Candidate
    kernel: KernelRecord | None
    label: str


def workload_of(operator: str, axes: Mapping[str, Attr], snapshot: Snapshot, target: Target) -> Workload:
    """The workload of named axes. A missing ``rows`` is the layout chosen on this target, else the default.

    Raises KforgeError, naming the axis, for what is missing, unknown or impossible.
    """
    return axes_workload(operator, axes, lambda weight: snapshot.rows(weight, target.identity))


def incumbent(which: str, workload: Workload, snapshot: Snapshot, store: Store, target: Target) -> Incumbent:
    """``which``: "default", "tuned" (what serves these axes now), or the beginning of a registry kernel's hash."""
    problem = workload.problem
    if which == "default":
        candidate = _untuned(problem, target)
        return Incumbent(candidate, None, f"the default ({candidate.template})")
    if which == "tuned":
        answer = ask(snapshot, problem.operator, {**dict(problem.static), **workload.axes}, target)
        if answer.kernel is None:
            candidate = _untuned(problem, target)
            return Incumbent(candidate, None, f"the default, nothing tuned serves here ({candidate.template})")
        how = "" if answer.tier is Tier.EXACT else f", {answer.tier} of {answer.kernel.bucket_key}"
        label = f"tuned kernel {answer.kernel.candidate_hash}{how}"
        return Incumbent(stored_candidate(answer.kernel, store), answer.kernel, label)
    found = [k for k in snapshot.kernels if len(which) >= 4 and k.candidate_hash.startswith(which)]
    if not found:
        raise KforgeError(f"--against {which!r} is not default, tuned or a kernel's hash; see: kforge kernels list")
    fitting = [k for k in found if k.problem == problem]
    if not fitting:
        raise KforgeError(f"kernel {found[0].candidate_hash} is for {found[0].problem.key}, not {problem.key}")
    if len({k.candidate_hash for k in fitting}) > 1:
        raise KforgeError(f"--against {which!r} names several kernels; give more of the hash")
    return Incumbent(stored_candidate(fitting[-1], store), fitting[-1], f"kernel {fitting[-1].candidate_hash}")


def _untuned(problem: Problem, target: Target) -> Candidate:
    operator = get(problem.operator)
    return untuned(operator, target) if isinstance(operator, Imported) else default_kernel(problem, target)


def stored_candidate(kernel: KernelRecord, store: Store) -> Candidate:
    """The candidate that a registry kernel was."""
    source = store.get(kernel.source_hash).decode()
    return Candidate(
        kernel.problem,
        kernel.backend,
        kernel.template,
        kernel.template_hash,
        kernel.params,
        source,
        kernel.numerics,
        kernel.layouts,
        kernel.proposer,
        launches=launches(kernel.backend, store.get(kernel.artifact_hash)),
    )
