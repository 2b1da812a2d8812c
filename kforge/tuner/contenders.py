"""Who meets in ``kforge try``: a file as a candidate, and the kernel that it is held against."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kforge.backends import templates
from kforge.backends.defaults import default_kernel
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, Tier
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Attr, Problem, Workload, attrs, stable_hash
from kforge.operators.axes import workload_of as axes_workload
from kforge.registry.ask import ask
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store

HAND = "hand"  # the proposer of kernels that people write
_SOURCES = (".cc", ".cpp", ".cxx")
_PARTS = "cpp/common"  # what templates may include


@dataclass(frozen=True)
class Incumbent:
    """``kernel`` is None for the shipped default; ``label`` tells a person which it is."""

    candidate: Candidate
    kernel: KernelRecord | None
    label: str


def workload_of(operator: str, axes: Mapping[str, Attr], snapshot: Snapshot, target: Target) -> Workload:
    """The workload of named axes. A missing ``rows`` is the layout chosen on this target, else the default.

    Raises KforgeError, naming the axis, for what is missing, unknown or impossible.
    """
    return axes_workload(operator, axes, lambda weight: snapshot.rows(weight, target.identity))


def from_file(
    file: Path, problem: Problem, target: Target, params: Mapping[str, Attr], numerics: NumericsClass
) -> Candidate:
    """A hand-written C++ source, or a template with a header (``.j2``; its own numerics count), as a candidate."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise KforgeError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KforgeError(f"{file} is not UTF-8 text") from None
    if file.suffix == ".j2":
        return _from_template(file, text, problem, target, params)
    if file.suffix not in _SOURCES:
        raise KforgeError(f"{file}: a kernel is C++ ({', '.join(_SOURCES)}) or a template (.j2)")
    if set(params) - {"compiler"}:
        raise KforgeError(f"--params: {file.name} is plain C++ and has none but compiler (gcc or clang)")
    # As in templates, the compiler is part of the source's identity; at the end, so that line numbers stay the file's.
    source = f"{text.rstrip()}\n// compiler {params['compiler']}\n" if params else text
    return Candidate(
        problem,
        "cpp",
        f"file:{file.name}",
        stable_hash(text),
        attrs(params),
        source,
        numerics,
        templates.layouts(problem),
        HAND,
    )


def _from_template(file: Path, text: str, problem: Problem, target: Target, params: Mapping[str, Attr]) -> Candidate:
    with tempfile.TemporaryDirectory(prefix="kforge-try-") as folder:
        place = Path(folder) / "cpp" / problem.operator
        place.mkdir(parents=True)
        name = file.name if file.name.count(".") >= 2 else f"{file.stem}.cc.j2"
        (place / name).write_text(text, encoding="utf-8")
        shutil.copytree(shipped("templates") / "kernels" / _PARTS, Path(folder) / _PARTS)
        template = templates.load(problem.operator, Path(folder))[0]
        if reason := template.applies(problem, target):
            raise KforgeError(f"{file.name} does not fit {problem.key}: {reason}")
        chosen = {**template.defaults(problem, target), **params}
        rendered = template.render(problem, target, chosen, proposer=HAND)
    return dataclasses.replace(rendered, template=f"file:{file.name}")


def incumbent(which: str, workload: Workload, snapshot: Snapshot, store: Store, target: Target) -> Incumbent:
    """``which``: "default", "tuned" (what serves these axes now), or the beginning of a registry kernel's hash."""
    problem = workload.problem
    if which == "default":
        candidate = default_kernel(problem, target)
        return Incumbent(candidate, None, f"the default ({candidate.template})")
    if which == "tuned":
        answer = ask(snapshot, problem.operator, {**dict(problem.static), **workload.axes}, target)
        if answer.kernel is None:
            candidate = default_kernel(problem, target)
            return Incumbent(candidate, None, f"the default, nothing tuned serves here ({candidate.template})")
        how = "" if answer.tier is Tier.EXACT else f", {answer.tier} of {answer.kernel.bucket_key}"
        return Incumbent(_of(answer.kernel, store), answer.kernel, f"tuned kernel {answer.kernel.candidate_hash}{how}")
    found = [k for k in snapshot.kernels if len(which) >= 4 and k.candidate_hash.startswith(which)]
    if not found:
        raise KforgeError(f"--against {which!r} is not default, tuned or a kernel's hash; see: kforge kernels list")
    fitting = [k for k in found if k.problem == problem]
    if not fitting:
        raise KforgeError(f"kernel {found[0].candidate_hash} is for {found[0].problem.key}, not {problem.key}")
    if len({k.candidate_hash for k in fitting}) > 1:
        raise KforgeError(f"--against {which!r} names several kernels; give more of the hash")
    return Incumbent(_of(fitting[-1], store), fitting[-1], f"kernel {fitting[-1].candidate_hash}")


def _of(kernel: KernelRecord, store: Store) -> Candidate:
    """The candidate that a registry kernel was."""
    source = store.get(kernel.source_hash).decode()
    return Candidate(
        kernel.problem,
        kernel.backend,
        kernel.template,
        kernel.template_hash,
        kernel.params,
        source,
        kernel.numerics,
        kernel.layouts,
        kernel.proposer,
    )
