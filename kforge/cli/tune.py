"""``kforge tune``: progress while it works, a table at the end; Ctrl-C keeps everything measured."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.cli.generate import Act, Kv
from kforge.cli.numbers import numbers
from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, STEP_TOKENS
from kforge.core.errors import KforgeError, Stopped, sentence_of
from kforge.tuner.strategies import DEFAULT, NAMES, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from kforge.core.target import Target
    from kforge.tuner.journal import RunFolder
    from kforge.tuner.offline import OfflineResult
    from kforge.tuner.options import TuneOptions
    from kforge.tuner.tune import TuneResult

CONTEXT = PREFILL = 512
_DECODE = "1,8"
_LARGEST_BATCH = 1 << 20


def tune(
    model: Annotated[
        str, typer.Argument(help="A model's name, a GGUF file, a safetensors folder, or an imported operator.")
    ] = "smollm2-135m",
    target: Annotated[
        str, typer.Option(help="What to tune for (kforge target list). Only host, and opencl (this machine's OpenCL "
                          "device, by OPENCL-NAME where it has several), can be timed; others: --offline.")
    ] = "host",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Without the target's device: build, look at and check candidates, time none, "
                     "and keep the few predicted fastest for when it appears."),
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            help="Wall time for search, judging and promotion: 90s, 10m, 2h. The table of tokens/s at the end comes on "
            "top: a minute for a small model, more on a busy machine."
        ),
    ] = "8m",
    workload: Annotated[
        str, typer.Option(help="Only problems whose key contains this text, such as linear(K=576.")
    ] = "",
    batch: Annotated[
        str,
        typer.Option(help="Decode batches to tune for (1,8); of an imported operator sizes of its first dimension (the "
                     "one that it was imported with)."),
    ] = "",
    context: Annotated[int, typer.Option(help="Context length of the decode batches.")] = CONTEXT,
    prefill: Annotated[int, typer.Option(help="Tokens of a prefill chunk.")] = PREFILL,
    threads: Annotated[int, typer.Option(help="Threads; 0: all cores.")] = 0,
    act: Act = DEFAULT_ACT,
    kv: Kv = DEFAULT_KV,
    resume: Annotated[str, typer.Option(help="Go on with this run (its id or folder).")] = "",
    agent: Annotated[
        str,
        typer.Option(help="Models that write more templates: PROVIDER:MODEL (anthropic, openai), also by role: "
                     "analyst=..,generator=..,repairer=..; or replay:RUN_FOLDER."),
    ] = "",
    max_usd: Annotated[float, typer.Option(help="Most that the models may cost, in US dollars.", min=0)] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the models, in and out.", min=0)] = 0,
    max_calls: Annotated[int, typer.Option(help="Most calls of the models.", min=0)] = 0,
    max_trials: Annotated[int, typer.Option(help="Search at most so many trials; 0: what the time allows.", min=0)] = 0,
    strategy: Annotated[
        str, typer.Option(help=f"How points are searched for: {', '.join(NAMES)} (docs/search.md).")
    ] = DEFAULT,
    retune: Annotated[bool, typer.Option("--retune", help="Also what the registry says is settled.")] = False,
    trust_candidates: Annotated[
        bool, typer.Option("--trust-candidates", help="Run candidates where the sandbox lacks its minimum, too.")
    ] = False,
    turn: Annotated[
        Path | None,
        typer.Option(help="Measure only while holding this file's lock: runs that name the same file take turns, and "
                     "one measures while the models of others think."),
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Tune a model's kernels on this machine, store the winners, and decode with and without them.

    Of an imported operator, which no engine calls, what the judge accepts is promoted when the run ends.
    """
    # Torch's idle threads would spin on the cores on which the next engine is timed.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from kforge.agent.opening import Agent
    from kforge.harness.proof import proven, require
    from kforge.harness.turn import Turn
    from kforge.native.compilers import default_compiler
    from kforge.registry.database import Registry
    from kforge.tuner.journal import Event, RunFolder
    from kforge.tuner.offline import OfflineResult
    from kforge.tuner.options import TuneOptions
    from kforge.tuner.tune_operator import imported

    check(strategy)
    if offline and agent:
        raise KforgeError("--offline times nothing, so there is nothing that --agent's models could learn from")
    default_compiler()  # says what is missing or too old
    if not resume:  # a resumed run may have been told in its first life
        require(proven(), trust_candidates)
    try:
        shared = Turn(turn) if turn else None
    except OSError as error:
        raise KforgeError(f"--turn {turn}: {sentence_of(error)}") from error
    with Registry.open() as registry:
        if resume:
            folder = RunFolder.resume(_run_path(resume, runs_dir))
            if folder.of(Event.FINISHED):
                folder.close()
                _show_finished(folder.path, as_json)
                return
            options = TuneOptions.from_json(folder.of(Event.STARTED)[0]["options"])
            if trust_candidates:
                options = dataclasses.replace(options, trust_candidates=True)
            asked = Agent.of(options)
            hardware = _hardware(options.target, options.offline)
            run_tune = _prepared(options)
        else:
            hardware = _hardware(target, offline)
            alone = imported(model) is not None
            if not alone:
                _require_subject(model)
            if alone and (workload, context, prefill, act, kv) != ("", CONTEXT, PREFILL, DEFAULT_ACT, DEFAULT_KV):
                raise KforgeError(f"{model} is an imported operator: --workload, --context, --prefill, --act and --kv "
                                  "are of models")
            options = TuneOptions(
                model="" if alone else model,
                operator=model if alone else "",
                budget_seconds=seconds_of(budget),
                batches=_batches(batch, alone),
                context=context,
                prefill=prefill,
                threads=_threads(threads, hardware.cores),
                kv=kv,
                act=act,
                only=workload,
                retune=retune,
                trust_candidates=trust_candidates,
                max_trials=max_trials,
                strategy=strategy,
                agent=agent,
                max_usd=max_usd,
                max_tokens=max_tokens,
                max_calls=max_calls,
                target=target,
                offline=offline,
            )
            asked = Agent.of(options)
            run_tune = _prepared(options)  # says what is impossible before there is a run
            folder = RunFolder.create(runs_dir, model)
        from kforge.cli.watching import watcher

        with folder, watcher(quiet=False) as watching:  # on standard error, so JSON is left alone
            try:
                with asked.proposing(folder, registry, hardware) if asked else nullcontext() as proposer:
                    result = run_tune(options, folder, registry, hardware, watching, proposer, shared)
            except KeyboardInterrupt:
                raise Stopped(f"stopped; {_kept(folder)}") from None
            except OSError as error:
                raise KforgeError(f"{sentence_of(error)}; {_kept(folder)}") from error
            except KforgeError as error:
                raise KforgeError(f"{error}; {_kept(folder)}" if folder.measured else str(error)) from error
            finally:
                if not resume and not folder.measured:
                    folder.discard()
    if isinstance(result, OfflineResult):
        from kforge.cli.tune_offline import show

        show(result, folder.path, as_json)
    elif as_json:
        from kforge.cli.run_document import tuned_document

        print(json.dumps(tuned_document(result, folder.path), indent=1))
    else:
        _print(result, folder.path)


