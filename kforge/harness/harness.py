"""One candidate through build, admission, check and timing; two candidates into pairs; pairs before the judge."""

from __future__ import annotations

import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

import psutil

from kforge.backends.building import admit, build
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.target import Target
from kforge.core.trial import (
    Artifact,
    Candidate,
    Decision,
    Failure,
    FailureClass,
    NumericsClass,
    Timing,
    Trial,
    Verdict,
)
from kforge.core.workload import Workload
from kforge.harness.audit import AUDIT_ZYGOTES, AuditSample, audit, joined_audits
from kforge.harness.awake import awake
from kforge.harness.cases import Answers, plan_cases
from kforge.harness.check import CheckResult, check
from kforge.harness.empty_call import empty_kernel, time_empty
from kforge.harness.held_out import HeldOut, check_held_out
from kforge.harness.judge import Rules
from kforge.harness.judging import Judging, Question, failed_verdict
from kforge.harness.pairs import MOST_PAIRS, Contestant, ContestantFailure, PairedSample, compare
from kforge.harness.process import Process
from kforge.harness.proof import Provenance, proven, require
from kforge.harness.session import Session, TimedInputs
from kforge.harness.timing import PAIRS, SEARCH, Plan, Stopwatch, time_candidate
from kforge.harness.zygote import HarnessError
from kforge.operators import get
from kforge.targets.noise import noise_of
from kforge.targets.roofline import fresh_limit, time_limit

# Zygotes and inputs are kept ready: at least so many, and as many as this share of the free memory holds. A round of a
# search goes over all buckets of a task in every layout, and making one takes longer than a trial.
_OPEN_WORKLOADS = 4
_OPEN_SHARE = 0.25
_KEPT_IMAGES = 256


P = ParamSpec("P")
R = TypeVar("R")


