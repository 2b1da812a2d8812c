"""``docs/kernels.md`` is what newcomers copy from: its kernels are right, and its failures are the ones there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kforge.backends.handwritten import from_file
from kforge.core.target import Target
from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.check import CheckResult

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return text


@pytest.mark.parametrize(
    ("language", "name", "params", "axes"),
    [
        ("cpp", "rms_norm.cc", {}, {"H": 576, "residual": 1}),
        ("jinja", "rms_norm.cc.j2", {"deal": "turns"}, {"H": 576, "residual": 1}),
        ("jinja", "rms_norm.cc.j2", {}, {"H": 64, "residual": 0}),
    ],
)
def test_the_pages_kernels_are_exact(harness: Harness, target: Target, tmp_path: Path, language, name, params, axes):
    (file := tmp_path / name).write_text(block(language))
    problem = Problem.of("rms_norm", **axes)
    candidate = from_file(file, problem, target, params, NumericsClass.EXACT)
    result = harness.check(candidate, Workload.of(problem, T=8))
    assert isinstance(result, CheckResult), result


def test_a_kernel_that_takes_the_tensors_in_another_order_is_not(harness: Harness, target: Target, tmp_path: Path):
    text = block("cpp").replace("residual = launch->tensors[2], &out = launch->tensors[3]",
                                "residual = launch->tensors[3], &out = launch->tensors[2]")
    (file := tmp_path / "rms_norm.cc").write_text(text)
    problem = Problem.of("rms_norm", H=576, residual=1)
    candidate = from_file(file, problem, target, {}, NumericsClass.EXACT)
    assert isinstance(harness.check(candidate, Workload.of(problem, T=8)), Failure)


def test_every_class_of_failure_is_explained():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(kind.value for kind in FailureClass)


def test_its_links_lead_somewhere():
    docs = Path(__file__).parents[2] / "docs"
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = link.partition("#")
        text = (docs / file).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in headings, link