def _hardware(name: str, offline: bool) -> Target:
    """The target to tune for. Raises KforgeError for one that is not at hand, unless ``offline``."""
    from kforge.backends.targets import target_called, why_not_here
    from kforge.targets.files import load_target

    if offline:
        return load_target(name)

    found = target_called(name)
    if name != "host" and (why := why_not_here(found)):
        raise KforgeError(f"target {name} is not this machine: kernels can only be timed where they run, and {why} "
                          "(--target host); to build and check for it without timing, add --offline")
    return found


def _require_subject(name: str) -> None:
    """Raises KforgeError for what is no model, with what was probably meant."""
    from kforge.cli.nearest import near
    from kforge.models.fetch import SOURCES
    from kforge.operators import imported_names

    if name.endswith(".py") or ".py:" in name:
        raise KforgeError(f"{name} is Python source, not a model: make an operator of it (kforge operator import "
                          f"{name}) and tune that by its name")
    known = [*SOURCES, *imported_names()]
    if name not in known and not Path(name).exists():
        raise KforgeError(f"{name}: neither a file, a folder, a known model nor an imported operator"
                          f"{near(name, known)}; known are {', '.join(known)}")


def _prepared(options: TuneOptions) -> Callable[..., TuneResult | OfflineResult]:
    """What tunes the model or operator of the options. Raises KforgeError for what cannot be."""
    from functools import partial

    if options.offline and options.operator:
        raise KforgeError(f"{options.operator} is an imported operator: --offline is for models")
    if options.operator:
        from kforge.tuner.tune_operator import imported, operator_task, tune_operator

        operator = imported(options.operator)
        if operator is None:
            raise KforgeError(f"there is no imported operator {options.operator} any more: import it again")
        operator_task(operator, options)
        return partial(tune_operator, operator)
    from kforge.models import load
    from kforge.tuner.tune import step_rows
    from kforge.tuner.tune import tune as tune_model

    model = load(options.model)
    step_rows(model, options)
    if options.offline:
        from kforge.cli.tune_offline import prepared

        return prepared(model, options)
    return partial(tune_model, model)


