"""Loaded by Python before the command under test: finds the moment from inside, turns the clock back, leaves torch out.

Plain standard library, and nothing of kforge: what is tested must not be what tests.
"""

from __future__ import annotations

import datetime
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

PLAN = json.loads(os.environ.pop("KFORGE_TEST_FAULT", "{}"))  # popped: the processes below this one have no part in it
_TOUCHES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock", "subprocess.Popen"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Moment:
    """Counts what the command does to files, the registry and processes; at the given count it happens."""

    def __init__(self, plan: dict) -> None:
        self.count, self.plan, self.pid = 0, plan, os.getpid()

    def touch(self) -> None:
        if os.getpid() != self.pid:
            return
        self.count += 1
        if self.count == self.plan.get("touch"):
            self.come()

    def come(self) -> None:
        deed = self.plan["deed"]
        if deed == "kill":
            os.kill(self.pid, signal.SIGKILL)
        elif deed == "clock":
            Clock.back = self.plan["back"]
        else:
            Path(self.plan["reached"]).touch()
            os.kill(self.pid, signal.SIGSTOP)

    def audit(self, event: str, args: tuple) -> None:
        if event in _TOUCHES or (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
            self.touch()


class Clock:
    back = 0.0  # seconds


class Past(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) - datetime.timedelta(seconds=Clock.back)

    @classmethod
    def utcnow(cls):
        return super().utcnow() - datetime.timedelta(seconds=Clock.back)


class Connection(sqlite3.Connection):
    def commit(self) -> None:
        MOMENT.touch()
        super().commit()
        MOMENT.touch()


class WithoutTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Torch is one side of a tune's closing table and two seconds of every start; the table goes without it."""

    def find_spec(self, name, path=None, target=None):
        if name != "kforge.engine.torch_runner":
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module) -> None:
        from kforge.core.errors import KforgeError

        def runner(*_):
            raise KforgeError("torch is left out")

        module.TorchRunner = runner


if PLAN:
    sys.meta_path.insert(0, WithoutTorch())
    MOMENT = Moment(PLAN)
    real_connect, real_fsync, real_time = sqlite3.connect, os.fsync, time.time

    def connect(*args, **keywords):
        keywords.setdefault("factory", Connection)
        return real_connect(*args, **keywords)

    def fsync(handle) -> None:
        MOMENT.touch()
        real_fsync(handle)
        MOMENT.touch()

    sqlite3.connect = sqlite3.dbapi2.connect = connect
    os.fsync = fsync
    datetime.datetime = Past
    time.time = lambda: real_time() - Clock.back
    Clock.back = PLAN.get("from_the_start", 0.0)
    sys.addaudithook(MOMENT.audit)
    if "counted" in PLAN:
        import atexit

        atexit.register(lambda: Path(PLAN["counted"]).write_text(str(MOMENT.count)))
