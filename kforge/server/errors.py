"""What goes wrong, in the shape of OpenAI's interface."""

from __future__ import annotations

from typing import Any

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error: HTTP status, one sentence, the parameter that it is about, a code for programs.

    ``retry_after``: seconds after which the same request may succeed.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Status 400: the request can never be served as it is."""
    return ApiError(400, message, param=param, code=code)
