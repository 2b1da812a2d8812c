"""Files of other tools: read with a bound, and refused with the file, the field and what is wrong with it."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kforge.core.errors import KforgeError, sentence_of
from kforge.core.words import one_line

MOST_BYTES = 1 << 30  # of a file, unpacked: a brute-forced space of a hundred thousand points

Model = TypeVar("Model", bound=BaseModel)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A text in UTF-8, unpacked where the name ends in .gz. Raises KforgeError."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                data = packed.read(most + 1)
        else:
            with path.open("rb") as plain:
                data = plain.read(most + 1)
        if len(data) > most:
            raise KforgeError(f"{path} is larger than {most >> 20} MiB: it is no such file")
        return data.decode()
    except OSError as error:
        raise KforgeError(f"cannot read {sentence_of(error) if error.errno else f'{path}: {error}'}") from error
    except (EOFError, zlib.error) as error:
        raise KforgeError(f"{path}: the packed file is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise KforgeError(f"{path} is no text in UTF-8") from error


def parse_json(path: Path, text: str) -> Any:
    """Raises KforgeError that names the file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KforgeError(f"{path} is no JSON: {one_line(str(error))}") from error


def checked(path: Path, model: type[Model], document: Any, place: str = "") -> Model:
    """``document``, which stands in the file at ``place``, as ``model``. Raises KforgeError that names the file and the
    first field that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(filter(None, (place, *map(str, first["loc"]))))
        said = str(first["msg"]).removeprefix("Value error, ")
        raise KforgeError(f"{path}: {one_line(f'{where}: {said}' if where else said)}") from None
