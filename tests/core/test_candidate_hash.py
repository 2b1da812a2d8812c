"""What makes two candidates the same."""

from __future__ import annotations

import dataclasses

from kforge.core.launch import Launch
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Problem, attrs

ONE = Candidate(Problem.of("rms_norm", H=64, residual=0), "triton", "t", "0", attrs({"num_warps": 4}), "source",
                NumericsClass.RELAXED, (), launches=(Launch("kernel", ("T",), ()),))


def test_options_of_a_device_compiler_tell_candidates_with_one_source_apart():
    assert dataclasses.replace(ONE, params=attrs({"num_warps": 8})).hash != ONE.hash
    assert dataclasses.replace(ONE, parent="another").hash == ONE.hash


def test_a_cpu_kernel_is_its_source():
    cpu = dataclasses.replace(ONE, backend="cpp", launches=())
    assert dataclasses.replace(cpu, params=attrs({"num_warps": 8})).hash == cpu.hash
