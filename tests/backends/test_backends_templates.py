"""Templates: headers, legal spaces, defaults, rendering and its bounds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from backends_cpp import SILU, target

from kforge.backends.rendering import RenderLimits
from kforge.backends.templates import Template, TemplateError, layouts, load
from kforge.core.layout import Layout
from kforge.core.trial import FailureClass
from kforge.core.workload import Problem

LINEAR = Problem.of("linear", K=576, N=960, weight="q4_1", act="a8", epilogue="silu_gate", bias=0, rows=32)

HEADER = """{#- kforge
operator = "silu_mul"
version = 3
numerics = "exact"
summary = "a test"
%s
-#}
"""


def write(folder: Path, header: str, body: str = "int x;", name: str = "t.cc.j2", operator: str = "silu_mul") -> None:
    file = folder / "cpp" / operator / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((HEADER % header).replace('"silu_mul"', f'"{operator}"') + body)


def only(folder: Path) -> Template:
    (template,) = load(folder=folder)
    return template


TILES = """
constraints = ["tile * unroll <= 16", "unroll < 8 or avx512f"]
[params.tile]
choices = [1, 2, 4, 8]
default = 4
[params.split]
choices = ["rows", "cols"]
default = "rows"
when = "tile >= 4"
[params.unroll]
choices = [1, 2, 4, 8]
default = 4
"""


def test_the_space_holds_each_legal_set_once_and_pins_parameters_whose_condition_is_false(tmp_path: Path) -> None:
    write(tmp_path, TILES)
    points = only(tmp_path).space(SILU, target("avx2"))
    assert len({tuple(p.items()) for p in points}) == len(points)
    assert all(p["tile"] * p["unroll"] <= 16 and p["unroll"] < 8 for p in points)
    assert all(p["split"] == "rows" for p in points if p["tile"] < 4)
    assert len(points) == 3 + 3 + 2 * 3 + 2 * 2
    assert any(p["unroll"] == 8 for p in only(tmp_path).space(SILU, target("avx512f")))


def test_defaults_are_the_declared_ones_when_legal_and_else_the_nearest_legal_set(tmp_path: Path) -> None:
    write(tmp_path, TILES)
    assert only(tmp_path).defaults(SILU, target()) == {"tile": 4, "split": "rows", "unroll": 4}
    write(tmp_path, TILES.replace("<= 16", "<= 8"))
    repaired = only(tmp_path).defaults(SILU, target())
    assert repaired in only(tmp_path).space(SILU, target())
    assert repaired in ({"tile": 2, "split": "rows", "unroll": 4}, {"tile": 4, "split": "rows", "unroll": 2})


def test_a_template_says_in_a_sentence_why_it_does_not_apply(tmp_path: Path) -> None:
    write(tmp_path, 'requires = ["avx512f", "avx512_vnni"]\napplies = "I % 64 == 0"')
    template = only(tmp_path)
    assert template.applies(SILU, target("avx512f", "avx512_vnni")) is None
    assert "avx512_vnni" in str(template.applies(SILU, target("avx512f")))
    assert "linear" in str(template.applies(LINEAR, target("avx512f", "avx512_vnni")))
    assert "I % 64" in str(template.applies(Problem.of("silu_mul", I=65), target("avx512f", "avx512_vnni")))
    write(tmp_path, 'constraints = ["n > I"]\n[params.n]\nchoices = [1]')
    assert "constraints" in str(only(tmp_path).applies(SILU, target()))


def test_a_body_sees_attributes_parameters_format_target_lanes_and_layout(tmp_path: Path) -> None:
    write(tmp_path, "[params.tile]\nchoices = [4]", operator="linear",
          body="{{ K }} {{ tile }} {{ fmt.bits }} {{ fmt.has_min }} {{ weight }} {{ lanes }} {{ layout.rows }} "
               "{{ layout.gate_up }} {{ target.has('avx2') }} {{ target.has('avx2', 'fma') }} {{ target.arch }}")
    made = only(tmp_path).render(LINEAR, target("avx2"), {"tile": 4}, proposer="someone", parent="abc")
    assert made.source.splitlines()[-1].startswith("576 4 4 True q4_1 8 32 1 True False ")
    assert made.layouts == (("w", Layout.of("panel", rows=32, gate_up=1)),)
    assert (made.proposer, made.parent, made.backend, made.params) == ("someone", "abc", "cpp", (("tile", 4),))
    assert made == only(tmp_path).render(LINEAR, target("avx2"), {"tile": 4}, proposer="someone", parent="abc")


def test_dense_operators_have_no_layouts_and_an_embedding_has_its_tables() -> None:
    assert layouts(SILU) == ()
    assert layouts(Problem.of("embedding", V=10, H=32, weight="f16", rows=16)) == (
        ("table", Layout.of("panel", rows=16, gate_up=0)),)


def test_candidates_that_differ_only_in_the_compiler_are_two_and_absent_compilers_are_not_proposed(
        tmp_path: Path) -> None:
    write(tmp_path, '[params.compiler]\nchoices = ["gcc", "clang"]')
    template = only(tmp_path)
    both = target(compilers=())
    one, two = (template.render(SILU, both, {"compiler": c}) for c in ("gcc", "clang"))
    assert one.hash != two.hash
    gcc_only = target(compilers=tuple(c for c in target().compilers if c.name == "g++"))
    if gcc_only.compilers:
        assert template.space(SILU, gcc_only) == [{"compiler": "gcc"}]


def test_the_hash_covers_what_a_template_includes(tmp_path: Path) -> None:
    write(tmp_path, "", '{% include "cpp/common/part.j2" %}')
    part = tmp_path / "cpp" / "common" / "part.j2"
    part.parent.mkdir()
    part.write_text("one")
    before = only(tmp_path).hash
    part.write_text("two")
    assert only(tmp_path).hash != before


@pytest.mark.parametrize("params", [{}, {"tile": 3, "split": "rows", "unroll": 1}, {"tile": 1, "split": "rows"},
                                    {"tile": 1, "split": "cols", "unroll": 1}, {"tile": 8, "split": "rows",
                                    "unroll": 4}, {"tile": 1, "split": "rows", "unroll": 1, "more": 1}])
def test_parameters_outside_the_space_are_refused(tmp_path: Path, params: dict[str, int | str]) -> None:
    write(tmp_path, TILES)
    with pytest.raises(TemplateError, match=r"t\.cc\.j2"):
        only(tmp_path).render(SILU, target(), params)


@pytest.mark.parametrize(("header", "line", "what"), [
    ("a = [", 6, "not TOML"),
    ("a = b c", 6, "not TOML"),
    ("other = 1", 6, "unknown key"),
    ("[params.n]\nchoices = []", 6, "non-empty"),
    ("[params.n]\nchoices = [1, 1]", 6, "twice"),
    ("[params.n]\nchoices = [1]\ndefault = 2", 6, "not among"),
    ('requires = ["sse9"]', 0, "sse9"),
    ('[params.n]\nchoices = [1]\nwhen = "n > 0"', 0, "earlier"),
    ('constraints = ["1 +"]', 0, "expression"),
    ('constraints = ["I.__class__"]', 0, "fields"),
    ('constraints = ["range(9)"]', 0, "call"),
    ('constraints = ["2 ** 99 > 0"]', 0, "pow"),
])
def test_a_broken_header_names_file_and_line(tmp_path: Path, header: str, line: int, what: str) -> None:
    write(tmp_path, header)
    with pytest.raises(TemplateError, match=what) as error:
        load(folder=tmp_path)
    assert str(error.value).startswith("cpp/silu_mul/t.cc.j2:")
    assert not line or error.value.line == line
    assert error.value.failure.kind is FailureClass.TEMPLATE


def test_expressions_do_not_grow_text_or_divide_by_zero_uncaught(tmp_path: Path) -> None:
    for text in ("'a' * 1000000000 > 'b'", "1 // 0", "'%1000000000d' % 1 > ''", "nobody_knows > 1"):
        write(tmp_path, f'constraints = ["{text}"]')
        with pytest.raises(TemplateError):
            only(tmp_path).space(SILU, target())


@pytest.mark.parametrize("body", ['{% include "/etc/passwd" %}', '{% include "../../secret.txt" %}',
                                  '{% include "cpp/silu_mul/link.j2" %}', '{% include "cpp/" ~ I %}'])
def test_includes_stay_below_the_templates_folder(tmp_path: Path, body: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "kernels"
    write(folder, "", body)
    (folder / "cpp" / "silu_mul" / "link.j2").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(TemplateError):
        load(folder=folder)


def test_an_undefined_name_is_an_error_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "", "one\ntwo {{ nothing }}")
    with pytest.raises(TemplateError, match="nothing") as error:
        only(tmp_path).render(SILU, target(), {})
    assert error.value.line == 9


def bounded(template: Template, **limits: int) -> Template:
    return Template(template.root, template.path, template.hash, template.header, False, RenderLimits(**limits))


@pytest.mark.parametrize(("body", "what"), [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "longer than 1 s"),
    ("{{ 'a' * 100000000000 }}", "memory"),
    ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "exceeds"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ target.has.__globals__ }}", "unsafe"),
])
def test_a_hostile_template_ends_in_a_failure_soon(tmp_path: Path, body: str, what: str) -> None:
    write(tmp_path, "", body)
    begin = time.monotonic()
    with pytest.raises(TemplateError, match=what):
        bounded(only(tmp_path), seconds=1).render(SILU, target(), {})
    assert time.monotonic() - begin < 30


def test_every_shipped_template_loads_and_is_trusted() -> None:
    shipped = load()
    assert shipped
    assert all(template.trusted and template.summary for template in shipped)
    assert {t.path for t in load("rms_norm")} == {t.path for t in shipped if t.operator == "rms_norm"}