def _batches(text: str, alone: bool) -> tuple[int, ...]:
    """``alone``: of an operator, without a model."""
    if alone:
        return numbers("--batch", text, _LARGEST_BATCH) if text else ()
    return numbers("--batch", text or _DECODE, STEP_TOKENS)


def seconds_of(text: str) -> float:
    """Seconds of "90s", "10m", "2h" or a bare number of seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        raise KforgeError(f"--budget {text!r} is not a time such as 90s, 10m or 2h") from None
    if not 0 < value < math.inf:
        raise KforgeError(f"--budget {text!r} must be more than nothing and come to an end, for instance 10m")
    return value


def _threads(given: int, cores: int) -> int:
    if not 0 <= given <= cores:
        raise KforgeError(f"--threads {given}: timings need a core for each thread, and there are {cores} (0: all)")
    return given or cores


def _kept(folder: RunFolder) -> str:
    """What became of a run that did not end, and how to go on."""
    if not folder.measured:
        return "nothing was measured yet"
    name = folder.id if folder.path.parent == Path("runs") else folder.path
    return f"everything measured is kept, go on with: kforge tune --resume {name}"


def _show_finished(path: Path, as_json: bool) -> None:
    from kforge.cli.runs import show

    print(f"kforge: run {path.name} is finished, nothing is left to resume; here is what it came to", file=sys.stderr)
    show(str(path), path.parent, as_json)


def _run_path(name: str, runs_dir: Path) -> Path:
    return Path(name) if Path(name).is_dir() else runs_dir / name


def _print(result: TuneResult, folder: Path) -> None:
    from rich.console import Console

    from kforge.agent.report.gathering import report_of
    from kforge.cli.run_ideas import idea_lines
    from kforge.cli.run_tables import engine_lines, engine_table, limit_lines, problem_table, python_lines, rate_table
    from kforge.core.words import counted
    from kforge.tuner.report_text import unmeasured
    from kforge.tuner.run_view import view_of

    console, view = Console(), view_of(folder)
    if result.table is not None:
        console.print(rate_table(result.table.figures, "tokens/s, medians of interleaved runs in one process"))
    if (problems := problem_table(view)) is not None:
        console.print(problems)
    if result.engine:
        console.print(engine_table(result.engine))
    for line in (*engine_lines(view), *limit_lines(view)):
        console.print(line, highlight=False, soft_wrap=True)
    for layout in result.layouts:
        console.print(f"layout of {layout.problem}: {layout.text}", highlight=False, soft_wrap=True)
    s = result.search
    if result.serving.engine and not result.engine and s.settled:
        print("No kernel was shown to beat the one that serves now, so there is none to leave out.")
    if nothing := unmeasured(view):
        print(nothing)
    elif s.kept:
        print(f"Not tuned: {counted(len(s.kept), 'problem')} that earlier runs had settled (--retune tries again).")
    print(f"{counted(s.trials, 'trial')}, {counted(len(s.accepted), 'kernel')} accepted now. Run {result.run}; report: "
          f"kforge runs report {folder}")
    print(result.serving.text)
    for line in python_lines(view, result.serving):
        print(line)
    if (ideas := report_of(view)) is not None:
        for line in idea_lines(ideas):
            print(line)
