"""Tuned fused-MoE tables as seeds of searches, and kforge's tuned kernels as such tables.

A table's line is what some other tool found fastest for both projections of a layer of experts: the first,
``moe_linear`` of N = twice its width with a gate, which reads a row a token; and the second, of K = its width, which
reads a row a slot. Here each is a problem, and searches of both may begin with the line. It is nowhere served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.seed import Seed
from kforge.core.target import Target
from kforge.core.workload import Attr, attrs
from kforge.interchange.moe_names import MoeName, Style, device_word
from kforge.interchange.moe_tables import PARAMETERS, Config, MoeTable
from kforge.targets.files import list_targets, load_target

BACKEND = "triton"
# Schemes of these tools -> weights and activations that kforge has, the nearest first. The others (fp8, ...) it has no
# weights of. What these tools call 16-bit activations may be exact here.
_SCHEMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "": (("bf16", "bf16"), ("f16", "bf16"), ("bf16", "f32"), ("f16", "f32")),
    "bf16": (("bf16", "bf16"), ("bf16", "f32")),
    "float32": (("f32", "f32"),),
    "int8_w8a8": (("int8_channel", "a8_token"),),
    "int8_w8a16": (("int8_channel", "bf16"), ("q8_0", "bf16"), ("int8_channel", "f32"), ("q8_0", "f32")),
    "int4_w4a16": (("q4_0", "bf16"), ("q4_1", "bf16"), ("q4_0", "f32"), ("q4_1", "f32")),
}
# What kforge tuned with exact activations would mislead a kernel of 16-bit ones, so it does not go out.
_WORDS = {pair: word for word, pairs in _SCHEMES.items() for pair in pairs
          if word != "bf16" and (pair[1] != "f32" or word == "float32")}
_SERVED = (KernelState.ACCEPTED, KernelState.PROMOTED)


@dataclass(frozen=True)
class Drawn:
    """Seeds of a table, and what of it says nothing to kforge, in sentences."""

    seeds: tuple[Seed, ...]
    left_out: tuple[str, ...]


def target_of(device: str) -> Target:
    """The target whose driver reports this name. Raises KforgeError where no target's does: none is guessed."""
    for name in list_targets():
        target = load_target(name)
        if target.gpu is not None and any(_same(device, known) for known in target.gpu.devices):
            return target
    raise KforgeError(
        f"no target's driver calls itself {device}: name the target with --target, or add one (kforge target list)"
    )


def seeds_of(table: MoeTable, target: Target, style: Style, file: str) -> Drawn:
    """``file``: the table's, for the record."""
    name = table.name
    pairs = _SCHEMES.get(name.dtype, ())
    left = [] if pairs else [f"kforge has no weights of dtype={name.dtype}: {len(table.lines)} lines are no seeds"]
    further = sorted({word for line in table.lines.values() for word in line.further})
    if pairs and further:
        left.append(f"no parameter of a template's: {', '.join(further)}")
    where: list[dict[str, Attr]] = []
    for weight, act in pairs:
        common: dict[str, Attr] = {"E": name.experts, "weight": weight, "act": act}
        if not name.down:
            where.append({**common, "N": 2 * name.width, "input": "token"})
        where.append({**common, "K": name.width, "input": "slot"})
    source = f"{file} ({style}{f', Triton {table.triton}' if table.triton else ''})"
    found = [
        Seed("moe_linear", attrs(wanted), (("T", tokens),), BACKEND, "", attrs(line.params), target.identity,
             name.device, source)
        for tokens, line in table.lines.items()
        for wanted in where
    ]
    return Drawn(tuple(found), tuple(left))


@dataclass(frozen=True)
class Tables:
    """``left_out``: kernels that such a file cannot say, in sentences."""

    tables: tuple[MoeTable, ...]
    left_out: tuple[str, ...]


def tables_of(kernels: Iterable[KernelRecord], style: Style) -> Tables:
    """The tuned Triton kernels for layers of experts, as one table for each layer and device.

    vLLM calls both projections with one set of parameters: there the first projection's kernels make the table, and
    the second's only where the first has none at all. SGLang has a table for each, with one BLOCK_SIZE_M for both.
    """
    left: Counter[str] = Counter()
    tables: dict[MoeName, dict[int, Config]] = {}
    versions: dict[MoeName, str] = {}
    for kernel in kernels:
        if kernel.problem.operator != "moe_linear" or kernel.backend != BACKEND:
            continue
        if reason := _unfit(kernel):
            left[reason] += 1
            continue
        name = _name(kernel, style)
        params = dict(kernel.params)
        line = Config.model_validate({theirs: params[ours] for theirs, ours in PARAMETERS.items()})
        tables.setdefault(name, {})[dict(kernel.bucket)["T"]] = line  # the newest, as records come in order
        versions[name] = kernel.compiler.removeprefix(BACKEND).strip()
    for name in [n for n in tables if n.down]:
        up = MoeName(**{**vars(name), "down": False})
        if style is Style.VLLM:
            if up in tables:
                left["kernels of second projections: vLLM takes the first's parameters for both"] += len(tables[name])
            else:
                tables[up], versions[up] = tables[name], versions[name]
            del tables[name]
        else:
            odd = [m for m, line in tables[name].items()
                   if m in tables.get(up, {}) and tables[up][m].BLOCK_SIZE_M != line.BLOCK_SIZE_M]
            left["kernels of second projections whose block_m is not the first's, as SGLang wants"] += len(odd)
            tables[name] = {m: line for m, line in tables[name].items() if m not in odd}
    made = [MoeTable(n, dict(sorted(lines.items())), versions[n]) for n, lines in tables.items() if lines]
    return Tables(tuple(made), tuple(f"{count} {what}" for what, count in left.items() if count))


def _unfit(kernel: KernelRecord) -> str:
    """Why a kernel cannot be a line; "" when it can."""
    attributes = kernel.problem.attributes
    if kernel.state not in _SERVED:
        return f"kernels that are {kernel.state}"
    if not kernel.seconds:
        return "kernels that nobody has timed: these tools would serve them as tuned"
    if (attributes["weight"], attributes["act"]) not in _WORDS:
        return "kernels whose weights and activations these tools have no word for"
    if missing := [ours for ours in PARAMETERS.values() if not isinstance(dict(kernel.params).get(ours), int)]:
        return f"kernels without {', '.join(missing)}"
    return ""


def _name(kernel: KernelRecord, style: Style) -> MoeName:
    attributes = kernel.problem.attributes
    down = attributes["input"] == "slot"
    width = kernel.problem.int("K") if down else kernel.problem.int("N") // 2
    dtype = _WORDS[str(attributes["weight"]), str(attributes["act"])]
    return MoeName(kernel.problem.int("E"), width, device_word(_device(kernel.target_name), style), dtype, None, False,
                   down)


def _device(target_name: str) -> str:
    """What the driver of a target's device calls it. Raises KforgeError for a target that is gone or is no GPU."""
    target = load_target(target_name)
    if target.gpu is None or not target.gpu.devices:
        raise KforgeError(f"target {target_name} does not say what its driver calls it (gpu.devices), which these "
                          "tools look tables up by")
    return target.gpu.devices[0]


def _same(word: str, device: str) -> bool:
    return word in {device_word(device, style) for style in Style}
