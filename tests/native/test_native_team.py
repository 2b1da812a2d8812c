"""Team and barrier: right with as many threads as cores and with more, and tidy afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from native_kernels import ROUNDS, image_of

from kforge.core.errors import KforgeError
from kforge.native import Arena, Kernel, Program, Team


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_barriers_keep_rounds_apart(threads):
    kernel = Kernel(image_of(ROUNDS))
    errors = Arena(4096).take(threads, np.int32)
    with Team(threads) as team, Program(team) as program:
        for _ in range(3):
            program.add(kernel, [errors], np.array([300, 0], np.int64), np.zeros(0), "rounds")
        for _ in range(5):
            program.run()
        assert program.calls == (5, 5, 5)
    assert not errors.any()


def test_oversubscribed_barriers_do_not_wait_for_time_slices():
    cores = len(os.sched_getaffinity(0))
    with Team(2 * cores) as team:
        assert team.barrier_seconds(2000) < 1e-3  # spinning through a slice of the scheduler costs 3 ms and more


def test_the_caller_keeps_its_affinity():
    before = os.sched_getaffinity(0)
    with Team(2) as team:
        team.barrier_seconds(10)
        assert os.sched_getaffinity(0) == before
        assert set(team.cores) <= before


def test_a_pinned_scope_keeps_the_caller_on_the_first_core_and_puts_it_back():
    before = os.sched_getaffinity(0)
    with Team(2) as team:
        with team.pinned():
            team.barrier_seconds(10)
            assert os.sched_getaffinity(0) == {team.cores[0]}
            with team.pinned():
                pass
            assert os.sched_getaffinity(0) == {team.cores[0]}
        assert os.sched_getaffinity(0) == before


def test_default_cores_are_distinct_while_there_are_enough():
    with Team(len(os.sched_getaffinity(0))) as team:
        assert len(set(team.cores)) == team.threads


def test_a_parked_team_takes_no_cpu_time():
    with Team(2) as team:
        team.barrier_seconds(10)
        team.park()
        start = time.process_time()
        time.sleep(0.05)
        assert time.process_time() - start < 0.02
        team.barrier_seconds(10)  # and it wakes again


def test_bad_teams_are_refused():
    with pytest.raises(KforgeError, match="at least one thread"):
        Team(0)
    with pytest.raises(KforgeError, match="2 threads need 2 cores"):
        Team(2, cores=[0])


def test_a_closed_team_says_so():
    team = Team(2)
    program = Program(team)
    team.close()
    team.close()
    with pytest.raises(KforgeError, match="closed"):
        program.run()


def test_teams_are_joined_when_collected():
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    team = Team(3)
    assert threads() == before + 2
    del team
    gc.collect()
    assert threads() == before


def test_a_fork_refuses_the_parents_team_and_exits_cleanly():
    code = """
import os
from kforge.core.errors import KforgeError
from kforge.native import Team
team = Team(2)
team.barrier_seconds(10)
if (pid := os.fork()) == 0:
    try:
        team.barrier_seconds(10)
    except KforgeError:
        del team  # must not join threads that are not here
        with Team(2) as own:
            own.barrier_seconds(10)
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60,
                          check=True)
    assert done.stdout.strip() == "7"


def test_import_compiles_and_loads_nothing():
    code = """
import sys, subprocess
subprocess.run = subprocess.Popen = None
import kforge.native
assert "numpy" not in sys.modules and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
