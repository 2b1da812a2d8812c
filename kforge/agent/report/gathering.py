"""From a run's folder to the facts of its report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kforge.agent import ideas as tree
from kforge.agent.answers import Analysis, read
from kforge.agent.budget import spent_in
from kforge.agent.calls import Reply, Role
from kforge.agent.drafting import drafted
from kforge.agent.failures import told
from kforge.agent.idea_log import IdeaLog, Offered
from kforge.agent.ideas import FIRST_TRIALS, GIVEN_UP, PROGRESS, Idea, Result
from kforge.agent.report import facts
from kforge.agent.report.facts import AgentReport, Branch, Call, IdeaReport, Measured, State, TaskReport
from kforge.agent.report.money import Money, Won, payments, saved
from kforge.agent.thinking import End
from kforge.agent.transcripts import filed
from kforge.backends.templates import Template
from kforge.core.trial import Decision, Timing, Trial, Verdict
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.points import Point
from kforge.tuner.proposals import Outcome, Proposal, Tried
from kforge.tuner.report_names import short_bucket, short_template
from kforge.tuner.report_outcomes import PROMOTED, engine_state, why_not
from kforge.tuner.run_view import BucketView, Judged, RunView

_ENDS = {
    End.STOPPED: State.STOPPED,
    End.CALL: State.UNANSWERED,
    End.CANCELLED: State.OPEN,
    End.UNUSABLE: State.UNUSABLE,
    End.LOST: State.UNUSABLE,
    End.DUPLICATE: State.DUPLICATE,
}


def report_of(run: RunView) -> AgentReport | None:
    """None for a run that asked no model. Raises KforgeError where the record is damaged."""
    log, found = IdeaLog.open(run.path), filed(run.path)
    if not (run.options.agent or log.ideas or found):
        return None
    return _Gathering(run, log, [Call(str(path.relative_to(run.path)), t) for path, t in found]).report()


@dataclass(frozen=True)
class _Standing:
    state: State
    why: str


@dataclass(frozen=True)
class _Purpose:
    bottleneck: str = ""
    move: str = ""
    predicted: float | None = None

    @classmethod
    def of(cls, analysis: Analysis | None) -> _Purpose:
        """Of an idea that came to no template."""
        return cls(analysis.bottleneck.value, analysis.change, analysis.predicted_gain) if analysis else cls()


class _Gathering:
    def __init__(self, run: RunView, log: IdeaLog, calls: Sequence[Call]):
        self.run, self.log, self.calls = run, log, calls
        self.tasks = {task.key: task for task in run.tasks}
        self.names = dict(_named(log))  # hash of a template -> its path
        self.winners = {(j.task, j.bucket): j for j in sorted(_accepted(run), key=lambda j: j.verdict.gain)}
        self.empty_call = _empty_call(run)
        self.results: list[Result] = []
        self.won: list[Won] = []
        self._drafts: dict[str, Mapping[str, Template]] = {}  # by operator

    def report(self) -> AgentReport:
        run = self.run
        keys = dict.fromkeys([*(t.key for t in run.tasks), *(i.task for i in self.log.ideas)])
        tasks = [TaskReport(key, tuple(self._branches(mine))) for key in keys
                 if (mine := [i for i in self.log.ideas if i.task == key])]
        transcripts = [call.transcript for call in self.calls]
        paid = payments(spent_in(run.path), transcripts)
        money = Money(paid, sum(t.usd or 0.0 for t in transcripts), tuple(self.won))
        done = sorted(self.results, key=lambda result: result.idea.number)
        return AgentReport(run, run.options.agent, tuple(tasks), tuple(self.calls), money, tree.calibration(done))

    def _branches(self, mine: Sequence[Idea]) -> Iterator[Branch]:
        """One for each template that ideas began at and that none of them had made."""
        makers = {offered.template_hash: i for i in mine if (offered := self.log.offered.get(i.number))}
        below: dict[str, list[Idea]] = {}
        for idea in mine:
            maker = makers.get(idea.branch.parent)
            later = maker is not None and maker.number < idea.number
            below.setdefault(maker.id if maker and later else f"at {idea.branch.parent}", []).append(idea)

        def reported(idea: Idea) -> IdeaReport:
            return self._idea(idea, tuple(reported(child) for child in below.get(idea.id, ())))

        for name, begun in below.items():
            if name.startswith("at "):
                parent = name.removeprefix("at ")
                yield Branch(self.names.get(parent, parent), tuple(reported(idea) for idea in begun))

    def _idea(self, idea: Idea, children: tuple[IdeaReport, ...]) -> IdeaReport:
        offered = self.log.offered.get(idea.number)
        calls = tuple(call for call in self.calls if call.idea == idea.id)
        tried = self._tried(idea, offered) if offered else []
        best = tree.best_seconds(tried)
        verdicts = self._verdicts(idea, tried)
        result = self._result(idea, offered, tried, [v for _, v in verdicts]) if offered else None
        gain = result.gain if result else None
        if result is not None:
            self.results.append(result)
        standing = self._standing(idea, offered, tried, verdicts, gain)
        self._note_won(idea, offered, tried)
        said = offered or _Purpose.of(_analysis(calls))
        made_from = self.names.get(offered.parent, offered.parent) if offered else ""
        measured = tuple(self._measured(idea, best, verdicts)) if tried else ()
        return IdeaReport(
            idea, standing.state, standing.why, offered.path if offered else "", made_from, said.bottleneck, said.move,
            said.predicted, gain, result is not None and result.settled, len(tried),
            sum(len(t.trials) for t in tried), measured, calls, children)

    def _tried(self, idea: Idea, offered: Offered) -> list[Tried]:
        points: dict[Point, dict[str, Trial]] = {}
        for p in self.run.tried:
            if (p.task, p.trial.template) == (idea.task, offered.path):
                points.setdefault(Point(offered.path, p.rows, p.trial.params), {})[p.bucket] = p.trial
        return [Tried(point, offered.template_hash, trials) for point, trials in points.items()]

    def _verdicts(self, idea: Idea, tried: Sequence[Tried]) -> list[tuple[str, Verdict]]:
        """By bucket; of several in one the accepted one, or the one that came nearest."""
        hashes = _hashes(tried)
        mine = [j for j in self.run.judged if j.task == idea.task and j.verdict.candidate_hash in hashes]
        mine.sort(key=lambda j: (j.verdict.decision is Decision.ACCEPTED, j.verdict.gain))
        return list({j.bucket: j.verdict for j in mine}.items())

    def _result(self, idea: Idea, offered: Offered, tried: Sequence[Tried],
                verdicts: Sequence[Verdict]) -> Result | None:
        """None where the template is no longer in the run's folder."""
        template = self._template(offered)
        if template is None:
            return None
        proposal = Proposal(idea.id, idea.task, template, offered.parent, offered.bottleneck, offered.move,
                            offered.predicted, offered.author)
        failed = [trial.failure for t in tried for trial in t.trials.values() if trial.failure is not None]
        failure = failed[0] if failed and not tree.best_seconds(tried) else None
        outcome = Outcome(proposal, tried, failure, verdicts)
        return tree.result_of(idea, outcome, facts.weights(self.run, idea.task), self.empty_call)

    def _template(self, offered: Offered) -> Template | None:
        operator = offered.path.split("/")[1]
        if operator not in self._drafts:
            self._drafts[operator] = drafted(operator, self.run.path)
        template = self._drafts[operator].get(offered.path)
        return template if template is not None and template.hash == offered.template_hash else None

    def _standing(self, idea: Idea, offered: Offered | None, tried: Sequence[Tried],
                  verdicts: Sequence[tuple[str, Verdict]], gain: float | None) -> _Standing:
        ended = self.log.ended.get(idea.number)
        if ended is not None:
            return _Standing(_ENDS[ended.how], ended.reason)
        if offered is None:
            return _Standing(State.OPEN, "the run ended before it was worked out" if self.run.finished else
                             "it is being worked out, or its process was ended")
        if not tried:
            return _Standing(State.WAITING, "the search ended before it was tried" if self._searched(idea) else
                             "it waits for its trials")
        if not tree.best_seconds(tried):
            return _Standing(State.FAILED, _failed(tried))
        if verdicts:
            return self._judged(idea, tried, verdicts)
        progress = (gain or 0.0) >= PROGRESS or (gain is None and not idea.before)
        return _Standing(State.FASTER if progress else State.NO_GAIN, self._left(idea, offered, tried))

    def _judged(self, idea: Idea, tried: Sequence[Tried], verdicts: Sequence[tuple[str, Verdict]]) -> _Standing:
        hashes = _hashes(tried)
        said, won = [], False
        for bucket, verdict in verdicts:
            if verdict.decision is not Decision.ACCEPTED:
                said.append(f"{short_bucket(bucket)}: {why_not(verdict)}")
                continue
            winner = self.winners[idea.task, bucket].verdict.candidate_hash in hashes
            won |= winner
            said.append(f"{short_bucket(bucket)}: accepted, {100 * verdict.gain:+.1f} %"
                        f"{'' if winner else '; another one gained more'}")
        if not won:
            return _Standing(State.REJECTED, "; ".join(said))
        engine = self._engine(idea.task)
        return _Standing(State.PROMOTED if engine == PROMOTED else State.ACCEPTED, "; ".join([*said, engine]))

    def _engine(self, task: str) -> str:
        view = self.tasks.get(task)
        return (engine_state(self.run, view) if view else None) or "the engine has not run with it"

    def _searched(self, idea: Idea) -> bool:
        """Whether the task's search is over."""
        view = self.tasks.get(idea.task)
        return self.run.finished or (view is not None and view.rows is not None)

    def _left(self, idea: Idea, offered: Offered, tried: Sequence[Tried]) -> str:
        """Why no more of it was tried."""
        count, template = len(tried), self._template(offered)
        there = math.prod(len(param.choices) for param in template.params) if template else math.inf
        if count >= there:
            return f"all {count} points were tried"
        if count / FIRST_TRIALS in (1, 2, 4, 8, 16):
            return f"its share of {count} points was tried; what they came to earned it no more"
        return f"{count} points were tried {'when the search ended' if self._searched(idea) else 'so far'}"

    def _measured(self, idea: Idea, best: Mapping[str, float],
                  verdicts: Sequence[tuple[str, Verdict]]) -> Iterator[Measured]:
        before, others, judged = dict(idea.before), self._others(idea.task), dict(verdicts)
        for bucket in self._buckets(idea.task):
            key = bucket.key
            yield Measured(key, bucket.share, before.get(key), best.get(key), others.get(key), judged.get(key))

    def _buckets(self, task: str) -> Sequence[BucketView]:
        return self.tasks[task].buckets if task in self.tasks else ()

    def _others(self, task: str) -> Mapping[str, float]:
        written = [offered.path for offered in self.log.offered.values()]
        return facts.fastest(self.run, task, written, without=True)

    def _note_won(self, idea: Idea, offered: Offered | None, tried: Sequence[Tried]) -> None:
        hashes = _hashes(tried)
        for bucket in self._buckets(idea.task):
            winner = self.winners.get((idea.task, bucket.key))
            if winner is None or winner.verdict.candidate_hash not in hashes or offered is None:
                continue
            own = tree.best_seconds(t for t in tried if winner.verdict.candidate_hash in _hashes([t]))
            other = self._others(idea.task).get(bucket.key)
            beside = other / own[bucket.key] - 1 if other and bucket.key in own else None
            self.won.append(Won(idea.id, idea.task, bucket.key, winner.verdict.gain,
                                saved(bucket.share, winner.verdict.gain), beside,
                                self._engine(idea.task) == PROMOTED))


