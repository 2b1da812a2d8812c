"""Every Triton template builds for every architecture at corners of its parameter space, and has its report.

The lowest corner is built for all of them. The highest takes up to twenty times as long, so each template's is built
for one architecture of each vendor, another one from template to template; ``bench/gpu_static.py --corners all`` builds
all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from test_triton_templates import template_of
from triton_faults import Base, bases

from kforge.backends.corners import corners
from kforge.backends.triton.installed import ARCHES
from kforge.backends.verbs import of
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.core.workload import Problem
from kforge.targets import list_targets, load_target

BACKEND = of("triton")
# What Triton 3.9 makes of these kernels' highest corners admission refuses, so that they are never offered: nothing but
# a trap, and code that asks for the number of blocks, which it does not need.
REFUSED = {
    ("triton/linear/tile.py.j2", "sm_100"): "product has the instruction BPT.TRAP",
    ("triton/moe_linear/grouped.py.j2", "gfx950"): "wants hidden_block_count_x of the runtime, which pure computation "
                                                   "does not need",
}


def targets() -> dict[str, Target]:
    """One of each architecture that Triton kernels are built for."""
    return {target.arch: target for target in map(load_target, list_targets()) if "triton" in target.backends}


def first_bases() -> dict[str, Base]:
    """One problem for each template."""
    found: dict[str, Base] = {}
    for base in bases.values():
        found.setdefault(base.template, base)
    return found


def test_there_is_a_target_for_each_architecture() -> None:
    assert set(targets()) == set(ARCHES)


def test_corners_are_legal_and_reach_both_ends_of_each_parameter() -> None:
    template, target = template_of("triton/rms_norm/row.py.j2"), load_target("nvidia-h200")
    problem = Problem.of("rms_norm", H=576, residual=1)
    space = template.space(problem, target)
    found = corners(template, problem, target)
    assert all(point in space for point in found)
    for param in template.params:
        ends = {min(p[param.name] for p in space), max(p[param.name] for p in space)}
        assert ends <= {point[param.name] for point in found}
    assert len(corners(template, problem, target, every=False)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", first_bases())
def test_corners_build_for_every_architecture_and_are_reported(path: str) -> None:
    template, base = template_of(path), first_bases()[path]

    def missed(job: tuple[Target, dict]) -> str:
        target, point = job
        artifact = BACKEND.build(template.render(base.workload.problem, target, point), target)
        if isinstance(artifact, Failure):
            if artifact.reason.endswith(REFUSED.get((path, target.arch), "nothing is expected to be refused")):
                return ""
            return f"{target.arch} {point}: {artifact.kind}: {artifact.reason}"
        report = BACKEND.inspect(artifact, base.workload, target)
        told = dict(report.resources)
        right = told["registers"] > 0 and 0 < report.occupancy <= 1 and report.seconds > 0 and sum(
            count for _, count in report.mix) > 10
        return "" if right else f"{target.arch} {point}: {report}"

    number = [*first_bases()].index(path)
    vendors = [[target for target in targets().values() if target.vendor == name] for name in ("NVIDIA", "AMD")]
    high = [vendor[number % len(vendor)] for vendor in vendors]
    jobs = [(target, point) for target in targets().values()
            for point in corners(template, base.workload.problem, target, every=False)[1:3 if target in high else 2]]
    with ThreadPoolExecutor(2) as pool:
        assert [said for said in pool.map(missed, jobs) if said] == []
