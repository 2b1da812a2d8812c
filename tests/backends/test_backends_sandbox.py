"""The sandbox that compilers run in, tried with programs that do what a compiler must not."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.harness import sandbox
from kforge.harness.sandbox import Limits, Outcome, describe, run
from kforge.native.build import build_program

SOURCES = Path(sandbox.__file__).parent
LIMITS = Limits(seconds=10, memory_bytes=1 << 30, file_bytes=1 << 20)


def shell(work: Path, script: str, limits: Limits = LIMITS) -> Outcome:
    return run(("/bin/sh", "-c", script), work, limits)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_this_machine_confines_and_says_so() -> None:
    facts = describe()
    assert facts.rlimits
    assert facts.seccomp
    assert facts.unprivileged


def test_only_the_work_folder_can_be_written(work: Path, tmp_path: Path) -> None:
    done = shell(work, f"echo a > inside; echo b > /tmp/kforge-escape-{os.getpid()}; echo c > {tmp_path}/outside; "
                       "echo d > /dev/null")
    assert (work / "inside").read_text() == "a\n"
    assert not Path(f"/tmp/kforge-escape-{os.getpid()}").exists()
    assert not (tmp_path / "outside").exists()
    assert done.text.count("cannot create") == 2


def test_environment_and_descriptors_stay_outside(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    done = shell(work, "env; echo; id -u")
    assert "SECRET_TOKEN" not in done.text
    assert "abc" not in done.text
    if os.geteuid() == 0:
        assert done.text.split()[-1] == "65534"


def test_a_command_that_sleeps_is_killed_with_everything_that_it_started(work: Path) -> None:
    begin = time.monotonic()
    done = shell(work, "(setsid sh -c 'sleep 3; echo late > late' &) ; sleep 60", Limits(1, 1 << 30, 1 << 20))
    assert done.timed_out
    assert time.monotonic() - begin < 30
    if describe().namespaces:
        time.sleep(3)
        assert not (work / "late").exists()


def test_floods_end_at_their_limits(work: Path) -> None:
    done = shell(work, "yes > big")
    assert done.code != 0
    assert (work / "big").stat().st_size <= LIMITS.file_bytes
    done = shell(work, "yes")
    assert done.code != 0
    assert len(done.text) <= 1 << 20
    done = shell(work, "while :; do :; done", Limits(2, 1 << 30, 1 << 20))
    assert done.timed_out or done.code < 0


def test_exit_status_and_signal_are_the_commands(work: Path) -> None:
    assert shell(work, "exit 7").code == 7
    assert shell(work, "kill -SEGV $$").code == -11


def test_a_command_that_does_not_exist_is_an_error_that_names_it(work: Path) -> None:
    with pytest.raises(KforgeError, match="/usr/bin/no-such-compiler"):
        run(("/usr/bin/no-such-compiler",), work, LIMITS)


FORBIDDEN = r"""
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
static void say(const char *name, long result) {
    std::printf("%s %d\n", name, result < 0 && (errno == EPERM || errno == ENOSYS));
}
int main() {
    say("socket", socket(AF_INET, SOCK_STREAM, 0));
    say("unix", socket(AF_UNIX, SOCK_STREAM, 0));
    say("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    int pair[2];
    say("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    say("ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    say("unshare", unshare(CLONE_NEWUSER));
    say("clone", syscall(SYS_clone, CLONE_NEWUSER | 17, 0, 0, 0, 0));
    say("mount", mount("none", "/tmp", "tmpfs", 0, 0));
    say("io_uring", syscall(425, 8, 0));
    say("memfd", syscall(SYS_memfd_create, "x", 0));
    say("bpf", syscall(SYS_bpf, 0, 0, 0));
    say("setuid", setuid(0));
    say("kill", kill(1, 0) == 0 && getppid() != 1 ? 0 : (errno = EPERM, -1));
}
"""


def test_network_and_kernel_facilities_are_denied(work: Path, tmp_path: Path) -> None:
    source = tmp_path / "forbidden.cc"
    source.write_text("#include <csignal>\n" + FORBIDDEN)
    program = work / "forbidden"
    program.write_bytes(build_program("forbidden", [source], ["-static-libstdc++", "-w"]).read_bytes())
    program.chmod(0o755)
    done = run((str(program),), work, LIMITS, readable=(str(work),))
    if os.geteuid() == 0 and done.code:
        pytest.skip("the test's folder is out of nobody's reach")
    assert done.code == 0, done.text
    assert [line for line in done.text.splitlines() if not line.endswith(" 1")] == []
    assert done.text.count("\n") == 13


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("who", ["an ordinary user", "root", "root of a container without privileges"])
def test_the_launcher_confines_as(who: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # the user's own may be out of another user's reach
        base = Path(name)
        base.chmod(0o755)
        launcher = base / "confine"
        shutil.copy(build_program("kforge-confine", [SOURCES / "confine.cc"], include_dirs=[SOURCES, SOURCES.parent]),
                    launcher)
        (base / "secret").write_text("readable by anybody")
        (base / "work").mkdir()
        user = 1234 if who == "an ordinary user" else None
        unprivileged = ["/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        if user:
            os.chown(base / "work", user, user)
        argv = [*(unprivileged if "container" in who else []), str(launcher), "5", str(1 << 30), "1000000", "0", "0",
                str(base / "work"), "/usr", "/lib", "/lib64", "--", "--probe", str(base / "secret")]
        done = subprocess.run(argv, cwd=base / "work", capture_output=True, text=True, user=user, group=user,
                              extra_groups=[] if user else None, env={}, check=False)
    holds = dict(line.split() for line in done.stdout.splitlines())
    assert (holds["seccomp"], holds["rlimits"], holds["privileges"]) == ("1", "1", "1"), done
    assert holds["landlock"] == str(int(describe().landlock))
    assert holds["unprivileged"] == str(int(user is not None))
