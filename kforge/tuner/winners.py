"""An accepted candidate as a registry record: the same for a run's winners and for kernels that people hand in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kforge.core.kernel import KernelRecord
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Verdict
from kforge.core.workload import Workload
from kforge.operators import get
from kforge.registry.ask import ABI_VERSION


@dataclass(frozen=True)
class Seconds:
    """Per call, of the candidate and of the default kernel at the same workload; 0 when not timed."""

    candidate: float
    default: float


def record_of(
    candidate: Candidate,
    artifact: Artifact,
    verdict: Verdict,
    incumbent: KernelRecord | None,
    workload: Workload,
    target: Target,
    run: str,
    seconds: Seconds,
) -> KernelRecord:
    """The record of a candidate that the judge accepted at ``workload``'s bucket over ``incumbent`` (None: default).

    Gains are over the default kernel: over another incumbent they multiply.
    """
    contract = get(workload.problem.operator)
    before, before_lower = (incumbent.gain, incumbent.gain_lower) if incumbent else (0.0, 0.0)
    return KernelRecord(
        candidate_hash=candidate.hash,
        problem=workload.problem,
        bucket=tuple(sorted(contract.bucket(workload.problem, workload.axes).items())),
        target_identity=target.identity,
        target_name=target.name,
        operator_version=contract.version,
        abi_version=ABI_VERSION,
        numerics=candidate.numerics,
        layouts=candidate.layouts,
        backend=candidate.backend,
        template=candidate.template,
        template_hash=candidate.template_hash,
        params=candidate.params,
        source_hash=hashlib.sha256(candidate.source.encode()).hexdigest(),
        artifact_hash=artifact.hash,
        compiler=artifact.report.compiler,
        seconds=seconds.candidate,
        default_seconds=seconds.default,
        gain=(1 + verdict.gain) * (1 + before) - 1,
        gain_lower=(1 + verdict.lower) * (1 + before_lower) - 1,
        run=run,
        proposer=candidate.proposer,
    )
