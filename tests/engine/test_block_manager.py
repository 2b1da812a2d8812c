"""Pages are held by whoever's table lists them, and by nobody else."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kforge.engine.block_manager import BlockManager

PAGES, PAGE_TOKENS = 12, 4


class PoolMachine(RuleBasedStateMachine):
    """Random extend, share and release, against the plain statement of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(PAGES, PAGE_TOKENS)
        self.tables: list[list[int]] = []
        self.tokens: list[int] = []

    @rule(tokens=st.integers(1, 20))
    def start(self, tokens: int) -> None:
        table: list[int] = []
        if self.manager.extend(table, tokens):
            self.tables.append(table)
            self.tokens.append(tokens)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99), more=st.integers(0, 12))
    def extend(self, which: int, more: int) -> None:
        at = which % len(self.tables)
        before, free = list(self.tables[at]), self.manager.free_pages
        wanted = self.manager.pages_for(self.tokens[at] + more) - len(before)
        grown = self.manager.extend(self.tables[at], self.tokens[at] + more)
        assert grown == (wanted <= free)
        assert self.tables[at][: len(before)] == before, "a block table is append-only"
        if grown:
            self.tokens[at] += more
        else:
            assert self.tables[at] == before, "a failed extension takes nothing"

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99), tokens=st.integers(0, 20))
    def share(self, which: int, tokens: int) -> None:
        at = which % len(self.tables)
        shared = self.manager.share(self.tables[at], min(tokens, self.tokens[at]))
        assert len(shared) == min(tokens, self.tokens[at]) // PAGE_TOKENS, "only full pages are shared"
        self.tables.append(shared)
        self.tokens.append(len(shared) * PAGE_TOKENS)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        at = which % len(self.tables)
        table = self.tables.pop(at)
        self.tokens.pop(at)
        self.manager.release(table)
        assert table == []

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        self.manager.check_integrity(self.tables)
        for table in self.tables:
            assert len(set(table)) == len(table)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
