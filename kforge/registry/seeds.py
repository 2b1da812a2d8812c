"""Seeds in the registry: parameters that somebody measured elsewhere, for searches to begin with."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from kforge.core.seed import Seed
from kforge.core.workload import attrs
from kforge.registry.schema import SeedRow


def add(session: Session, seeds: Iterable[Seed], now: str) -> int:
    """Keeps those that are not there yet; how many those were."""
    new = 0
    known = {_key(_seed(row)) for row in session.execute(select(SeedRow)).scalars()}
    for seed in seeds:
        if _key(seed) in known:
            continue
        known.add(_key(seed))
        session.add(
            SeedRow(
                operator=seed.operator,
                where=dict(seed.where),
                bucket=dict(seed.bucket),
                backend=seed.backend,
                template=seed.template,
                params=dict(seed.params),
                target_identity=seed.target_identity,
                measured_on=seed.measured_on,
                source=seed.source,
                seconds=seed.seconds,
                created=now,
            )
        )
        new += 1
    return new


def everything(session: Session, operator: str = "") -> list[Seed]:
    """By number; ``operator``: only this one's."""
    rows = select(SeedRow).order_by(SeedRow.id)
    return [_seed(row) for row in session.execute(rows).scalars() if operator in ("", row.operator)]


def _key(seed: Seed) -> tuple[object, ...]:
    """What makes two of them the same, wherever they came from."""
    return (seed.operator, seed.where, seed.bucket, seed.backend, seed.template, seed.params, seed.target_identity,
            seed.measured_on)


def _seed(row: SeedRow) -> Seed:
    bucket = tuple(sorted((name, int(value)) for name, value in row.bucket.items()))
    return Seed(row.operator, attrs(row.where), bucket, row.backend, row.template, attrs(row.params),
                row.target_identity, row.measured_on, row.source, row.seconds, row.id)
