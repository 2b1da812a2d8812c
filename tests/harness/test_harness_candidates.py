"""What becomes of right, wrong and hostile candidates: each trial ends with a timing or with the class of its
failure.
"""

from __future__ import annotations

import pytest
from harness_kernels import RIGHT, WORKLOAD, after, before, candidate, changed, with_scratch

from kforge.core.trial import Candidate, FailureClass, NumericsClass
from kforge.harness import Harness

RELAXED = NumericsClass.RELAXED
LEFTOVER = "if (l->thread == 0) ((unsigned *)out)[0] ^= *(unsigned char *)l->scratch >> 7;"
BENT = """asm volatile("lea 1f+1(%%rip), %%rcx; push %%rcx; mov $39, %%eax; ret; 1: mov $0x9090050f, %%eax"
                       ::: "rax", "rcx", "r11", "memory");"""


def test_a_right_kernel_is_timed(harness: Harness) -> None:
    trial = harness.evaluate(candidate(), WORKLOAD)
    assert trial.ok and trial.failure is None, trial.failure
    assert trial.timing is not None and 0 < trial.timing.seconds < 0.1
    assert trial.processes == 1


def test_a_relaxed_kernel_in_another_order_is_within_its_bound(harness: Harness) -> None:
    reordered = changed("for (int64_t k = b; k < b + 128; ++k)", "for (int64_t k = b + 127; k >= b; --k)", RELAXED)
    trial = harness.evaluate(reordered, WORKLOAD)
    assert trial.ok, trial.failure
    assert 0 < trial.max_error_ratio < 1


FAILURES = {
    "crash": (after("*(volatile int *)0 = 1;"), FailureClass.CRASH),
    "illegal instruction": (after("__builtin_trap();"), FailureClass.CRASH),
    "stack overflow": (after("volatile char big[1 << 24]; for (int i = (1 << 24) - 1; i >= 0; i -= 64) big[i] = 1;"),
                       FailureClass.CRASH),
    "endless loop": (after('for (;;) asm volatile("");'), FailureClass.TIMEOUT),
    "wild write behind the output": (after("out[M * os + 100] = 1;"), FailureClass.FENCE),
    "write in front of the output": (after("out[-3] = 1;"), FailureClass.FENCE),
    "read behind an input": (after("if (x[M * xs + 32] == 1.0f) out[0] = 1;"), FailureClass.FENCE),
    "rows taken to be contiguous": (changed("m * os", "m * N"), FailureClass.FENCE),
    "write to an input": (after("((float *)x)[0] = 1;"), FailureClass.INPUT_MODIFIED),
    "write to a weight": (after("((float *)w)[5] = 1;"), FailureClass.INPUT_MODIFIED),
    "wrong result": (changed("= acc;", "= acc * 1.01f + 1;"), FailureClass.INCORRECT),
    "right only at the workload's own shape": (changed("= acc;", "= M == 4 ? acc : acc + 1;"), FailureClass.INCORRECT),
    "another order, declared exact": (RIGHT.replace("b += 128", "b += 64").replace("b + 128", "b + 64"),
                                      FailureClass.INEXACT),
    "element left out": (changed("n < N;", "n < N - 1;"), FailureClass.INCORRECT),
    "undefined scratch used": (with_scratch("64", LEFTOVER, RELAXED), FailureClass.NONDETERMINISTIC),
    "scratch beyond the limit": (with_scratch("1ll << 40"), FailureClass.MEMORY),
    "negative scratch": (with_scratch("-5"), FailureClass.MEMORY),
    "write in front of scratch": (with_scratch("100", "((char *)l->scratch)[-1] = 1;"), FailureClass.FENCE),
    "plain system call": (after('asm volatile("syscall" :: "a"(39) : "rcx", "r11", "memory");'),
                          FailureClass.ADMISSION),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_broken_kernel_gets_its_class_of_failure(harness: Harness, name: str) -> None:
    given, expected = FAILURES[name]
    broken = given if isinstance(given, Candidate) else candidate(given)
    trial = harness.evaluate(broken, WORKLOAD)
    assert not trial.ok
    assert trial.failure is not None and trial.failure.kind is expected, trial.failure
    assert trial.timing is None


def test_a_system_call_behind_a_bent_return_address_kills_only_its_process(harness: Harness, target: object) -> None:
    if getattr(target, "arch", "") != "x86_64":
        pytest.skip("the bent return address is x86-64 code")
    trial = harness.evaluate(after(BENT), WORKLOAD)
    assert trial.failure is not None and trial.failure.kind is FailureClass.FORBIDDEN, trial.failure
    assert harness.evaluate(candidate(), WORKLOAD).ok


def test_a_result_that_depends_on_the_thread_count_is_no_exact_kernel(harness: Harness, threads: int) -> None:
    if threads == 1:
        pytest.skip("one CPU")
    wrong_alone = after("if (l->threads == 1) out[0] += 1;")
    trial = harness.evaluate(wrong_alone, WORKLOAD)
    assert trial.failure is not None and trial.failure.kind is FailureClass.NONDETERMINISTIC, trial.failure


def test_an_output_kept_from_an_earlier_call_is_found_out_in_the_timed_calls(harness: Harness) -> None:
    lazy = before("kf_barrier(l); unsigned first; __builtin_memcpy(&first, out, 4); kf_barrier(l);"
                  "if (first != 0xFFFFFFFFu && first != 0x7F7F7F7Fu) return;")
    trial = harness.evaluate(lazy, WORKLOAD)
    assert trial.failure is not None and "timed call" in trial.failure.reason, trial


def test_a_kernel_that_writes_the_number_of_calls_beside_its_axes_gains_nothing(harness: Harness) -> None:
    honest = harness.evaluate(candidate(), WORKLOAD)
    # Where the executor keeps it: 16 tensor commands of 96 bytes and three words in front of the axes.
    cheat = harness.evaluate(after("if (l->axes[0] == 4) ((int64_t *)l->axes)[-195] = 1;"), WORKLOAD)
    assert honest.timing is not None
    assert cheat.failure is not None or (cheat.timing is not None and cheat.timing.seconds > honest.timing.seconds / 2)


def test_the_first_wrong_element_is_named(harness: Harness) -> None:
    trial = harness.evaluate(changed("= acc;", "= n == 70 ? acc + 1 : acc;"), WORKLOAD)
    assert trial.failure is not None
    assert "out[0, 70]" in trial.failure.detail and "expected" in trial.failure.detail


def test_a_clearly_slower_candidate_is_cut_after_one_batch(harness: Harness) -> None:
    trial = harness.evaluate(candidate(), WORKLOAD, cut_above=1e-9)
    assert trial.timing is not None and trial.timing.batches == 1
