"""The structured answers of the three roles, and the tools by which a model gives them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kforge.agent.calls import Tool

MOST_TEMPLATE = 60_000  # characters of a template in an answer
MOST_EDITS = 24
_MOST_SAID = 900  # characters of what is wrong with an answer


class Bottleneck(StrEnum):
    """What holds a kernel back. Closed: results are grouped by it."""

    MEMORY_BANDWIDTH = "memory_bandwidth"  # bytes from beyond the last-level cache
    MEMORY_LATENCY = "memory_latency"  # loads that nothing hides: too few streams, prefetches or independent chains
    CACHE_TRAFFIC = "cache_traffic"  # bytes between registers, L1 and L2: too little reuse, aliasing
    COMPUTE_THROUGHPUT = "compute_throughput"  # the units that do the needed arithmetic are busy
    INSTRUCTION_OVERHEAD = "instruction_overhead"  # unpacking, converting, shuffling, addressing beside the arithmetic
    DEPENDENCY_CHAINS = "dependency_chains"  # latency of accumulations: too few of them in flight
    REGISTER_PRESSURE = "register_pressure"  # spills
    LOAD_IMBALANCE = "load_imbalance"  # threads that wait for others
    SYNCHRONISATION = "synchronisation"  # barriers, preparation done by one thread for all
    EDGES = "edges"  # tails, padding, small shapes
    FIXED_COST = "fixed_cost"  # what a call costs however small it is
    NOT_YET_WORKING = "not_yet_working"  # there is no right template to measure
    NONE = "none"  # it is at the limit


class Move(StrEnum):
    EDIT = "edit"  # change the template that is shown
    WRITE_NEW = "write_new"  # another approach, in a template of its own
    STOP = "stop"  # at the roofline: nothing that is worth a trial


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, str_strip_whitespace=False)


Text = Annotated[str, Field(max_length=1_500)]


class Analysis(_Answer):
    """One bottleneck, one next move, and what it promises."""

    bottleneck: Bottleneck = Field(description="The one thing that holds the best template back the most.")
    evidence: Text = Field(description="The figures of the evidence that show it, each cited with its value.")
    move: Move = Field(description="edit the template that is shown, write_new for another approach, or stop when "
                                   "nothing that is left is worth measuring.")
    change: Annotated[str, Field(max_length=3_000)] = Field(
        description="What to change and how: loops, registers, data flow, parameters with their choices. Precise "
                    "enough that an engineer who sees only this, the contract and the template can write it.")
    predicted_gain: Annotated[float, Field(ge=0, le=20)] = Field(
        description="Gain in the task's weighted time over the best so far, as a ratio minus one: 0.08 is 8 % more "
                    "calls in the same time. You are scored by how near this comes to what is measured.")
    difficulty: Annotated[int, Field(ge=1, le=5)] = Field(description="1: a line or two; 5: a new algorithm.")

    @model_validator(mode="after")
    def _says_what(self) -> Analysis:
        if self.move is not Move.STOP and not self.change.strip():
            raise ValueError("'change' says nothing, but the move is not stop")
        return self


class Edit(_Answer):
    """One exact replacement."""

    file: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Which of the files shown; empty for the template itself, else the name of a part.")
    find: Annotated[str, Field(min_length=1, max_length=8_000)] = Field(
        description="Text that occurs exactly once in that file, to the character, line breaks and indentation too.")
    replace: Annotated[str, Field(max_length=MOST_TEMPLATE)] = Field(description="What stands there instead.")


class Writing(_Answer):
    """A template: the whole of it, or what to change in the one that is shown."""

    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(
        description="A short name of the idea in lower case, such as wide_tile.")
    hypothesis: Text = Field(description="Why this should be faster, and by how much in which bucket.")
    template: Annotated[str, Field(max_length=MOST_TEMPLATE)] = Field(
        default="", description="The whole file, header included. Empty when edits are given.")
    edits: Annotated[list[Edit], Field(max_length=MOST_EDITS)] = Field(
        default_factory=list, description="Replacements, applied in this order. Empty when 'template' is given.")

    @model_validator(mode="after")
    def _one_way(self) -> Writing:
        if bool(self.template.strip()) == bool(self.edits):
            raise ValueError("give either the whole 'template' or 'edits', one of them and not both")
        return self


A = TypeVar("A", bound=_Answer)


def read(kind: type[A], arguments: Mapping[str, Any]) -> A | str:
    """The answer, or in one sentence why it is none: what a model is told when it is asked again."""
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(str(part) for part in e['loc']) or 'the answer'}: {e['msg']}"
                         for e in error.errors(include_url=False, include_context=False, include_input=False))
        return said[:_MOST_SAID]


def _tool(name: str, description: str, kind: type[BaseModel]) -> Tool:
    schema = kind.model_json_schema()
    return Tool(name, description, _plain(schema, schema.get("$defs", {})))


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with its references resolved and without titles: not every server follows references."""
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _plain({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    kept = {k: v for k, v in node.items() if k != "$defs" and not (k == "title" and isinstance(v, str))}
    return {k: _plain(v, definitions) for k, v in kept.items()}


ANALYSE = _tool("propose_next_move", "Names the one bottleneck, the one next move and the gain that it promises.",
                Analysis)
WRITE = _tool("submit_template", "Hands in a kernel template, whole or as edits of the one that was shown.", Writing)
MEND = _tool("submit_repair", "Hands in the mended kernel template, whole or as edits of the one that was shown.",
             Writing)
