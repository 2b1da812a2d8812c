"""The disassembly of a built kernel: every instruction once, loops by their branches back."""

from __future__ import annotations

import pytest
from backends_cpp import host, kernel

from kforge.backends.cpp.build import build
from kforge.backends.cpp.disassembly import disassemble
from kforge.backends.cpp.elf import Refused
from kforge.core.trial import Artifact

NESTED = """
    float *out = (float *)launch->tensors[0].data;
    const float *in = (const float *)launch->tensors[1].data;
    for (int64_t i = 0; i < launch->axes[0]; ++i) {
        asm volatile("" ::: "memory");
        for (int64_t k = 0; k < launch->axes[1]; ++k) out[k] = __builtin_fmaf(in[k], in[k], out[k]);
    }
    for (int64_t i = 0; i < launch->axes[0]; ++i) asm volatile("" ::: "memory");
"""


def test_the_hot_loop_is_the_innermost_one_that_computes():
    artifact = build(kernel(NESTED), host())
    assert isinstance(artifact, Artifact), artifact
    listing = disassemble(artifact.data)
    assert sum(count for _, count in artifact.report.instruction_mix) == len(listing.lines)
    hot = listing.hot
    assert hot is not None
    assert hot.innermost and hot.depth == 2
    assert dict(hot.mix)["fma"] >= 1
    texts = [line.text for line in listing.lines[hot.first : hot.last + 1]]
    assert any("fmadd" in text for text in texts)
    assert texts[-1].startswith("j")
    outer = next(loop for loop in listing.loops if loop.depth == 1 and not loop.innermost)
    assert outer.first <= hot.first and hot.last <= outer.last


def test_code_without_loops_has_no_hot_one_and_other_bytes_are_refused():
    artifact = build(kernel("((float *)launch->tensors[0].data)[0] = 1;"), host())
    assert isinstance(artifact, Artifact), artifact
    assert disassemble(artifact.data).hot is None
    with pytest.raises(Refused):
        disassemble(b"no kernel")
