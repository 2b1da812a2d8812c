"""A registry in use, made through the same doors as by kforge itself."""

from __future__ import annotations

from pathlib import Path

from kforge.backends.cpp.build import build
from kforge.backends.defaults import exact_templates
from kforge.backends.handwritten import from_file
from kforge.core.kernel import KernelState, Settled
from kforge.core.target import Peak, Target
from kforge.core.trial import Artifact, Decision, NumericsClass, Verdict
from kforge.core.workload import Problem, Workload
from kforge.models import load
from kforge.native import find_compilers
from kforge.operators import get
from kforge.registry.database import Registry
from kforge.targets.cpu import read_cpu
from kforge.targets.files import save_target
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import plan
from kforge.tuner.points import Space
from kforge.tuner.tune import step_rows
from kforge.tuner.winners import Seconds, record_of
from tests.faults import kernels

RUN = "stock"  # the run that the stocked kernels name


def stock(slow: Path, fast: Path, model: Path) -> None:
    """A slow kernel that serves, a handed-in one that waits for the engine, a retired one, files that nobody names;
    and a problem that is settled, so that a tune of it has nothing to search."""
    target = _host()
    save_target(target)
    problem = Problem.of("gather_rows", H=kernels.H)
    at = Workload.of(problem, R=1, T=1)
    with Registry.open() as registry:
        registry.begin_run(RUN, "stock", target.identity, Path(""))
        for source, state in ((slow, KernelState.PROMOTED), (fast, KernelState.ACCEPTED), (slow, KernelState.RETIRED)):
            change = f"// {state}\n" if state is KernelState.RETIRED else ""
            own = source.with_name(f"{state}.cc")
            own.write_text(source.read_text() + change)
            candidate = from_file(own, problem, target, {}, NumericsClass.EXACT)
            built = build(candidate, target)
            assert isinstance(built, Artifact), built
            verdict = Verdict(Decision.ACCEPTED, candidate.hash, "default", 0.5, 0.4, 0.6, 50, 5, 0.0)
            record = record_of(candidate, built, verdict, None, at, target, RUN, Seconds(1e-6, 2e-6))
            number = registry.accept(record, built.data, candidate.source, {})
            if state is not KernelState.ACCEPTED:  # a second word on the handed-in one would end its wait
                registry.set_state(number, state, "stocked")
        for n in range(40):
            registry.store.put(b"nobody names this %d" % n)
        registry.settle(RUN, target.identity, _settled(problem, model, target))


def _settled(problem: Problem, model: Path, target: Target) -> Settled:
    options = TuneOptions(str(model), 1.0, batches=(1,), context=32, prefill=1, threads=1)
    tasks = plan(step_rows(load(model), options), lambda p, axes: get(p.operator).bucket(p, axes))
    task = next(t for t in tasks if t.problem == problem)
    space = Space(task, exact_templates(problem.operator), target)
    return Settled(problem.key, 0, tuple(b.workload.point for b in task.buckets), space.templates_hash)


def _host() -> Target:
    """This machine, with figures that need no probe."""
    facts = read_cpu()
    return Target(
        "host", "cpu", facts.vendor, facts.model, facts.arch, facts.features, facts.cores, facts.caches,
        facts.memory_bytes, bandwidth=((1, Peak(8e9)), (2, Peak(1e10))),
        peaks=tuple((name, Peak(5e11)) for name in ("fp32_fma", "bf16_dot", "int8_dot")), compilers=find_compilers(),
    )
