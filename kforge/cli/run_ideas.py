"""The ideas of a run's models in a terminal: money, predictions, and the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.tree import Tree

    from kforge.agent.report.facts import AgentReport, IdeaReport

_TONES = {"good": "green", "bad": "red", "open": "yellow"}
_MOST_WHY = 160  # characters of why an idea stands where it stands; the report has all


def idea_lines(report: AgentReport) -> list[str]:
    """What was spent and what it bought, and how good the predictions were."""
    from kforge.agent.report import words

    paid = [f"  {words.paid(payment)}" for payment in report.money.payments]
    first, *rest = words.money(report)
    return [first, *paid, *rest, *([words.predictions(report)] if report.ideas else [])]


def idea_trees(report: AgentReport) -> list[Tree]:
    """One for each problem: templates, the ideas that began at them, and theirs."""
    from rich.text import Text
    from rich.tree import Tree

    from kforge.agent.report.gathering import name_of
    from kforge.core.words import plain
    from kforge.tuner.report_names import short_problem

    trees = []
    for task in report.tasks:
        tree = Tree(Text(short_problem(task.key)))
        for branch in task.branches:
            below = tree.add(Text(plain(name_of(branch.template))))
            for idea in branch.ideas:
                _grow(below, idea)
        trees.append(tree)
    return trees


def _grow(tree: Tree, idea: IdeaReport) -> None:
    from rich.text import Text

    from kforge.agent.report import words

    head = Text.assemble(f"{idea.idea.id} {words.title(idea)}: ", (idea.state.value, _TONES[words.tone(idea.state)]),
                         "".join(f", {fact}" for fact in words.facts_of(idea)),
                         f"\n{words.line(idea.why, _MOST_WHY)}")
    below = tree.add(head)
    for child in idea.ideas:
        _grow(below, child)
