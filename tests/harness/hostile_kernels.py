"""Kernels that try to be timed without doing their work. They are right in every check; only timing is to be fooled."""

from __future__ import annotations

from harness_kernels import RIGHT, candidate

from kforge.core.trial import Candidate

# Answers of up to four inputs that were seen before, each thread for its own columns, found by a hash of the inputs.
_REMEMBER = """
typedef struct { unsigned long key; float out[64 * 192]; } Entry;
static unsigned long hash(const float *x, int64_t xs, const float *w, int64_t M) {
    unsigned long h = 1469598103934665603ul ^ (unsigned long)M;
    for (int64_t m = 0; m < M; ++m)
        for (int64_t k = 0; k < 256; k += 8) h = (h ^ *(const unsigned *)(x + m * xs + k)) * 1099511628211ul;
    for (int64_t k = 0; k < 256; k += 16) h = (h ^ *(const unsigned *)(w + k)) * 1099511628211ul;
    return h | 1;
}
"""
_RECALL = """
    Entry *known = (Entry *)(MEMORY), *kept = 0;
    if (M <= ROWS) {
        const unsigned long key = hash(x, xs, w, M);
        for (int e = 0; e < ENTRIES; ++e)
            if (known[e].key == key) {
                for (int64_t m = 0; m < M; ++m)
                    for (int64_t n = l->thread; n < N; n += l->threads) out[m * os + n] = known[e].out[m * N + n];
                return;
            }
        kept = known + (key >> 7) % ENTRIES;
        for (int e = 0; e < ENTRIES; ++e)
            if (!known[e].key) kept = known + e;
        kept->key = key;
    }
"""


def _remembering(memory: str, rows: int, entries: int, more: str = "") -> Candidate:
    """Keeps answers in ``memory``, an expression for the thread's own part."""
    text = RIGHT.replace("/* before */", _RECALL)
    text = text.replace("out[m * os + n] = acc;", "out[m * os + n] = acc; if (kept) kept->out[m * N + n] = acc;")
    text = text.replace('extern "C" void', _REMEMBER.replace("64 * 192", f"{rows} * 192") + 'extern "C" void', 1)
    return candidate(text.replace("MEMORY", memory).replace("ROWS", str(rows)).replace("ENTRIES", str(entries)) + more)


REMEMBERS_IN_SCRATCH = _remembering(
    "(char *)l->scratch + l->thread * 4 * sizeof(Entry)", 4, 4,
    'extern "C" int64_t kforge_scratch_bytes(const int64_t *, int32_t threads) '
    "{ return threads * 4 * (int64_t)sizeof(Entry); }",
)
# Two entries of 3 KiB, far below any frame of the executor or of this kernel.
REMEMBERS_ON_DEAD_STACK = _remembering("((char *)__builtin_frame_address(0) - 40000)", 4, 4)

# A few elements are computed. Where they stand in the output already so do all others, but for a line that was spoiled.
REPAIRS = candidate(RIGHT.replace("/* before */", """
    int same = 1;
    for (int64_t m = 0; m < M && same; ++m) {
        const int64_t n = l->thread + 100;
        const float *row = w + n / 16 * 16 * K + n % 16;
        float acc = 0;
        for (int64_t b = 0; b < K; b += 128) {
            float block = 0;
            for (int64_t k = b; k < b + 128; ++k) block = __builtin_fmaf(x[m * xs + k], row[16 * k], block);
            acc = b ? acc + block : block;
        }
        same = out[m * os + n] == acc;
    }
    for (int64_t m = 0; m < M && same; ++m)
        for (int64_t n = l->thread; n < N; n += l->threads)
            if (*(unsigned *)(out + m * os + n) == 0xFFFFFFFFu) {
                const float *row = w + n / 16 * 16 * K + n % 16;
                float acc = 0;
                for (int64_t b = 0; b < K; b += 128) {
                    float block = 0;
                    for (int64_t k = b; k < b + 128; ++k) block = __builtin_fmaf(x[m * xs + k], row[16 * k], block);
                    acc = b ? acc + block : block;
                }
                out[m * os + n] = acc;
            }
    if (same) return;
"""))

# Looks upwards from its frame for a plausible number of calls, and lowers it.
WALKS_UP = candidate(RIGHT.replace("/* before */", """
    if (M == 4) {
        volatile int64_t *at = (volatile int64_t *)__builtin_frame_address(0);
        for (int i = 0; i < 100000; ++i)
            if (at[i] > 64 && at[i] < 1000000 && at[i] != 256 && at[i] != 192) at[i] = 1;
    }
"""))

# For one thread. The barrier of a launch lies in the team, which holds the address of the batch behind it; that lies on
# the stack of the executor, above the frame that counts. A word there that grows by one a call is the counter. It is
# set so that the loop ends, after a call that read the inputs which the last one would have read.
ENDS_THE_BATCH_EARLY = candidate(RIGHT.replace("/* before */", """
    if (M == 4 && l->threads == 1) {
        const int64_t *const *team = (const int64_t *const *)l->team;
        const int64_t *batch = team[1808 / 8];
        const int64_t calls = batch[2];
        struct Seen { int64_t count, words[256]; } *seen = (struct Seen *)((char *)__builtin_frame_address(0) - 40000);
        volatile int64_t *frame = (volatile int64_t *)batch - 256;
        if (calls > 16 && ++seen->count > 3 && (seen->count & 1) == (calls & 1)) {
            for (int i = 0; i < 256; ++i)
                if (frame[i] == seen->words[i] + 1 && (frame[i] == seen->count || frame[i] + 1 == seen->count))
                    frame[i] += calls - seen->count;
        }
        for (int i = 0; i < 256; ++i) seen->words[i] = frame[i];
    }
"""))

# The second thread says that it has arrived, in all barriers, and that it sleeps, and goes on computing.
COMPUTES_AFTER_DONE = candidate(RIGHT.replace(
    "for (int64_t n = l->thread; n < N; n += l->threads)", "for (int64_t n = 0; n < N && l->thread == 0; ++n)"
).replace("/* after */", """
    if (l->thread == 1 && M == 4) {
        char *team = (char *)l->team;
        for (;;) {
            __atomic_fetch_add((int *)(team + 512 + 128), 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_add((int *)(team + 1024 + 128), 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_add((unsigned *)(team + 1536 + 128), 1, __ATOMIC_SEQ_CST);
            for (;;) asm volatile("" ::: "memory");
        }
    }
"""))
