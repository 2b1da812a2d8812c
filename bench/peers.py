"""kforge beside llama.cpp on the same model files: interleaved runs, a bandwidth probe in every round, ratios.

    make bench-peers            (or: python bench/peers.py --json peers.json)

llama.cpp is installed by name from its source package into environments of their own, once with each compiler that is
here (gcc, clang 19), GGML_NATIVE on; per row the better of the two is the peer. Both sides run in processes of their
own with the same threads; one works while the other sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge.core.paths import cache_dir
from kforge.core.summary import Summary
from kforge.models.fetch import resolve
from kforge.targets.files import load_target
from kforge.targets.probe import measure_bandwidth

PACKAGE = "llama-cpp-python==0.3.36"
COMPILERS = {"gcc": ("gcc", "g++"), "clang": ("clang-19", "clang++-19")}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One comparison: ``tokens`` prompt tokens, or decode steps of ``batch`` sequences at ``depth``."""

    name: str
    mode: str
    batch: int
    depth: int
    tokens: int

    def request(self) -> dict[str, object]:
        return {"mode": self.mode, "batch": self.batch, "depth": self.depth, "tokens": self.tokens}

    @property
    def produced(self) -> int:
        return self.tokens * (self.batch if self.mode == "decode" else 1)


def rows_for(path: Path) -> list[Row]:
    """Rows whose single run lasts about a second for a model file of this size. Before a row of 32 sequences can begin
    their contexts are filled, which takes a slow peer half a minute at a billion weights: small models only.
    """
    small = weight_bytes(path) < 3e8
    steps = 64 if small else 24
    rows = [
        Row("batch 1", "decode", 1, 64, steps),
        Row("batch 4", "decode", 4, 64, steps // 2),
        Row("batch 8", "decode", 8, 64, steps // 2),
    ]
    if small:
        rows.append(Row("batch 32", "decode", 32, 64, steps // 6))
    return [*rows, Row("prefill 512", "prefill", 1, 0, 512)]


class Process:
    """A driver process that answers one JSON line per request."""

    def __init__(self, name: str, python: Path, driver: str, opening: dict[str, object]):
        env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
        self.name = name
        self._child = subprocess.Popen(
            [str(python), str(HERE / "drivers" / driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.opened = self.ask(opening)

    def ask(self, request: dict[str, object]) -> dict[str, object]:
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended while working on {request}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait(timeout=30)


def install(compiler: str, console: Console) -> Path | None:
    """The Python of an environment with llama.cpp built by this compiler; None when the compiler is not here."""
    cc, cxx = COMPILERS[compiler]
    if not shutil.which(cxx):
        return None
    env_dir = cache_dir() / "peers" / f"llama-cpp-{compiler}"
    python = env_dir / "bin" / "python"
    if not (env_dir / ".installed").exists():
        console.print(f"building llama.cpp with {compiler} (a few minutes, once)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", env_dir], check=True)
        package = PACKAGE.split("==", maxsplit=1)[0]
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-binary", package, PACKAGE],
            check=True,
            env={**os.environ, "CC": cc, "CXX": cxx, "CMAKE_ARGS": "-DGGML_NATIVE=ON"},
        )
        (env_dir / ".installed").touch()
    return python


def model_path(name: str) -> Path:
    """A model by name or path; ``synth:NAME:FORMAT`` is made once and kept in the cache."""
    if not name.startswith("synth:"):
        return resolve(name)
    _, shape, fmt = name.split(":")
    path = cache_dir() / "models" / f"{shape}-{fmt}-synth{'' if fmt == 'w8a8' else '.gguf'}"
    if not path.exists():
        from kforge.models.synth import synth

        path.parent.mkdir(parents=True, exist_ok=True)
        synth(shape, fmt, path)
    return path


def compare(
    path: Path, rows: list[Row], sides: list[Process], rounds: int, threads: int, console: Console
) -> list[dict]:
    """Interleaved rounds: every side once a round, in alternating order, the bandwidth probed beside them."""
    results = []
    for row in rows:
        seconds: dict[str, list[float]] = {s.name: [] for s in sides}
        bandwidth = []
        for side in sides:
            side.ask(row.request())  # warm: contexts, programs, pages
        for n in range(rounds):
            bandwidth.append(measure_bandwidth(threads, seconds=0.1).value)
            for side in sides if n % 2 == 0 else sides[::-1]:
                seconds[side.name].append(float(side.ask(row.request())["seconds"]))  # type: ignore[arg-type]
                time.sleep(0.05)  # spinning threads of the side before go to sleep
        results.append(_figures(path, row, seconds, bandwidth))
        console.print(_line(results[-1]))
    return results


def _figures(path: Path, row: Row, seconds: dict[str, list[float]], bandwidth: list[float]) -> dict:
    peers = [name for name in seconds if name != "kforge"]
    best = min(peers, key=lambda name: Summary.of(seconds[name]).median)
    ratio = Summary.of([p / k for p, k in zip(seconds[best], seconds["kforge"], strict=True)])
    tokens = {name: Summary.of([row.produced / s for s in times]) for name, times in seconds.items()}
    step_bytes = weight_bytes(path) * (row.tokens if row.mode == "decode" else 1)
    share = (
        {
            name: Summary.of([step_bytes / s / b for s, b in zip(times, bandwidth, strict=True)])
            for name, times in seconds.items()
        }
        if row.mode == "decode"
        else {}
    )
    return {
        "model": path.stem,
        "row": row.name,
        "peer": best,
        "ratio": ratio,
        "tokens_per_second": tokens,
        "share_of_bandwidth": share,
        "bandwidth": Summary.of(bandwidth),
    }


def weight_bytes(path: Path) -> int:
    """Bytes that a decode step must read at least: the file's tensors, the embedding table once (tied or gathered)."""
    return path.stat().st_size


def _line(r: dict) -> str:
    share = r["share_of_bandwidth"].get("kforge")
    return f"{r['model']} {r['row']}: kforge / llama.cpp ({r['peer']}) = {r['ratio']}" + (
        f", {100 * share.median:.0f} % of the measured bandwidth" if share else ""
    )


def print_table(results: list[dict], console: Console) -> None:
    table = Table(title="kforge / llama.cpp, same file, same threads, interleaved")
    for column in ("model", "row", "kforge tok/s", "llama.cpp tok/s", "built by", "ratio", "of bandwidth", "GB/s"):
        table.add_column(column, justify="right" if column not in ("model", "row") else "left")
    for r in results:
        share = r["share_of_bandwidth"].get("kforge")
        table.add_row(
            r["model"],
            r["row"],
            str(r["tokens_per_second"]["kforge"]),
            str(r["tokens_per_second"][r["peer"]]),
            r["peer"],
            str(r["ratio"]),
            f"{100 * share.median:.0f} %" if share else "",
            f"{r['bandwidth'].median / 1e9:.1f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,synth:llama-3.2-1b:q4_0")
    parser.add_argument("--rows", default="", help="only rows with these names, comma separated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=load_target("host").cores)
    parser.add_argument("--kernels", default="tuned", choices=("default", "tuned"))
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="use this environment instead of building one",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console()
    given = dict(item.split("=", 1) for item in args.peer_python)
    pythons = {n: Path(p) for n, p in given.items()} or {c: p for c in COMPILERS if (p := install(c, console))}
    results: list[dict] = []
    versions: dict[str, object] = {}
    for name in args.models.split(","):
        path = model_path(name)
        rows = [r for r in rows_for(path) if not args.rows or r.name in args.rows.split(",")]
        sides = [
            Process(
                "kforge",
                Path(sys.executable),
                "kforge_driver.py",
                {"open": str(path), "threads": args.threads, "kernels": args.kernels},
            )
        ]
        sides += [
            Process(n, p, "llama_cpp_driver.py", {"open": str(path), "threads": args.threads})
            for n, p in pythons.items()
        ]
        versions |= {s.name: s.opened for s in sides}
        results += compare(path, rows, sides, args.rounds, args.threads, console)
        for side in sides:
            side.close()
    print_table(results, console)
    write_json(args.json, "bench/peers.py", {"threads": args.threads, "peers": versions, "results": results})


if __name__ == "__main__":
    main()
