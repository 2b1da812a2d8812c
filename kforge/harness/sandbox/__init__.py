"""Confining a child process whose input is not trusted, such as a compiler reading a candidate's source."""

from kforge.harness.sandbox.launch import Facts, Limits, Outcome, describe, run
from kforge.harness.sandbox.served import Served

__all__ = ["Facts", "Limits", "Outcome", "Served", "describe", "run"]
