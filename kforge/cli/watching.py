"""A run on the terminal: what is tried, the best so far against the limit, the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kforge.core.words import counted

if TYPE_CHECKING:
    from kforge.tuner.progress import Progress as News
    from kforge.tuner.progress import Watcher

_PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal


class _Terminal:
    def __init__(self, console: Console):
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}"),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=1.0, news="")
        self._said = 0.0

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self._console.print(text)

    def trial(self, news: News) -> None:
        line = told(news)
        self._bar.update(self._task, completed=news.used_seconds, total=news.budget_seconds, news=line)
        if not self._console.is_terminal and time.monotonic() - self._said > _PLAIN_EVERY:
            self._said = time.monotonic()
            left = max(news.budget_seconds - news.used_seconds, 0)
            self._console.print(f"{counted(news.trials, 'trial')}, {left:.0f} s left: {line}", soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def told(news: News) -> str:
    """One trial in one line."""
    if news.failure:
        outcome = news.failure
    elif news.checked:
        outcome = f"right, checked by {news.checked}, not timed"
    elif news.seconds is None:
        outcome = "cut early"
    else:
        outcome = f"{1e6 * news.seconds:.1f} us"
    best = f", best {1e6 * news.best:.1f} us" if news.best else ""
    share = f" ({100 * news.limit / news.best:.0f} % of the limit{_doubt(news)})" if news.best and news.limit else ""
    return f"{news.task} {news.bucket}: {outcome}{best}{share}"


def _doubt(news: News) -> str:
    return "" if news.best >= news.limit else ", which was measured too low: kforge target probe"


@contextmanager
def watcher(quiet: bool) -> Iterator[Watcher]:
    """A watcher on standard error while the block runs; silent when ``quiet``."""
    from kforge.tuner.progress import Silent

    if quiet:
        yield Silent()
        return
    terminal = _Terminal(Console(stderr=True))
    if terminal._console.is_terminal:
        with terminal._bar:
            yield terminal
    else:
        yield terminal
