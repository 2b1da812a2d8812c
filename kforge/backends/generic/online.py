"""Reductions that need another one of the same row, had in the same sweep: chunk by chunk, while the chunk is in cache.

- The sum of e^(x - m), m the largest x: what was summed under an older m is multiplied by e^(older - m) (Milakov and
  Gimelshein, "Online normalizer calculation for softmax", 2018).
- The sum of (x - mean)^2: each chunk's about its own mean, put together by Chan, Golub and LeVeque's formula ("Updating
  formulae and a pairwise algorithm for computing sample variances", 1979).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kforge.backends.generic.nodes import Node
from kforge.operators.graph import Op


@dataclass(frozen=True)
class Pair:
    """A reduction that can be had along with the one called ``first``. ``at``: what stands in its terms for what is
    known at the end of a row only, and what a chunk has a value of its own for; ``squares``: it is the second kind."""

    first: str
    at: Node
    squares: bool


def pairs(summed: Mapping[str, Node], ops: Mapping[str, Op], length: int) -> dict[str, Pair]:
    """By the name of the second one; ``summed``: what each reduction is of, ``length``: of a row. A reduction is in one
    pair at most."""
    found: dict[str, Pair] = {}
    taken: set[str] = set()
    for name, node in summed.items():
        if ops[name] is not Op.SUM or name in taken:
            continue
        for first, of in summed.items():
            if first not in taken and (pair := _pair(node, first, of, ops[first], length)) is not None:
                found[name] = pair
                taken |= {name, first}
                break
    return found


def _pair(node: Node, first: str, of: Node, op: Op, length: int) -> Pair | None:
    if node.op is Op.EXP and op is Op.MAX:
        (below,) = node.args
        if below.op is Op.SUB and below.args[0] is of and below.args[1].held == first:
            return Pair(first, below.args[1], False)
    squared = node.args[0] if node.op is Op.SQUARE or (node.op is Op.MUL and node.args[0] is node.args[1]) else None
    if squared is not None and op is Op.SUM and squared.op is Op.SUB and squared.args[0] is of:
        mean = squared.args[1]
        if _is_mean(mean, first, length):
            return Pair(first, mean, True)
    return None


def _is_mean(mean: Node, first: str, length: int) -> bool:
    """The sum divided by, or times, the number that makes it the mean."""
    if mean.op not in (Op.DIV, Op.MUL):
        return False
    a, b = mean.args
    number = b if a.held == first else a if mean.op is Op.MUL and b.held == first else None
    if number is None or number.op is not None or number.held or number.view is not None:
        return False
    return number.value == length if mean.op is Op.DIV else abs(number.value * length - 1) < 1e-7


def begun(pair: Pair, first: int) -> list[str]:
    """C++ before the second loop over a chunk, c0 to c1: ``at`` of the chunk from ``part``, its share of the first
    reduction; ``total``: that of what lies before it, then with it."""
    if pair.squares:
        return [f"const F at{first} = part{first} / V::splat(static_cast<float>(c1 - c0));"]
    return [
        f"const F older{first} = total{first};",
        f"total{first} = V::maximum(total{first}, part{first});",
        f"const F at{first} = V::select(total{first} == V::splat(-__builtin_inff()), V::splat(0.0f), total{first});",
    ]


def combined(pair: Pair, first: int, second: int) -> list[str]:
    """C++ behind that loop, whose sum is in the lanes of a``second``_0."""
    chunk = f"V::splat(V::sum(a{second}_0))"
    if not pair.squares:
        return [f"total{second} = V::madd(total{second}, V::exp(older{first} - at{first}), {chunk});"]
    return [
        f"const F before{first} = V::splat(static_cast<float>(c0));",
        f"const F here{first} = V::splat(static_cast<float>(c1 - c0));",
        f"const F apart{first} = c0 > 0 ? at{first} - total{first} / before{first} : V::splat(0.0f);",
        f"total{second} = total{second} + {chunk} +",
        f"    apart{first} * apart{first} * (before{first} * here{first} / (before{first} + here{first}));",
        f"total{first} = total{first} + part{first};",
    ]
