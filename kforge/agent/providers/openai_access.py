"""OpenAI's SDK, and whom it is pointed at."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

from kforge.agent.providers.access import Access, access, base_url
from kforge.agent.providers.dialect import NO_RETRIES, UNCOMPRESSED

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_OWN_HOSTS = (".openai.com", ".openai.azure.com")


class OpenAIServer:
    """OpenAI itself, or whatever OPENAI_BASE_URL names."""

    def __init__(self) -> None:
        self._base_url = base_url("OPENAI_BASE_URL", "https://api.openai.com/v1")

    @property
    def is_openai(self) -> bool:
        """Rather than one of the many servers that are compatible with its older protocol."""
        return f".{urlsplit(self._base_url).hostname}".endswith(_OWN_HOSTS)

    def access(self) -> Access | str:
        return access(("OPENAI_API_KEY",), self._base_url)


def sdk_for(access: Access, client: httpx2.AsyncClient) -> AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(
        api_key=access.key,
        base_url=access.base_url,
        http_client=client,
        timeout=client.timeout,
        max_retries=NO_RETRIES,
        default_headers=UNCOMPRESSED,
    )
