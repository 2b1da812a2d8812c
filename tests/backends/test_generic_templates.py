"""Generated templates: right for every graph, shape, distribution and choice of parameters; run in the harness's
sandbox."""

from __future__ import annotations

import functools
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from generic_graphs import GRAPHS, Maker, graph_of, operator_of

from kforge.backends import templates
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.backends.generic import templates_for
from kforge.backends.templates import Params, Template
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness.cases import Answers, Case
from kforge.harness.check import check
from kforge.harness.session import Session, TimedInputs
from kforge.operators.base import Distribution
from kforge.operators.graph import Graph
from kforge.targets.files import host

BATCHES = (5, 1, 34)  # the first is timed
KINDS = [d for d in Distribution if d not in (Distribution.NORMAL, Distribution.ROWS)]


@functools.cache
def target() -> Target:
    return host(quick=True)


def loaded(graph: Graph, folder: Path, trusted: bool = True) -> dict[str, Template]:
    """The generated templates, read from files as any other. ``trusted``: rendered here, which is quicker."""
    for made in templates_for(graph, "made"):
        file = folder / "cpp" / "made" / f"{made.name}.cc.j2"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made.text)
    return {Path(t.path).name.split(".")[0]: replace(t, trusted=trusted) for t in templates.load("made", folder)}


def image_of(template: Template, params: Params, problem: Problem, on: Target) -> Image:
    built = build(template.render(problem, on, params), on)
    assert isinstance(built, Artifact), built
    image = admit(built.data)
    assert isinstance(image, Image), image
    return image


def checked(graph: Graph, images: list[Image], seed: int = 1) -> None:
    """Every image in a process of its own, at every batch with NORMAL and with some of the other distributions."""
    operator = operator_of(graph)
    shapes = [Workload.of(operator.problem, B=b) for b in (BATCHES if graph.dynamic else (1,))]
    cases = []
    for i, shape in enumerate(shapes):
        cases += [Case(shape, seed + i, Distribution.NORMAL, repeated=i == 0)]
        cases += [Case(shape, seed + i, kind, repeated=False) for kind in KINDS[i :: len(shapes)]]
    threads = min(2, len(os.sched_getaffinity(0)))
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    timed = TimedInputs(operator, shapes[0], seed, 1 << 20)
    answers = Answers()
    with Session(timed, shapes, cpus) as session:
        for image in images:
            process = session.start(image)
            assert not isinstance(process, Failure), process
            try:
                result = check(process, operator, NumericsClass.RELAXED, cases, answers, threads)
            finally:
                process.close()
            assert not isinstance(result, Failure), result
    timed.close()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_computed_by_the_plain_template(name: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    template, problem = loaded(graph, tmp_path)["plain"], operator_of(graph).problem
    checked(graph, [image_of(template, template.defaults(problem, target()), problem, target())])


@pytest.mark.parametrize(
    "name", ["linear_gelu_softmax", "long_layer_norm", "rms_norm_of_channels", "attention", "deep", "loss"]
)
def test_parameters_change_the_time_and_not_the_result(name: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    template, problem = loaded(graph, tmp_path)["tuned"], operator_of(graph).problem
    points = template.space(problem, target())
    assert len(points) > 20
    assert template.defaults(problem, target()) in points
    chosen = random.Random(name).sample(points, 3)
    checked(graph, [image_of(template, point, problem, target()) for point in chosen])


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "plain"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_computed_on_lesser_machines(name: str, isa: str, tmp_path: Path) -> None:
    kept = {"avx2": ("avx", "avx2", "f16c", "fma", "pni", "sse4_1", "sse4_2", "ssse3"), "plain": ()}[isa]
    on = replace(target(), features=tuple(f for f in target().features if f in kept))
    graph = graph_of(name)
    template, problem = loaded(graph, tmp_path)["plain"], operator_of(graph).problem
    images = [
        image_of(template, {**template.defaults(problem, on), "compiler": by}, problem, on) for by in ("gcc", "clang")
    ]
    checked(graph, images)


def test_the_texts_depend_on_the_graph_alone_and_render_as_untrusted_ones(tmp_path: Path) -> None:
    graph = graph_of("linear_gelu_softmax")
    assert templates_for(graph, "made") == templates_for(graph_of("linear_gelu_softmax"), "made")
    problem = operator_of(graph).problem
    for template in loaded(graph, tmp_path, trusted=False).values():
        assert template.numerics is NumericsClass.RELAXED
        assert template.applies(problem, target()) is None
        assert "kforge_kernel" in template.render(problem, target(), template.defaults(problem, target())).source


def test_elementwise_work_and_a_softmax_behind_a_product_take_two_sweeps(tmp_path: Path) -> None:
    text = next(t.text for t in templates_for(graph_of("linear_gelu_softmax"), "made") if t.name == "plain")
    assert text.count("kf_barrier(launch);") == 1
    assert "region_1(c);" in text
    assert "region_2(c);" not in text


def test_values_between_regions_share_memory_once_they_are_read() -> None:
    """A chain of products holds two buffers, however long it is."""
    m = Maker()
    x = m.argument("B", 32)
    for _ in range(6):
        x = m.matmul(x, m.weight(32, 32))
    text = templates_for(m.graph(x), "made")[0].text
    assert "slot1" in text
    assert "slot2" not in text


def test_a_graph_of_too_many_sweeps_is_refused_in_a_sentence() -> None:
    m = Maker()
    x = m.argument("B", 32)
    for _ in range(20):
        x = m.softmax(m.linear(x, 32), 1)
    with pytest.raises(KforgeError, match="made takes 40 sweeps"):
        templates_for(m.graph(x), "made")
    m = Maker()
    x = m.argument("B", 32)
    for _ in range(500):
        x = m.tanh(x)
    with pytest.raises(KforgeError, match="too deeply"):
        templates_for(m.graph(x), "made")


def test_a_space_stays_small_whatever_the_graph_holds(tmp_path: Path) -> None:
    """A softmax beside a product, columns and elementwise work: parameters of everything."""
    m = Maker()
    y = m.softmax(m.linear(m.argument("B", 40), 40), 1)
    graph = m.graph(y, m.sum(m.argument("B", 7, 40), dims=(1,)), m.permute(y, dims=(1, 0)))
    template = loaded(graph, tmp_path)["tuned"]
    assert len(template.space(operator_of(graph).problem, target())) < 20_000
