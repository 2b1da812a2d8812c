"""The server over HTTP: on loopback only, for clients of both eras of the protocol, not for pages of a browser."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil
from mcp_host import Place, answer, http_client, http_server

RMS_NORM = """#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t H = 48;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *weight = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t T = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t i = l->thread; i < T; i += l->threads) {
        float lanes[16] = {};
        for (int64_t k = 0; k < H; ++k) lanes[k % 16] = kf::fma(x[i * xs + k], x[i * xs + k], lanes[k % 16]);
        const float r = 1.0f / kf::sqrt(kf::tree_sum(lanes) / H + (float)l->scalars[0]);
        for (int64_t k = 0; k < H; ++k) out[i * os + k] = x[i * xs + k] * r * weight[k];
    }
}
"""


def test_from_workloads_to_a_measured_kernel_and_no_door_for_browsers(place: Place):
    with http_server(place) as (url, process):
        port = urlsplit(url).port
        listens = [c.laddr.ip for c in psutil.Process(process.pid).net_connections("inet") if c.status == "LISTEN"]
        assert listens == ["127.0.0.1"]

        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        for bad, code in (
            ({"Host": f"evil.example:{port}"}, 421),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": f"http://127.0.0.1:{port + 1}"}, 403),
            ({"Content-Type": "text/plain"}, 400),
        ):
            for era in ({}, {"MCP-Protocol-Version": "2026-07-28"}):
                assert httpx2.post(url, json=body, headers={**headers, **bad, **era}).status_code == code
        assert httpx2.post(url, content=b"x" * (1 << 21), headers=headers).status_code == 413

        async def agent(name: str, mode: str) -> None:
            async with http_client(url, mode=mode) as client:
                rows = answer(
                    await client.call_tool("list_workloads", {"model": "llama-3.2-1b:q4_0", "batch": [1], "prefill": 0})
                )["rows"]
                axes = next(r["axes"] for r in rows if r["operator"] == "rms_norm")
                at = {"operator": "rms_norm", "axes": {**axes, "H": 48, "residual": 0, "T": 4}, "run": name}
                answer(await client.call_tool("open_run", {"name": name}))
                answer(await client.call_tool("write_source", {"run": name, "name": "norm.cc", "text": RMS_NORM}))
                timed = answer(await client.call_tool("measure", {"kernel": "norm.cc", "threads": 1, **at}))
                assert timed["seconds"] > 0

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent, "old", "legacy")
                tasks.start_soon(agent, "new", "auto")

        anyio.run(both)
    assert {p.name for p in place.runs.iterdir()} == {"agent-old", "agent-new"}
    assert not psutil.pid_exists(process.pid)


def test_a_port_that_is_taken_is_told_in_one_sentence(place: Place):
    import subprocess

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            place.command("--http", "--port", port),
            env=place.env,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
