"""Admission of AArch64 code: each way out of pure computation is refused, what compilers emit passes."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("capstone")

from kforge.backends.cpp.code_aarch64 import BARRIER_GATE, decode, sweep
from kforge.backends.cpp.elf import Refused
from kforge.core.image import Segment

RET, NOP, GATE = 0xD65F03C0, 0xD503201F, struct.unpack("<3I", BARRIER_GATE)


def code(*words: int, at: int = 0x1000) -> tuple[Segment, ...]:
    data = struct.pack(f"<{len(words)}I", *words)
    return (Segment(at, data, len(data), True),)


def refusal(*words: int, entries: tuple[int, ...] = (0x1000,)) -> str:
    with pytest.raises(Refused) as caught:
        sweep(code(*words), entries)
    return str(caught.value)


@pytest.mark.parametrize(("word", "why"), [
    (0xD4000001, "a system call"), (0xD4000002, "the hypervisor"), (0xD4000003, "secure monitor"),
    (0xD4400000, "an exception"), (0xD4A00001, "an exception"), (0xD53BE040, "a system register"),  # hlt, dcps1, time
    (0xD53BD040, "a system register"), (0xD51B4400, "a system register"), (0xD50344DF, "a system instruction"),
    (0xD61F0020, "an indirect jump"), (0xD63F0020, "an indirect call"), (0xD65F0020, "an indirect jump"),  # ret x1
    (0xD69F03E0, "an indirect jump"), (0xD65F0BFF, "an indirect jump"), (0xD71F0801, "an indirect jump"),
    (0xD503233F, "a system instruction"), (0xD503207F, "a system instruction"), (0xD503205F, "a system instruction"),
    (0xD50B7420, "a system instruction"), (0xD50B7520, "a system instruction"), (0xD503477F, "a system instruction"),
    (0xDAC10020, "pointer authentication"), (0xF8200400, "pointer authentication"), (0x9ADF1000, "memory tags"),
    (0xD9200800, "memory tags"), (0x04200000, "SVE"), (0x04BF5000, "SVE"), (0xFFFFFFFF, "no instruction"),
    (0x80000000, "no instruction|unknown extension"), (0x54000010, "unknown extension"),  # bc.eq
], ids=lambda value: f"{value:08x}" if isinstance(value, int) else None)
def test_instructions_that_are_not_pure_computation_are_refused(word: int, why: str) -> None:
    import re

    assert re.search(why, refusal(NOP, word, RET))


def test_an_indirect_call_says_how_to_meet_the_team() -> None:
    assert "call kf_barrier(launch)" in refusal(NOP, 0xD63F0020, RET)


@pytest.mark.parametrize("word", [
    0x4E829420, 0x4E82A420, 0x4E829C20, 0x6E42EC20, 0x4E22CC20, 0x0E217820,  # sdot, smmla, usdot, bfmmla, fmla, fcvtl
    0xF8210041, 0xC85F7C20, 0xF9800000, 0x9B010000, 0x1F020C20, 0x4EA1B820,  # ldadd, ldxr, prfm, madd, fmadd, neg
    0xD5033BBF, 0xD5033FDF, 0xD503245F, 0xD503203F, 0xD4200000, 0x00000000,  # dmb, isb, bti, yield, brk, udf
    0x4E284820, 0xDAC00C20, 0x1E604020,  # aese, rev, fmov
], ids=lambda word: f"{word:08x}")
def test_instructions_that_only_compute_are_admitted(word: int) -> None:
    assert sweep(code(NOP, word, RET), (0x1000,)).text_bytes == 12


def test_control_goes_to_instructions_of_the_image_only() -> None:
    assert sweep(code(0x14000002, NOP, RET), (0x1000,)).text_bytes == 12
    assert "does not land on an instruction" in refusal(0x14000004, NOP, RET)
    assert "does not land on an instruction" in refusal(0x97FFFFF0, NOP, RET)  # a call backwards, out of the image
    assert "does not land on an instruction" in refusal(0x54001000, NOP, RET)  # a condition
    assert "does not land on an instruction" in refusal(0xB4001000, NOP, RET)  # cbz
    assert "does not land on an instruction" in refusal(0x36081000, NOP, RET)  # tbz
    assert "is not the start of an instruction" in refusal(NOP, RET, entries=(0x1002,))
    assert "is not the start of an instruction" in refusal(NOP, RET, entries=(0x1008,))
    assert "runs on past its end" in refusal(RET, 0x8B010000)


def test_the_barriers_gate_is_the_one_indirect_jump_and_is_entered_at_its_start() -> None:
    padded = (NOP, NOP, NOP, RET, *GATE)
    assert sweep(code(*padded), (0x1000, 0x1010)).text_bytes == 28
    assert sweep(code(0x94000004, NOP, NOP, RET, *GATE), (0x1000,))
    assert "does not land" in refusal(0x94000005, NOP, NOP, RET, *GATE)  # behind the load of the address
    assert "an indirect jump" in refusal(NOP, RET, *GATE)  # not at a multiple of 16
    assert "an indirect jump" in refusal(NOP, NOP, NOP, RET, GATE[0], GATE[1], 0xD61F0040)


def test_code_is_whole_words() -> None:
    with pytest.raises(Refused, match="whole instructions"):
        sweep((Segment(0x1000, b"\x1f\x20\x03", 3, True),), ())


def test_facts_tell_dot_products_and_spills() -> None:
    # sdot twice, fmla, str q0 [sp, #16], ldr q0 [x29, #16], str x0 [sp]
    words = (0x4E829420, 0x4E829420, 0x4E22CC20, 0x3D8007E0, 0x3DC007A0, 0xF90003E0, RET)
    facts = sweep(code(*words), (0x1000,))
    mix = dict(facts.mix)
    assert (mix["dot product"], mix["fma"], mix["vector move"], mix["scalar"], mix["branch"]) == (2, 1, 2, 1, 1)
    assert facts.spills == 2


def test_decoding_tells_where_branches_go() -> None:
    found = list(decode(code(NOP, 0x54FFFFE1, 0x17FFFFFE, 0x37F7FFC0, RET)[0]))
    assert [d.target for d in found] == [-1, 0x1000, 0x1000, 0x1004, -1]
