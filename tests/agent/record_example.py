"""Makes ``runs/0-example`` anew: a whole ``kforge tune --agent`` of a tiny model on this machine, against a server on
loopback that answers from a script. Needed when the words of a prompt change: ``python tests/agent/record_example.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fake_model_server
from fake_model_server import Answer, Asked, FakeModelServer, Step

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "runs" / "0-example"
MODEL = "scripted-answers"
_PARTS = "cpp/common"
_PRICES = f"""
[[price]]
provider = "openai"
models = ["{MODEL}"]
input = 2.0
cache_read = 0.2
cache_write = 2.0
output = 10.0
source = "made up, so that the example shows money"
date = "2026-11-30"
"""

KEEP = {
    "bottleneck": "cache_traffic", "move": "edit", "predicted_gain": 0.04, "difficulty": 2,
    "evidence": "H=256 is 16 vectors; the second loop loads again what the first one has loaded.",
    "change": "Keep what the first loop reads of a token in an array of H / 16 vectors, so that the second loop reads "
              "registers. With many tokens in flight the array spills, so one at a time may be best.",
}
STOP = {
    "bottleneck": "fixed_cost", "move": "stop", "predicted_gain": 0, "difficulty": 1, "change": "",
    "evidence": "At one token a call is shorter than the hand-over between threads; what is left is not the kernel's.",
}
_SUM = "        sum{{ i }} = fma(y{{ i }}, y{{ i }}, sum{{ i }});"
WRITING = {
    "name": "kept", "hypothesis": "16 loads a token fewer: a few percent at one token, nothing at 64.",
    "edits": [
        {"find": _SUM, "replace": _SUM + "\n        kept{{ i }}[k / 16] = y{{ i }};"},
        {"find": "load({{ 'residual' if residual else 'x' }}{{ i }} + k)", "replace": "kept{{ i }}[k / 16]"},
    ],
}
MENDING = {
    "name": "kept", "hypothesis": "The array was never declared.",
    "edits": [{"find": "    Lanes sum{{ i }} = zero();", "replace": "    Lanes sum{{ i }} = zero();\n"
               "    Lanes kept{{ i }}[H / 16];"}],
}


class Script(FakeModelServer):
    """Answers by the tool that it is asked to call."""

    def __init__(self) -> None:
        super().__init__(Answer())
        self.analyses = [KEEP]
        self.systems: set[str] = set()

    def next_step(self, asked: Asked) -> Step:
        tool = asked.body["tools"][0]["function"]["name"]
        system, user = (str(message["content"]) for message in asked.body["messages"][:2])
        if tool == "propose_next_move":
            said = self.analyses.pop(0) if self.analyses else STOP
        elif tool == "submit_repair":
            said = MENDING
        else:
            said = WRITING
        text = json.dumps(said)
        cached = len(system) // 4 if system in self.systems else 0
        self.systems.add(system)
        usage = ((len(system) + len(user)) // 4 - cached, cached, 0, len(text) // 4)
        return Answer(calls=((tool, text),), usage=usage)


def record(work: Path) -> Path:
    """The folder of a run made below ``work``."""
    fake_model_server.MODEL = MODEL
    env = {name: value for name, value in os.environ.items() if "API_KEY" not in name and "BASE_URL" not in name}
    home = work / "home"
    home.mkdir()
    (home / "prices.toml").write_text(_PRICES)

    def kforge(*words: str, **more: str) -> None:
        full = {**env, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), **more}
        subprocess.run([sys.executable, "-m", "kforge.cli.main", *words], env=full, cwd=work, check=True)

    kforge("model", "synth", "tiny-llama-test", "--out", "tiny.gguf")
    with Script().running() as server:
        kforge("tune", "tiny.gguf", "--agent", f"openai:{MODEL}", "--max-usd", "1", "--max-calls", "8", "--budget",
               "240s", "--max-trials", "60", "--threads", "1", "--context", "64", "--prefill", "64", "--batch", "1",
               "--workload", "rms_norm", OPENAI_API_KEY="none-is-needed", OPENAI_BASE_URL=f"{server.url}/v1")
    (run,) = (work / "runs").iterdir()
    return run


def keep(run: Path) -> None:
    """As the example, without what only a resumed run would need."""
    used = {part.name for part in run.glob(f"known/*/{_PARTS}/*")}
    for part in (run / "templates" / _PARTS).iterdir():
        if part.name not in used:
            part.unlink()
    for file in run.glob("study.journal*"):
        file.unlink()
    shutil.rmtree(EXAMPLE, ignore_errors=True)
    shutil.copytree(run, EXAMPLE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kforge-example-") as folder:
        keep(record(Path(folder)))
    print(EXAMPLE)
