"""A header's launches, bound to a problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge.backends import templates
from kforge.backends.header import TemplateError, parse
from kforge.backends.verbs import names, of
from kforge.core.errors import KforgeError
from kforge.core.launch import ArgumentKind
from kforge.core.target import Target
from kforge.core.workload import Problem

HEAD = """{#- kforge
operator = "rms_norm"
version = 1
numerics = "relaxed"
[params.rows]
choices = [1, 4]
default = 4
[[launch]]
entry = "norm"
grid = ["cdiv(T, rows)"]
block = ["64"]
arguments = ["x", "x.stride0", "weight", "residual?", "out", "T", "eps"]
scratch = "4 * T * H"
-#}
# nothing
"""
DEVICE = Target("device", "gpu", "Nobody", "Device", "none", (), 4, (), 1 << 30, (), (), backends=("opencl",))
PROBLEM = Problem.of("rms_norm", H=128, residual=0)


def _folder(tmp_path: Path, text: str, backend: str = "opencl") -> Path:
    file = tmp_path / backend / "rms_norm" / "norm.cl.j2"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return tmp_path


def test_arguments_are_found_and_optional_ones_left_out(tmp_path: Path) -> None:
    template, = templates.load("rms_norm", _folder(tmp_path, HEAD))
    assert template.applies(PROBLEM, DEVICE) is None
    launch, = template.render(PROBLEM, DEVICE, {"rows": 4}).launches
    assert [a.text for a in launch.arguments] == ["x", "x.stride0", "weight", "out", "T", "eps"]
    assert launch.arguments[1].kind is ArgumentKind.STRIDE
    assert launch.groups({"T": 9}) == (3, 1, 1)
    assert launch.scratch_bytes({"T": 9}) == 4 * 9 * 128
    wide = template.render(Problem.of("rms_norm", H=128, residual=1), DEVICE, {"rows": 4})
    assert "residual" in [a.text for a in wide.launches[0].arguments]


def test_the_launch_is_part_of_a_candidates_identity(tmp_path: Path) -> None:
    one, = templates.load("rms_norm", _folder(tmp_path / "a", HEAD))
    other, = templates.load("rms_norm", _folder(tmp_path / "b", HEAD.replace('"64"', '"32"')))
    first, second = (t.render(PROBLEM, DEVICE, {"rows": 4}) for t in (one, other))
    assert first.source == second.source
    assert first.hash != second.hash


def test_a_template_of_another_language_does_not_apply(tmp_path: Path) -> None:
    template, = templates.load("rms_norm", _folder(tmp_path, HEAD, "triton"))
    assert template.applies(PROBLEM, DEVICE) == "device is built for with opencl, not triton"


@pytest.mark.parametrize("old, new, said", [
    ('"weight", ', '"weihgt", ', "argument 'weihgt'"),
    ("x.stride0", "x.stride2", "argument 'x.stride2'"),
    ("cdiv(T, rows)", "cdiv(T, row)", "names row"),
])
def test_what_the_operator_lacks_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    template, = templates.load("rms_norm", _folder(tmp_path, HEAD.replace(old, new)))
    with pytest.raises(TemplateError, match=said):
        template.render(PROBLEM, DEVICE, {"rows": 4})


@pytest.mark.parametrize("old, new, said", [
    ('entry = "norm"\n', "", "lacks 'entry'"),
    ('grid = ["cdiv(T, rows)"]', 'grid = ["open(1, 2)"]', "sizes"),
    ('grid = ["cdiv(T, rows)"]', 'grid = ["1", "1", "1", "1"]', "3 dimensions"),
    ('grid = ["cdiv(T, rows)"]', "grid = 3", "list of texts"),
    ('block = ["64"]', 'blocks = ["64"]', "unknown key 'blocks'"),
])
def test_a_bad_launch_is_refused_when_read(old: str, new: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        parse("a.cl.j2", HEAD.replace(old, new))


def test_backends_are_found_by_name() -> None:
    assert of("cpp").name == "cpp"
    with pytest.raises(KforgeError, match="no backend 'fortran'; there are cpp, cuda"):
        of("fortran")
    assert "cpp" in names()
