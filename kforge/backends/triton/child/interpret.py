"""Runs a candidate's kernels in Triton's interpreter, call by call: a JSON line in, a JSON line out. In the sandbox.

Tensors lie in memory that the parent shares, fills and looks at afterwards, between fences and inaccessible pages.
Every access is held against them here as well: what leaves its tensor is told, and not done.
"""

import ctypes
import dataclasses
import json
import os
import sys
import traceback
from bisect import bisect_right
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import package

_NONE, _BOTH = 0, 3  # PROT_NONE, PROT_READ | PROT_WRITE
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS = 1, 2, 16, 32
_ELEMENTS = {"*fp32": "float32", "*fp16": "float16", "*bf16": "bfloat16", "*i8": "int8", "*u8": "uint8",
             "*i32": "int32", "*i64": "int64"}


class Trespass(Exception):
    """An access outside the tensors, or a write to an input."""

    def __init__(self, kind, reason, detail):
        super().__init__(reason)
        self.kind, self.reason, self.detail = kind, reason, detail


class Memory:
    """The tensors of the present call, at their addresses."""

    def __init__(self, file):
        self.file = file
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                                   ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.base, self.size = None, 0
        self.starts, self.tensors = [], []

    def _map(self, address, size, protection, flags, file, offset):
        found = self.libc.mmap(address, size, protection, flags, file, offset)
        if found in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
        return found

    def place(self, call):
        """Maps the slots of a call; what an earlier one mapped is gone."""
        if self.base is not None:
            self.libc.munmap(self.base, self.size)
        self.size = call["reserve"]
        self.base = self._map(None, self.size, _NONE, _PRIVATE | _ANONYMOUS, -1, 0)
        for at, offset, size in call["slots"]:
            self._map(self.base + at, size, _BOTH, _SHARED | _FIXED, self.file, offset)
        found = sorted((self.base + t["at"], t["bytes"], t["name"], t["writable"]) for t in call["tensors"])
        self.starts, self.tensors = [t[0] for t in found], found

    def hold(self, addresses, size, writes):
        """Raises Trespass unless all of them (uint64) are elements of one of the call's tensors each."""
        if not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max())
        if not self._inside(low, high, size, writes):
            for address in addresses.reshape(-1).tolist():
                if not self._inside(address, address, size, writes):
                    self._refuse(address, size, writes)

    def _inside(self, low, high, size, writes):
        index = bisect_right(self.starts, low) - 1
        if index < 0:
            return False
        start, length, _, writable = self.tensors[index]
        return high + size <= start + length and (writable or not writes)

    def _refuse(self, address, size, writes):
        index = bisect_right(self.starts, address) - 1
        start, length, name, _ = self.tensors[max(index, 0)]
        if start <= address and address + size <= start + length:
            raise Trespass("input_modified", f"the kernel writes to its input {name}", f"byte {address - start}")
        nearest = min(self.tensors, key=lambda t: max(t[0] - address, address - (t[0] + t[1])))
        start, length, name, _ = nearest
        raise Trespass("fence", f"the kernel {'writes' if writes else 'reads'} outside {name}",
                       f"{size} bytes at byte {address - start} of {name}, which has {length}")


