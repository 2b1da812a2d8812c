// Measures what a team of threads reaches, arithmetic and memory reads, and one core alone in each cache. C functions for
// ctypes.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "../memory.h"
#include "../team.h"
#include "loops.h"

namespace {

using kforge::Team;
using kforge::probe::Loop;
using kforge::probe::Reader;
using kforge::probe::Tables;

std::vector<Tables> all_tables() {
  return {kforge::probe::x86_tables(), kforge::probe::arm_tables(), kforge::probe::portable_tables()};
}

const Loop *find_loop(const char *name) {
  for (const Tables &t : all_tables()) {
    for (std::size_t i = 0; i < t.loop_count; ++i) {
      if (std::strcmp(t.loops[i].name, name) == 0) return &t.loops[i];
    }
  }
  return nullptr;
}

const Reader *find_reader(const char *name) {
  for (const Tables &t : all_tables()) {
    for (std::size_t i = 0; i < t.reader_count; ++i) {
      if (std::strcmp(t.readers[i].name, name) == 0) return &t.readers[i];
    }
  }
  return nullptr;
}

// Calls job on the whole team; seconds until the slowest thread is done.
double seconds_of(Team &team, Team::Job job, void *context) {
  const int64_t start = kforge::now_ns();
  team.run(job, context);
  return static_cast<double>(kforge::now_ns() - start) * 1e-9;
}

struct Arithmetic {
  const Loop *loop;
  int64_t repetitions;
};

void run_arithmetic(void *context, int) {
  const auto *given = static_cast<const Arithmetic *>(context);
  given->loop->run(given->repetitions);
}

// A team with one block of memory a thread.
struct Memory {
  Memory(const std::vector<int> &cores, std::size_t bytes, const Reader *chosen)
      : team(cores), block(bytes), reader(chosen), blocks(cores.size(), nullptr) {}
  ~Memory() {
    for (uint8_t *b : blocks) {
      if (b != nullptr) kforge::unmap_huge(b, block);
    }
  }
  bool map() {
    for (uint8_t *&b : blocks) {
      b = static_cast<uint8_t *>(kforge::map_huge(block));
      if (b == nullptr) return false;
    }
    return true;
  }

  Team team;
  const std::size_t block;
  const Reader *reader;
  std::vector<uint8_t *> blocks;
};

void fill(void *context, int thread) {
  auto *memory = static_cast<Memory *>(context);
  // Each thread its own block: on a machine with several memory nodes, pages lie where they are first touched.
  std::memset(memory->blocks[static_cast<std::size_t>(thread)], thread + 1, memory->block);
}

void read_block(void *context, int thread) {
  const auto *memory = static_cast<const Memory *>(context);
  memory->reader->run(memory->blocks[static_cast<std::size_t>(thread)], memory->block);
}

// One thread's memory, filled.
struct Block {
  explicit Block(int64_t bytes)
      : size(kforge::huge_bytes(static_cast<std::size_t>(bytes))), data(static_cast<uint8_t *>(kforge::map_huge(size))) {
    if (data != nullptr) std::memset(data, 1, size);
  }
  ~Block() {
    if (data != nullptr) kforge::unmap_huge(data, size);
  }
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;

  const std::size_t size;
  uint8_t *const data;
};

// Makes every line of the block hold the address of another, all of them one ring in an order that no prefetcher guesses.
void tie_into_a_ring(uint8_t *data, std::size_t lines, std::size_t line) {
  std::vector<uint32_t> next(lines);
  for (std::size_t i = 0; i < lines; ++i) next[i] = static_cast<uint32_t>(i);
  uint64_t state = 88172645463325252u;
  for (std::size_t i = lines - 1; i > 0; --i) {  // Sattolo: a permutation of one cycle
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::swap(next[i], next[state % i]);
  }
  for (std::size_t i = 0; i < lines; ++i) {
    const uint8_t *to = data + next[i] * line;
    std::memcpy(data + i * line, &to, sizeof to);
  }
}

const uint8_t *follow(const uint8_t *at, int64_t steps) {
  for (; steps > 0; --steps) std::memcpy(&at, at, sizeof at);
  asm volatile("" : "+r"(at));
  return at;
}

std::vector<int> cores_for(int32_t threads) { return kforge::default_cores(threads); }

}  // namespace

