"""Target files: TOML, shipped in ``targets/`` and the user's own in the data folder."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError
from kforge.core.paths import data_dir, require_plain, shipped
from kforge.core.target import Cache, Compiler, Level, Peak, Target
from kforge.targets.fields import Table
from kforge.targets.gpu import gpu_as_toml, read_gpu, recognise

_HOST = "host"
_log = logging.getLogger("kforge.targets")


def list_targets() -> tuple[str, ...]:
    """Names that ``load_target`` takes: shipped and the user's, sorted; the user's file wins over a shipped one."""
    return tuple(sorted({path.stem for folder in _folders() if folder.is_dir() for path in folder.glob("*.toml")}))


def load_target(name_or_path: str | Path) -> Target:
    """A target by name ("zen4", "host") or by the path of its TOML file.

    "host" is probed when it has not been yet. Raises KforgeError, naming file and field, for what cannot be read.
    """
    if str(name_or_path) == _HOST:
        return host()
    path = Path(name_or_path)
    if path.suffix != ".toml":
        found = [file for folder in _folders() if (file := folder / f"{name_or_path}.toml").is_file()]
        if not found:
            known = ", ".join(list_targets())
            raise KforgeError(f"unknown target {str(name_or_path)!r}: one of {known}, or a TOML file")
        path = found[0]
    return _read(path)


def target_of_device(device: str, units: int | None = None) -> Target:
    """The target of a device by the name that its driver reports, or by its PCI ID ("10de:2335"), and its units.

    Raises KforgeError when no target file names exactly this device: nothing stands in for an unknown chip.
    """
    return recognise(device, tuple(load_target(name) for name in list_targets() if name != _HOST), units)


def save_target(target: Target, path: Path | None = None) -> Path:
    """Writes a target's file, whole or not at all; by default among the user's targets. Returns the path."""
    import tomli_w

    path = path or _user_folder() / f"{target.name}.toml"
    require_plain(path)
    text = tomli_w.dumps(_as_toml(target))
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise KforgeError(f"cannot write the target file {path}: {error.strerror}") from error
    return path


def host(refresh: bool = False, quick: bool = False) -> Target:
    """This machine, probed once and kept; probed again when CPU, cores, memory or compilers changed, or on ``refresh``.

    A kept file that cannot be read is replaced. When the data folder cannot be written the result is not kept, with a
    warning. ``quick`` does not ask whether the compilers changed, which takes longer than all the rest of a look-up.
    """
    from kforge.native import find_compilers
    from kforge.targets.cpu import read_cpu

    path = _user_folder() / f"{_HOST}.toml"
    facts = read_cpu()
    if not refresh and path.is_file():
        try:
            kept = _read(path)
            same = (kept.model, kept.features, kept.cores, kept.memory_bytes) == (
                facts.model, facts.features, facts.cores, facts.memory_bytes)
            if same and (quick or kept.compilers == find_compilers()):
                return kept
        except KforgeError as error:
            _log.warning("%s: probing again", error)
    from kforge.targets.probe import probe

    target = probe(_HOST, facts)
    try:
        save_target(target, path)
    except KforgeError as error:
        _log.warning("%s: this probe is not kept", error)
    return target


def _user_folder() -> Path:
    return data_dir() / "targets"


def _folders() -> tuple[Path, Path]:
    return _user_folder(), shipped("targets")


def _read(path: Path) -> Target:
    try:
        table = Table(str(path), "", tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise KforgeError(f"no target file {path}") from error
    except OSError as error:
        raise KforgeError(f"cannot read the target file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KforgeError(f"{path}: not valid TOML: {error}") from error
    return _from_toml(table)


def _from_toml(table: Table) -> Target:
    kind = table.text("kind", choices=("cpu", "gpu", "accelerator"))
    bandwidth = [(t.count("threads"), _peak(t)) for t in table.tables("bandwidth")]
    target = Target(
        name=table.text("name"), kind=kind, vendor=table.text("vendor"),
        model=table.text("model"), arch=table.text("arch"), features=tuple(sorted(table.texts("features"))),
        cores=table.count("cores"), memory_bytes=table.count("memory_bytes"),
        caches=tuple(_cache(t) for t in table.tables("caches")),
        bandwidth=tuple(sorted(bandwidth, key=lambda pair: pair[0])),
        peaks=tuple((name, _peak(t)) for name, t in table.named_tables("peaks")),
        compilers=tuple(_compiler(t) for t in table.tables("compilers", required=False)),
        levels=tuple(_level(t) for t in table.tables("levels", required=False)),
        backends=tuple(table.texts("backends", default=("cpp",) if kind == "cpu" else None)),
        gpu=read_gpu(table.table("gpu")) if kind != "cpu" else None)
    table.no_more()
    return target


def _cache(table: Table) -> Cache:
    cache = Cache(table.count("level"), table.count("bytes"), table.count("shared_by"),
                  table.count("line") if table.has("line") else 0)
    table.no_more()
    return cache


def _peak(table: Table) -> Peak:
    peak = Peak(table.positive("value"), table.number("spread"), table.text("source"))
    table.no_more()
    return peak


def _level(table: Table) -> Level:
    level = Level(table.text("name"), _peak(table.table("read")), _peak(table.table("latency")))
    table.no_more()
    return level


def _compiler(table: Table) -> Compiler:
    compiler = Compiler(table.text("path"), table.text("name"), table.text("version"))
    table.no_more()
    return compiler


def _as_toml(target: Target) -> dict[str, Any]:
    def peak(value: Peak) -> dict[str, Any]:
        return {"value": value.value, "spread": round(value.spread, 4), "source": value.source}

    document: dict[str, Any] = {
        "name": target.name, "kind": target.kind, "vendor": target.vendor, "model": target.model, "arch": target.arch,
        "features": list(target.features), "cores": target.cores, "memory_bytes": target.memory_bytes,
        "caches": [{"level": c.level, "bytes": c.bytes, "shared_by": c.shared_by,
                    **({"line": c.line} if c.line else {})} for c in target.caches],
        "bandwidth": [{"threads": threads, **peak(value)} for threads, value in target.bandwidth],
        "peaks": {name: peak(value) for name, value in target.peaks},
        "compilers": [{"path": c.path, "name": c.name, "version": c.version} for c in target.compilers],
    }
    if target.backends != ("cpp",):
        document["backends"] = list(target.backends)
    if target.levels:
        document["levels"] = [{"name": level.name, "read": peak(level.read), "latency": peak(level.latency)}
                              for level in target.levels]
    if target.gpu:
        document["gpu"] = gpu_as_toml(target.gpu)
    return document