def watch(memory, interpreter, np):
    """Has every access of the interpreter held against the tensors."""
    builder = interpreter.InterpreterBuilder

    def width(pointers):
        return interpreter._get_np_dtype(pointers.get_element_ty()).itemsize

    def hold(pointers, mask, writes):
        addresses = pointers.data
        if mask is not None and not mask.data.all():
            addresses = np.broadcast_to(addresses, mask.data.shape)[mask.data]
        memory.hold(addresses, width(pointers), writes)

    load, store = builder.create_masked_load, builder.create_masked_store
    swap, change = builder.create_atomic_cas, builder.create_atomic_rmw

    def masked_load(self, pointers, mask, *rest, **named):
        hold(pointers, mask, False)
        return load(self, pointers, mask, *rest, **named)

    def masked_store(self, pointers, value, mask, *rest, **named):
        hold(pointers, mask, True)
        return store(self, pointers, value, mask, *rest, **named)

    def atomic_cas(self, pointers, *rest):
        hold(pointers, None, True)
        return swap(self, pointers, *rest)

    def atomic_rmw(self, operation, pointers, value, mask, *rest):
        hold(pointers, mask, True)
        return change(self, operation, pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_cas, builder.create_atomic_rmw = atomic_cas, atomic_rmw


def shuffle(interpreter, np):
    """Lets groups run in an order of their own: a function that sets it, from a seed (0: ascending)."""
    builder = interpreter.InterpreterBuilder
    plain = builder.set_grid_idx
    order: dict = {"seed": 0, "dim": None, "places": None}

    def set_grid_idx(self, x, y, z):
        if order["seed"]:
            nx, ny, nz = self.grid_dim
            if order["dim"] != (nx, ny, nz, order["seed"]):
                order["dim"] = (nx, ny, nz, order["seed"])
                order["places"] = np.random.default_rng(order["seed"]).permutation(nx * ny * nz)
            place = int(order["places"][(x * ny + y) * nz + z])
            x, y, z = place // (ny * nz), place // nz % ny, place % nz
        plain(self, x, y, z)

    builder.set_grid_idx = set_grid_idx
    return order


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(Path("job.json").read_text(encoding="utf-8"))
    os.environ.update(TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(Path("cache").resolve()),
                      TRITON_BACKENDS_IN_TREE="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    np = package.load("numpy", job["numpy"])
    package.load("triton", job["triton"])
    import rounding
    import triton.language as tl
    from triton.runtime import interpreter

    rounding.install()
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(
        options, default_dot_input_precision=job["precision"], allowed_dot_input_precisions=tuple(job["precisions"]))
    memory = Memory(job["file"])
    watch(memory, interpreter, np)
    order = shuffle(interpreter, np)
    kernel = package.candidate("kernel.py")

    def argument(given):
        kind, value = given
        if kind.startswith("*"):
            element = getattr(tl, _ELEMENTS[kind])
            pointer = tl.pointer_type(element)
            handle = interpreter.TensorHandle(np.array([memory.base + value], dtype=np.uint64), pointer)
            return tl.tensor(handle, pointer)
        of = {"i64": (tl.int64, np.int64), "i32": (tl.int32, np.int32), "fp32": (tl.float32, np.float32)}
        dtype, plain = of[kind]
        return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=plain), dtype), dtype)

    def run(call):
        memory.place(call)
        order["seed"] = call["order"]
        for launch in call["launches"]:
            function = getattr(kernel, launch["entry"])
            function[tuple(launch["grid"])](*(argument(given) for given in launch["arguments"]))

    for line in sys.stdin:
        try:
            run(json.loads(line))
            answer = {"ok": True}
        except BaseException as error:  # whatever a candidate comes to is an answer
            answer = refusal(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def refusal(error):
    """What a kernel did, or failed with, and where in its source."""
    chain, seen = [], error
    while seen is not None:
        chain.append(seen)
        seen = seen.__cause__ or seen.__context__
    where = ""
    for one in chain:
        for frame in traceback.extract_tb(one.__traceback__):
            if frame.filename.endswith("kernel.py"):
                where = f"kernel.py:{frame.lineno}: {frame.line}"
    for one in chain:
        if isinstance(one, Trespass):
            return {"failure": one.kind, "reason": one.reason, "detail": "; ".join(filter(None, [one.detail, where]))}
    last = chain[-1]
    if isinstance(last, NotImplementedError):  # of the interpreter or of ``rounding``: the kernel may be right
        return {"failure": "compile", "detail": where,
                "reason": f"the check cannot run this, whether it is right or not: {str(last)[:300]}"}
    kind = "memory" if any(isinstance(one, MemoryError) for one in chain) else "crash"
    return {"failure": kind, "reason": f"the interpreter stops: {type(last).__name__}: {str(last)[:300]}",
            "detail": where}


main()