def _named(log: IdeaLog) -> Iterator[tuple[str, str]]:
    """Templates that prompts named or that ideas came to: hash, path."""
    for job in log.begun.values():
        mended = [job["mend"]["template"]] if job.get("mend") else []
        for path, name in [*job.get("known", ()), *([job["shown"]] if job.get("shown") else []), *mended]:
            yield name, path
    for offered in log.offered.values():
        yield offered.template_hash, offered.path


def _empty_call(run: RunView) -> Timing | None:
    """What gains are measured with; see ``ideas.result_of``."""
    timed = (line.data["timing"] for line in RunFolder.lines_of(run.path) if line.kind is Event.EMPTY_CALL)
    return next((Timing(**timing) for timing in timed if timing), None)


def _accepted(run: RunView) -> list[Judged]:
    return [j for j in run.judged if j.verdict.decision is Decision.ACCEPTED]


def _hashes(tried: Sequence[Tried]) -> set[str]:
    return {trial.candidate_hash for t in tried for trial in t.trials.values()}


def _failed(tried: Sequence[Tried]) -> str:
    failures = [trial.failure for t in tried for trial in t.trials.values() if trial.failure is not None]
    rest = "; after so many failures no more is tried" if len(tried) >= GIVEN_UP else ""
    why = f"{failures[0].kind.value}: {told(failures[0])}" if failures else "none was timed"
    return f"none of {len(tried)} points ran{rest}. {why}"


def _analysis(calls: Sequence[Call]) -> Analysis | None:
    """The last that an analyst said about an idea."""
    for call in reversed(calls):
        answer = call.transcript.answer
        if call.transcript.request.role is Role.ANALYST and isinstance(answer, Reply):
            found = read(Analysis, answer.arguments)
            return found if isinstance(found, Analysis) else None
    return None


def name_of(template: str) -> str:
    """Of a branch: a template's own name, or what ideas are called that began at none."""
    return short_template(template) if template else "a new approach"
