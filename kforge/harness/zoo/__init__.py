"""The cheat zoo: wrong and hostile candidates that a gate must stop, and unusual honest ones that must pass."""

from kforge.harness.zoo.keeper import Keeper, Sighting
from kforge.harness.zoo.specimens import Kind, Specimen, find

__all__ = ["Keeper", "Kind", "Sighting", "Specimen", "find"]
