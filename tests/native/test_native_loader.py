"""The loader: relocations, permissions, and refusal of everything malformed."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_kernels import ADD_AXIS, TABLE, image_of

from kforge.core.errors import KforgeError
from kforge.core.image import Image, Relocation, Segment
from kforge.native import Arena, Kernel, Program, Team

# 0xC3 is `ret` on x86; these images are only loaded, never called.
CODE = Segment(4096, b"\xc3" * 64, 64, True)
DATA = Segment(8192, b"\0" * 32, 5000, False)
GOOD = Image(4096, -1, (CODE, DATA), (Relocation(8192, 4096),))


def permissions(kernel: Kernel, around: int = 0) -> list[str]:
    """Of the mappings that the image lies in, and of ``around`` bytes on each side."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [(range(*(int(x, 16) for x in line[0].split("-"))), line[1]) for line in lines]
    return [mode for span, mode in spans if span.start < kernel.address_range.stop + around
            and span.stop > kernel.address_range.start - around]


def test_relocated_constants_work():
    image = image_of(TABLE)
    assert image.relocations
    out = Arena(4096).take(2, np.int32)
    with Team(1) as team, Program(team) as program:
        program.add(Kernel(image), [out], np.zeros(0, np.int64), np.zeros(0), "table")
        program.run()
    assert out.tolist() == [21, 40]


@pytest.mark.parametrize("body", [ADD_AXIS, TABLE])
def test_nothing_is_writable_and_code_is_the_only_executable(body):
    image = image_of(body)
    modes = permissions(Kernel(image))
    assert not any("w" in mode for mode in modes)
    assert any(mode.startswith("r-x") for mode in modes)


def test_gaps_are_inaccessible():
    assert [mode[:3] for mode in permissions(Kernel(GOOD))] == ["---", "r-x", "r--"]


def test_the_pages_beside_an_image_are_inaccessible():
    modes = permissions(Kernel(GOOD), around=4096)
    assert modes[0].startswith("---") and modes[-1].startswith("---")


def test_a_dropped_kernel_is_unmapped():
    kernel = Kernel(GOOD)
    span = kernel.address_range
    del kernel
    assert f"{span.start:x}-" not in Path("/proc/self/maps").read_text()


MALFORMED = {
    "entry in constants": replace(GOOD, entry=8192),
    "entry before the image": replace(GOOD, entry=-4096),
    "entry beyond the code's bytes": replace(GOOD, entry=4096 + 64),
    "scratch entry outside": replace(GOOD, scratch_entry=1 << 40),
    "scratch entry negative": replace(GOOD, scratch_entry=-2),
    "relocation in code": replace(GOOD, relocations=(Relocation(4096, 0),)),
    "relocation across the end": replace(GOOD, relocations=(Relocation(8192 + 5000 - 7, 0),)),
    "relocation far away": replace(GOOD, relocations=(Relocation(-(1 << 62), 0),)),
    "addend outside": replace(GOOD, relocations=(Relocation(8192, 1 << 40),)),
    "addend negative": replace(GOOD, relocations=(Relocation(8192, -8),)),
    "segment not aligned": replace(GOOD, segments=(replace(CODE, address=4096 + 64), DATA), entry=4096 + 64),
    "segments overlap": replace(GOOD, segments=(CODE, replace(DATA, address=4096))),
    "segments share a page": replace(GOOD, segments=(replace(CODE, memory_bytes=4097), DATA), entry=4096 + 8192,
                                     relocations=()),
    "segments descend": replace(GOOD, segments=(DATA, CODE)),
    "segment before the image": replace(GOOD, segments=(replace(CODE, address=-4096), DATA)),
    "data larger than memory": replace(GOOD, segments=(replace(CODE, memory_bytes=8), DATA)),
    "no code": replace(GOOD, segments=(DATA,), entry=8192),
    "huge": replace(GOOD, segments=(CODE, replace(DATA, memory_bytes=1 << 40))),
}


@pytest.mark.parametrize("image", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_images_are_refused(image):
    with pytest.raises(KforgeError, match="cannot load the kernel image"):
        Kernel(image)


def test_cut_and_extended_blobs_are_refused():
    blob = GOOD.blob()
    for end in range(len(blob)):
        with pytest.raises(KforgeError):
            Kernel.from_blob(blob[:end])
    with pytest.raises(KforgeError, match="data does not match"):
        Kernel.from_blob(blob + b"\0")


def test_lying_counts_are_refused():
    for field in range(5):
        for value in (-1, 1 << 62, -(1 << 63), (1 << 63) - 1, 0):
            blob = bytearray(GOOD.blob())
            if field == 2 and value == -1:
                continue  # no scratch entry is legal
            struct.pack_into("<q", blob, 8 + 8 * field, value)
            with pytest.raises(KforgeError):
                Kernel.from_blob(bytes(blob))


def test_random_damage_never_crashes_the_loader():
    dice = random.Random(1)
    header = len(GOOD.blob()) - len(CODE.data) - len(DATA.data)
    for _ in range(3000):
        blob = bytearray(GOOD.blob())
        for _ in range(dice.randint(1, 3)):
            blob[dice.randrange(header)] = dice.randrange(256)
        try:
            modes = permissions(Kernel.from_blob(bytes(blob))) if dice.random() < 0.05 else []
            Kernel.from_blob(bytes(blob))
        except KforgeError:
            continue
        assert not any("w" in mode for mode in modes)
