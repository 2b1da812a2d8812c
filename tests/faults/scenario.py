"""What one seed stands for: a command, a fault, and the moment at which they meet."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """The command that the fault meets."""

    TUNE = "tune"  # from nothing to the end
    RESUME = "resume"  # of a run whose journal ends somewhere
    PROMOTE = "promote"  # a tune with nothing to search: a kernel that was handed in meets the engine
    SUBMIT = "submit"  # kforge try --submit: measured, judged, stored
    LOOKUP = "lookup"
    GC = "gc"
    VERIFY = "verify"


class Fault(StrEnum):
    KILL = "kill -9"
    STOP = "stop"
    DISK = "full disk"
    DATABASE = "database denied"
    ARTIFACT = "artifact damaged"
    JOURNAL = "journal cut"
    CLOCK = "clock back"


class When(StrEnum):
    """How the moment is found, as a share of what the undisturbed command does."""

    TOUCH = "touch"  # a file opened for writing, renamed, removed, flushed, a commit, a process started
    TIME = "time"
    LINE = "line"  # of the run's journal


class Variant(StrEnum):
    """What exactly happens, where a fault has several forms."""

    MAIN = "the process"
    TREE = "the process and all below it"
    CHILD = "one process below it"
    HOME = "home"
    CACHE = "cache"
    TEMPORARY = "temporary files"
    RUNS = "runs"
    LOCKED = "locked for a while"
    HELD = "locked until the command gives up"
    AWAY = "moved away until the command has ended"
    FLIPPED = "a bit flipped"
    SHORTER = "cut short"
    REMOVED = "removed"
    RUN_JOURNAL = "the run's"
    STUDY = "the study's"
    BOTH = "both"
    WHILE = "from that moment on"
    ALWAYS = "from that moment on, and when it is done again"


VARIANTS: dict[Fault, tuple[Variant, ...]] = {
    Fault.KILL: (Variant.MAIN, Variant.MAIN, Variant.TREE, Variant.CHILD),
    Fault.STOP: (Variant.MAIN, Variant.TREE, Variant.CHILD),
    Fault.DISK: (Variant.HOME, Variant.CACHE, Variant.TEMPORARY, Variant.RUNS),
    Fault.DATABASE: (*(Variant.LOCKED,) * 4, *(Variant.AWAY,) * 3, Variant.HELD),
    Fault.ARTIFACT: (Variant.FLIPPED, Variant.SHORTER, Variant.REMOVED),
    Fault.JOURNAL: (Variant.RUN_JOURNAL, Variant.STUDY, Variant.BOTH),
    Fault.CLOCK: (Variant.WHILE, Variant.ALWAYS),
}
RUNS = (Action.TUNE, Action.RESUME, Action.PROMOTE)  # what has a journal
_ACTIONS = {
    Action.TUNE: 3,
    Action.RESUME: 3,
    Action.PROMOTE: 3,
    Action.SUBMIT: 1,
    Action.LOOKUP: 2,
    Action.GC: 3,
    Action.VERIFY: 2,
}


@dataclass(frozen=True)
class Scenario:
    """``at`` is the share of the undisturbed command after which the fault comes, ``amount`` how much of it: of a file
    that stays, of the longest pause, of the bytes left on a disk. ``killed``: a stopped or cut process does not go on.
    ``cold``: nothing is built yet."""

    seed: int
    action: Action
    fault: Fault
    variant: Variant
    when: When
    at: float
    amount: float
    killed: bool
    cold: bool

    @classmethod
    def of(cls, seed: int) -> Scenario:
        rng = random.Random(f"kforge faults {seed}")
        fault = list(Fault)[seed % len(Fault)]
        actions = RUNS if fault is Fault.JOURNAL else tuple(_ACTIONS)
        action = rng.choices(actions, [_ACTIONS[a] for a in actions])[0]
        turn = seed // len(Fault)
        if turn < len(actions):  # each fault meets each command once before chance decides
            action = actions[(turn + seed) % len(actions)]
        whens = tuple(When) if action in RUNS else (When.TOUCH, When.TIME)
        if fault is Fault.JOURNAL:
            whens = (When.LINE,)  # before there is a line, there is nothing to cut
        return cls(
            seed,
            action,
            fault,
            rng.choice(VARIANTS[fault]),
            rng.choice(whens),
            rng.random(),
            rng.random(),
            killed=rng.random() < 0.5,
            cold=action in RUNS and rng.random() < 0.2,
        )

    def __str__(self) -> str:
        end = ", then killed" if self.killed and self.fault in (Fault.STOP, Fault.JOURNAL) else ""
        cold = ", nothing built yet" if self.cold else ""
        return (
            f"seed {self.seed}: {self.action}, {self.fault} ({self.variant}{end}) at {self.at:.3f} by {self.when}, "
            f"amount {self.amount:.3f}{cold}"
        )
