"""The HTTP client below an SDK: it reads no more than an answer can be long, and follows nobody elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2


class TooLong(Exception):
    """A server that does not stop sending."""


class BoundedClient(httpx2.AsyncClient):
    """Raises TooLong once a body is longer than ``most`` bytes. A redirect is an answer: keys go to one server only."""

    def __init__(self, most: int, timeout: httpx2.Timeout):
        super().__init__(timeout=timeout, follow_redirects=False)
        self._most = most

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **{**options, "stream": True, "follow_redirects": False})
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, self._most)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int):
        self._inner = inner
        self._left = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            self._left -= len(part)
            if self._left < 0:
                raise TooLong
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()
