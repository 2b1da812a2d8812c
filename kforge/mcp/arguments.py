"""Arguments of tools, with their bounds: what a client may send at all. Whether it makes sense is seen later."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kforge.core.defaults import ACTS, KV_TYPES
from kforge.core.workload import Attr, attribute

MOST_TEXT = 100_000  # characters of a kernel's source
MOST_TRIALS = 200
MOST_SECONDS = 1800


def _attrs(values: dict[str, int | str]) -> dict[str, Attr]:
    return {name: attribute(value) if isinstance(value, str) else value for name, value in values.items()}


def _no_climbing(name: str) -> str:
    if ".." in name or "//" in name:
        raise ValueError("a name has no '..'")
    return name


def _plain_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a source has no NUL characters")
    return text


_Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=40)]
_Value = Annotated[int, Field(ge=-(1 << 40), le=1 << 40)] | Annotated[str, Field(max_length=200)]

OperatorName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40, description="An operator's name, from list_operators.")
]
AnyOperator = Annotated[
    str, Field(pattern=r"^([a-z][a-z0-9_]*)?$", max_length=40, description="Only this operator; empty for all.")
]
Axes = Annotated[
    dict[_Name, _Value],
    Field(
        min_length=1,
        max_length=24,
        description='Static attributes and dynamic axes by name, such as {"H": 576, "residual": 0, "T": 8}; '
        "describe_operator has an example of each operator.",
    ),
    AfterValidator(_attrs),
]
Params = Annotated[
    dict[_Name, _Value],
    Field(
        max_length=32,
        description="Parameters of a template; those not named keep their defaults. Plain C++ has "
        "none but compiler (gcc or clang).",
    ),
    AfterValidator(_attrs),
]
SourceName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}\.(cc|cc\.j2)$",
        max_length=70,
        description="A file of your run: NAME.cc (plain C++) or NAME.cc.j2 (a template with a header).",
    ),
]
SourceText = Annotated[str, Field(min_length=1, max_length=MOST_TEXT), AfterValidator(_plain_text)]
KernelName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$",
        max_length=120,
        description="Which kernel: a file of your run (mine.cc, mine.cc.j2), the path of a shipped template "
        "(cpp/rms_norm/portable.cc.j2), 'default', 'tuned' (what serves these axes now), or the beginning of a "
        "registry kernel's hash.",
    ),
    AfterValidator(_no_climbing),
]
Rival = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]+$",
        max_length=64,
        description="What it is held against: 'tuned' (what serves now), 'default', or the beginning of a registry "
        "kernel's hash.",
    ),
]
RunName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,47}$|^$",
        max_length=48,
        description="Your run, as open_run named it; empty for this server's own.",
    ),
]
RegistryName = Annotated[
    str, Field(pattern=r"^[0-9a-f]{1,64}$", description="Number, or the beginning of a candidate's or artifact's hash.")
]
ReportName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100, description="A tuning run's id, or 'last'.")
]
TemplatePath = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$", max_length=120, description="As list_templates gives it."),
    AfterValidator(_no_climbing),
]
TargetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
ModelName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+-]*$", max_length=120, description="As list_models gives it.")
]
Threads = Annotated[int, Field(ge=0, le=1024, description="Threads of the team; 0: all cores.")]
Relaxed = Annotated[
    bool,
    Field(
        description="Hold plain C++ against the error bound instead of the order specification. Such a kernel "
        "cannot be submitted. (A template says its class in its header.)"
    ),
]
Batches = Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(max_length=4)]
Contexts = Annotated[list[Annotated[int, Field(ge=1, le=131072)]], Field(max_length=4)]
Prefill = Annotated[int, Field(ge=0, le=8192, description="Tokens of a prefill chunk; 0 for none.")]
KvType = Annotated[
    str, Field(pattern=rf"^({'|'.join(KV_TYPES)})$", description="Element type of the KV cache: f16, bf16, f32 or i8.")
]
ActType = Annotated[
    str, Field(pattern=rf"^({'|'.join(ACTS)})$",
               description="Activations: a8 (int8 with integer weights), bf16 (also bf16 with bf16 ones) or f32.")
]
State = Literal["", "accepted", "promoted", "retired", "quarantined"]
