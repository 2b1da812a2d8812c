"""Files of others: what they try against the machine ends in a sentence, and what they answer is only data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.importing.importer import Request, example_inputs, import_operator, remove
from kforge.importing.loading import ExampleInput
from kforge.operators import get, imported_names
from kforge.operators.import_record import GraphRecord
from kforge.operators.imported import Imported

PROBLEMS = Path(__file__).parents[1] / "operators" / "problems"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_problem_becomes_an_operator_that_is_kept(home: Path) -> None:
    made = import_operator(Request(PROBLEMS / "gelu_softmax.py"))
    assert (made.name, made.batch, made.row_axis) == ("gelu_softmax", 20, "B")
    assert made.record.flags == () and made.record.scaling == ""
    again = get("gelu_softmax")
    assert isinstance(again, Imported) and again.graph == made.graph
    remove("gelu_softmax")
    assert imported_names() == ()
    with pytest.raises(KforgeError, match="there is no imported operator 'gelu_softmax'"):
        remove("gelu_softmax")


def answering(text: str) -> str:
    """A file that forges its own answer."""
    return f"import os; open('answer.json', 'w').write({text!r}); os._exit(0)"


# What a file may try when it is loaded, and the sentence that comes of it. HOME is a folder with a secret in it.
HOSTILE = {
    "reads a secret": ("open('HOME/secret').read()", "fails when it is loaded, with PermissionError"),
    "lists a folder": ("import os; os.listdir('HOME')", "PermissionError"),
    "writes outside": ("open('HOME/new', 'w')", "PermissionError"),
    "opens a socket": ("import socket; socket.socket()", "PermissionError"),
    "asks for memory": ("x = bytearray(1 << 45)", "more memory than an import may have"),
    "fills the disk": ("f = open('big', 'wb')\nfor _ in range(99): f.write(bytes(1 << 20)); f.flush()",
                       "File too large|signal"),
    "kills its parent": ("import os; os.kill(os.getppid(), 9); os.kill(1, 9)",
                         "PermissionError|ended with|is not done"),
    "ends at once": ("import os; print('gone fishing', flush=True); os._exit(3)",
                     r"exit status 3 and without an answer \(gone fishing\)"),
    "raises the end": ("raise SystemExit('no')", "fails when it is loaded, with SystemExit: no"),
    "prints garbage": ("import os; print('\\x1b[2J' * 99); os._exit(0)", "without an answer"),
    "answers garbage": (answering("{]"), "other than an answer"),
    "answers nested lists": ("import os; open('answer.json', 'w').write('[' * 100000); os._exit(0)",
                             "other than an answer"),
    "answers a link": ("import os; os.symlink('HOME/secret', 'answer.json'); os._exit(0)", "without an answer"),
    "answers a pipe": ("import os; os.mkfifo('answer.json'); os._exit(0)", "PermissionError|without an answer"),
    "answers escape codes": (answering('{"error": "\\u001b[2J pwned\\n"}'), r"cannot be imported: \[2J pwned$"),
    "answers no graph": (answering('{"graph": 1}'), "none of ours"),
}


@pytest.mark.parametrize(("code", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_ends_in_a_sentence(home: Path, code: str, sentence: str) -> None:
    home.chmod(0o777)
    secret = home / "secret"
    secret.write_text("of value")
    secret.chmod(0o644)
    file = home / "hostile.py"
    file.write_text(code.replace("HOME", str(home)))
    with pytest.raises(KforgeError, match=sentence) as told:
        import_operator(Request(file, seconds=20))
    assert "of value" not in str(told.value) and str(told.value).isprintable()
    assert sorted(p.name for p in home.iterdir()) == ["hostile.py", "secret"]


def test_a_file_that_never_ends_is_ended(home: Path) -> None:
    file = home / "endless.py"
    file.write_text("while True: pass")
    with pytest.raises(KforgeError, match="it is not done after 1 s; --seconds allows more"):
        import_operator(Request(file, seconds=1))


def forged(**changes: object) -> str:
    graph = {"given": [{"name": "x", "shape": ["B", 8], "kind": "argument"}],
             "steps": [{"name": "y", "op": "neg", "inputs": ["x"], "shape": ["B", 8]}], "outputs": ["y"]}
    return json.dumps({"graph": graph, "batch": 4, "originals": [], "scaling": "", "sizes": {}, "lead": 1,
                       **changes})


FORGED = {
    "the name of another operator": {"name": "linear"},
    "more than memory": {"batch": 1 << 31},
    "a batch of nothing": {"batch": 0},
    "a scaling that is no text": {"scaling": "\x1b[31m"},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_a_forged_answer_is_held_against_the_rules(home: Path, changes: dict[str, object]) -> None:
    file = home / "forger.py"
    file.write_text(f"import os\nopen('answer.json', 'w').write({forged(**changes)!r})\nos._exit(0)")
    with pytest.raises(KforgeError, match=r"none of ours|too much to check here"):
        import_operator(Request(file, seconds=20))
    assert imported_names() == ()


def test_a_forged_answer_that_is_a_graph_is_that_graph_under_our_name(home: Path) -> None:
    """A file says what it computes; it can say it in this way too, and nothing else with it."""
    file = home / "forger.py"
    file.write_text(f"import os\nopen('answer.json', 'w').write({forged()!r})\nos._exit(0)")
    made = import_operator(Request(file, seconds=20))
    assert (made.name, made.record.source, made.batch) == ("forger", "forger.py", 4)
    assert made.record.graph == GraphRecord.model_validate_json(json.dumps(json.loads(forged())["graph"]))
    file.write_text(f"import os\nopen('answer.json', 'w').write({forged(batch=5)!r})\nos._exit(0)")
    with pytest.raises(KforgeError, match="there is an operator forger already: --replace it"):
        import_operator(Request(file, seconds=20))
    assert import_operator(Request(file, seconds=20, replace=True)).batch == 5


def test_names_and_options_that_cannot_be_are_told(home: Path) -> None:
    file = home / "7_x.py"
    file.write_text("x = 1")
    for request, sentence in {
        Request(home / "none.py"): "cannot read",
        Request(Path("/dev/zero")): "it is no plain file",
        Request(file, inputs="x=f32[8,,8]"): "an extent that no tensor has",
        Request(file, inputs=f"x=f32[{'9' * 5000}]"): "an extent that no tensor has",
        Request(file, inputs="x=f32[8],"): "is not like x=f32",
        Request(file, name="linear"): "linear is a built-in operator",
        Request(file, name="../x"): "must be small letters",
        Request(file, scale="7"): "no power of two",
        Request(file, scale="much"): "is auto, none or a power of two",
        Request(file, inputs="x=f16[3]"): "only f32 can be imported",
    }.items():
        with pytest.raises(KforgeError, match=sentence):
            import_operator(request)


def test_example_inputs_are_read() -> None:
    assert example_inputs("x=f32[128, 512], y_1=f32[512],z=f32[]") == (
        ExampleInput("x", (128, 512)), ExampleInput("y_1", (512,)), ExampleInput("z", ()))
    assert example_inputs("") == ()
    for text in ("x", "x=f32", "x=f32[1", "x=f32[0]", "x=f32[3] y=f32[3]", "=f32[3]"):
        with pytest.raises(KforgeError, match="--inputs"):
            example_inputs(text)
