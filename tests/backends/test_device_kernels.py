"""CUDA and HIP kernels: built for GPUs that are not here, and checked on the CPU, where every planted fault shows."""

import dataclasses

import pytest
from device_kernels import (
    BACKENDS,
    DECODE,
    F32,
    FAULTS,
    GATED,
    Q4,
    RMS,
    SILU,
    WINDOW,
    candidate,
    checked,
    fitting,
    gpu,
)

from kforge.backends import verbs
from kforge.backends.corners import corners
from kforge.backends.gpu.binary import unpack
from kforge.backends.header import TemplateError, parse_with_parts
from kforge.core.trial import Artifact, Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness.check import CheckResult
from kforge.operators import get

NVIDIA, AMD = ("sm_80", "sm_90", "sm_100", "sm_120"), ("gfx90a", "gfx942")
ARCHES = [*(("cuda", arch) for arch in NVIDIA), *(("hip", arch) for arch in AMD)]
WORKLOADS = (RMS, SILU, DECODE, WINDOW, Q4, GATED, F32)


def build(backend, made, target):
    if why := BACKENDS[backend].cannot_build(target):
        pytest.skip(why)
    return BACKENDS[backend].build(made, target)


def test_a_template_may_have_the_header_of_one_that_it_includes():
    header = '{#- kforge\noperator = "silu_mul"\nversion = 1\nnumerics = "exact"\n-#}\n'
    like = '{#- kforge\nlike = "cuda/silu_mul/a.cu.j2"\n-#}\n{% include "cuda/silu_mul/a.cu.j2" %}\n'
    found = parse_with_parts("hip/b.j2", {"hip/b.j2": like, "cuda/silu_mul/a.cu.j2": header})
    assert found.operator == "silu_mul"
    with pytest.raises(TemplateError, match="includes"):
        parse_with_parts("hip/b.j2", {"hip/b.j2": like})


def test_both_backends_are_known():
    assert [verbs.of(name).name for name in ("cuda", "hip")] == ["cuda", "hip"]


@pytest.mark.parametrize("workload", [SILU, RMS])
def test_a_kernel_of_a_gpu_has_the_bits_of_the_order_specification_on_the_cpu(workload):
    found = checked(candidate(workload, gpu("sm_90")), workload)
    assert isinstance(found, CheckResult), found


def test_what_a_gpu_cannot_promise_stops_the_check():
    made = candidate(RMS, gpu("sm_90"))
    for old, new in (("    const float r", "    if (me < 40) kf::sync();\n    const float r"),
                     ("KF_SHARED(float, row, 100)", "KF_SHARED(float, row, 80)")):
        assert old in made.source
        found = checked(dataclasses.replace(made, source=made.source.replace(old, new)), RMS)
        assert isinstance(found, Failure), new
        assert found.kind is FailureClass.CRASH and "stopped by the check" in found.reason, found


@pytest.mark.parametrize("backend, arch", [("cuda", "sm_90"), ("hip", "gfx942")])
def test_a_binary_says_how_it_is_launched_and_what_it_needs(backend, arch):
    target = gpu(arch)
    made = candidate(RMS, target, backend)
    artifact = build(backend, made, target)
    assert isinstance(artifact, Artifact), artifact
    binary = unpack(artifact.data)
    assert binary.arch == arch and binary.launches == artifact.launches and artifact.launches[0].entry == "rms_norm"
    resources = dict(artifact.report.resources)
    # From sm_90 on the system keeps a kilobyte of a group's shared memory.
    assert 0 < resources["registers"] < 128 and resources["spill_bytes"] == 0
    assert resources["shared_bytes"] in (464, 464 + 1024)
    assert resources["warps"] * binary.entries[0].warp == 256
    assert BACKENDS[backend].build(made, target) == artifact  # from the cache
    report = BACKENDS[backend].inspect(artifact, Workload.parse(RMS), target)
    assert report.seconds > 0 and 0 < report.occupancy <= 1


@pytest.mark.parametrize(("limits", "said"), [({"threads_per_block": 32}, "allows 32"),
                                              ({"registers_per_unit": 64}, "registers are too few")])
def test_a_binary_that_a_chip_cannot_hold_is_told_although_another_chip_has_built_it(limits, said):
    h200 = gpu("sm_90")
    assert isinstance(build("cuda", candidate(SILU, h200), h200), Artifact)
    small = dataclasses.replace(h200, gpu=dataclasses.replace(h200.gpu, **limits))
    found = build("cuda", candidate(SILU, small), small)
    assert isinstance(found, Failure) and found.kind is FailureClass.MEMORY and said in found.reason, found


@pytest.mark.parametrize("backend, arch", [("cuda", "sm_90"), ("hip", "gfx942")])
@pytest.mark.parametrize("planted, said", [
    ("__attribute__((device)) int calls;\n", "device memory"),
    ("undeclared(1);", "undeclared"),
])
def test_state_that_outlives_a_call_and_unknown_names_are_refused(backend, arch, planted, said):
    target = gpu(arch)
    made = candidate(RMS, target, backend)
    where = "KF_KERNEL(256)" if "calls" in planted else "kf::sync();"
    device = "__device__ int calls;\n" if backend == "cuda" and "calls" in planted else planted
    source = made.source.replace(where, f"{device}{where}", 1)
    if "calls" in planted:
        source = source.replace("kf::sync();", "calls += 1;\n    kf::sync();", 1)
    found = build(backend, dataclasses.replace(made, source=source), target)
    assert isinstance(found, Failure)
    assert found.kind is (FailureClass.ADMISSION if "calls" in planted else FailureClass.COMPILE), found
    assert said in f"{found.reason} {found.detail}"


@pytest.mark.slow
@pytest.mark.parametrize("workload", [DECODE, WINDOW, Q4, GATED, F32])
@pytest.mark.parametrize("warp", [32, 64])
def test_every_template_has_the_bits_of_the_order_specification_on_the_cpu(workload, warp):
    made = candidate(workload, gpu("sm_90"))
    assert isinstance(found := checked(made, workload, warp), CheckResult), found


@pytest.mark.slow
@pytest.mark.parametrize("backend, arch", ARCHES)
def test_every_template_builds_at_the_corners_of_its_space(backend, arch):
    target = gpu(arch)
    if why := BACKENDS[backend].cannot_build(target):
        pytest.skip(why)
    for workload in map(Workload.parse, WORKLOADS):
        template = fitting(workload, target, backend)
        points = corners(template, workload.problem, target, every=False)
        for params in points if arch in ("sm_90", "gfx942") else points[:1]:
            made = template.render(workload.problem, target, params)
            artifact = BACKENDS[backend].build(made, target)
            assert isinstance(artifact, Artifact), (template.path, params, artifact)
            assert dict(artifact.report.resources)["registers"] > 0
            assert BACKENDS[backend].inspect(artifact, workload, target).seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_caught_without_a_gpu(fault):
    made = candidate(fault.workload, gpu("sm_90"))
    assert fault.found in made.source, made.source
    found = checked(dataclasses.replace(made, source=made.source.replace(fault.found, fault.planted)), fault.workload)
    assert isinstance(found, Failure), "nobody noticed"
    assert found.kind not in (FailureClass.COMPILE, FailureClass.ADMISSION, FailureClass.HARNESS), found


def test_every_operator_has_five_planted_faults():
    counts = {}
    for fault in FAULTS:
        operator = Workload.parse(fault.workload).problem.operator
        counts[operator] = counts.get(operator, 0) + 1
    assert set(counts) == {"rms_norm", "silu_mul", "paged_attention", "linear"} and min(counts.values()) >= 5
    assert all(get(operator) for operator in counts)
