"""Requests that resemble those of the papers, and real text to make prompts of."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kforge.models.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
# Of the standard library, long ones that do not change much from one version of Python to the next.
SOURCES = ("textwrap.py", "shlex.py", "heapq.py", "configparser.py", "fractions.py", "sched.py", "calendar.py",
           "difflib.py", "csv.py", "graphlib.py")


@dataclass(frozen=True)
class Request:
    """``answer`` tokens are wanted, whatever the model says: lengths are the trace's."""

    prompt: list[int]
    answer: int


def chat_trace(seed: int, count: int, vocab: int, longest: int) -> list[Request]:
    """Lengths about those of ShareGPT's conversations: prompts of 161 and answers of 338 tokens on average (section 6.1
    of the vLLM paper, arXiv 2309.06180), log-normal with a sigma of 1, both cut so that the whole is at most
    ``longest`` tokens. Tokens are random: no two prompts begin alike."""
    rng = np.random.default_rng(seed)
    prompts = _log_normal(rng, 161.31, count, longest // 2)
    answers = _log_normal(rng, 337.99, count, longest - longest // 2)
    return [Request(rng.integers(0, vocab, p).tolist(), int(a)) for p, a in zip(prompts, answers, strict=True)]


def orca_trace(seed: int, count: int, vocab: int, longest: int) -> list[Request]:
    """Prompts of 32 to 512 and answers of 1 to 128 tokens, all lengths alike: the trace of the Orca paper (OSDI 2022,
    section 6.2). Cut in proportion where the model's context is shorter than 640."""
    rng = np.random.default_rng(seed)
    share = min(1.0, longest / 640)
    prompts = np.maximum(rng.integers(32, 513, count) * share, 1).astype(int)
    answers = np.maximum(rng.integers(1, 129, count) * share, 1).astype(int)
    return [Request(rng.integers(0, vocab, p).tolist(), int(a)) for p, a in zip(prompts, answers, strict=True)]


def _log_normal(rng: np.random.Generator, mean: float, count: int, most: int) -> np.ndarray:
    values = rng.lognormal(np.log(mean) - 0.5, 1.0, count)  # exp(mu + sigma^2 / 2) is the mean
    return np.clip(values, 4, most).astype(int)


def documentation() -> list[str]:
    """The pages of this project's documentation."""
    return [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]


def library_sources() -> list[str]:
    """Files of Python's standard library, as far as this Python has them."""
    folder = Path(sysconfig.get_path("stdlib"))
    return [(folder / name).read_text("utf-8") for name in SOURCES if (folder / name).is_file()]


def pieces(texts: list[str], tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """One text after the other cut into pieces of exactly so many tokens, each from the beginning of a line."""
    out = []
    for text in texts:
        lines = text.splitlines(keepends=True)
        at = 0
        while at < len(lines):
            ids: list[int] = []
            while at < len(lines) and len(ids) < tokens:
                ids += tokenizer.encode(lines[at], add_bos=False)
                at += 1
            if len(ids) >= tokens:
                out.append(ids[:tokens])
    return out
