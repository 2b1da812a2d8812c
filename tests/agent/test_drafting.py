"""Answers become templates on disk, untrusted and rendered once, or failures that can be mended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from situations import ATTENTION, LINEAR, NORM, TARGET, shipped_template, task_of, variation

from kforge.agent.answers import Edit, Writing, read
from kforge.agent.drafting import Rejected, Source, draft, drafted, meaning_of, root_of, source_of
from kforge.agent.sameness import meaning
from kforge.backends.templates import Template
from kforge.tuner.plan import Task
from kforge.tuner.points import Space

NORM_SOURCE = source_of(shipped_template("rms_norm"))
PATH = "cpp/rms_norm/x.cc.j2"


def written(run: Path, answer: Writing, number: int = 7, base: Source | None = NORM_SOURCE, task: Task | None = None,
            known: tuple[Template, ...] = ()) -> Template | Rejected:
    return draft(answer, number, base, task or task_of(NORM), TARGET, root_of(run), known)


def whole(text: str, name: str = "idea") -> Writing:
    return Writing(name=name, hypothesis="h", template=text)


def edits(*pairs: tuple[str, str], file: str = "") -> Writing:
    return Writing(name="idea", hypothesis="h", edits=[Edit(file=file, find=f, replace=r) for f, r in pairs])


def files(run: Path) -> list[str]:
    root = run / "templates" / "cpp"
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.parent.name != "common")


def test_a_whole_template_is_loaded_from_the_runs_folder_as_untrusted_and_competes(tmp_path: Path) -> None:
    made = written(tmp_path, whole(NORM_SOURCE.text.replace("[1, 2, 4, 8]", "[2, 4, 6]")))
    assert isinstance(made, Template) and not made.trusted
    assert made.path == "cpp/rms_norm/idea_007.cc.j2" and made.root == (tmp_path / "templates").resolve()
    assert drafted("rms_norm", tmp_path)[made.path].hash == made.hash
    space = Space(task_of(NORM), [made], TARGET)
    assert {dict(p.params)["tokens"] for p in space.points} == {2, 4, 6}
    assert "normalise_6" in space.render(next(p for p in space.points if dict(p.params)["tokens"] == 6)).source


@pytest.mark.parametrize("name", ["../../../etc/cron", "/etc/passwd", "a/b\\c", "..", "名", "x" * 60, "A Wide Tile!"])
def test_a_name_from_a_model_is_never_a_path(tmp_path: Path, name: str) -> None:
    made = written(tmp_path, whole(NORM_SOURCE.text.replace("[1, 2, 4, 8]", "[2, 4, 6]"), name))
    assert isinstance(made, Template) and re.fullmatch(r"cpp/rms_norm/[a-z0-9_]{1,44}\.cc\.j2", made.path)
    assert files(tmp_path) == [made.path.removeprefix("cpp/")]


def test_edits_are_applied_to_the_parent_which_stays_as_it_is(tmp_path: Path) -> None:
    made = written(tmp_path, edits(("[1, 2, 4, 8]", "[1, 3, 6]"), ("default = 4", "default = 3")))
    assert isinstance(made, Template)
    assert [p.default for p in made.params] == [3, "gcc"] and 'numerics = "exact"' in source_of(made).text
    assert shipped_template("rms_norm").params[0].default == 4


@pytest.mark.parametrize(("answer", "said"), [
    (edits(("nowhere to be found", "x")), "occurs 0 times"),
    (edits(("Lanes", "x")), "occurs 7 times"),
    (edits(("default = 4", "default = 2"), ("nowhere", "x")), "edit 2 does not apply"),
    (edits(("zero()", "x"), file="../../lanes.j2"), "no file of that name; there are cpp/rms_norm/portable.cc.j2, "),
    (edits(("default = 4", "default = 4")), "change nothing"),
])
def test_edits_that_do_not_apply_are_refused_with_the_reason(tmp_path: Path, answer: Writing, said: str) -> None:
    made = written(tmp_path, answer)
    assert isinstance(made, Rejected) and re.search(said, made.failure.reason)
    assert made.source == NORM_SOURCE and files(tmp_path) == []


def test_what_a_model_wrote_in_vain_is_shown_to_whoever_mends_it(tmp_path: Path) -> None:
    made = written(tmp_path, edits(("nowhere", "something new")))
    assert isinstance(made, Rejected) and "something new" in made.failure.detail


def test_an_edit_of_a_shared_part_makes_a_part_of_its_own(tmp_path: Path) -> None:
    base = source_of(shipped_template("paged_attention", "avx512"))
    change = ("constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }",
              "constexpr int64_t min(int64_t a, int64_t b) { return b < a ? b : a; }")
    made = written(tmp_path, edits(change, file="attention.j2"), base=base, task=task_of(ATTENTION))
    assert isinstance(made, Template), made
    assert files(tmp_path) == ["paged_attention/idea_007.cc.j2", "paged_attention/idea_007_p0.j2"]
    texts = source_of(made).texts
    assert change[1] in texts["cpp/paged_attention/idea_007_p0.j2"] and "cpp/common/attention.j2" not in texts
    assert change[0] in (tmp_path / "templates/cpp/common/attention.j2").read_text()


def test_parts_that_include_an_edited_part_follow_it(tmp_path: Path) -> None:
    base = source_of(shipped_template("linear", "a8_vnni"))
    made = written(tmp_path, edits(("{%- set groups = (K + 31) // 32 -%}", "{%- set groups = (K + 31) // 32 + 0 -%}"),
                                   file="cpp/common/linear_layout.j2"), base=base, task=task_of(LINEAR))
    assert isinstance(made, Template), made
    texts = source_of(made).texts
    assert "cpp/common/linear_layout.j2" not in texts and "cpp/common/linear_launch.j2" not in texts
    assert "cpp/common/linear_avx512.j2" in texts


def test_a_draft_with_parts_of_its_own_can_be_edited_and_rewritten(tmp_path: Path) -> None:
    base = source_of(shipped_template("paged_attention", "avx512"))
    first = written(tmp_path, edits(("constexpr int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }",
                                     "constexpr int64_t max(int64_t a, int64_t b) { return b > a ? b : a; }"),
                                    file="attention.j2"), base=base, task=task_of(ATTENTION))
    assert isinstance(first, Template)
    own = source_of(first)
    edited = written(tmp_path, edits(("default = 48", "default = 96")), 8, own, task_of(ATTENTION))
    assert isinstance(edited, Template) and "cpp/paged_attention/idea_007_p0.j2" in source_of(edited).texts
    rewritten = written(tmp_path, whole(own.text.replace("choices = [48, 96]", "choices = [48]")), 9, own,
                        task_of(ATTENTION))
    assert isinstance(rewritten, Template)


# Of the plain lanes; those of AArch64 have the second line, too.
ZERO = "{{ lanewise('all(float x)', 'x') }}\nKF_INLINE Lanes zero() { return all(0.0f); }"


def test_a_mended_part_is_kept_although_the_first_draft_was_refused(tmp_path: Path) -> None:
    change = (ZERO, ZERO.replace("0.0f", "-0.0f + 0.0f"))
    broken = Writing(name="idea", hypothesis="h", edits=[Edit(file="lanes.j2", find=change[0], replace=change[1]),
                                                         Edit(find="tokens > 1", replace="tokens >")])
    refused = written(tmp_path, broken)
    assert isinstance(refused, Rejected) and refused.failure.reason.startswith("cpp/rms_norm/idea_007.cc.j2:92:")
    assert ">   92 {% if tokens > %}" in refused.failure.detail
    mended = written(tmp_path, edits(("tokens >", "tokens > 1")), 8, refused.source)
    assert isinstance(mended, Template)
    assert any(change[1] in text for text in source_of(mended).texts.values())


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "no header": (lambda t: "int x;", "begins with"),
    "no TOML": (lambda t: t.replace("[params.tokens]", "[params.tokens"), "not TOML"),
    "nested TOML": (lambda t: t.replace("version = 1", f"version = {'[' * 5000}"), "nested too deeply"),
    "no Jinja": (lambda t: t.replace("tokens > 1", "tokens >"), "Jinja"),
    "undefined name": (lambda t: t.replace("tokens > 1", "tokns > 1"), "tokns"),
    "unknown feature": (lambda t: t.replace("summary", 'requires = ["sse9"]\nsummary'), "sse9"),
    "illegal expression": (lambda t: t.replace("summary", 'applies = "H.__class__"\nsummary'), "only fmt has fields"),
    "unknown key": (lambda t: t.replace("version = 1", "version = 1\nspeed = 3"), "unknown key 'speed'"),
    "names a file": (lambda t: t.replace("cpp/common/lanes.j2", "../../../../etc/passwd"), "outside the templates"),
    "names a file by a variable": (lambda t: t.replace('"cpp/common/lanes.j2"', "summary"), "constant text"),
    "another operator": (lambda t: t.replace('operator = "rms_norm"', 'operator = "linear"'), "lies in the folder"),
    "relaxed": (lambda t: t.replace('"exact"', '"relaxed"'), 'numerics must be "exact"'),
    "does not apply": (lambda t: t.replace("summary", 'applies = "H == 5"\nsummary'), "outside 'H == 5'"),
    "no legal point": (lambda t: t.replace("summary", 'constraints = ["tokens > 99"]\nsummary'), "no parameter set"),
    "too many points": (lambda t: t.replace("[1, 2, 4, 8]", str(list(range(1, 8_002))))
                        .replace('"gcc", "clang"', '"gcc", "clang", "icc"'), "24003 combinations"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_template_comes_back_as_a_failure_and_leaves_no_file(tmp_path: Path, kind: str) -> None:
    spoil, said = BROKEN[kind]
    text = spoil(NORM_SOURCE.text)
    assert text != NORM_SOURCE.text
    made = written(tmp_path, whole(text))
    assert isinstance(made, Rejected) and said in made.failure.reason, made
    assert made.source.text == text and str(tmp_path) not in made.failure.reason + made.failure.detail
    assert files(tmp_path) == []


def test_a_template_that_loops_or_asks_for_gigabytes_ends_in_a_failure(tmp_path: Path) -> None:
    def put(text: str) -> Template | Rejected:
        return written(tmp_path, whole(NORM_SOURCE.text.replace("constexpr int64_t H", f"{text}\nconstexpr int64_t H")))

    loops = put("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    huge = put("{{ 'x' * 3000000000 }}")
    assert isinstance(loops, Rejected) and "longer than" in loops.failure.reason
    assert isinstance(huge, Rejected) and "memory" in huge.failure.reason


def test_half_a_character_never_reaches_the_disk() -> None:
    assert isinstance(read(Writing, {"name": "a", "hypothesis": "b", "template": "x\udc80"}), str)


NORM_TEXT = NORM_SOURCE.text
SAME: dict[str, Callable[[str], str]] = {
    "comments": lambda t: t.replace("    Call c;", "    Call c; // the call\n    /* and\n more */{# and more #}"),
    "spaces": lambda t: re.sub(r"(?m)^    ", "\t", t),
    "a local name": lambda t: re.sub(r"\blast\b", "final_tensor", t),
    "a variable of a Jinja loop": lambda t: re.sub(r"\bi\b", "which", t),
    "a struct's name": lambda t: re.sub(r"\bCall\b", "Arguments", t),
    "a parameter's name": lambda t: re.sub(r"\btokens\b", "in_flight", t),
    "a default": lambda t: t.replace("default = 4", "default = 2"),
    "the summary": lambda t: t.replace("whole tokens per thread", "something else"),
    "the order of choices": lambda t: t.replace("[1, 2, 4, 8]", "[8, 4, 2, 1]"),
    "whitespace control": lambda t: t.replace("{% endfor %}", "{%- endfor -%}"),
}
OTHER: dict[str, Callable[[str], str]] = {
    "another choice": lambda t: t.replace("[1, 2, 4, 8]", "[1, 2, 4, 6]"),
    "a constant": lambda t: t.replace("k += 16", "k += 32", 1),
    "a division in Jinja": lambda t: t.replace("{% if H % 16 %}", "{% if H // 16 %}", 1),
    "another division in Jinja": lambda t: t.replace("{% if H % 16 %}", "{% if H // 32 %}", 1),
    "operands that change places": lambda t: t.replace("fma(y{{ i }}, y{{ i }}, sum{{ i }})",
                                                       "fma(sum{{ i }}, y{{ i }}, y{{ i }})"),
    "a function of a shared part": lambda t: t.replace("mul(mul(", "add(mul("),
    "a type": lambda t: t.replace("int64_t x_stride", "int32_t x_stride"),
    "a requirement": lambda t: t.replace("summary", 'requires = ["avx2"]\nsummary'),
    "a constraint": lambda t: t.replace("summary", 'constraints = ["tokens < 8"]\nsummary'),
}


@pytest.mark.parametrize("kind", SAME)
def test_what_changes_no_meaning_makes_a_duplicate(tmp_path: Path, kind: str) -> None:
    text = SAME[kind](NORM_TEXT)
    assert text != NORM_TEXT and meaning(PATH, text) == meaning(PATH, NORM_TEXT)
    made = written(tmp_path, whole(text), known=(shipped_template("rms_norm"),))
    assert isinstance(made, Rejected) and made.duplicate and "cpp/rms_norm/portable.cc.j2" in made.failure.reason


def test_what_changes_the_meaning_makes_another_template() -> None:
    found = [meaning(PATH, change(NORM_TEXT)) for change in OTHER.values()]
    assert all(change(NORM_TEXT) != NORM_TEXT for change in OTHER.values())
    assert len({meaning(PATH, NORM_TEXT), *found}) == 1 + len(OTHER)


def test_static_attributes_are_no_names_of_a_templates_own() -> None:
    header = NORM_TEXT[:NORM_TEXT.index("-#}") + 3]
    sum_of = "constexpr int64_t {0} = {{{{ {0} }}}}, {1} = {{{{ {1} }}}}, x = {0} + 2 * {1};"
    one, other = (header + sum_of.format(*names) for names in (("H", "residual"), ("residual", "H")))
    assert meaning(PATH, one) != meaning(PATH, other)


def test_templates_that_differ_in_a_part_alone_differ_and_equal_parts_of_other_names_do_not(tmp_path: Path) -> None:
    change = (ZERO, ZERO.replace("0.0f", "0.0f + 0.0f"))
    shipped = shipped_template("rms_norm")
    first = written(tmp_path, edits(change, file="lanes.j2"), 1, known=(shipped,))
    assert isinstance(first, Template) and meaning_of(first) != meaning_of(shipped)
    again = written(tmp_path, edits(change, file="lanes.j2"), 2, known=(shipped, first))
    assert isinstance(again, Rejected) and again.duplicate


def test_no_two_shipped_templates_mean_the_same_and_hostile_texts_are_read_in_linear_time(tmp_path: Path) -> None:
    from kforge.backends import templates

    found = [meaning_of(t) for t in templates.load()]
    assert len(set(found)) == len(found)
    header = NORM_TEXT[:NORM_TEXT.index("-#}") + 3]
    for run in ("/*", "{{", "{%", "'", '"', "\\", "a*", "1e+", "{#"):
        meaning(PATH, header + run * 20_000)


def test_the_runs_folder_holds_the_shared_parts_and_heals(tmp_path: Path) -> None:
    variation("one", 1, tmp_path)
    part = tmp_path / "templates" / "cpp" / "common" / "lanes.j2"
    part.write_text("spoilt")
    root_of(tmp_path)
    assert "struct Lanes" in part.read_text()
