"""Templates made of graphs: kernels for operators that nobody wrote one for."""

from __future__ import annotations

from kforge.backends.generic.texts import TemplateText, templates_for

__all__ = ["TemplateText", "templates_for"]