extern "C" {

// Operations/s of all threads together, several times within `seconds`; returns the number of samples, -1 when there is
// no such loop. The caller knows that the CPU can execute it.
int32_t kf_probe_arithmetic(const char *name, int32_t threads, double seconds, double *samples, int32_t capacity) {
  const Loop *loop = find_loop(name);
  if (loop == nullptr) return -1;
  Team team(cores_for(threads));
  const kforge::PinnedScope pinned(team.core(0));
  Arithmetic work{loop, 1000};
  // Samples of about a millisecond, so that some are free of interruptions; the fastest of three tells a count's time.
  for (;; work.repetitions *= 2) {
    double fastest = 1e9;
    for (int i = 0; i < 3; ++i) fastest = std::min(fastest, seconds_of(team, run_arithmetic, &work));
    if (fastest >= 5e-4) break;
  }
  const double operations = loop->operations * static_cast<double>(work.repetitions) * threads;
  const int64_t end = kforge::now_ns() + static_cast<int64_t>(seconds * 1e9);
  int32_t count = 0;
  do samples[count++] = operations / seconds_of(team, run_arithmetic, &work);
  while (count < capacity && (count < 5 || kforge::now_ns() < end));
  return count;
}

// Memory for reads: `block` bytes a thread, filled. Null when there is no such reader or no memory.
void *kf_probe_memory_new(const char *name, int32_t threads, int64_t block) {
  const Reader *reader = find_reader(name);
  if (reader == nullptr) return nullptr;
  auto memory = std::make_unique<Memory>(cores_for(threads), kforge::huge_bytes(static_cast<std::size_t>(block)), reader);
  if (!memory->map()) return nullptr;
  const kforge::PinnedScope pinned(memory->team.core(0));
  memory->team.run(fill, memory.get());
  return memory.release();
}
// Reads with another loop from now on; -1 when there is no such reader.
int32_t kf_probe_memory_use(void *memory, const char *name) {
  const Reader *reader = find_reader(name);
  if (reader == nullptr) return -1;
  static_cast<Memory *>(memory)->reader = reader;
  return 0;
}
void kf_probe_memory_delete(void *memory) { delete static_cast<Memory *>(memory); }

// Bytes/s of all threads together, one sample a pass over all blocks, for `seconds`; returns the number of samples.
int32_t kf_probe_memory_read(void *handle, double seconds, double *samples, int32_t capacity) {
  auto *memory = static_cast<Memory *>(handle);
  const kforge::PinnedScope pinned(memory->team.core(0));
  const double bytes = static_cast<double>(memory->block) * memory->team.threads();
  const int64_t end = kforge::now_ns() + static_cast<int64_t>(seconds * 1e9);
  int32_t count = 0;
  do samples[count++] = bytes / seconds_of(memory->team, read_block, memory);
  while (count < capacity && (count < 3 || kforge::now_ns() < end));
  memory->team.park();
  return count;
}

// Bytes/s of one thread that reads the same `bytes` (a multiple of 256) again and again; returns the number of samples, -1
// when there is no such reader or no memory.
int32_t kf_probe_block_read(const char *name, int64_t bytes, double seconds, double *samples, int32_t capacity) {
  const Reader *reader = find_reader(name);
  if (reader == nullptr) return -1;
  const kforge::PinnedScope pinned(cores_for(1)[0]);
  const Block block(bytes);
  if (block.data == nullptr) return -1;
  const auto timed = [&](int64_t passes) {
    const int64_t start = kforge::now_ns();
    for (int64_t i = 0; i < passes; ++i) reader->run(block.data, static_cast<std::size_t>(bytes));
    return static_cast<double>(kforge::now_ns() - start) * 1e-9;
  };
  int64_t passes = 1;
  while (timed(passes) < 2e-4) passes *= 2;
  const int64_t end = kforge::now_ns() + static_cast<int64_t>(seconds * 1e9);
  int32_t count = 0;
  do samples[count++] = static_cast<double>(bytes) * static_cast<double>(passes) / timed(passes);
  while (count < capacity && (count < 5 || kforge::now_ns() < end));
  return count;
}

// Seconds of a load whose address is what the load before it brought, over `bytes` in lines of `line` bytes; returns the
// number of samples, -1 without memory.
int32_t kf_probe_latency(int64_t bytes, int64_t line, double seconds, double *samples, int32_t capacity) {
  const kforge::PinnedScope pinned(cores_for(1)[0]);
  const Block block(bytes);
  if (block.data == nullptr || bytes < 2 * line) return -1;
  const int64_t lines = bytes / line;
  tie_into_a_ring(block.data, static_cast<std::size_t>(lines), static_cast<std::size_t>(line));
  const uint8_t *at = follow(block.data, std::min<int64_t>(lines, 1 << 18));  // what fits into a cache is in it now
  const auto timed = [&](int64_t steps) {
    const int64_t start = kforge::now_ns();
    at = follow(at, steps);
    return static_cast<double>(kforge::now_ns() - start) * 1e-9;
  };
  int64_t steps = 1024;
  while (timed(steps) < 2e-4) steps *= 2;
  const int64_t end = kforge::now_ns() + static_cast<int64_t>(seconds * 1e9);
  int32_t count = 0;
  do samples[count++] = timed(steps) / static_cast<double>(steps);
  while (count < capacity && (count < 5 || kforge::now_ns() < end));
  return count;
}

}  // extern "C"
