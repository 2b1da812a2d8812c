"""Headers of specimens: what they say, and how a broken one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.harness.zoo import Specimen, find


def specimen(folder: Path, text: str, kind: str = "semantics") -> Path:
    (folder / kind).mkdir()
    (folder / kind / "one.cc").write_text(text)
    return folder


HEADER = """// tries: nothing
//     much
// reported: no public report known
// workload: silu_mul(I=16)@T=1
// stopped by: incorrect, judge: audit
int x;
"""


def test_a_header_says_what_is_tried_and_what_stops_it(tmp_path: Path) -> None:
    found = find(specimen(tmp_path, HEADER))
    assert isinstance(found[0], Specimen) and found[0].tries == "nothing much"
    assert [str(gate) for gate in found[0].gates] == ["incorrect", "audit"]


@pytest.mark.parametrize(("header", "kind", "what"), [
    (HEADER.replace("incorrect", "luck"), "semantics", "luck"),
    (HEADER.replace("// reported: no public report known\n", ""), "semantics", "lacks 'reported:'"),
    (HEADER, "honest", "stopped by"),
    (HEADER.replace("incorrect, judge: audit", "nothing"), "semantics", "stopped by"),
    (HEADER.replace("T=1", "T=one"), "semantics", "one"),
])
def test_a_broken_header_is_named(tmp_path: Path, header: str, kind: str, what: str) -> None:
    with pytest.raises(KforgeError, match=what):
        find(specimen(tmp_path, header, kind))


def test_a_folder_without_specimens_is_named(tmp_path: Path) -> None:
    with pytest.raises(KforgeError, match="no such folder"):
        find(tmp_path / "missing")
    with pytest.raises(KforgeError, match="no specimens"):
        find(tmp_path)
