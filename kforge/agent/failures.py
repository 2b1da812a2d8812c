"""What may be told of a failure: enough to mend the kernel, nothing of the shapes and seeds that checks use."""

from __future__ import annotations

import re

from kforge.core.trial import Failure, FailureClass

_MOST_OUTPUT = 6_000  # characters of the source at fault and of a compiler's output
_MISMATCH = re.compile(
    r"^(?P<tensor>\w+)\[(?P<index>[\d, ]+)\] is (?P<value>\S+), expected (?P<expected>\S+)(?P<allowed> to the bit| "
    r"within \S+) \((?P<wrong>\d+) of (?P<all>\d+) elements are wrong\)")
_UNWRITTEN = re.compile(r"^(?P<tensor>\w+)\[(?P<index>[\d, ]+)\] was not written \((?P<wrong>\d+) of (?P<all>\d+) ")
_PARTS = ((0.01, "under 1 %"), (0.1, "under 10 %"), (0.5, "under half"), (1.0, "most"))
_OF_THE_SOURCE = (FailureClass.TEMPLATE, FailureClass.COMPILE, FailureClass.COMPILE_LIMIT)  # nothing has run


def told(failure: Failure) -> str:
    """The failure in words fit for a model: its reason; the lines at fault; the first element that was wrong.

    Only what is known to be harmless is let through. An element's first index counts rows, of which only is said
    whether it is the first one: how many there were would tell the shape.
    """
    if failure.kind in _OF_THE_SOURCE:
        return "\n".join(filter(None, [failure.reason, failure.detail[:_MOST_OUTPUT].strip()]))
    if found := _MISMATCH.match(failure.detail):
        return (f"{failure.reason}. First wrong element: {_place(found)} is {found['value']}, expected "
                f"{found['expected']}{found['allowed']}; {_part(found)} of the elements are wrong")
    if found := _UNWRITTEN.match(failure.detail):
        return f"{failure.reason}. The first of them: {_place(found)}; {_part(found)} of the elements"
    return failure.reason


def _place(found: re.Match[str]) -> str:
    row, *inner = found["index"].replace(" ", "").split(",")
    return f"{found['tensor']}[{', '.join(['0' if row == '0' else 'a later row', *inner])}]"


def _part(found: re.Match[str]) -> str:
    part = int(found["wrong"]) / int(found["all"])
    return next((text for limit, text in _PARTS if part < limit), "all")
