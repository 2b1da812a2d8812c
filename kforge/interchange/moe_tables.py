"""Tables of tuned fused-MoE parameters: files of vLLM and SGLang, as they stand.

A table has a line for some numbers of tokens. Both tools take the line whose number is nearest to a call's; here a
line is for its own number of tokens and no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kforge.core.errors import KforgeError
from kforge.core.words import one_line
from kforge.interchange.files import checked, parse_json, read_text
from kforge.interchange.moe_names import MoeName, Style, parse

MOST_BYTES = 8 << 20
TRITON = "triton_version"  # the one key of a file that is no number of tokens
# The words of these files for the parameters of a Triton template for moe_linear.
PARAMETERS = {
    "BLOCK_SIZE_M": "block_m",
    "BLOCK_SIZE_N": "block_n",
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}

Block = Annotated[int, Field(strict=True, ge=1, le=4096)]
Few = Annotated[int, Field(strict=True, ge=0, le=1024)]


class Config(BaseModel):
    """One line: the sizes of a block of outputs, how blocks are grouped, and how Triton compiles them. What follows
    ``num_stages`` is for some devices, or some kernels, alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    BLOCK_SIZE_M: Block
    BLOCK_SIZE_N: Block
    BLOCK_SIZE_K: Block
    GROUP_SIZE_M: Block
    num_warps: Block
    num_stages: Few
    waves_per_eu: Few | None = None  # AMD
    matrix_instr_nonkdim: Few | None = None  # AMD
    kpack: Few | None = None  # AMD
    SPLIT_K: Few | None = None
    num_ctas: Few | None = None
    grf_mode: Few | str | None = None  # Intel
    USE_TMA: bool | None = None  # SGLang

    @model_validator(mode="after")
    def _is_possible(self) -> Config:
        for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} is {value}; Triton takes powers of two")
        return self

    @property
    def params(self) -> dict[str, int]:
        """By the names that kforge's templates have for them."""
        return {ours: getattr(self, theirs) for theirs, ours in PARAMETERS.items()}

    @property
    def further(self) -> tuple[str, ...]:
        """What it says beside them."""
        names = type(self).model_fields.keys() - PARAMETERS.keys()
        return tuple(sorted(name for name in names if getattr(self, name) is not None))


@dataclass(frozen=True)
class MoeTable:
    """``triton``: the version that it was tuned with, "" where the file does not say."""

    name: MoeName
    lines: Mapping[int, Config]  # number of tokens -> parameters
    triton: str = ""

    def at(self, tokens: int) -> Config | None:
        """The line for so many tokens; None where there is none, however near another is."""
        return self.lines.get(tokens)

    def text(self, style: Style) -> str:
        """The file, in the order in which both tools write theirs. SGLang's reader takes every key for a number of
        tokens, so there the version stands in the folder's name alone."""
        head = {TRITON: self.triton} if self.triton and style is Style.VLLM else {}
        lines = {str(m): self.lines[m].model_dump(exclude_none=True) for m in sorted(self.lines)}
        return json.dumps({**head, **lines}, indent=4) + "\n"


def read(path: Path) -> MoeTable:
    """Raises KforgeError that names the file and what of its name or which of its fields is wrong."""
    try:
        name = parse(path.name)
    except ValueError as error:
        raise KforgeError(f"{path}: the name says what a table is for, and {one_line(str(error))}") from None
    document = parse_json(path, read_text(path, MOST_BYTES))
    if not isinstance(document, dict):
        raise KforgeError(f"{path} is no JSON object of numbers of tokens")
    triton = document.pop(TRITON, None) or _folder_version(path)
    if not isinstance(triton, str):
        raise KforgeError(f"{path}: {TRITON}: {triton!r} is no text")
    lines = {}
    for key, value in document.items():
        if not re.fullmatch(r"[1-9]\d{0,8}", key):
            raise KforgeError(f"{path}: {one_line(key)!r} is no number of tokens")
        if not isinstance(value, dict):
            raise KforgeError(f"{path}: {key}: {one_line(repr(value))} is no JSON object of parameters")
        lines[int(key)] = checked(path, Config, value, key)
    if not lines:
        raise KforgeError(f"{path} has no line for any number of tokens")
    return MoeTable(name, dict(sorted(lines.items())), triton)


def place(table: MoeTable, style: Style) -> Path:
    """Where its tool looks for it, below its folder of tables. Raises ValueError for what a style has no word for."""
    name = table.name.file_name(style)
    if style is Style.VLLM:
        return Path(name)
    if not re.fullmatch(r"\d+(\.\d+)+", table.triton):
        raise ValueError("SGLang looks for a table by the version of Triton that it was tuned with, which is not known")
    return Path(f"triton_{table.triton.replace('.', '_')}") / name


def _folder_version(path: Path) -> str:
    """The version in the name of SGLang's folders, such as ``triton_3_4_0``."""
    found = re.fullmatch(r"triton_(\d+(?:_\d+)+)", path.resolve().parent.name)
    return found[1].replace("_", ".") if found else ""
