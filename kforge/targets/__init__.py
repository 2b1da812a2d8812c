"""Targets: reading and probing hardware, target files, and the limits that they set. Needs neither numpy nor torch."""

from __future__ import annotations

from kforge.targets.files import host, list_targets, load_target, save_target, target_of_device
from kforge.targets.roofline import Limit, time_limit

__all__ = ["Limit", "host", "list_targets", "load_target", "save_target", "target_of_device", "time_limit"]
