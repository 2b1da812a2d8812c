"""Names that nobody knows, told with those that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kforge.core.errors import KforgeError

_MOST = 3


def near(name: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)`` with the names that are spelled nearly so or hold it; "" where there is none."""
    names = list(known)
    found = difflib.get_close_matches(name, names, _MOST)
    found += [one for one in names if name and name in one and one not in found]
    return f" (did you mean {' or '.join(found[:_MOST])}?)" if found else ""


def require_operator(name: str, also: Iterable[str] = ()) -> None:
    """Raises KforgeError for what is neither an operator, built in or imported, nor one of ``also``."""
    from kforge.operators import imported_names, names

    known = list(dict.fromkeys((*names(), *imported_names(), *also)))
    if name not in known:
        raise KforgeError(f"there is no operator {name!r}{near(name, known)}; there are {', '.join(known)}")