def _in_turn(method: Callable[Concatenate[Harness, P], R]) -> Callable[Concatenate[Harness, P], R]:
    """Waits until no other harness of the same turn builds, checks or times."""

    @wraps(method)
    def alone(self: Harness, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn:
            return method(self, *args, **kwargs)

    return alone


@dataclass(frozen=True)
class _Built:
    artifact: Artifact
    image: Loadable


@dataclass(frozen=True)
class _Sides:
    candidate: Contestant
    incumbent: Contestant


class Harness:
    """Evaluates candidates on ``threads`` pinned threads of this machine. Close it: zygotes are processes.

    Seeds are drawn afresh for each harness, so that no candidate can be fitted to the inputs it will be checked with; a
    failure names the seed of its case. Not thread-safe. Raises KforgeError where this machine does not confine
    candidates (``kforge.harness.proof``) and they are not trusted.

    ``turn``: entered, and entered again inside, while anything is built, checked or timed: a ``Turn`` makes processes
    that measure on one machine do so one at a time.
    """

    def __init__(self, target: Target, threads: int, *, seed: int | None = None, trust_candidates: bool = False,
                 turn: AbstractContextManager[object] | None = None) -> None:
        available = sorted(os.sched_getaffinity(0))
        if not 1 <= threads <= len(available):
            raise KforgeError(f"{threads} threads asked for, but this process may use {len(available)} CPUs")
        confinement = proven()
        require(confinement, trust_candidates)
        self.provenance = Provenance.of(confinement, trust_candidates)  # what to keep beside an accepted kernel
        self.target = target
        self.threads = threads
        self.turn = turn or nullcontext()
        self._cpus = available[:threads]
        self._seed = secrets.randbelow(1 << 31) if seed is None else seed
        self._answers = Answers()
        self._timed: OrderedDict[str, TimedInputs] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._built: OrderedDict[str, _Built] = OrderedDict()
        self._room = int(_OPEN_SHARE * psutil.virtual_memory().available)

    @_in_turn
    def evaluate(self, candidate: Candidate, workload: Workload, *, check: bool = True, cut_above: float | None = None,
                 plan: Plan = SEARCH) -> Trial:
        """Build, admit, check, time. ``cut_above``: seconds of a call beyond which one batch is enough."""
        trial = Trial(candidate.hash, workload.key, candidate.params, candidate.template,
                      roofline_seconds=self.limit_seconds(workload))
        built = self._build(candidate)
        if isinstance(built, Failure):
            return replace(trial, failure=built)
        trial = replace(trial, artifact_hash=built.artifact.hash, build_seconds=built.artifact.report.seconds)
        try:
            return self._evaluate(trial, built, candidate.numerics, workload, check, cut_above, plan)
        except HarnessError as error:
            self._forget(workload)
            return replace(trial, failure=Failure(FailureClass.HARNESS, str(error)), processes=1)

    def _evaluate(self, trial: Trial, built: _Built, numerics: NumericsClass, workload: Workload, check: bool,
                  cut_above: float | None, plan: Plan) -> Trial:
        session = self._session(workload)
        process = session.start(built.image)
        trial = replace(trial, processes=1)
        if isinstance(process, Failure):
            return replace(trial, failure=process)
        try:
            if check:
                checked = self._check(process, session, numerics)
                if isinstance(checked, Failure):
                    return replace(trial, failure=checked)
                trial = replace(trial, max_error_ratio=checked.max_error_ratio)
            stopwatch = Stopwatch(session, process, self.threads)
            timing = time_candidate(stopwatch, session.timed.expected(numerics), plan, cut_above)
        finally:
            process.close()
        return replace(trial, failure=timing) if isinstance(timing, Failure) else replace(trial, timing=timing)

    @_in_turn
    def empty_call(self, workload: Workload, *, plan: Plan = SEARCH) -> Timing | Failure:
        """What a call at this workload takes whose kernel does nothing; see ``kforge.harness.empty_call``."""
        built = self._build(empty_kernel(workload.problem, self.target.backends[0]))
        if isinstance(built, Failure):
            return built
        try:
            session = self._session(workload)
            process = session.start(built.image)
            if isinstance(process, Failure):
                return process
            try:
                return time_empty(Stopwatch(session, process, self.threads), plan)
            finally:
                process.close()
        except HarnessError as error:
            self._forget(workload)
            return Failure(FailureClass.HARNESS, str(error))

    @_in_turn
    def check(self, candidate: Candidate, workload: Workload) -> CheckResult | Failure:
        """Build, admit, check; no timing."""
        built = self._build(candidate)
        if isinstance(built, Failure):
            return built
        session = self._session(workload)
        process = session.start(built.image)
        if isinstance(process, Failure):
            return process
        try:
            return self._check(process, session, candidate.numerics)
        finally:
            process.close()

    @_in_turn
    def compare(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, pairs: int = MOST_PAIRS,
                zygotes: int = 1, first_zygote: int = 0, plan: Plan = PAIRS) -> PairedSample | ContestantFailure:
        """Interleaved pairs of both at one workload; see ``kforge.harness.pairs``."""
        sides = self._contestants(candidate, incumbent)
        if isinstance(sides, ContestantFailure):
            return sides
        return compare(sides.candidate, sides.incumbent, self._timed_inputs(workload), self._cpus, pairs=pairs,
                       zygotes=zygotes, first_zygote=first_zygote, plan=plan)

    @_in_turn
    def judge(self, candidate: Candidate, incumbent: Candidate, workloads: Sequence[Workload], *,
              rules: Rules | None = None, pairs: int = MOST_PAIRS, plan: Plan = PAIRS) -> Verdict:
        """Verdict over the shapes of a bucket, in as many looks as it takes and ``rules`` allow.

        A shape weighs by its count times the incumbent's time. What would be accepted is audited, and accepted only
        when the audit agrees (``kforge.harness.judging``) and the held-out check passes.
        """
        rules = rules or Rules(noise=noise_of(self.target, self.threads))
        verdict = Judging(self, Question(candidate, incumbent, workloads, rules, pairs, plan)).verdict()
        if verdict.decision is Decision.ACCEPTED:
            found = self.check_held_out(candidate, workloads[0])
            if isinstance(found, Failure):
                return failed_verdict(candidate.hash, incumbent.hash, ContestantFailure(candidate.hash, found))
        return verdict

    @_in_turn
    def check_held_out(self, candidate: Candidate, workload: Workload) -> HeldOut | Failure:
        """The check before acceptance, on shapes and seeds that nobody sees; see ``kforge.harness.held_out``.

        On more than two threads also at a smaller number of them, drawn at random.
        """
        built = self._build(candidate)
        if isinstance(built, Failure):
            return built
        counts = {self.threads, 2 + secrets.randbelow(self.threads - 2) if self.threads > 2 else self.threads}
        found: list[HeldOut] = []
        for threads in counts:
            session = self._session(workload) if threads == self.threads else self._own_session(workload, threads)
            process = session.start(built.image)
            if isinstance(process, Failure):
                return process
            try:
                one = check_held_out(process, session.operator, session.workload, candidate.numerics, threads)
            finally:
                process.close()
                if threads != self.threads:
                    session.close()
            if isinstance(one, Failure):
                return one
            found.append(one)
        return HeldOut(sum(f.cases for f in found), sum(f.row_counts for f in found), sum(f.calls for f in found))

    @_in_turn
    def audit(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, seconds: float,
              zygotes: int = AUDIT_ZYGOTES, first_zygote: int = 0,
              thorough: bool = False) -> AuditSample | ContestantFailure:
        """Single calls on inputs that neither side has seen; see ``kforge.harness.audit``.

        ``seconds``: about what a call takes.
        """
        sides = self._contestants(candidate, incumbent)
        if isinstance(sides, ContestantFailure):
            return sides
        found = []
        with awake(self._cpus):
            for zygote in range(first_zygote, first_zygote + zygotes):
                sample = audit(sides.candidate, sides.incumbent, self._timed_inputs(workload), self._cpus,
                               seconds=seconds, zygote=zygote, thorough=thorough)
                if isinstance(sample, ContestantFailure):
                    return sample
                found.append(sample)
        return joined_audits(found)

    def limit_seconds(self, workload: Workload, *, fresh: bool = False) -> float:
        """Least seconds of a call that the target's limits allow; 0 where it has no figures, since one need not probe
        before tuning. ``fresh``: measured again now, where that says that more is possible.
        """
        cost = get(workload.problem.operator).cost(workload)
        try:
            limit = time_limit(cost, self.target, self.threads)
            return fresh_limit(limit, cost, self.target, self.threads).seconds if fresh else limit.seconds
        except KforgeError:
            return 0.0

    def close(self) -> None:
        for timed in list(self._timed.values()):
            self._forget(timed.workload)

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _contestants(self, candidate: Candidate, incumbent: Candidate) -> _Sides | ContestantFailure:
        found = []
        for side in (candidate, incumbent):
            built = self._build(side)
            if isinstance(built, Failure):
                return ContestantFailure(side.hash, built)
            found.append(Contestant(side.hash, built.image, side.numerics))
        return _Sides(*found)

    def _build(self, candidate: Candidate) -> _Built | Failure:
        if (known := self._built.get(candidate.hash)) is not None:
            self._built.move_to_end(candidate.hash)
            return known
        artifact = build(candidate, self.target)
        if isinstance(artifact, Failure):
            return artifact
        image = admit(artifact.backend, artifact.data, self.target)
        if isinstance(image, Failure):
            return image
        self._built[candidate.hash] = built = _Built(artifact, image)
        if len(self._built) > _KEPT_IMAGES:
            self._built.popitem(last=False)
        return built

    def _check(self, process: Process, session: Session, numerics: NumericsClass) -> CheckResult | Failure:
        cases = plan_cases(session.operator, session.workload, self._seed)
        return check(process, session.operator, numerics, cases, self._answers, self.threads)

    def _timed_inputs(self, workload: Workload) -> TimedInputs:
        if workload.key not in self._timed:
            # Not to be told from the seed of a case, which a failure names: timed inputs stay unknown to proposers.
            seed = secrets.randbelow(1 << 31)
            self._timed[workload.key] = TimedInputs(
                get(workload.problem.operator), workload, seed, self.target.llc_bytes, self.target.backends[0]
            )
        self._timed.move_to_end(workload.key)
        while len(self._timed) > _OPEN_WORKLOADS and sum(t.resident_bytes for t in self._timed.values()) > self._room:
            self._forget(next(iter(self._timed.values())).workload)
        return self._timed[workload.key]

    def _forget(self, workload: Workload) -> None:
        if (session := self._sessions.pop(workload.key, None)) is not None:
            session.close()
        if (timed := self._timed.pop(workload.key, None)) is not None:
            timed.close()

    def _session(self, workload: Workload) -> Session:
        self._timed_inputs(workload)
        if workload.key not in self._sessions:
            self._sessions[workload.key] = self._own_session(workload, self.threads)
        return self._sessions[workload.key]

    def _own_session(self, workload: Workload, threads: int) -> Session:
        """With room for any shape of the bucket: the largest is among its shapes, whatever the seed."""
        timed = self._timed_inputs(workload)
        return Session(timed, timed.operator.shapes(workload, self._seed), self._cpus[:threads])
