"""A byte-level BPE vocabulary of any size, for models without text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase

from kforge.models.tokenizer import BYTE_CHARACTERS

CONTROL = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@dataclass(frozen=True)
class SynthVocab:
    """``texts`` by id: 256 bytes, one token per merge, then the control tokens."""

    texts: tuple[str, ...]
    merges: tuple[str, ...]

    def id(self, text: str) -> int:
        return self.texts.index(text)


def synth_vocab(size: int) -> SynthVocab:
    """Every merge joins two tokens that exist before it, and every token is made by exactly one merge."""
    texts = [c for c, _ in sorted(BYTE_CHARACTERS.items(), key=lambda item: item[1])]
    merges = []
    for left, right in _pairs():
        if len(texts) == size - len(CONTROL):
            break
        merges.append(f"{left} {right}")
        texts.append(left + right)
    return SynthVocab((*texts, *CONTROL), tuple(merges))


def _pairs() -> Iterator[tuple[str, str]]:
    space = "\u0120"  # the space in GPT-2's alphabet
    yield from ((space, c) for c in ascii_lowercase)
    yield from product(ascii_lowercase, ascii_lowercase)
    two = ["".join(p) for p in product(ascii_lowercase, ascii_lowercase)]
    yield from ((space + c, pair) for c, pair in product(ascii_lowercase, two))
    yield from product(two, two)
