"""kforge's kernels and candidates as solutions: C++, the headers that it includes, and how it is built and called.

The schema has a build by language and binding, and a call with one tensor an argument. A kernel of kforge is called
once on every thread of a team with one ``kf_launch`` (``kforge/abi.h``), and built with flags of its own; both are told
in the description, and the runner of that benchmark cannot call it as it is.
"""

from __future__ import annotations

from functools import cache

from kforge.backends.cpp.flags import flags
from kforge.core.kernel import KernelRecord
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Problem
from kforge.interchange.contracts import name_of
from kforge.interchange.definitions import ENTRY
from kforge.interchange.schema import BuildSpec, Solution, SourceFile
from kforge.native.build import include_dir

AUTHOR = "kforge"
_SOURCE = "kernel.cc"


def solution_name(problem: Problem, candidate_hash: str) -> str:
    return f"{name_of(problem)}_{candidate_hash}"


def of_kernel(kernel: KernelRecord, source: str, target: Target) -> Solution:
    """A kernel of the registry; ``target``: this machine, whose flags are told where the kernel is for it."""
    layouts = ", ".join(f"{name} as {layout.key}" for name, layout in kernel.layouts)
    told = [
        f"{kernel.state} kernel of kforge, {kernel.numerics}, proposed by {kernel.proposer}",
        _origin(kernel.template, kernel.template_hash, dict(kernel.params)),
        f"layouts: {layouts or 'dense'}",
        f"built by {kernel.compiler} for {kernel.target_name} (target identity {kernel.target_identity})",
    ]
    here = target.identity == kernel.target_identity
    return _solution(
        kernel.problem,
        kernel.candidate_hash,
        source,
        told,
        kernel.compiler,
        target if here else None,
        kernel.target_name,
    )


def of_candidate(candidate: Candidate, target: Target) -> Solution:
    """A candidate that was tried on ``target`` and is no kernel."""
    layouts = ", ".join(f"{name} as {layout.key}" for name, layout in candidate.layouts)
    told = [
        f"candidate of kforge, {candidate.numerics}: tried, and not among its kernels",
        _origin(candidate.template, candidate.template_hash, dict(candidate.params)),
        f"layouts: {layouts or 'dense'}",
        f"for {target.name} (target identity {target.identity})",
    ]
    return _solution(candidate.problem, candidate.hash, candidate.source, told, "g++", target, target.name)


def _solution(
    problem: Problem,
    candidate_hash: str,
    source: str,
    told: list[str],
    compiler: str,
    target: Target | None,
    place: str,
) -> Solution:
    told.append(
        f"{ENTRY} takes a kf_launch (kforge/abi.h): tensors, axes and scalars in the operator's order, once on each "
        "thread of a team; it is no binding of this benchmark's"
    )
    if target is not None:
        options = " ".join(flags(target, compiler.partition(" ")[0]))
        told.append(f"flags: {options} -I. -include kforge/prelude.h")
    hardware = ("cpu", target.model if target is not None and target.model else place)
    sources = (SourceFile(path=_SOURCE, content=source), *_headers())
    spec = BuildSpec(language="cpp", target_hardware=hardware, entry_point=f"{_SOURCE}::{ENTRY}")
    return Solution(
        name=solution_name(problem, candidate_hash),
        definition=name_of(problem),
        author=AUTHOR,
        spec=spec,
        sources=sources,
        description="\n".join(told),
    )


def _origin(template: str, template_hash: str, params: dict[str, object]) -> str:
    chosen = ", ".join(f"{k}={v}" for k, v in params.items())
    return f"template {template} ({template_hash}) with {chosen or 'no parameters'}"


@cache
def _headers() -> tuple[SourceFile, ...]:
    root = include_dir()
    return tuple(
        SourceFile(path=file.relative_to(root).as_posix(), content=file.read_text(encoding="utf-8"))
        for file in sorted(root.rglob("*.h"))
    )
