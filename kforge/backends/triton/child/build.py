"""Compiles a candidate's kernels ahead of time: reads job.json and kernel.py, leaves a binary and its assembly for each
entry, and answer.json. Runs in the sandbox; its answer is believed in nothing that the parent can see for itself."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import package

_SHOWN = 4000


def main():
    job = json.loads(Path("job.json").read_text(encoding="utf-8"))
    os.environ.update(TRITON_CACHE_DIR=str(Path("cache").resolve()), TRITON_BACKENDS_IN_TREE="1",
                      TRITON_DISABLE_LINE_INFO="1", TRITON_DEFAULT_FP_FUSION="1")
    try:
        answer = {"entries": build(job)}
    except MemoryError:
        answer = {"error": "limit", "text": "the compiler ran out of memory"}
    except BaseException as error:  # whatever the compiler or the source comes to is an answer
        answer = {"error": "compile", "text": said(error)[:_SHOWN], "line": line_of(error)}
    Path("answer.json").write_text(json.dumps(answer), encoding="utf-8")


def build(job):
    triton = package.load("triton", job["triton"])
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import cache

    cache.triton_key = lambda: "kforge"  # half a gigabyte to hash; kforge has a cache of its own
    kernel = package.candidate("kernel.py")
    target = GPUTarget(*job["target"])
    found = []
    for number, entry in enumerate(job["entries"]):
        function = getattr(kernel, entry["name"], None)
        if not isinstance(function, triton.JITFunction):
            raise TypeError(f"there is no @triton.jit function {entry['name']}, which a launch names")
        names, types = list(function.arg_names), entry["types"]
        constants = defaults(function, names[len(types):])
        if len(names) - len(constants) != len(types):
            raise TypeError(f"{entry['name']} has {len(names) - len(constants)} parameters, its launch {len(types)} "
                            "arguments; those behind them are tl.constexpr with defaults")
        signature = {**dict(zip(names, types, strict=False)), **dict.fromkeys(constants, "constexpr")}
        attributes = {(i,): [["tt.divisibility", 16]] for i in entry["divisible"]}
        source = ASTSource(function, signature, constants, attributes)
        compiled = triton.compile(source, target=target, options=entry["options"])
        assembly = compiled.asm.get("amdgcn") or compiled.asm["ptx"]
        Path(f"{number}.bin").write_bytes(compiled.asm["hsaco" if "hsaco" in compiled.asm else "cubin"])
        Path(f"{number}.asm").write_text(assembly, encoding="utf-8")
        data = compiled.metadata
        found.append({"name": data.name, "warps": data.num_warps, "shared": data.shared,
                      "scratch": int(getattr(data, "global_scratch_size", 0) or 0),
                      "ctas": int(getattr(data, "num_ctas", 1))})
    return found


def defaults(function, names):
    """The values of the parameters behind the arguments, which must be constants with one."""
    parameters = {p.name: p for p in function.params}
    found: dict = {}
    for name in names:
        parameter = parameters[name]
        if not parameter.is_constexpr or not parameter.has_default:
            return found
        default = parameter.default
        found[name] = getattr(default, "value", default)
    return found


def said(error):
    """The compiler's words: its own message, and what caused it."""
    parts: list = []
    seen = error
    while seen is not None and len(parts) < 4:
        parts.append(f"{type(seen).__name__}: {seen}" if str(seen) else type(seen).__name__)
        seen = seen.__cause__
    return "\n".join(parts)


def line_of(error):
    """The line of kernel.py that it is about; 0 when it does not say."""
    seen = error
    line = 0
    while seen is not None:
        node = getattr(seen, "node", None)
        src = getattr(seen, "src", None)
        if node is not None and isinstance(src, str):
            first = Path("kernel.py").read_text(encoding="utf-8").find(src)
            if first >= 0:
                line = Path("kernel.py").read_text(encoding="utf-8")[:first].count("\n") + node.lineno
        seen = seen.__cause__
    return line


main()
