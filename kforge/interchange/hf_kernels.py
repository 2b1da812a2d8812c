"""Kernels as a build folder of Hugging Face's ``kernels``, which its loader imports without kforge.

    build/torch-stable-abi<major><minor>-cpu-<arch>-linux/
        __init__.py  metadata.json       what the loader reads: its name, and a digest of every other file
        calling.py indices.py standalone.py tensors.py       the files of ``kforge.torch`` that import nothing of kforge
        libkforge.so  *.kernel  kernels.json       the executor, the kernels' images, and how each is called
    source/       the kernels' C++, as it was built
    kernels.lock       where the commit of the repository is known

The layout is that of ``kernels`` 0.17 (``variants.py``, ``resolver.py``, ``importer.py``). Nothing is linked with
torch, so the variant is the one whose compatibility is "this torch or a newer one". What goes out are the bytes that
were judged, admitted again; a kernel that somebody else than kforge proposed stays here, because a package's kernels
run in their user's process.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kforge.backends.cpp import admission
from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.backends.features import KNOWN
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.core.workload import Problem, stable_hash
from kforge.engine.kernel_set import OWN
from kforge.interchange.folders import require_new, write
from kforge.native.build import build_library, executor_sources, source_dir
from kforge.operators import get, names
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store
from kforge.torch.signature import described

MINIMUM = "0.17.0"  # of the package ``kernels``: the first whose loader is known to read this layout
LICENSE = "Apache-2.0"  # of kforge's templates and executor
_SHIPPED = ("calling.py", "indices.py", "standalone.py", "tensors.py")
_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")  # of a kernel, as ``kernels`` has it
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Lock:
    """The commit at which a repository of the Hub has a package; the Hub says it when the package was uploaded."""

    repository: str
    commit: str

    def text(self, version: int) -> str:
        """``kernels.lock``. Raises KforgeError for what the loader would not take."""
        if not _REPOSITORY.fullmatch(self.repository):
            raise KforgeError(f"{self.repository!r} is no repository of the Hub, such as organisation/name")
        if not _COMMIT.fullmatch(self.commit):
            raise KforgeError(f"{self.commit!r} is no full commit id: 40 or 64 lower-case hexadecimal digits")
        dependency = {"repo-id": self.repository, "version": version}
        return json.dumps([{"dependency": dependency, "lock": {"commit": self.commit}}], indent=2) + "\n"


@dataclass(frozen=True)
class Package:
    """``left_out``: kernels that stayed here, in sentences."""

    variant: str
    functions: tuple[str, ...]
    kernels: int
    left_out: tuple[str, ...]


def problems(wanted: Iterable[str], snapshot: Snapshot, target: Target) -> list[Problem]:
    """``wanted``: names of operators, which stand for all problems that have a promoted kernel here, or problems' keys.

    Raises KforgeError for what is neither, and for an operator of which nothing is promoted.
    """
    found: dict[Problem, None] = {}
    for text in wanted:
        if "(" in text:
            found[_problem(text, snapshot, target)] = None
            continue
        if text not in names():
            raise KforgeError(f"there is no operator {text!r}; there are {', '.join(names())}")
        mine = [k.problem for k in _promoted(snapshot, target) if k.problem.operator == text]
        if not mine:
            raise KforgeError(f"no kernel of {text!r} is promoted on {target.name}; name a problem, such as "
                              "'silu_mul(I=1536)', to export the default kernel for it")
        found |= dict.fromkeys(mine)
    return list(found)


def export(
    folder: Path, wanted: Sequence[Problem], name: str, version: int, target: Target, snapshot: Snapshot, store: Store,
    lock: Lock | None = None,
) -> Package:
    """Writes ``folder``, which must not exist or be empty. Raises KforgeError."""
    if not _NAME.fullmatch(name):
        raise KforgeError(f"--name {name!r}: a kernel's name is lower-case letters, digits and dashes")
    require_new(folder)
    locked = lock.text(version).encode() if lock else None
    made = _Package(target, snapshot, store)
    functions = [made.function(problem) for problem in wanted]
    namespace = f"{name.replace('-', '_')}_{stable_hash([functions, version], 8)}"
    inside = {Path(file): data for file, data in made.files.items()}
    inside |= {Path(file): (_shipped() / file).read_bytes() for file in _SHIPPED}
    inside[Path("libkforge.so")] = _executor()
    said = {"arch": target.arch, "features": sorted(KNOWN & set(target.features)), "functions": functions}
    inside[Path("kernels.json")] = (json.dumps(said, indent=1) + "\n").encode()
    inside[Path("__init__.py")] = _init(namespace, functions).encode()
    inside[Path("metadata.json")] = _metadata(name, namespace, version, inside).encode()
    variant = _variant()
    files = {Path("build") / variant / file: data for file, data in inside.items()}
    files |= {Path("source") / file: text.encode() for file, text in made.sources.items()}
    files[Path("README.md")] = _readme(name, version, target, functions).encode()
    if locked is not None:
        files[Path("kernels.lock")] = locked
    write(folder, files)
    return Package(variant, tuple(f["name"] for f in functions), len(made.files), tuple(made.left_out))


@dataclass
class _Package:
    """``files``: images by name; ``sources``: C++ by name."""

    target: Target
    snapshot: Snapshot
    store: Store
    files: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def function(self, problem: Problem) -> dict[str, Any]:
        """A problem as ``kernels.json`` has it, its kernels and the default with it."""
        kernels = []
        for kernel in _promoted(self.snapshot, self.target):
            if kernel.problem != problem:
                continue
            if kernel.proposer not in OWN:
                self.left_out.append(f"kernel {kernel.id} at {kernel.bucket_key}: {kernel.proposer} proposed it, and a "
                                     "package's kernels run in its user's process")
                continue
            source = self.store.get(kernel.source_hash).decode()
            file = self._add(kernel.candidate_hash, self.store.get(kernel.artifact_hash), source)
            kernels.append({"bucket": dict(kernel.bucket), "gain": round(kernel.gain, 4), **file,
                            "template": kernel.template, "compiler": kernel.compiler})
        candidate = default_kernel(problem, self.target)
        artifact = build(candidate, self.target)
        if isinstance(artifact, Failure):
            raise KforgeError(f"the default kernel of {problem.key} built once, but not again: {artifact.reason}")
        default = {**self._add(candidate.hash, artifact.data, candidate.source), "template": candidate.template}
        return {**described(problem, _identifier(problem)), "problem": problem.key, "kernels": kernels,
                "default": default}

    def _add(self, candidate: str, artifact: bytes, source: str) -> dict[str, str]:
        image = admission.admit(artifact)
        if not isinstance(image, Image):
            raise KforgeError(f"kernel {candidate} is refused: {image.reason}; run: kforge kernels verify")
        name = f"{candidate}.kernel"
        self.files[name] = image.blob()
        self.sources[f"{candidate}.cc"] = source
        return {"file": name, "candidate": candidate}


def _promoted(snapshot: Snapshot, target: Target) -> list[KernelRecord]:
    """On this very target, of operators as they are now."""
    return [
        k for k in snapshot.kernels
        if k.state is KernelState.PROMOTED and k.backend == "cpp" and k.target_identity == target.identity
        and get(k.problem.operator).version == k.operator_version
    ]


def _problem(key: str, snapshot: Snapshot, target: Target) -> Problem:
    from kforge.operators.axes import USUAL, workload_of

    problem = Problem.parse(key)
    given = {**USUAL.get(problem.operator, {}), **dict(problem.static)}
    try:
        dynamic = dict.fromkeys(get(problem.operator).dynamic_axes, 1)
    except KeyError as error:
        raise KforgeError(f"{key!r}: {error.args[0]}") from None
    return workload_of(problem.operator, {**given, **dynamic}, lambda w: snapshot.rows(w, target.identity)).problem


def _identifier(problem: Problem) -> str:
    parts = [problem.operator, *(f"{k}{v}" for k, v in problem.static)]
    return re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)


def _variant() -> str:
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return f"torch-stable-abi{major}{minor}-cpu-{platform.machine()}-linux"


def _shipped() -> Path:
    return Path(__file__).resolve().parents[1] / "torch"


def _executor() -> bytes:
    """For machines whose C++ library is another: it has its own within."""
    static = ("-static-libstdc++", "-static-libgcc")
    return build_library("kforge_standalone", [*executor_sources(), source_dir() / "capi.cc"], static).read_bytes()


def _init(namespace: str, functions: Sequence[Mapping[str, Any]]) -> str:
    names = [str(f["name"]) for f in functions]
    bound = "\n".join(f'{name} = _functions["{name}"]' for name in names)
    return (
        '"""Kernels that kforge made for one kind of processor. README.md says what each takes."""\n\n'
        "from pathlib import Path\n\n"
        "from .standalone import functions\n\n"
        f'_functions = functions(Path(__file__).resolve().parent, "{namespace}")\n'
        f"{bound}\n\n__all__ = {names!r}\n"
    )


def _metadata(name: str, namespace: str, version: int, files: Mapping[Path, bytes]) -> str:
    """With the digest that ``kernels verify`` would make: of every file but this one, by path."""
    digests = {
        file.as_posix(): base64.b64encode(hashlib.sha256(data).digest()).decode() for file, data in files.items()
    }
    said = {
        "name": name,
        "id": f"_{namespace}",
        "version": version,
        "license": LICENSE,
        "python-depends": [],
        "kernels-minver": MINIMUM,
        "backend": {"type": "cpu"},
        "digest": {"algorithm": "sha256", "files": dict(sorted(digests.items()))},
    }
    return json.dumps(said, indent=2) + "\n"


def _readme(name: str, version: int, target: Target, functions: Sequence[Mapping[str, Any]]) -> str:
    head = f"---\nlicense: {LICENSE.lower()}\ntags:\n- kernels\n---\n\n# {name}\n\nVersion {version}, made by kforge."
    told = [
        f"Kernels for {target.arch} processors with {', '.join(sorted(KNOWN & set(target.features)))}. On another one "
        "the import fails and says what is missing. They need torch and numpy, and nothing of kforge.",
        "Tensors are those of the CPU, and index tensors are checked before a kernel reads them. As many threads work "
        "as torch uses. There are no gradients. A weight of uint8 is packed in a layout of kforge's: its "
        "`kforge.torch.op(...).pack` makes it.",
    ]
    for one in functions:
        at = ", ".join(" ".join(f"{a}={n}" for a, n in k["bucket"].items()) for k in one["kernels"])
        tuned = f"tuned at {at}; the default kernel elsewhere" if at else "the default kernel"
        told.append(f"## `{one['name']}`\n\n`{one['problem']}`: {tuned}.\n\n    {one['name']}{one['schema']}")
    return "\n\n".join([head, *told]) + "\n"
