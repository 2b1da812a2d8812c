"""What the ways of talking to a server have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import httpx2
from pydantic import BaseModel

from kforge.agent.calls import Request
from kforge.agent.providers.access import Access
from kforge.agent.providers.heard import Heard
from kforge.agent.providers.trouble import StreamFault

NO_RETRIES = 0  # of an SDK's own: they would hide attempts, and what those cost
UNCOMPRESSED = {"accept-encoding": "identity"}  # so that a body is as long as it looks
_JSON = "application/json"


class Dialect(Protocol):
    """One protocol, spoken through an official SDK.

    ``optional``: fields of a body without which a request means nearly the same. A server that does not take one says
    so by its name.
    """

    provider: str
    optional: frozenset[str]

    def access(self) -> Access | str:
        """From the environment, at every call; a sentence where there is no key."""
        ...

    def body(self, request: Request, model: str) -> dict[str, Any]:
        ...

    async def converse(self, body: dict[str, Any], access: Access, client: httpx2.AsyncClient, heard: Heard) -> None:
        """One request, read to the end of the answer.

        Raises what the SDK and the HTTP client raise, and StreamFault.
        """
        ...


def count(value: object) -> int:
    """Tokens as a server gives them, which may be nothing."""
    return value if isinstance(value, int) and value > 0 else 0


def words(value: object) -> str:
    """A text as a server gives it, which may be nothing or something else."""
    return value if isinstance(value, str) else ""


def fields(value: object) -> Mapping[str, Any]:
    """An SDK's object, which may hold anything, as plain values; nothing where there is no object."""
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False, exclude_none=True)
    return value if isinstance(value, Mapping) else {}


async def listen(stream: Any, heard: Heard, take: Callable[[Any, Heard], None],
                 take_whole: Callable[[Any, Heard], None]) -> None:
    """An answer into ``heard``: event by event, or in one piece from a server that does not stream. Raises StreamFault
    for one that breaks off.
    """
    heard.begun = True
    if _is_whole(stream.response):
        take_whole(json.loads(await stream.response.aread()), heard)
    else:
        async for event in stream:
            take(event, heard)
    if heard.stop is None:
        raise StreamFault({"message": "it ended in the middle"})


def _is_whole(response: httpx2.Response) -> bool:
    """Whether the answer came in one piece, from a server that does not stream."""
    return str(response.headers.get("content-type", "")).lower().startswith(_JSON)
