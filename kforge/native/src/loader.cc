#include "loader.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace kforge {

namespace {

constexpr int64_t kMaxImage = int64_t{64} << 20;  // no kernel is near this; keeps sums below far from overflow
constexpr int64_t kMaxEntries = 1 << 20;

struct Segment {
  int64_t address, data_bytes, memory_bytes, executable;
};
struct Relocation {
  int64_t address, addend;
};
struct Header {
  int64_t memory_bytes, entry, scratch_entry, segments, relocations;
};

// Reads consecutive plain records, never past the end.
class Reader {
 public:
  Reader(const uint8_t *data, std::size_t bytes) : at_(data), left_(bytes) {}

  bool read(void *out, std::size_t bytes) {
    if (bytes > left_) return false;
    std::memcpy(out, at_, bytes);
    at_ += bytes;
    left_ -= bytes;
    return true;
  }
  std::size_t left() const { return left_; }

 private:
  const uint8_t *at_;
  std::size_t left_;
};

struct Plan {
  Header header;
  std::vector<Segment> segments;
  std::vector<Relocation> relocations;
};

// Whether [address, address + bytes) lies inside one segment of that kind; `in_data` leaves its zero tail out.
bool inside(const Plan &plan, int64_t address, int64_t bytes, bool executable, bool in_data) {
  for (const Segment &s : plan.segments) {
    const int64_t size = in_data ? s.data_bytes : s.memory_bytes;
    if ((s.executable != 0) == executable && address >= s.address && address <= s.address + size - bytes) return true;
  }
  return false;
}

// What is wrong with the blob, or null. On success `reader` stands at the segments' data.
const char *parse(Reader *reader, int64_t page, Plan *plan) {
  char magic[8];
  if (!reader->read(magic, sizeof magic) || std::memcmp(magic, "KFIMAGE1", 8) != 0) return "not a kernel image";
  Header &h = plan->header;
  if (!reader->read(&h, sizeof h)) return "the header is cut short";
  if (h.memory_bytes <= 0 || h.memory_bytes > kMaxImage || h.memory_bytes % page != 0) return "bad size of its memory";
  if (h.segments <= 0 || h.segments > kMaxEntries || h.relocations < 0 || h.relocations > kMaxEntries) {
    return "bad number of segments or relocations";
  }
  if (reader->left() / sizeof(Segment) < static_cast<std::size_t>(h.segments)) return "the segments are cut short";
  plan->segments.resize(static_cast<std::size_t>(h.segments));
  reader->read(plan->segments.data(), plan->segments.size() * sizeof(Segment));
  if (reader->left() / sizeof(Relocation) < static_cast<std::size_t>(h.relocations)) {
    return "the relocations are cut short";
  }
  plan->relocations.resize(static_cast<std::size_t>(h.relocations));
  if (h.relocations > 0) reader->read(plan->relocations.data(), plan->relocations.size() * sizeof(Relocation));

  int64_t end = 0;
  std::size_t data = 0;
  for (const Segment &s : plan->segments) {
    if (s.address < end || s.address > h.memory_bytes || s.address % page != 0) {
      return "a segment is out of order, overlaps another or is not page aligned";
    }
    if (s.data_bytes < 0 || s.memory_bytes <= 0 || s.data_bytes > s.memory_bytes ||
        s.memory_bytes > h.memory_bytes - s.address) {
      return "a segment is larger than the image";
    }
    if (s.executable != 0 && s.executable != 1) return "a segment is neither code nor constants";
    // Pages, not bytes: the next segment has permissions of its own.
    end = s.address + (s.memory_bytes + page - 1) / page * page;
    data += static_cast<std::size_t>(s.data_bytes);
  }
  if (data != reader->left()) return "the data does not match the segments";
  for (const Relocation &r : plan->relocations) {
    if (!inside(*plan, r.address, 8, false, false)) return "a relocation is outside the constants";
    if (r.addend < 0 || r.addend > h.memory_bytes) return "a relocation points outside the image";
  }
  if (!inside(*plan, h.entry, 1, true, true)) return "the entry is outside the code";
  if (h.scratch_entry != -1 && !inside(*plan, h.scratch_entry, 1, true, true)) {
    return "the scratch entry is outside the code";
  }
  return nullptr;
}

}  // namespace

LoadedKernel::~LoadedKernel() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

bool LoadedKernel::load(const uint8_t *blob, std::size_t bytes, std::string *error) {
  Reader reader(blob, bytes);
  Plan plan;
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (const char *problem = parse(&reader, page, &plan)) {
    *error = problem;
    return false;
  }
  const auto size = static_cast<std::size_t>(plan.header.memory_bytes);
  // A page on each side stays inaccessible: what lies beside an image in the process is at a distance that its code knows.
  const auto guard = static_cast<std::size_t>(page);
  void *mapped = mmap(nullptr, size + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    *error = std::string("cannot map it: ") + std::strerror(errno);
    return false;
  }
  mapped_ = mapped;
  mapped_bytes_ = size + 2 * guard;
  base_ = static_cast<uint8_t *>(mapped) + guard;
  bytes_ = size;
  if (mprotect(base_, size, PROT_READ | PROT_WRITE) != 0) {
    *error = std::string("cannot make it writable: ") + std::strerror(errno);
    return false;
  }
  for (const Segment &s : plan.segments) reader.read(base_ + s.address, static_cast<std::size_t>(s.data_bytes));
  for (const Relocation &r : plan.relocations) {
    const uint64_t value = reinterpret_cast<uint64_t>(base_) + static_cast<uint64_t>(r.addend);
    std::memcpy(base_ + r.address, &value, sizeof value);
  }
  __builtin___clear_cache(reinterpret_cast<char *>(base_), reinterpret_cast<char *>(base_ + size));
  // Everything inaccessible first, so that gaps between segments stay so.
  bool ok = mprotect(base_, size, PROT_NONE) == 0;
  for (const Segment &s : plan.segments) {
    const int protection = s.executable != 0 ? PROT_READ | PROT_EXEC : PROT_READ;
    ok = ok && mprotect(base_ + s.address, static_cast<std::size_t>(s.memory_bytes), protection) == 0;
  }
  if (!ok) {
    *error = std::string("cannot protect it: ") + std::strerror(errno);
    return false;
  }
  entry_ = reinterpret_cast<KernelEntry>(base_ + plan.header.entry);
  if (plan.header.scratch_entry != -1) {
    scratch_ = reinterpret_cast<ScratchEntry>(base_ + plan.header.scratch_entry);
  }
  return true;
}

}  // namespace kforge
