"""Run folders of tunes with models, written through journal, ledger, transcripts and loop of a real one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from scripted import Scripted, plain, settle
from situations import norm_story

from kforge.agent.budget import Ledger, Limits
from kforge.agent.caller import Caller
from kforge.agent.loop import ModelProposer
from kforge.agent.prices import Price, Prices
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts
from kforge.backends.templates import Template
from kforge.core.trial import Decision, Failure, RejectReason, Timing, Trial, Verdict
from kforge.core.workload import attrs, stable_hash
from kforge.tuner.journal import Event, RunFolder, trial_to_json
from kforge.tuner.options import TuneOptions
from kforge.tuner.promotion import EngineVerdict
from kforge.tuner.proposals import Proposal

MODE = "decode batch 1 context 512"
SHARES = (0.3, 0.1)  # of a step, at T=1 and T=32
FIRST = (2.0, 40.0)  # us of the default there
A_CALL = 0.02  # USD of a call of a script: 10 tokens in, 5 out
PRICES = Prices((Price("script", ("*",), 1000.0, 0.0, 0.0, 2000.0, "made up", ""),))


class AgentRun:
    """One problem, a norm at two buckets, of which the shipped template is measured. Times are in microseconds."""

    def __init__(self, root: Path, prices: Prices = PRICES, **answers: Sequence) -> None:
        self.folder = RunFolder.create(root, "smollm2-135m")
        limits = {"max_usd": 200.0} if prices.entries else {"max_tokens": 10_000_000}
        options = TuneOptions(model="smollm2-135m", agent="script:model-1", **limits)
        self.folder.write(Event.STARTED, {"options": options.to_json(), "target": "host", "identity": "f00d",
                                          "bandwidth": 7e9, "peaks": {}})
        self.story = norm_story()
        self.key = self.story.task.problem.key
        self._task()
        base = self.story.templates[0]
        self._trials(base, FIRST, {"tokens": 4, "compiler": "gcc"})
        self._trials(base, (2.2, 38.0), {"tokens": 8, "compiler": "clang"})
        self._ledger = Ledger.open(self.path, Limits(options.max_usd or None, options.max_tokens or None), prices)
        caller = Caller(Router.of(Scripted(plain(**answers))), self._ledger, Transcripts(self.path))
        self.proposer = ModelProposer(caller, self.path)

    @property
    def path(self) -> Path:
        return self.folder.path

    def idea(self) -> Proposal:
        """Asked for, worked out and taken."""
        self.proposer.ask(self.story.situation)
        return self.taken()

    def taken(self) -> Proposal:
        (proposal,) = settle(self.proposer)
        t = proposal.template
        data = {"id": proposal.id, "task": proposal.task, "path": t.path, "hash": t.hash, "parent": proposal.parent,
                "bottleneck": proposal.bottleneck, "move": proposal.move, "predicted": proposal.predicted,
                "author": proposal.author}
        self.folder.write(Event.PROPOSAL, data)
        return proposal

    def measured(self, proposal: Proposal, *us: float, points: int = 6) -> None:
        """The first point is the best; each other one is a little slower."""
        for number, params in enumerate(itertools.islice(_points(proposal.template), points)):
            self._trials(proposal.template, [value * (1 + 0.1 * number) for value in us], params)
        self.proposer.tell(self.story.outcome(proposal, *us))

    def failed(self, proposal: Proposal, failure: Failure) -> None:
        for params in itertools.islice(_points(proposal.template), 3):
            self._trials(proposal.template, FIRST[:1], params, failure)
        self.proposer.tell(self.story.outcome(proposal, failure=failure))

    def judged(self, proposal: Proposal, bucket: int, gain: float) -> None:
        """Accepted where the gain is more than nothing."""
        params = next(_points(proposal.template))
        decision = Decision.ACCEPTED if gain > 0 else Decision.REJECTED
        verdict = Verdict(decision, _hash(proposal.template, params), "d" * 16, gain, gain - 0.02, gain + 0.02, 50, 5,
                          0.01, None if gain > 0 else RejectReason.SLOWER, text="as measured")
        key = self.story.keys[bucket]
        self.folder.write(Event.VERDICT, {"task": self.key, "workload": key, "bucket": key, "rows": 0,
                                          "verdict": dataclasses.asdict(verdict)})

    def finished(self, *, promoted: bool = False) -> Path:
        """The run comes to its end; its folder."""
        self.proposer.close()
        self._ledger.close()
        accepted = sum(d["verdict"]["decision"] == "accepted" for d in self.folder.of(Event.VERDICT))
        settled = {"task": self.key, "rows": 0, "before": 0, "buckets": ["T=1", "T=32"], "templates": "t"}
        self.folder.write(Event.SETTLED, {**settled, "accepted": accepted})
        if promoted:
            engine = EngineVerdict(self.key, MODE, 0.06, 0.05, 0.07, True, 960, 16)
            self.folder.write(Event.PROMOTION, dataclasses.asdict(engine))
        serving = {"promoted": int(promoted), "kernels": int(promoted), "relaid": 0}
        self.folder.write(Event.FINISHED, {"trials": 0, "accepted": accepted, "kept": 0, "serving": serving})
        self.folder.close()
        return self.path

    def _task(self) -> None:
        buckets = [{"bucket": key, "share": share, "limit": 0.5e-6, "calls": {MODE: 24.0}}
                   for key, share in zip(self.story.keys, SHARES, strict=True)]
        task = {"task": self.key, "points": 8, "promise": 0.1, "buckets": buckets, "refused": []}
        self.folder.write(Event.TASK, task)

    def _trials(self, template: Template, us: Sequence[float], params: dict, failure: Failure | None = None) -> None:
        for key, value in zip(self.story.keys, us, strict=False):
            timing = None if failure else Timing(1e-6 * value, 0.01, 5, 10)
            trial = Trial(_hash(template, params), key, attrs(params), template.path, timing, failure)
            self.folder.write(Event.TRIAL, {"task": self.key, "bucket": key, "rows": 0, "proposer": "script",
                                            "trial": trial_to_json(trial)})


def _points(template: Template):
    """Its points, the default first."""
    names = [param.name for param in template.params]
    default = {param.name: param.default for param in template.params}
    combinations = itertools.product(*(param.choices for param in template.params))
    others = (dict(zip(names, values, strict=True)) for values in combinations)
    return itertools.chain([default], (point for point in others if point != default))


def _hash(template: Template, params: dict) -> str:
    return stable_hash([template.hash, params])
