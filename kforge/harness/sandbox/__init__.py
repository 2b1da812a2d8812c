"""Locking down a child process: for the compiler here, and as C++ primitives for the harness's runner."""

from kforge.harness.sandbox.launch import Limits, Outcome, run

__all__ = ["Limits", "Outcome", "run"]
