"""The container of GPU binaries, and what is refused in it and in the binaries themselves."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from kforge.backends.gpu import cubin, hsaco, mix
from kforge.backends.gpu.binary import BinaryError, DeviceBinary, Entry, unpack
from kforge.core.launch import Argument, ArgumentKind, Launch
from kforge.core.trial import FailureClass

ENTRY = Entry("norm", "cubin", (8, 8, 4), 4, 32, 128, (("registers", 40),), (("float", 3),), b"binary")
LAUNCH = Launch("norm", ("cdiv(T, 4)", "n"), (Argument(ArgumentKind.TENSOR, "x", multiple=16),
                                              Argument(ArgumentKind.STRIDE, "x", 0, 16),
                                              Argument(ArgumentKind.SCALAR, "eps")),
                scratch="4 * T", constants=(("n", 2),), warps=4, shared_bytes=128)
BINARY = DeviceBinary("sm_90", "triton 3.9.0", (ENTRY,), (LAUNCH,))


def test_a_container_gives_back_what_was_packed() -> None:
    assert unpack(BINARY.pack()) == BINARY
    assert unpack(BINARY.pack()).launches[0].groups({"T": 9}) == (3, 2, 1)


def header_changed(**changes: object) -> bytes:
    data = BINARY.pack()
    (length,) = struct.unpack_from("<I", data, 8)
    text = json.dumps({**json.loads(data[12:12 + length]), **changes}).encode()
    return data[:8] + struct.pack("<I", len(text)) + text + data[12 + length:]


def launch_changed(**changes: object) -> bytes:
    data = BINARY.pack()
    (length,) = struct.unpack_from("<I", data, 8)
    return header_changed(launches=[{**json.loads(data[12:12 + length])["launches"][0], **changes}])


@pytest.mark.parametrize("data", [
    b"", b"\x7fELF", BINARY.pack()[:20], BINARY.pack()[:-1], BINARY.pack() + b"x",
    BINARY.pack().replace(b"binary", b"binarx"), header_changed(launches=[]), header_changed(entries={}),
    header_changed(arch=90), launch_changed(grid=["__import__('os')"]), launch_changed(grid=["T ** 9"]),
    launch_changed(grid=["1"] * 4), launch_changed(scratch="T.real"), launch_changed(entry="other"),
    launch_changed(arguments=[["tensor", "x", 0]]), launch_changed(warps="4"),
    launch_changed(constants=[["n", 1 << 70]]),
], ids=range(17))
def test_a_damaged_container_is_refused(data: bytes) -> None:
    with pytest.raises(BinaryError):
        unpack(data)


def test_launches_and_kernels_must_fit_together() -> None:
    with pytest.raises(BinaryError, match="fit together"):
        unpack(replace(BINARY, entries=(ENTRY, replace(ENTRY, name="more"))).pack())


@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(60), b"\x7fELF\x02\x01\x01" + bytes(100)], ids=range(3))
def test_what_is_no_binary_is_refused_not_raised(data: bytes) -> None:
    for found in (cubin.examine(data, "norm", "sm_90"), hsaco.examine(data, "norm", "gfx942")):
        assert not isinstance(found, cubin.Facts | hsaco.Facts)
        assert found.kind is FailureClass.ADMISSION


SASS = """
.text.norm:
        /*0000*/                   S2R R3, SR_TID.X ;
.L_x_1:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/              @!P0 LDG.E.128 R4, desc[UR10][R18.64] ;
        /*0040*/                   LDG.E.U16.CONSTANT R5, desc[UR10][R18.64] ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ;
        /*0060*/                   FFMA R5, R5, R21, RZ ;
        /*0070*/                   STL [R1], R5 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0090*/                   STG.E desc[UR4][R2.64], R5 ;
        /*00a0*/                   EXIT ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
"""


def test_the_main_loop_is_the_one_that_moves_data() -> None:
    found = mix.of_sass(SASS)
    assert found.loop and found.instructions == 6 and found.load_bytes == 18 and found.refused == ""
    assert dict(found.classes) == {"load_global": 2, "mma_bf16": 1, "float": 1, "spill": 1, "control": 1}


def test_a_kernel_without_loops_is_its_own_main_loop() -> None:
    found = mix.of_sass(SASS.replace("@P1 BRA `(.L_x_2)", "NOP").replace("@!P0 BRA `(.L_x_1)", "NOP"))
    assert not found.loop and dict(found.classes)["store_global"] == 1


@pytest.mark.parametrize("opcode", ["BPT.TRAP 0x1", "BRX R2 -0x10", "JMX R2", "CALL.ABS.NOINC R2"])
def test_traps_and_computed_jumps_are_refused(opcode: str) -> None:
    assert mix.of_sass(SASS.replace("FFMA R5, R5, R21, RZ", opcode)).refused == opcode.partition(" ")[0]


GCN = """norm:                               ; @norm
	s_load_b256 s[4:11], s[0:1], 0x0
.LBB0_1:
	global_load_dwordx4 v[1:4], v9, s[20:23]
	buffer_load_ushort v5, v9, s[20:23], 0 offen
	v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
	v_dual_add_f32 v2, v2, v6 :: v_dual_add_f32 v1, v1, v5
	scratch_store_dword off, v1, s32
	s_cbranch_scc1 .LBB0_1
	s_endpgm
.Lfunc_end0:
	.section .rodata
"""


def test_amd_assembly_is_read_the_same_way() -> None:
    found = mix.of_gcn(GCN)
    assert found.loop and found.load_bytes == 18
    assert dict(found.classes) == {"load_global": 2, "mma_fp16": 1, "float": 2, "spill": 1, "control": 1}
    assert mix.of_gcn(GCN.replace("s_endpgm", "s_trap 2")).refused == "s_trap"
