"""What a Triton source may consist of: the gate in front of the compiler and of the interpreter."""

from __future__ import annotations

import pytest

from kforge.backends.triton.source import admit
from kforge.core.trial import FailureClass

HEAD = "import triton\nimport triton.language as tl\n"
RIGHT = HEAD + '''
H = tl.constexpr(64)
WIDE = tl.constexpr(2 * H + 1)
HALF = tl.constexpr(tl.float16)


@triton.jit
def helper(a, b):
    """Adds."""
    return (a + b).to(HALF)


@triton.jit
def kernel(x, out, T, BLOCK: tl.constexpr = 16):
    k = tl.arange(0, BLOCK)
    for i in range(0, tl.cdiv(T, BLOCK)):
        for _ in tl.static_range(2):
            y = tl.load(x + i * H + k, mask=k < T, other=0.0)
        a, b = helper(y, y), min(1, 2)
    tl.store(out + k, a * b, mask=k < T)
'''


def test_constants_and_jit_functions_are_admitted() -> None:
    assert admit(RIGHT) is None


@pytest.mark.parametrize("line", [
    "import os", "import triton.language", "from triton import jit", "from triton.language.extra import libdevice",
    "H = 5", "H = tl.constexpr(open('/etc/passwd'))", "H = tl.constexpr([i for i in range(3)])", "tl.load = 1",
    "tl = tl.constexpr(1)", "if True:\n    pass", "print('here')", "class A:\n    pass", "def plain():\n    pass",
    "@triton.autotune\n@triton.jit\ndef f(a):\n    pass", "@triton.jit(debug=True)\ndef f(a):\n    pass",
    "@triton.jit\ndef f(a=open('x')):\n    pass", "@triton.jit\ndef f(a: print('x')):\n    pass",
    "@triton.jit\ndef f(*a):\n    pass",
], ids=range(18))
def test_what_a_module_does_by_itself_is_refused(line: str) -> None:
    found = admit(HEAD + line)
    assert found is not None and found.kind is FailureClass.ADMISSION
    assert "kernel.py:" in found.reason


@pytest.mark.parametrize("line", [
    "import os", "exec('1')", "open('x')", "print(x)", "tl.device_print('x')", "tl.device_assert(x > 0)",
    "tl.inline_asm_elementwise('', '', [x], tl.int32, True, 1)", "x.__class__", "tl.core.builtin", "y = x.handle",
    "triton.runtime.driver", "triton.language.core", "getattr(x, 'handle')", "f = lambda: 1", "global H",
    "y = tl.load(x, _semantic=None)", "y = [i for i in range(3)]", "range = 3", "y = __import__('os')",
    "y = tl.extra.cuda.globaltimer()", "with x:\n        pass",
    "try:\n        pass\n    except ValueError:\n        pass",
], ids=range(22))
def test_what_leads_out_of_a_kernel_is_refused(line: str) -> None:
    found = admit(HEAD + f"@triton.jit\ndef f(x):\n    {line}\n")
    assert found is not None and found.kind is FailureClass.ADMISSION


def test_what_is_no_python_is_a_compile_error_with_its_line() -> None:
    found = admit(HEAD + "@triton.jit\ndef f(x:\n    pass\n")
    assert found is not None and found.kind is FailureClass.COMPILE
    assert "kernel.py:4" in found.reason
    assert admit("x" * (2 << 20)) is not None
    assert admit("a" + "[0" * 5000) is not None
