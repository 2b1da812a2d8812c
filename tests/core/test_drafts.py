"""Drafts: whole files or none, and nothing left of a process that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kforge.core import drafts

MAKER = """
import os, signal, sys
from pathlib import Path
from kforge.core import drafts
with drafts.draft_folder() as folder:
    (folder / "inside").write_text("x")
    os.replace = lambda *_: (print(folder, flush=True), sys.stdin.read())
    drafts.write_whole(Path(sys.argv[1]) / "sub" / "file", b"new")
"""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch):
    for variable in ("TMPDIR", "KFORGE_CACHE", "KFORGE_HOME"):
        (folder := tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield tmp_path
    monkeypatch.setattr("tempfile.tempdir", None)


def left(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob(f"{drafts.MARK}*"))


def test_drafts_of_a_living_process_stay_and_those_of_a_killed_one_are_swept(places: Path):
    maker = subprocess.Popen([sys.executable, "-c", MAKER, places / "KFORGE_CACHE"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert maker.stdout is not None
    maker.stdout.readline()  # both drafts are there now
    assert len(left(places)) == 2
    assert drafts.sweep() == 0
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    assert len(left(places)) == 2
    assert drafts.sweep() == 2
    assert left(places) == []


def test_nothing_but_drafts_is_swept(places: Path):
    kept = places / "TMPDIR" / ".kforge-drafts"
    kept.write_text("somebody's own")
    link = places / "TMPDIR" / f"{drafts.MARK}link"
    link.symlink_to(kept)
    assert drafts.sweep() == 0
    assert kept.exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(places: Path, monkeypatch):
    path = places / "KFORGE_HOME" / "file"
    drafts.write_whole(path, b"old", durable=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        drafts.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert left(places) == []


def test_a_draft_swept_before_it_was_locked_is_made_again(places: Path, monkeypatch):
    made = []
    make = drafts._folder_in

    def raced(place: Path):
        path, handle = make(place)
        if not made:
            path.rmdir()  # another process took it for abandoned
        made.append(path)
        return path, handle

    monkeypatch.setattr(drafts, "_folder_in", raced)
    with drafts.draft_folder() as folder:
        assert folder.is_dir()
    assert len(made) == 2
    assert left(places) == []
