"""The figures of many seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.faults.play import Played
from tests.faults.scenario import Action, Fault


def told(played: Sequence[Played]) -> str:
    """A Markdown table, command by fault: runs in which the fault came / recovered, and violations if there are any."""
    cells: dict[tuple[str, str], list[Played]] = defaultdict(list)
    for one in played:
        for key in ((one.action, one.fault), (one.action, ""), ("", one.fault), ("", "")):
            cells[key].append(one)
    actions, faults = [*(a.value for a in Action), ""], [*(f.value for f in Fault), ""]
    rows = [["hit / recovered", *(f or "all" for f in faults)]]
    rows += [[action or "all", *(_cell(cells[action, fault]) for fault in faults)] for action in actions]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    whole = cells["", ""]
    hit, bad = sum(p.hit for p in whole), [p for p in whole if p.violations]
    lines.append(
        f"\n{len(whole)} runs; in {hit} the fault came while the command ran; {len(whole) - len(bad)} recovered, "
        f"{len(bad)} did not; {sum(p.seconds for p in whole):.0f} s in all"
    )
    return "\n".join(lines)


def _cell(played: Sequence[Played]) -> str:
    if not played:
        return ""
    bad = sum(bool(p.violations) for p in played)
    return f"{sum(p.hit for p in played)} / {len(played) - bad}{f' ({bad} bad)' if bad else ''}"
