"""Programs: what a replay reads again, what it resets, what it reports."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from native_kernels import ADD_AXIS, ROUNDS, SPOIL_MXCSR, image_of

from kforge.core.errors import KforgeError
from kforge.native import Arena, Kernel, Program, Team


@pytest.fixture(scope="module")
def team():
    with Team(2) as made:
        yield made


def test_axes_scalars_and_tensors_are_read_again_at_each_replay(team):
    whole = Arena(4096).take((4, 16), np.float32)
    out = whole[:, :8]
    axes, scalars = np.array([1, 8, 4], np.int64), np.array([1.0])
    with Program(team) as program:
        program.add(Kernel(image_of(ADD_AXIS)), [out], axes, scalars, "add")
        program.run()
        assert (out == 1).all() and not whole[:, 8:].any()
        axes[:] = [10, 4, 3]
        scalars[0] = 0.5
        program.run()
    assert (out[:3, :4] == 6).all() and (out[3] == 1).all() and (out[:, 4:] == 1).all()


def test_launches_run_in_order(team):
    out = Arena(4096).take((2, 16), np.float32)
    kernel = Kernel(image_of(ADD_AXIS))
    with Program(team) as program:
        for i, value in enumerate([1 << 24, 1, -(1 << 24)] * 5):  # the 1 is rounded away in this order only
            program.add(kernel, [out], np.array([value, 16, 2], np.int64), np.array([1.0]), f"add {i}")
        program.run()
        assert not out.any()
        assert program.calls == (1,) * 15 and program.labels[3] == "add 3" and len(program) == 15


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is x86's")
@pytest.mark.parametrize("threads", [1, 2])
def test_mxcsr_is_reset_before_each_launch_and_the_callers_kept(threads):
    kernel = Kernel(image_of(SPOIL_MXCSR))
    arena = Arena(4096)
    seen = [arena.take(threads, np.uint32) for _ in range(2)]
    with Team(threads) as team, Program(team) as program:
        for out in seen:
            program.add(kernel, [out], np.zeros(1, np.int64), np.zeros(0), "spoil")
        for _ in range(2):
            program.run()
            assert [out.tolist() for out in seen] == [[0x1F80] * threads] * 2
    assert np.float32(1e-40) * np.float32(1) > 0  # the caller still has denormals
    assert np.float32(1) / np.float32(3) == np.float32(0.33333334)  # and rounds to nearest


def test_scratch_is_shared_grown_and_checked_against_the_axes(team):
    kernel = Kernel(image_of(ROUNDS))
    errors = Arena(4096).take(2, np.int32)
    axes = np.array([10, 0], np.int64)
    assert kernel.scratch_bytes(axes, 2) == 128
    with Program(team) as small, Program(team) as large:
        small.add(kernel, [errors], axes, np.zeros(0), "small")
        small.run()
        large.add(kernel, [errors], axes.copy(), np.zeros(0), "large", max_axes=np.array([10, 5 << 20], np.int64))
        large.run()
        assert team.scratch.size >= 5 << 20
        small.run()  # after the shared scratch has moved
        axes[1] = 64
        with pytest.raises(KforgeError, match=r"small: axes \[10, 64\] need more scratch than the 128 bytes"):
            small.run()
        assert small.calls == (2,)
    assert not errors.any()


def test_profile_times_each_launch(team):
    kernel = Kernel(image_of(ADD_AXIS))
    out = Arena(1 << 22).take((512, 1024), np.float32)
    with Program(team) as program:
        for rows in (1, 512):
            program.add(kernel, [out], np.array([1, 1024, rows], np.int64), np.array([1.0]), f"{rows} rows")
        short, long = program.profile(9)
        assert 0 < short < long
        assert program.calls == (9, 9)


def test_an_empty_program_runs(team):
    with Program(team) as program:
        program.run()
        assert program.profile(3) == []


@pytest.mark.parametrize(("tensor", "message"), [
    (lambda a: a[1:9], "not 64-byte aligned"),
    (lambda a: a[:64].reshape(8, 8).T, "innermost stride 1"),
    (lambda a: a[:64:2], "innermost stride 1"),
])
def test_tensors_that_the_abi_forbids_are_refused(team, tensor, message):
    kernel = Kernel(image_of(ADD_AXIS))
    array = tensor(Arena(4096).take(256, np.float32))
    with Program(team) as program, pytest.raises(KforgeError, match=message):
        program.add(kernel, [array], np.zeros(3, np.int64), np.zeros(1), "add")


def test_axes_of_another_type_are_refused(team):
    kernel = Kernel(image_of(ADD_AXIS))
    with Program(team) as program, pytest.raises(KforgeError, match="axes must be a contiguous int64 vector"):
        program.add(kernel, [], np.zeros(3, np.int32), np.zeros(1), "add")


def test_arena_arrays_are_aligned_zeroed_and_outlive_it():
    arena = Arena(1 << 16)
    first = arena.take((3, 5), np.float32)
    second = arena.take(7, np.uint8)
    third = arena.take((2,), np.int64, page_aligned=True)
    assert first.shape == (3, 5) and not first.any()
    assert second.ctypes.data % 64 == 0 and third.ctypes.data % 4096 == 0
    assert arena.memory.ctypes.data % (2 << 20) == 0
    with pytest.raises(KforgeError, match="is full"):
        arena.take(1 << 16, np.uint8)
    del arena
    first += 1
    assert first.sum() == 15 and not second.any()
