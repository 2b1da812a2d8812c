"""Which kernel serves which problem: the engine's view of templates and registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kforge.backends.building import admit, build
from kforge.backends.defaults import default_kernel, fits_template
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.kernel import KernelState, Tier
from kforge.core.target import Target
from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Problem

if TYPE_CHECKING:
    from kforge.registry.snapshot import Snapshot
    from kforge.registry.store import Store

OWN = ("builtin", "default")  # proposers that only fill in the shipped templates' parameters


@dataclass(frozen=True)
class ChosenKernel:
    """An admitted kernel and where it came from."""

    image: Loadable
    candidate_hash: str
    template: str
    numerics: NumericsClass
    tier: Tier


class KernelSet(Protocol):
    """Chooses kernels; the same question gets the same answer for as long as the set lives."""

    name: str
    target: Target

    @property
    def from_elsewhere(self) -> bool:
        """Whether any kernel that it may choose was not made from kforge's own templates by kforge's own rules."""

    def rows(self, weight: Problem) -> int:
        """Panel height of a packed weight; ``weight`` is its problem without ``rows``."""

    def choose(self, problem: Problem, dynamic: Mapping[str, int]) -> ChosenKernel:
        """The kernel for these axes. ``KforgeError`` naming the problem when there is none."""


class DefaultKernels:
    """Shipped templates at their defaults (``kforge.backends.defaults``).

    Builds are cached on disk by hash; every artifact is admitted again when it is loaded. ``beside``: kernels of the
    processor that serve on the same memory what there is no template for in the target's own language.
    """

    name = "default"
    from_elsewhere = False

    def __init__(self, target: Target, beside: KernelSet | None = None) -> None:
        self.target = target
        self._beside = beside
        self._chosen: dict[Problem, ChosenKernel] = {}

    def rows(self, weight: Problem) -> int:
        return DEFAULT_ROWS

    def choose(self, problem: Problem, dynamic: Mapping[str, int]) -> ChosenKernel:
        if problem not in self._chosen:
            self._chosen[problem] = self._make(problem)
        return self._chosen[problem]

    def _make(self, problem: Problem) -> ChosenKernel:
        if self._beside is not None and not fits_template(problem, self.target):
            return self._beside.choose(problem, {})
        candidate = default_kernel(problem, self.target)
        artifact = build(candidate, self.target)
        if isinstance(artifact, Failure):
            raise KforgeError(f"The default kernel of {problem.key} built once, but not again: {artifact.reason}.")
        image = _admit(candidate.backend, artifact.data, candidate.hash, self.target)
        return ChosenKernel(image, candidate.hash, candidate.template, candidate.numerics, Tier.DEFAULT)


class TunedKernels:
    """What the registry serves on this target; the default where it has nothing, or nothing exact."""

    name = "tuned"

    def __init__(self, snapshot: Snapshot, store: Store, default: KernelSet) -> None:
        from kforge.registry.ask import asker

        self.target = default.target
        self._snapshot, self._store, self._default = snapshot, store, default
        self._asker = asker(default.target)
        self._images: dict[str, Loadable] = {}
        exact = NumericsClass.EXACT  # the others, of imported operators, are never chosen here
        served = (k for k in snapshot.kernels if k.state is KernelState.PROMOTED and k.numerics is exact)
        self.from_elsewhere = any(k.proposer not in OWN for k in served)

    def rows(self, weight: Problem) -> int:
        return self._snapshot.rows(weight, self.target.identity)

    def choose(self, problem: Problem, dynamic: Mapping[str, int]) -> ChosenKernel:
        from kforge.operators import get
        from kforge.registry.lookup import lookup

        answer = lookup(self._snapshot, problem, dynamic, self._asker, get(problem.operator).bucket)
        kernel = answer.kernel
        if kernel is None or kernel.numerics is not NumericsClass.EXACT:
            return self._default.choose(problem, dynamic)
        if kernel.artifact_hash not in self._images:
            data = self._store.get(kernel.artifact_hash)
            image = _admit(kernel.backend, data, kernel.candidate_hash, self.target)
            self._images[kernel.artifact_hash] = image
        image = self._images[kernel.artifact_hash]
        return ChosenKernel(image, kernel.candidate_hash, kernel.template, kernel.numerics, answer.tier)


class Overlay:
    """A set in which some problems are another set's: what a step takes without one kernel, or without one layout.

    ``instead`` replaces by a problem's key and keeps the layout. ``relaid`` replaces by the key of a problem without
    its layout, and takes the other set's layout with its kernels.
    """

    def __init__(
        self,
        base: KernelSet,
        instead: Mapping[str, KernelSet],
        name: str = "overlay",
        relaid: Mapping[str, KernelSet] | None = None,
    ) -> None:
        self.name = name
        self.target = base.target
        self._base, self._instead, self._relaid = base, dict(instead), dict(relaid or {})
        # Of the base even where it is all replaced: what is compared must differ in nothing but the kernels.
        self.from_elsewhere = any(s.from_elsewhere for s in (base, *self._instead.values(), *self._relaid.values()))

    def rows(self, weight: Problem) -> int:
        return self._relaid.get(weight.key, self._base).rows(weight)

    def choose(self, problem: Problem, dynamic: Mapping[str, int]) -> ChosenKernel:
        base = self._relaid.get(problem.without_layout.key, self._base)
        return self._instead.get(problem.key, base).choose(problem, dynamic)


def default_kernels(target: Target) -> DefaultKernels:
    """Of a target; where that is a device beside this machine's processor, with the processor's for the rest."""
    from kforge.targets.files import load_target

    return DefaultKernels(target, None if target.backends[0] == "cpp" else DefaultKernels(load_target("host")))


def named(name: str, target: Target | None = None) -> KernelSet:
    """The set called "default" or "tuned" on this machine (or ``target``)."""
    from kforge.targets.files import load_target

    default = default_kernels(target or load_target("host"))
    if name == "default":
        return default
    if name == "tuned":
        from kforge.core.paths import store_path
        from kforge.registry.ask import open_snapshot
        from kforge.registry.store import Store

        return TunedKernels(open_snapshot(), Store(store_path()), default)
    raise KforgeError(f"Unknown kernels '{name}': use none, default or tuned.")


def _admit(backend: str, data: bytes, name: str, target: Target) -> Loadable:
    image = admit(backend, data, target)
    if isinstance(image, Failure):
        raise KforgeError(f"Kernel {name} is refused: {image.reason}. Run: kforge kernels verify.")
    return image
