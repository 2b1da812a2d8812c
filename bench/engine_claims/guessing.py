"""Guessed tokens: how many come of a pass, and how much sooner a text is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from engine_claims.finding import Finding, ratios, times
from engine_claims.setting import Setting
from engine_claims.traces import documentation, library_sources, pieces
from kforge.core.summary import Summary
from kforge.engine.draft_model import DraftModel
from kforge.engine.drafting import Speculation
from kforge.engine.engine import Engine
from kforge.engine.pacing import Price
from kforge.engine.request import SamplingParams
from kforge.engine.weights import Weights
from kforge.models.chat import Message
from kforge.models.tokenizer import Tokenizer

PART = "guessing"
TEXT, ANSWER, PROMPTS = 300, 128, 6  # tokens of a quoted text and of an answer; prompts of each kind
PLAIN, WHERE_IT_PAYS, ALWAYS = "no guesses", "where it pays", "always"


class Always:
    """A policy that checks every guess, whatever it costs: what acceptance alone would give."""

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int,
                price: Price | None = None) -> list[int]:
        lengths = []
        for offer in offered:
            lengths.append(min(offer, spare))
            spare -= lengths[-1]
        return lengths

    def passed(self, sequences: int, tokens: int, seconds: float, guessing: float = 0.0) -> None:
        pass


@dataclass(frozen=True)
class Spoken:
    """An answer's tokens after the first one, which comes of the prompt's pass."""

    tokens: list[int]
    passes: int
    seconds: float


def speak(engine: Engine, prompt: list[int], answer: int) -> Spoken:
    """One greedy answer, alone; the prompt itself is not timed."""
    engine.add(prompt, SamplingParams(max_tokens=answer, ignore_eos=True))
    tokens: list[int] = []
    while not tokens:
        tokens += [output.token for output in engine.step()]
    before, began = engine.stats, perf_counter()
    while not engine.idle:
        tokens += [output.token for output in engine.step()]
    seconds = perf_counter() - began
    return Spoken(tokens[1:], engine.stats.passes - before.passes, seconds)


def prompts(tokenizer: Tokenizer, text: int, count: int) -> dict[str, list[list[int]]]:
    """Prompts of real text by what they ask for: the text again with a change, its gist, or how it goes on."""
    code = pieces(library_sources(), tokenizer, text)[::3][:count]
    prose = pieces(documentation(), tokenizer, text)[::3][:count]

    def asked(words: str, quoted: list[int]) -> list[int]:
        return tokenizer.encode_chat([Message("user", f"{words}\n\n{tokenizer.decode(quoted)}")])

    return {
        "code to edit": [asked("Repeat this Python code, with a comment above every function:", p) for p in code],
        "text to quote": [asked("Repeat this text word by word:", p) for p in prose],
        "text to sum up": [asked("Sum up this text:", p) for p in prose],
        "code that goes on": code,
    }


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    text = min(TEXT, setting.context(2 * TEXT) // 2)
    answer, count = min(ANSWER, text), setting.count(PROMPTS)
    options = {"kv_tokens": 2 * (text + answer) + 1024, "max_sequences": 1}
    ways: dict[str, Speculation | DraftModel | None] = {
        PLAIN: None, WHERE_IT_PAYS: Speculation(), ALWAYS: Speculation(policy=Always())}
    if setting.draft is not None:
        weights = Weights(setting.draft)
        DraftModel(setting.draft).check(setting.model, text=True)
        ways |= {WHERE_IT_PAYS: DraftModel(setting.draft, weights),
                 ALWAYS: DraftModel(setting.draft, weights, Always())}
    engines = {name: setting.engine(speculate=way, **options) for name, way in ways.items()}
    kinds = prompts(setting.model.tokenizer, text, count)
    seen: dict[tuple[str, str], list[list[Spoken]]] = {(kind, name): [] for kind in kinds for name in engines}
    texts: dict[tuple[str, int], list[int]] = {}
    for number, name in setting.turns(tuple(engines)):
        for kind, asked in kinds.items():
            setting.say(f"{PART}: round {number} of {setting.rounds}, {kind}, {name}")
            spoken = [speak(engines[name], prompt, answer) for prompt in asked]
            for at, one in enumerate(spoken):
                if texts.setdefault((kind, at), one.tokens) != one.tokens:
                    raise SystemExit("guessing changed an answer: run bench/exactness.py")
            if number:
                seen[kind, name].append(spoken)
    for engine in engines.values():
        engine.close()
    raw: dict[str, object] = {"prompts": count, "answer": answer, "spoken": {
        f"{kind}, {name}": [{"tokens": _tokens(run), "passes": _passes(run), "seconds": _seconds(run)} for run in runs]
        for (kind, name), runs in seen.items()}}
    by = "prompt look-up" if setting.draft is None else f"the draft model {setting.draft.path.stem}"
    found = [finding for kind in kinds for finding in _findings(kind, by, seen)]
    return found, raw


def _tokens(run: list[Spoken]) -> int:
    return sum(len(one.tokens) for one in run)


def _passes(run: list[Spoken]) -> int:
    return sum(one.passes for one in run)


def _seconds(run: list[Spoken]) -> float:
    return sum(one.seconds for one in run)


def _findings(kind: str, by: str, seen: dict[tuple[str, str], list[list[Spoken]]]) -> list[Finding]:
    plain, paying, always = (seen[kind, name] for name in (PLAIN, WHERE_IT_PAYS, ALWAYS))
    each = [_tokens([one]) / _passes([one]) for one in always[0]]
    per_pass = Summary.of([_tokens(run) / _passes(run) for run in always])
    faster = ratios([_seconds(run) for run in plain], [_seconds(run) for run in paying])
    forced = ratios([_seconds(run) for run in plain], [_seconds(run) for run in always])
    held = median([_tokens(run) / _passes(run) for run in paying])
    return [
        Finding(PART, f"several tokens come of a full pass: {kind}, by {by}",
                "said of speculation at large: 9 tokens from 3 passes", "3 tokens", per_pass, "tokens",
                f"per pass over the whole model, every guess checked (up to 8 at once); single prompts "
                f"{min(each):.2f} to {max(each):.2f}; {held:.2f} where it is done only where it pays",
                "Three a pass need guesses that are right twice in a row on average: a text that repeats its prompt "
                "has that, one that says something new does not. This model is small, and strays from what it quotes."),
        Finding(PART, f"the text is there sooner: {kind}, by {by}",
                "Leviathan et al. (ICML 2023): 2x to 3x, with a draft model; Saxena (2023): 2x to 4x by prompt look-up "
                "where the answer quotes the prompt", "2x to 4x", faster, "x",
                f"guesses checked where that pays; {times(forced)} where all are",
                "A pass over k + 1 tokens costs more than one over 1: on a CPU arithmetic is a good part of it, where "
                "on a GPU at batch 1 it is nearly free. Tokens are the same bits either way.")]
