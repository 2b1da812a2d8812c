"""The server over streamable HTTP, on the loopback interface only."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from kforge.core.errors import KforgeError

HOST = "127.0.0.1"
PATH = "/mcp"
_MOST_BODY = 1 << 20  # bytes
_MOST_SESSIONS = 64
_MOST_CONNECTIONS = 128
_IDLE_SESSION = 1800.0  # seconds
_PATIENCE = 2  # seconds that open requests have when the server ends


async def serve_http(server: MCPServer[None], port: int) -> None:
    """Until a signal ends it; ``port`` 0: any free one. The address goes to standard error. Raises KforgeError."""
    listener = _listener(port)
    port = listener.getsockname()[1]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_MOST_BODY,
        max_sessions=_MOST_SESSIONS,
        session_idle_timeout=_IDLE_SESSION,
        transport_security=security(port),
        host=HOST,
    )
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_PATIENCE,
        lifespan="on",
    )
    print(f"kforge mcp: http://{HOST}:{port}{PATH}", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


def security(port: int) -> TransportSecuritySettings:
    """A page of a browser that made its name resolve to this machine still sends its own Host and Origin."""
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # from now on, since its address is told now
    except OSError as error:
        listener.close()
        raise KforgeError(f"port {port} of {HOST} cannot be used: {error.strerror}; choose another --port") from error
    return listener
