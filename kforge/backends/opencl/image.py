"""A built OpenCL kernel as data: how it is launched, and the device's binary. What the registry stores is this file.

``MAGIC``, one line of JSON (the launches as the template's header says them, and the operator's order of tensors, axes
and scalars), then the binary. ``OpenClImage.blob`` is what the runner reads (``kernel.h``): the same as 64-bit words,
sizes as steps of a stack machine, so that neither text nor names are interpreted there.
"""

from __future__ import annotations

import array
import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, evaluate, names, parsed

MAGIC = b"kforge-opencl 1\n"
_WORDS_MAGIC = 0x314C434F464B
_MOST_BYTES = 64 << 20
_MOST_LAUNCHES, _MOST_ARGUMENTS, _MOST_STEPS = 8, 63, 511
_KINDS = {ArgumentKind.TENSOR: 0, ArgumentKind.STRIDE: 1, ArgumentKind.AXIS: 2, ArgumentKind.SCALAR: 3,
          ArgumentKind.SCRATCH: 4}
_OPERATORS: dict[type[ast.operator], int] = {ast.Add: 2, ast.Sub: 3, ast.Mult: 4, ast.FloorDiv: 5, ast.Mod: 6}
_CALLS = {"min": 7, "max": 8, "cdiv": 9}
_NEGATE = 10


class ImageError(ValueError):
    """Bytes that are no OpenCL kernel of ours: one sentence."""


@dataclass(frozen=True)
class Signature:
    """The operator's order, which a launch's arguments count in."""

    tensors: tuple[str, ...]
    axes: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True)
class OpenClImage:
    launches: tuple[Launch, ...]
    signature: Signature
    binary: bytes
    device: int = 0  # number of the device on this machine (``Device.number``)

    def data(self) -> bytes:
        """As it is stored; ``parse`` reads it."""
        head = {"launches": [asdict(launch) for launch in self.launches], "signature": asdict(self.signature)}
        return MAGIC + json.dumps(head, sort_keys=True).encode() + b"\n" + self.binary

    def blob(self) -> bytes:
        """For the runner. Raises ImageError for launches that it would not take."""
        if not 1 <= len(self.launches) <= _MOST_LAUNCHES:
            raise ImageError(f"a kernel has 1 to {_MOST_LAUNCHES} launches, this one {len(self.launches)}")
        words = [len(self.launches)]
        for launch in self.launches:
            words += self._launch(launch)
        offset = 8 * (4 + len(words))
        head = [_WORDS_MAGIC, self.device, offset, len(self.binary)]
        return array.array("q", head + words).tobytes() + self.binary

    def _launch(self, launch: Launch) -> list[int]:
        words = _text(launch.entry)
        words += [*launch.threads({})] if launch.block else [1, 1, 1]
        if any(not 1 <= size < 1 << 16 for size in words[-3:]):
            raise ImageError(f"launch {launch.entry}: a group has at least one thread in each dimension")
        constants = dict(launch.constants)
        for text in (*launch.grid, *["1"] * (3 - len(launch.grid)), launch.scratch):
            words += _steps(text, constants, self.signature.axes)
        if len(launch.arguments) > _MOST_ARGUMENTS:
            raise ImageError(f"launch {launch.entry}: more than {_MOST_ARGUMENTS} arguments")
        words.append(len(launch.arguments))
        for argument in launch.arguments:
            words += [_KINDS[argument.kind], self._index(argument), argument.dimension]
        return words

    def _index(self, argument: Argument) -> int:
        if argument.kind is ArgumentKind.SCRATCH:
            return 0
        order = {ArgumentKind.AXIS: self.signature.axes, ArgumentKind.SCALAR: self.signature.scalars}
        known = order.get(argument.kind, self.signature.tensors)
        if argument.name not in known:
            raise ImageError(f"the operator has no {argument.kind} {argument.name}")
        return known.index(argument.name)


def parse(data: bytes) -> OpenClImage:
    """Raises ImageError."""
    head, separator, binary = data[len(MAGIC):].partition(b"\n")
    if not data.startswith(MAGIC) or not separator or not binary or len(data) > _MOST_BYTES:
        raise ImageError("it is no OpenCL kernel of kforge's")
    try:
        given = json.loads(head)
        signature = Signature(**{name: tuple(map(str, values)) for name, values in given["signature"].items()})
        launches = tuple(_launch_of(one) for one in given["launches"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ImageError(f"its launches cannot be read: {type(error).__name__}") from None
    return OpenClImage(launches, signature, binary)


def _launch_of(given: Mapping[str, object]) -> Launch:
    one = dict(given)
    arguments = tuple(Argument(ArgumentKind(a["kind"]), str(a["name"]), int(a["dimension"]))
                      for a in one.pop("arguments"))  # type: ignore[attr-defined]
    constants = tuple((str(name), int(value)) for name, value in one.pop("constants"))  # type: ignore[attr-defined]
    sizes = {name: tuple(map(str, one.pop(name))) for name in ("grid", "block")}  # type: ignore[call-overload]
    return Launch(entry=str(one.pop("entry")), grid=sizes["grid"], block=sizes["block"], arguments=arguments,
                  constants=constants, **one)  # type: ignore[arg-type]


def _text(text: str) -> list[int]:
    raw = text.encode()
    if not 0 < len(raw) < 256:
        raise ImageError("a kernel's name has 1 to 255 bytes")
    padded = raw.ljust(-(-len(raw) // 8) * 8, b"\0")
    return [len(raw), *array.array("q", padded)]


def _steps(text: str, constants: Mapping[str, int], axes: Sequence[str]) -> list[int]:
    """Steps of a stack machine: pairs of what and a value, behind their count."""
    try:
        wanted = names(text)
        if not wanted - set(constants):
            steps = [(0, evaluate(text, constants))]
        else:
            steps = _walk(parsed(text), constants, axes)
    except LaunchError as error:
        raise ImageError(str(error)) from None
    if len(steps) > _MOST_STEPS:
        raise ImageError(f"'{text[:60]}' has too many steps")
    return [len(steps), *(word for step in steps for word in step)]


def _walk(node: ast.expr, constants: Mapping[str, int], axes: Sequence[str]) -> list[tuple[int, int]]:
    if isinstance(node, ast.Name):
        if node.id in constants:
            return [(0, constants[node.id])]
        if node.id not in axes:
            raise ImageError(f"a launch's size names {node.id}, which is no axis")
        return [(1, axes.index(node.id))]
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return [(0, node.value)]
    if isinstance(node, ast.UnaryOp):
        return [*_walk(node.operand, constants, axes), (_NEGATE, 0)]
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        inner, what = node.args, _CALLS[node.func.id]
    else:
        assert isinstance(node, ast.BinOp)
        inner, what = [node.left, node.right], _OPERATORS[type(node.op)]
    return [*_walk(inner[0], constants, axes), *_walk(inner[1], constants, axes), (what, 0)]
