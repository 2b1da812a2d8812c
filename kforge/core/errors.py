"""Errors for the person who has to act."""

from __future__ import annotations


class KforgeError(Exception):
    """Bad input or a broken environment: one sentence that names the thing and what to do. The CLI exits with 2."""

    exit_code = 2
