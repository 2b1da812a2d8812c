"""Source to artifact and artifact to what a runner loads, in whatever language a candidate is written."""

from __future__ import annotations

from kforge.backends.verbs import of
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure


def build(candidate: Candidate, target: Target) -> Artifact | Failure:
    """The artifact of a candidate, from the cache when the same was built before; see ``verbs.Backend.build``."""
    return of(candidate.backend).build(candidate, target)


def admit(backend: str, data: bytes, target: Target) -> Loadable | Failure:
    """What a runner on this machine loads of an artifact's bytes, or why not; see ``verbs.Backend.admit``."""
    return of(backend).admit(data, target)


def launches(backend: str, data: bytes) -> tuple[Launch, ...]:
    """How an artifact is launched, by its own bytes; none in languages that have no grid."""
    return of(backend).launches(data)
