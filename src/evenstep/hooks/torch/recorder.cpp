// Record collectives of torch.distributed without the interpreter.
//
// A boxed kernel on the BackendSelect key of each c10d operation writes the entry into the spool's
// ring, passes the call on, and lets the work's future write the end. No kernel calls Python, takes
// its lock or frees memory that another may still read. `evenstep.hooks.torch.native` loads it,
// registers the operations and groups, and shares the words of `Session`. Functions of Python that
// run in every step are hooked at the end of this file.
//
// Layout of a record: `evenstep.trace.layout`. A reader accepts a record only if its sequence number
// is the same before and after the copy, so it is cleared first and written last.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace {

struct Record {
  uint64_t seq;
  int64_t enter_ns, exit_ns, device_enter_ns, device_exit_ns, held_ns;
  uint64_t group_seq, bytes_in, bytes_out;
  uint32_t step, group, parent, payload;
  uint16_t thread, stream, name, flags;
  int32_t peer_or_root;
  int16_t device;
  uint8_t kind, op, dtype, reduce_op;
  uint8_t padding[6];
};
static_assert(sizeof(Record) == 112 && offsetof(Record, flags) == 94 && offsetof(Record, op) == 103);

constexpr uint8_t COLLECTIVE = 1, POINT_TO_POINT = 2, STEP_RECORD = 6;
constexpr uint16_t EXIT_UPPER_BOUND = 1, ASYNC = 2, FAILED = 32, HOST_BLOCKED = 64, ON_DEVICE = 128;
constexpr int32_t NO_PEER = -1;

// The words that Python reads and writes, in the order of `phases.Word`.
enum Word {
  ARMED,         // 0: every call passes through
  NUMBER,        // last sequence number taken
  STEP,          // of new records
  PARENT,        // of new records
  TRAINING,      // the training thread's pthread_self
  LAST_ENTRY,    // ns: entry of the newest non-blocking collective, or end of backward's compute
  BLOCKING,      // record of the training thread's newest blocking collective
  CAPTURES,      // CUDA graphs being captured: no event may be queried
  KEPT,          // works without a future, whose end has to be polled
  FAILURES,      // of our own code; the first disarms
  COST_NS,       // time of our code in sampled calls
  COST_SAMPLES,
  EVENT_NS,      // the same in sampled events
  EVENT_SAMPLES,
  NOTED,         // events so far
  TOLD,          // of which the account has been told so many
  BEGAN,         // ns: beginning of the step that is open on the training thread
  DEVICES,       // devices with timers
  SCHEDULE,      // descriptor of the kernel's account of the training thread, plus one; 0: none
  MARKING,       // address of the optimizer that marks the steps; 0: none yet
  MANUAL,        // whether the script or a framework marks them instead
  ATTENDED,      // the first step that Python has to begin
  AT_ONCE,       // whether somebody waits for what the account is told
  EVENTS,        // of hooks in the running step
  OWN_NS,        // thread time, in the running step, of what ended the one before
  SCHEDULE_DEVICE,  // of that account's file: its descriptor's number may become another file's
  SCHEDULE_INODE,
  WAITS,  // whether Python is told of waits for collectives
  WORDS
};

// What the account of the training thread is told, in the order of `phases.Event`. An event's words
// are its number, its time and what is named here.
enum Event {
  FORWARD_BEGINS,  // whether backward may follow, whether that awaits all of its collectives
  FORWARD_ENDS,
  BACKWARD_BEGINS,  // LAST_ENTRY
  BACKWARD_ENDS,    // LAST_ENTRY
  OPTIMIZER_BEGINS,
  PHASE_ENDS,
  WAITED,      // end of the wait that began at its time
  BLOCKED,     // the same of a blocking call, which has a record
  STEP_ENDED,  // number of its record, the next step's, our events in it, OWN_NS, and at its end six
               // counters, COST_NS, COST_SAMPLES, EVENT_NS and EVENT_SAMPLES
  NO_EVENT,
  EVENT_WORDS = 16
};
constexpr uint64_t MOST_EVENTS = 4096;
constexpr uint64_t COST_EVERY = 17;          // calls, and steps, of which one is sampled: a prime, so
                                             // that calls of a step have their turns
constexpr uint64_t SHORTEST_WAIT_NS = 20000;
constexpr size_t MOST_KEPT = 64;             // works: they hold their tensors
constexpr size_t MOST_ORDERS = 4096;         // kinds of messages counted; the least recent is dropped
constexpr size_t MOST_PENDING = 8192;        // marks of one device; beyond it, no device times
constexpr int MOST_UNFINISHED = 32;          // end a poll: later ones are hardly finished
constexpr uint64_t BEAT_NS = 200000000;      // readers rely on a quarter of a second
constexpr uint64_t SHORTEST_REST_NS = 1000000;
constexpr int64_t AT_ONCE_NS = 20000;         // a stream passes two events in a row sooner
constexpr uint64_t REFERENCE_LIFE_NS = 900000000;  // 32-bit ms resolve 61 ns in a second

uint64_t clock_ns(clockid_t which) {
  timespec t;
  clock_gettime(which, &t);
  return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}
uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
uint64_t thread_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
uint64_t process_ns() { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

// A part of our code, from here to `ns`. The thread's clock is the kernel's: to read it takes as long
// as the part, more where its code is in cold caches. So the monotonic clock is read inside of those
// readings, and theirs counts only where the thread has had no core meanwhile.
class Part {
 public:
  uint64_t ns() const {
    const uint64_t wall = now_ns() - wall_;
    return std::min(wall, thread_ns() - thread_);
  }

 private:
  uint64_t thread_ = thread_ns(), wall_ = now_ns();
};

// What a part is found to take where there is nothing in it, and what it takes to measure one.
std::pair<uint64_t, uint64_t> readings() {
  uint64_t within = ~uint64_t(0), around = within;
  for (int at = 0; at < 32; ++at) {
    const uint64_t start = thread_ns();
    within = std::min(within, Part().ns());
    around = std::min(around, thread_ns() - start);
  }
  return {within, around};
}

struct Group {
  std::string name;
  uint32_t index;                   // in the spool's table
  std::vector<int32_t> ranks;       // global, of each member
  std::atomic<uint64_t> sequence;   // collectives so far
  std::atomic<bool> retired{false};
  Group* next = nullptr;            // in its bucket; never freed: kernels read the list without a lock

  int32_t global(int64_t member) const {
    return member >= 0 && size_t(member) < ranks.size() ? ranks[size_t(member)] : int32_t(member);
  }
};

struct Kept {
  c10::intrusive_ptr<c10d::Work> work;
  uint64_t seq;
};

struct Session;

// An event from which times of a device are measured, `offset_ns` after the first one.
struct Reference {
  c10::Event event;
  std::shared_ptr<Reference> previous;  // until the distance to it has been read
  uint64_t made_ns;
  double offset_ns = 0;

  bool settled() {
    if (!event.query()) return false;
    if (previous) {
      offset_ns = previous->offset_ns + previous->event.elapsedTime(event) * 1e6;
      previous.reset();
    }
    return true;
  }
  int64_t at(const c10::Event& passed) const {
    return std::max<int64_t>(1, llround(offset_ns + event.elapsedTime(passed) * 1e6));
  }
};

struct Mark {
  uint64_t seq;
  c10::Event begin, end;
  std::shared_ptr<c10::Event> reached;  // of a batch: its stream before it waited
  std::shared_ptr<Reference> reference;  // recorded before `begin`
};
using MarkPointer = std::shared_ptr<Mark>;

// Device stamps of one device's collectives: events at issue and at the end, polled elsewhere.
class Timer {
 public:
  explicit Timer(c10::Device device)
      : device_(device), impl_(device.type()), side_(impl_.getStreamFromGlobalPool(device)) {
    renew(now_ns());
  }

  [[gnu::noinline]] MarkPointer begin(uint64_t seq) {
    MarkPointer mark;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (pending_.size() >= MOST_PENDING) return nullptr;
      if (free_.empty()) {
        mark = std::make_shared<Mark>(Mark{seq, event(), event(), nullptr, reference_});
      } else {
        mark = std::move(free_.back());
        free_.pop_back();
        mark->seq = seq;
        mark->reference = reference_;
      }
    }
    mark->begin.record(impl_.getStream(device_));
    return mark;
  }

  // The current stream has come so far.
  std::shared_ptr<c10::Event> reached() const {
    auto now = std::make_shared<c10::Event>(event());
    now->record(impl_.getStream(device_));
    return now;
  }

  // It ends when the current stream gets here, or has ended already.
  [[gnu::noinline]] void end(MarkPointer mark, bool ended = false) {
    mark->end.record(ended ? side_ : impl_.getStream(device_));
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(std::move(mark));
  }

  void poll(Session& session);

 private:
  c10::Event event() const { return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT); }

  void renew(uint64_t now) {
    auto fresh = std::make_shared<Reference>(Reference{event(), reference_, now});
    fresh->event.record(side_);
    std::lock_guard<std::mutex> lock(mutex_);
    reference_ = std::move(fresh);
  }

  c10::Device device_;
  c10::impl::VirtualGuardImpl impl_;
  c10::Stream side_;  // for references only: they do not queue behind work
  std::mutex mutex_;
  std::deque<MarkPointer> pending_;
  std::vector<MarkPointer> free_;  // read, at most MOST_PENDING: their events are recorded again
  std::shared_ptr<Reference> reference_;
};

// Marks of the operations that torch launches together, which end when their work is waited for.
using Batch = std::vector<std::pair<Timer*, MarkPointer>>;

// What we know of a thread: together, because each is found by a call.
struct Thread {
  Session* apart = nullptr;  // records its calls, which are not the program's
  uint64_t calls = COST_EVERY / 2;  // the first is not sampled: it enters its group
  uint64_t asked = 0;        // the backward whose end of compute we have asked for
  Batch* batch = nullptr;    // between its beginning and end
  Session* of = nullptr;     // where it has a number
  uint16_t number = 0;
};
thread_local Thread mine;

bool sampled_call() { return !(++mine.calls % COST_EVERY); }

using Like = std::tuple<uint32_t, int32_t, uint8_t, int64_t>;  // group, peer, operation, tag

// The recording of one attached agent. Never freed: a callback may run long after the agent's end.
struct Session {
  static constexpr size_t BUCKETS = 1024;

  explicit Session(uint64_t records) : capacity(records) {}

  Record& slot(uint64_t seq) { return ring[(seq - 1) % capacity]; }
  uint64_t load(Word word) const { return words[word].load(std::memory_order_relaxed); }
  void store(Word word, uint64_t value) { words[word].store(value, std::memory_order_relaxed); }
  uint64_t add(Word word, uint64_t value) {
    return words[word].fetch_add(value, std::memory_order_relaxed);
  }

  // Add a sample of our cost, measured in so many parts. To measure them is paid for where calls are
  // sampled.
  void spent(Word total, uint64_t ns, uint64_t parts) {
    static const auto [within, around] = readings();
    add(total, ns - std::min(ns, parts * within) + parts * around / COST_EVERY);
    add(Word(total + 1), 1);
  }

  uint64_t put(const Record& record) {
    const uint64_t seq = add(NUMBER, 1) + 1;
    Record& into = slot(seq);
    __atomic_store_n(&into.seq, 0, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(&into.enter_ns, &record.enter_ns, sizeof(Record) - sizeof(uint64_t));
    __atomic_store_n(&into.seq, seq, __ATOMIC_RELEASE);
    return seq;
  }

  // Write the end of a record that is still in the ring, if it has none.
  void close(uint64_t seq, uint64_t exit_ns, uint16_t flags = 0) {
    Record& record = slot(seq);
    if (__atomic_load_n(&record.seq, __ATOMIC_ACQUIRE) != seq) return;
    if (flags) __atomic_fetch_or(&record.flags, flags, __ATOMIC_RELAXED);
    int64_t open = 0;
    __atomic_compare_exchange_n(&record.exit_ns, &open, int64_t(exit_ns), false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
  }

  // A call without a work has returned: where it blocked its thread, it was the wait.
  void returned(uint64_t seq, uint64_t exit) {
    uint64_t blocking = seq;
    const bool blocked = words[BLOCKING].compare_exchange_strong(blocking, 0);
    close(seq, exit, blocked ? HOST_BLOCKED : 0);
    if (!blocked) return;
    store(LAST_ENTRY, 0);
    note(BLOCKED, uint64_t(slot(seq).enter_ns), exit);
  }

  // The backend refused or failed the call: it will not be waited for.
  void failed(uint64_t seq) {
    close(seq, now_ns(), FAILED);
    words[BLOCKING].compare_exchange_strong(seq, 0);
  }

  void fail(const char* what) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!load(FAILURES)) failure.assign(what, strcspn(what, "\n"));  // torch's go on for a page
    words[FAILURES].fetch_add(1, std::memory_order_release);  // from here on it is read
    words[ARMED].store(0);
  }

  // Fowler, Noll and Vo's hash: one line, where the library's is a page of cold code.
  std::atomic<Group*>& bucket(const std::string& name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char letter : name) hash = (hash ^ uint8_t(letter)) * 0x100000001b3ull;
    return buckets[hash % BUCKETS];
  }

  // Prefetch the memory of the next record while the call's arguments are read.
  void prepare() {
    const char* next = reinterpret_cast<const char*>(&slot(load(NUMBER) + 1));
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + sizeof(Record) - 1, 1);
  }

  Group* find(const std::string& name) {
    Group* group = bucket(name).load(std::memory_order_acquire);
    while (group && (group->retired.load(std::memory_order_relaxed) || group->name != name))
      group = group->next;
    return group;
  }

  Group* enter(std::string name, uint32_t index, std::vector<int32_t> ranks, uint64_t sequence) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& first = bucket(name);
    Group* group = new Group{std::move(name), index, std::move(ranks), {sequence}};
    group->next = first.load(std::memory_order_relaxed);
    first.store(group, std::memory_order_release);
    return group;
  }

  // The group of a call. At its first use Python is called, which knows the members.
  Group& group_of(const c10d::ProcessGroup& members) {
    const std::string& name = members.getGroupName();
    Group* group = find(name);
    return group ? *group : met(name, members.getSize());
  }

  [[gnu::noinline]] Group& met(const std::string& name, int size) {
    if (const auto call = meet.load()) call(name.c_str(), size);
    Group* group = find(name);
    TORCH_CHECK(group, "the process group ", name, " is not known");
    return *group;
  }

  bool training() const { return uint64_t(pthread_self()) == load(TRAINING); }

  // Tell the account; on the training thread. False where the event would displace another.
  template <typename... Values>
  bool note(Event event, uint64_t at, Values... values) {
    const uint64_t number = load(NOTED);
    if (number - load(TOLD) >= MOST_EVENTS) return false;
    uint64_t* into = events[number % MOST_EVENTS].data();
    *into++ = event;
    *into++ = at;
    ((*into++ = uint64_t(values)), ...);
    words[NOTED].store(number + 1, std::memory_order_release);
    if (number + 1 - load(TOLD) == MOST_EVENTS / 2) store(ATTENDED, 0);
    return true;
  }

  uint16_t thread() {
    if (training()) return 0;
    if (mine.of != this) {
      mine.number = uint16_t(std::min<uint32_t>(threads.fetch_add(1) + 1, 0xFFFF));
      mine.of = this;
    }
    return mine.number;
  }

  // Number of messages of this kind before this one: the same on both ends.
  [[gnu::noinline]] uint64_t order(const Like& like) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = orders.find(like);
    if (found == orders.end()) {
      if (orders.size() >= MOST_ORDERS) {
        orders.erase(used.back());
        used.pop_back();
      }
      used.push_front(like);
      found = orders.emplace(like, std::make_pair(uint64_t(0), used.begin())).first;
    } else {
      used.splice(used.begin(), used, found->second.second);
    }
    return found->second.first++;
  }

  // A backward of the training thread begins or ends, perhaps inside another one.
  void turn(bool begins) {
    nested = begins ? nested + 1 : nested - std::min<uint64_t>(nested, 1);
    backward.store(nested ? ++backwards : 0, std::memory_order_relaxed);
  }

  // A work without a future ends when it is waited for, or when only we hold it.
  [[gnu::noinline]] void keep(c10::intrusive_ptr<c10d::Work> work, uint64_t seq) {
    look();
    std::vector<Kept> dropped;  // destroyed without the lock: a work frees tensors
    std::lock_guard<std::mutex> lock(mutex);
    if (kept.size() >= MOST_KEPT) {
      close(kept.front().seq, now_ns());
      dropped.push_back(std::move(kept.front()));
      kept.erase(kept.begin());
    }
    kept.push_back({std::move(work), seq});
    store(KEPT, kept.size());
  }

  // Works are queried without our lock: one defined in Python takes the interpreter's.
  void look() {
    std::vector<Kept> asked, open;
    {
      std::lock_guard<std::mutex> lock(mutex);
      asked.swap(kept);
    }
    const uint64_t now = asked.empty() ? 0 : now_ns();
    for (Kept& one : asked) {
      if (one.work->isCompleted() || one.work.use_count() == 1)
        close(one.seq, now, one.work->exception() ? FAILED : 0);
      else
        open.push_back(std::move(one));
    }
    std::lock_guard<std::mutex> lock(mutex);
    kept.insert(kept.begin(), std::make_move_iterator(open.begin()), std::make_move_iterator(open.end()));
    store(KEPT, kept.size());
  }

  void waited(uint64_t enter, uint64_t exit) {
    if (exit - enter < SHORTEST_WAIT_NS || !training()) return;
    store(LAST_ENTRY, 0);
    note(WAITED, enter, exit);
  }

  // Six counters of the process, as in `ResourceUse`.
  std::array<uint64_t, 6> counters() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    char text[80] = "";
    const int schedule = int(load(SCHEDULE)) - 1;
    struct stat file;
    const bool ours = schedule >= 0 && !fstat(schedule, &file) &&
                      file.st_dev == load(SCHEDULE_DEVICE) && file.st_ino == load(SCHEDULE_INODE);
    if (!ours || pread(schedule, text, sizeof text - 1, 0) < 0) store(SCHEDULE, 0);
    char* second = text;
    strtoull(text, &second, 10);  // Linux, sched-stats.rst
    const auto us = [](const timeval& t) { return uint64_t(t.tv_sec) * 1000000 + uint64_t(t.tv_usec); };
    return {(us(usage.ru_utime) + us(usage.ru_stime)) * 1000, uint64_t(usage.ru_minflt),
            uint64_t(usage.ru_majflt), uint64_t(usage.ru_nivcsw), uint64_t(usage.ru_nvcsw),
            strtoull(second, nullptr, 10)};
  }

  // Begin the next step: write the record of the one that is open, and return its number.
  uint64_t begin_step(uint64_t now) {
    Record record{};
    record.enter_ns = int64_t(load(BEGAN));
    record.exit_ns = int64_t(now);
    record.step = uint32_t(load(STEP));
    record.device = -1;
    record.kind = STEP_RECORD;
    const uint64_t seq = put(record);
    store(BEGAN, std::max(now, load(BEGAN)));
    add(STEP, 1);
    return seq;
  }

  [[gnu::noinline]] Timer* timer(c10::Device device) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& found = timers[device.index()];
    if (!found) found = std::make_unique<Timer>(device);
    store(DEVICES, timers.size());
    return found.get();
  }

  // Read by every call, so together in memory.
  alignas(64) std::array<std::atomic<uint64_t>, WORDS> words{};
  Record* ring = nullptr;
  const uint64_t capacity;
  std::atomic<uint64_t> users{0};  // calls and callbacks that may still write into the ring
  std::atomic<void (*)()> gate{nullptr};
  std::atomic<void (*)(const char* name, int size)> meet{nullptr};
  std::mutex mutex;
  std::mutex capture;  // held while an event is queried, and while a capture begins
  std::array<std::atomic<Group*>, BUCKETS> buckets{};
  std::atomic<uint32_t> threads{0};
  std::map<Like, std::pair<uint64_t, std::list<Like>::iterator>> orders;
  std::list<Like> used;
  std::vector<Kept> kept;
  std::map<int, std::unique_ptr<Timer>> timers;
  std::map<uint64_t, Batch> batches;  // launched, and not waited for yet
  uint64_t launched = 0;
  uint64_t nested = 0, backwards = 0;   // of the training thread: that run, and so far
  std::atomic<uint64_t> backward{0};    // the number of the one that runs; 0: none
  std::string failure;
  std::array<std::array<uint64_t, EVENT_WORDS>, MOST_EVENTS> events;
};

std::atomic<Session*> current{nullptr};

Session* recording() { return mine.apart ? mine.apart : current.load(std::memory_order_acquire); }

// Keeps the ring in place during a call or a callback; empty where nothing is recorded.
class Hold {
 public:
  explicit Hold(Session* session) : session_(session) {
    if (session_) session_->users.fetch_add(1);
    if (session_ && !session_->words[ARMED].load()) release();
  }
  Hold(const Hold& other) : session_(other.session_) {
    if (session_) session_->users.fetch_add(1);
  }
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  explicit operator bool() const { return session_ != nullptr; }
  Session* operator->() const { return session_; }
  Session& operator*() const { return *session_; }

 private:
  void release() {
    if (session_) session_->users.fetch_sub(1);
    session_ = nullptr;
  }
  Session* session_;
};

void Timer::poll(Session& session) {
  std::deque<MarkPointer> marks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    marks.swap(pending_);
  }
  std::deque<MarkPointer> unfinished, read;
  for (auto& mark : marks) {
    std::lock_guard<std::mutex> lock(session.capture);  // for one query only: a capture may begin
    if (session.load(CAPTURES) || unfinished.size() >= MOST_UNFINISHED ||
        !mark->reference->settled() || !mark->end.query()) {
      unfinished.push_back(std::move(mark));
      continue;
    }
    const int64_t enter = mark->reference->at(mark->begin);
    int64_t exit = std::max(enter, mark->reference->at(mark->end));
    if (mark->reached && exit - mark->reference->at(*mark->reached) <= AT_ONCE_NS)
      exit = enter;  // the stream did not wait: when the transfer ended behind its work is not known
    Record& record = session.slot(mark->seq);
    if (__atomic_load_n(&record.seq, __ATOMIC_ACQUIRE) == mark->seq) {
      __atomic_store_n(&record.device_enter_ns, enter, __ATOMIC_RELAXED);
      __atomic_store_n(&record.device_exit_ns, exit, __ATOMIC_RELAXED);
      session.close(mark->seq, now_ns());
    }
    mark->reached.reset();
    mark->reference.reset();
    read.push_back(std::move(mark));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; !read.empty() && free_.size() < MOST_PENDING; read.pop_back())
      free_.push_back(std::move(read.back()));
    pending_.insert(pending_.begin(), std::make_move_iterator(unfinished.begin()),
                    std::make_move_iterator(unfinished.end()));
  }
  const uint64_t now = now_ns();
  std::lock_guard<std::mutex> lock(session.capture);
  if (!session.load(CAPTURES) && now - reference_->made_ns > REFERENCE_LIFE_NS &&
      reference_->settled())
    renew(now);
}

// -- reading a call -------------------------------------------------------------------------------

enum Reading { IN_PLACE, FROM_FIRST, LISTS, NOTHING };  // the order of `operations.Reading`

struct Sizes {
  uint64_t bytes = 0;
  const at::Tensor* first = nullptr;

  void take(const at::Tensor& tensor) {
    bytes += uint64_t(tensor.numel()) * tensor.itemsize();  // a sparse one has no `nbytes`
    if (!first) first = &tensor;
  }
  void take(const c10::IValue& value) {
    if (value.isTensor()) {
      take(value.toTensor());
    } else if (value.isList()) {
      for (const auto& inner : value.toListRef()) take(inner);
    }
  }
};

uint8_t dtype_code(at::ScalarType type) {  // `evenstep.trace.layout.DType`
  switch (type) {
    case at::kFloat: return 1;
    case at::kHalf: return 2;
    case at::kBFloat16: return 3;
    case at::kDouble: return 4;
    case at::kLong: return 5;
    case at::kInt: return 6;
    case at::kShort: return 7;
    case at::kChar: return 8;
    case at::kByte: return 9;
    case at::kBool: return 10;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2: return 11;
    case at::kComplexFloat:
    case at::kComplexDouble: return 12;
    default: return 0;
  }
}

// The arguments of a call.
struct Facts {
  const c10d::ProcessGroup* group = nullptr;
  Sizes in, out;
  bool async = false;
  int64_t peer = 0, tag = 0;
};

// As `toCustomClass`, without its comparison of types, which is a page of code: the schema has made
// it. The stack keeps the object.
template <typename T>
T* object_of(const c10::IValue& value) {
  return static_cast<T*>(value.toObjectRef().getSlot(0).toCapsule().get());
}
c10d::Work* work_of(const torch::jit::Stack& stack) {
  const c10::IValue* last = stack.empty() ? nullptr : &stack.back();
  if (last && last->isTuple()) {
    const auto& elements = last->toTupleRef().elements();
    last = elements.empty() ? nullptr : &elements.back();
  }
  return last && last->isObject() ? object_of<c10d::Work>(*last) : nullptr;
}
// The dispatch keys below ours.
c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
}

// The kernel of one operation. The positions of its arguments are read from its schema, which differs
// between torch's versions. A failure of our part must not affect the collective. Calls come boxed, by
// torch's fallback for operations without a gradient, and go on boxed: nothing is converted here.
class Watch final : public c10::OperatorKernel {
 public:
  Watch(const c10::FunctionSchema& schema, uint8_t op, Reading reading, uint16_t flags, bool message)
      : op_(op), flags_(flags), reading_(reading), message_(message) {
    const auto& arguments = schema.arguments();
    count_ = int(arguments.size());
    for (int at = 0; at < count_; ++at) {
      const auto& name = arguments[size_t(at)].name();
      if (name == "process_group") group_ = at;
      if (name == "async_op" || name == "asyncOp") async_ = at;
      if (name == "root_rank" || name == "dst" || name == "src") peer_ = at;
      if (name == "tag") tag_ = at;
    }
    TORCH_CHECK(group_ >= 0, schema.name(), " has no process group");
    if (async_ < 0 && !schema.returns().empty()) flags_ |= ASYNC;  // without a work the call blocks
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::optional<Part> part;
    uint64_t ours = 0;
    const bool sampled = sampled_call();
    if (sampled) [[unlikely]] part.emplace();
    const Hold session(recording());
    if (!session) return op.redispatchBoxed(below(keys), stack);
    session->prepare();
    if (const auto gate = session->gate.load(std::memory_order_relaxed)) [[unlikely]] {
      if (sampled) [[unlikely]] ours = part->ns();
      gate();
      if (sampled) [[unlikely]] part.emplace();
    }
    Begun begun;
    try {
      begun = begin(*session, facts(*stack));
    } catch (const std::exception& error) {
      session->fail(error.what());
    }
    if (sampled) [[unlikely]] ours += part->ns();
    try {
      op.redispatchBoxed(below(keys), stack);
    } catch (...) {
      if (begun.seq) session->failed(begun.seq);
      throw;
    }
    if (sampled) [[unlikely]] part.emplace();
    try {
      if (begun.seq) end(session, begun, work_of(*stack));
    } catch (const std::exception& error) {
      session->fail(error.what());
    }
    if (sampled) [[unlikely]] session->spent(COST_NS, ours + part->ns(), 2);
  }

 private:
  Facts facts(const torch::jit::Stack& stack) const {
    Facts found;
    const c10::IValue* arguments = stack.data() + (stack.size() - size_t(count_));
    for (int at = 0; at < count_; ++at) {
      if (at == group_)
        found.group = object_of<c10d::ProcessGroup>(arguments[at]);
      else if (at == async_)
        found.async = arguments[at].toBool();
      else if (at == peer_)
        found.peer = arguments[at].toInt();
      else if (at == tag_)
        found.tag = arguments[at].toInt();
      else if (at < 2)
        sizes(found, at).take(arguments[at]);
    }
    return found;
  }

  struct Begun {
    uint64_t seq = 0;
    uint16_t flags = 0;
    Timer* timer = nullptr;
    MarkPointer mark;
  };

  // Whether the first or second argument is input or output.
  Sizes& sizes(Facts& found, int at) const {
    return at == 1 || reading_ == IN_PLACE || reading_ == NOTHING ? found.in : found.out;
  }

  Begun begin(Session& session, const Facts& call) const {
    Record record{};
    record.enter_ns = int64_t(now_ns());
    Group& known = session.group_of(*call.group);
    const Sizes& out = reading_ == IN_PLACE ? call.in : call.out;
    const at::Tensor* tensor = call.in.first ? call.in.first : out.first;
    record.bytes_in = reading_ == NOTHING ? 0 : call.in.bytes;
    record.bytes_out = out.bytes;
    record.group = known.index;
    record.peer_or_root = peer_ < 0 ? NO_PEER : known.global(call.peer);
    record.flags = flags_;
    if (call.async) record.flags |= ASYNC;
    record.device = -1;
    if (tensor) record.dtype = dtype_code(tensor->scalar_type());
    if (tensor && tensor->is_cuda()) {
      record.flags |= ON_DEVICE | ASYNC | (mine.batch ? EXIT_UPPER_BOUND : 0);
      record.device = int16_t(tensor->get_device());
    }
    record.step = uint32_t(session.load(STEP));
    record.parent = uint32_t(session.load(PARENT));
    record.thread = session.thread();
    record.kind = message_ ? POINT_TO_POINT : COLLECTIVE;
    record.op = op_;
    if (message_) {
      record.payload = uint32_t(call.tag);
      record.group_seq = session.order({known.index, record.peer_or_root, op_, call.tag});
    } else {
      record.group_seq = known.sequence.fetch_add(1, std::memory_order_relaxed);
    }
    Begun begun;
    begun.flags = record.flags;
    begun.seq = session.put(record);
    note(session, record, begun.seq);
    if ((record.flags & ON_DEVICE) && !session.load(CAPTURES)) {
      begun.timer = session.timer(tensor->device());
      begun.mark = begun.timer->begin(begun.seq);
    }
    return begun;
  }

  void end(const Hold& session, Begun& call, c10d::Work* work) const {
    if (call.mark && mine.batch && mine.batch->size() < MOST_PENDING) {
      mine.batch->emplace_back(call.timer, std::move(call.mark));
      return;
    }
    if (!work) {  // the call itself was the wait, or it runs on the current stream
      if (call.mark)
        call.timer->end(std::move(call.mark));
      else
        session->returned(call.seq, now_ns());
      return;
    }
    c10::intrusive_ptr<c10::ivalue::Future> future;
    if (!message_ || (call.flags & ON_DEVICE)) {  // gloo's messages have none, and say so by throwing
      try {
        future = work->getFuture();
      } catch (const std::exception&) {
      }
    }
    if (!future) {
      session->keep(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(work), call.seq);
      return;
    }
    if (call.flags & ON_DEVICE && !call.mark) {  // without device times only the issue is known
      session->close(call.seq, now_ns());
      return;
    }
    if (call.mark) return end_on_device(session, call, *future);
    session->users.fetch_add(1);
    // a small capture, which is stored without an allocation
    future->addCallback([session = &*session, seq = call.seq](c10::ivalue::Future& done) {
      session->close(seq, now_ns(), done.hasError() ? FAILED : 0);
      session->users.fetch_sub(1);
    });
  }

  [[gnu::noinline]] static void end_on_device(
      const Hold& session, const Begun& call, c10::ivalue::Future& future) {
    const pthread_t issuer = pthread_self();
    future.addCallback([session, timer = call.timer, mark = call.mark, issuer](c10::ivalue::Future&) {
      // NCCL completes it at once, and torch runs this on a stream that waits for the collective;
      // gloo completes it when the collective has ended, in a thread of its own.
      const bool enqueued = pthread_equal(issuer, pthread_self());
      try {
        timer->end(mark, !enqueued);
      } catch (const std::exception&) {  // the device has failed, and the job gets its own error
      }
    });
  }

  void note(Session& session, const Record& record, uint64_t seq) const {
    const uint64_t enter = uint64_t(record.enter_ns);
    if (message_ || (record.flags & ON_DEVICE)) return;
    if (record.flags & ASYNC) {
      session.store(LAST_ENTRY, enter);
      computing(session);
    } else if (record.thread == 0) {
      session.store(BLOCKING, seq);
    }
  }

  // A backward may compute long after its last collective: it waits from the end of compute. The wait
  // for gradients is queued after the first of them is issued, so it runs after this callback.
  static void computing(Session& session) {
    const uint64_t backward = session.backward.load(std::memory_order_relaxed);
    // the engine is asked once a backward: its code is in cold caches
    if (!backward || backward == mine.asked || torch::autograd::get_current_graph_task_id() < 0) return;
    mine.asked = backward;
    torch::autograd::Engine::get_default_engine().queue_callback([&session] {
      if (session.load(LAST_ENTRY)) session.store(LAST_ENTRY, now_ns());
    });
  }

  uint8_t op_;
  uint16_t flags_;
  Reading reading_;
  bool message_;
  int count_ = 0, group_ = -1, async_ = -1, peer_ = -1, tag_ = -1;
};

// Waits of functional collectives, which do not use Python's `Work.wait`.
void wait_tensor(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Hold session(recording());
  const uint64_t enter = session ? now_ns() : 0;
  op.redispatchBoxed(below(keys), stack);
  if (session) session->waited(enter, now_ns());
}

// An operation of this torch, if it has it, and the library for kernels. Kernels stay for the life of
// the process: removing one races with calls inside it.
std::optional<c10::OperatorHandle> operation(const char* space, const char* name) {
  return c10::Dispatcher::singleton().findSchema({std::string(space) + "::" + name, ""});
}
torch::Library& kernels(const char* space) {
  return *new torch::Library(
      torch::Library::IMPL, space, c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
}

}  // namespace

// -- hooks of Python's functions ------------------------------------------------------------------
//
// They tell what happens as Python's hooks do, at a fraction of the cost: of a line of Python much is
// fetched into cold caches. What they use of Python's interface is the same in all of its versions
// since 3.10, and declared here because its headers may not be installed.

extern "C" {
typedef struct _object PyObject;
typedef ssize_t Py_ssize_t;
PyObject* PyCFunction_NewEx(const void* definition, PyObject* self, PyObject* module);
PyObject* PyInstanceMethod_New(PyObject* function);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const* args, size_t count, PyObject* names);
PyObject* PyObject_GetAttrString(PyObject*, const char* name);
int PyObject_IsTrue(PyObject*);
PyObject* Py_BuildValue(const char* format, ...);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
PyObject* PyList_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PyList_Size(PyObject*);
int PyList_Append(PyObject*, PyObject*);
int PyList_SetSlice(PyObject*, Py_ssize_t low, Py_ssize_t high, PyObject*);
PyObject* PyLong_FromVoidPtr(void*);
void* PyLong_AsVoidPtr(PyObject*);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyEval_GetFrame();
PyObject* PyFrame_GetBack(PyObject*);
PyObject* PyFrame_GetCode(PyObject*);
void PyErr_Fetch(PyObject** type, PyObject** value, PyObject** trace);
void PyErr_Restore(PyObject* type, PyObject* value, PyObject* trace);
void PyErr_Clear();
int PyErr_ExceptionMatches(PyObject* type);
void PyErr_WriteUnraisable(PyObject* where);
extern PyObject *PyExc_RecursionError, *PyExc_MemoryError;
void Py_DecRef(PyObject*);
extern PyObject _Py_NoneStruct;
void Py_IncRef(PyObject*);
}

namespace {

PyObject* none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// A hook of the training thread. Its `parts` are a tuple, its `self`: the session, which it may
// outlive, and Python's function to empty the events.
class PythonHook {
 public:
  explicit PythonHook(PyObject* parts)
      : parts_(parts), session(*static_cast<Session*>(PyLong_AsVoidPtr(part(0)))) {}

  PyObject* part(int at) const { return PyTuple_GetItem(parts_, at); }
  bool watches() const { return session.load(ARMED) && session.training(); }
  // Whether events of the running step are sampled.
  bool sampled() const { return !(session.load(STEP) % COST_EVERY); }
  std::optional<Part> begins() const { return sampled() ? std::optional<Part>(std::in_place) : std::nullopt; }
  // `before` was the part of it before what is not ours. Not where a step has ended in the event: that
  // is in OWN_NS.
  void ends(const std::optional<Part>& part, std::optional<uint64_t> before = {}) const {
    if (part && sampled()) session.spent(EVENT_NS, part->ns() + before.value_or(0), before ? 2 : 1);
  }

  template <typename... Values>
  void note(Event event, uint64_t at, Values... values) const {
    for (int tries = 3; !session.note(event, at, values...) && tries--;) emptied();
    session.add(EVENTS, 1);
    if (session.load(AT_ONCE)) emptied();
  }
  // Whether Python has to end the step: it has more to do then.
  bool attended() const { return session.load(STEP) + 1 >= session.load(ATTENDED); }
  // End the step that is open. The thread's time was `began` when our code began.
  void end_step(uint64_t began, uint64_t now) const {
    const auto use = session.counters();
    const uint64_t seq = session.begin_step(now);
    const auto load = [&](Word word) { return session.load(word); };
    note(STEP_ENDED, now, seq, load(STEP), load(EVENTS), load(OWN_NS), use[0], use[1], use[2], use[3], use[4], use[5],
         load(COST_NS), load(COST_SAMPLES), load(EVENT_NS), load(EVENT_SAMPLES));
    session.store(EVENTS, 0);
    session.store(OWN_NS, thread_ns() - began);
  }
  // This thread has waited since `enter`: the end of its blocking call, or of what it waited for.
  void waited(uint64_t enter) const {
    const Hold hold(&session);
    if (!hold) return;
    try {
      if (session.load(KEPT)) session.look();
    } catch (const std::exception& error) {
      session.fail(error.what());
    }
    if (!session.training()) return;
    const uint64_t exit = now_ns(), seq = session.words[BLOCKING].exchange(0);
    session.store(LAST_ENTRY, 0);
    if (seq) {
      const Record& record = session.slot(seq);
      if (__atomic_load_n(&record.seq, __ATOMIC_ACQUIRE) == seq) enter = uint64_t(record.enter_ns);
      session.close(seq, exit, HOST_BLOCKED);
    } else if (exit - enter < SHORTEST_WAIT_NS) {  // the work had ended before
      return void(session.add(EVENTS, 1));
    }
    note(seq ? BLOCKED : WAITED, enter, exit);
  }
  void check(bool well) const {
    if (well) return;
    PyErr_Clear();
    session.fail("an event could not be noted");
  }
  // Whether a function of ours was not entered for want of stack or memory, which is cleared.
  bool full() const {
    const bool full = PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError);
    if (full) check(false);
    return full;
  }

 private:
  [[gnu::noinline]] void emptied() const {
    if (PyObject* done = PyObject_Vectorcall(part(1), nullptr, 0, nullptr)) return Py_DecRef(done);
    // It catches what it raises. What a signal's handler raised before its first line is not ours:
    // Python's hook for lost exceptions sends the signal again.
    if (!full()) PyErr_WriteUnraisable(part(1));
  }

  PyObject* parts_;

 public:
  Session& session;
};

// Whether backward may follow a forward of `module`: in eval mode as well, as in fine-tuning.
bool trains(PyObject* module) {
  if (c10::GradMode::is_enabled()) return true;
  PyObject* training = module ? PyObject_GetAttrString(module, "training") : nullptr;
  const int found = training ? PyObject_IsTrue(training) : 0;
  if (training) Py_DecRef(training);
  PyErr_Clear();
  return found > 0;
}

// Keeps the error that a function has raised, where it has no result, through what follows.
class Raised {
 public:
  explicit Raised(PyObject* result) : any_(!result) {
    if (any_) PyErr_Fetch(&type_, &error_, &trace_);
  }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;
  ~Raised() {
    if (any_) PyErr_Restore(type_, error_, trace_);
  }

 private:
  bool any_;
  PyObject *type_ = nullptr, *error_ = nullptr, *trace_ = nullptr;
};

// Around a function, which is part 2. Part 3 has the event before it, the one after it, which of the
// arguments is a module, and whether backward awaits all of its collectives, a byte each.
PyObject* around(PyObject* parts, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const PythonHook hook(parts);
  Session& session = hook.session;
  PyObject* original = hook.part(2);
  const auto tell = [&](int at) {
    const auto packed = reinterpret_cast<uint64_t>(PyLong_AsVoidPtr(hook.part(3)));
    const auto event = Event(packed >> 8 * at & 0xFF);
    if (event == NO_EVENT) return;
    const auto part = hook.begins();
    uint64_t first = 0;
    if (event == FORWARD_BEGINS) {
      const auto argument = Py_ssize_t(packed >> 16 & 0xFF);
      first = trains(argument < count ? args[argument] : nullptr);
    } else if (event == BACKWARD_BEGINS || event == BACKWARD_ENDS) {
      first = session.load(LAST_ENTRY);
      session.turn(event == BACKWARD_BEGINS);
    }
    hook.note(event, now_ns(), first, packed >> 24);
    hook.ends(part);
  };
  if (!hook.watches()) return PyObject_Vectorcall(original, args, size_t(count), names);
  tell(0);
  PyObject* result = PyObject_Vectorcall(original, args, size_t(count), names);
  const Raised raised(result);
  if (hook.watches()) tell(1);
  return result;
}

// Around `Work.wait`, which is part 2. Part 3 and 4 are Python's functions before and after it.
PyObject* waiting(PyObject* parts, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const PythonHook hook(parts);
  Session& session = hook.session;
  PyObject* original = hook.part(2);
  if (!count || !session.load(ARMED)) return PyObject_Vectorcall(original, args, size_t(count), names);
  const auto told = [&](int at) {
    if (!session.load(WAITS)) return true;
    PyObject* done = PyObject_Vectorcall(hook.part(at), args, 1, nullptr);
    if (done) Py_DecRef(done);
    return done || hook.full();
  };
  std::optional<Part> part;
  if (session.training()) part = hook.begins();
  if (!told(3)) return nullptr;
  const uint64_t enter = now_ns();
  std::optional<uint64_t> before;
  if (part) before = part->ns();  // the wait itself is not our cost
  PyObject* result = PyObject_Vectorcall(original, args, size_t(count), names);
  if (part) part.emplace();
  const Raised raised(result);
  hook.waited(enter);
  if (!told(4) && result) Py_DecRef(std::exchange(result, nullptr));
  hook.ends(part, before);
  return result;
}

// The frame of the function that calls the hook's caller, which `phases._skipped` made. It runs, so
// that it stays.
PyObject* stepping() {
  PyObject* frame = PyFrame_GetBack(PyEval_GetFrame());
  if (frame) Py_DecRef(frame);
  return frame;
}

// Before an optimizer's step: part 2 is Python's hook, part 3 the calls of `step` that run. Where
// there are any, or no step was marked yet, Python's hook is called.
PyObject* optimizer_in(PyObject* parts, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const PythonHook hook(parts);
  PyObject* running = hook.part(3);
  PyObject* frame = stepping();
  if (!frame || !hook.watches() || PyList_Size(running) || !hook.session.load(MARKING))
    return PyObject_Vectorcall(hook.part(2), args, size_t(count), names);
  const auto part = hook.begins();
  PyObject* call = Py_BuildValue(
      "(NNN)", PyLong_FromVoidPtr(frame), PyFrame_GetCode(frame), PyLong_FromVoidPtr(args[0]));
  hook.check(call && PyList_Append(running, call) == 0);
  if (call) Py_DecRef(call);
  hook.note(OPTIMIZER_BEGINS, now_ns());
  hook.ends(part);
  return none();
}

// After it, with the same parts. Python's hook is called where a step ends otherwise than by the
// marking optimizer, or more is to be done at its end.
PyObject* optimizer_out(PyObject* parts, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const PythonHook hook(parts);
  Session& session = hook.session;
  PyObject* running = hook.part(3);
  const auto marks = [&] {
    if (!hook.watches() || PyList_Size(running) != 1 || session.load(MANUAL) || hook.attended()) return false;
    if (session.load(MARKING) != reinterpret_cast<uint64_t>(args[0])) return false;
    PyObject* frame = PyTuple_GetItem(PyList_GetItem(running, 0), 0);
    if (PyLong_AsVoidPtr(frame) != stepping()) return false;
    PyObject* scaled = PyObject_GetAttrString(args[0], "found_inf");
    if (scaled) Py_DecRef(scaled);
    PyErr_Clear();
    return !scaled;
  };
  const Hold hold(&session);
  if (!hold || !marks()) return PyObject_Vectorcall(hook.part(2), args, size_t(count), names);
  const uint64_t began = thread_ns();
  hook.check(PyList_SetSlice(running, 0, 1, nullptr) == 0);
  const uint64_t now = now_ns();
  hook.note(PHASE_ENDS, now);
  hook.end_step(began, now);
  return none();
}

// The script marks a step, and has marked one before. Part 2 is Python's function for it, which is
// called where more is to be done; the argument is the thread's time when it was called.
PyObject* marked(PyObject* parts, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const PythonHook hook(parts);
  const Hold hold(&hook.session);
  if (!hold || !hook.watches() || !hook.session.load(MANUAL) || hook.attended())
    return PyObject_Vectorcall(hook.part(2), args, size_t(count), names);
  hook.end_step(PyLong_AsUnsignedLongLong(args[0]), now_ns());
  return none();
}

struct Definition {  // PyMethodDef, of a function with METH_FASTCALL | METH_KEYWORDS
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
  int flags = 0x0082;
  const char* documentation = nullptr;
};
const Definition definitions[] = {
    {"around", around, 0x0082, "around(*args, **kwargs)\n--\n\n"},  // which `inspect` reads
    {"wait", waiting, 0x0082, "wait(*args, **kwargs)\n--\n\n"},
    {"optimizer_in", optimizer_in},
    {"optimizer_out", optimizer_out},
    {"step", marked}};

}  // namespace

extern "C" {

// A hook of Python by its number above; `method`: to be an attribute of a class.
PyObject* evenstep_hook(int which, PyObject* parts, bool method) {
  PyObject* function = PyCFunction_NewEx(&definitions[which], parts, nullptr);
  PyObject* made = method && function ? PyInstanceMethod_New(function) : function;
  if (method && function) Py_DecRef(function);
  return made;
}

// Registers an operation's kernel; false where this torch does not have the operation.
bool evenstep_observe(const char* name, int op, int reading, int flags, bool message) {
  const auto found = operation("c10d", name);
  if (!found) return false;
  auto watch = std::make_unique<Watch>(found->schema(), uint8_t(op), Reading(reading), uint16_t(flags), message);
  kernels("c10d").impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(watch)));
  return true;
}

bool evenstep_observe_waits() {
  const bool found = operation("_c10d_functional", "wait_tensor").has_value();
  if (found)
    kernels("_c10d_functional")
        .impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_tensor>());
  return found;
}

// Make a session for a ring of `records`; it numbers them from now on, and records once armed.
Session* evenstep_open(uint64_t records) { return new Session(records); }
void evenstep_arm(Session* session, void* ring) {
  session->ring = static_cast<Record*>(ring);
  current.store(session);
  session->words[ARMED].store(1);
}
void* evenstep_words(Session* session) { return session->words.data(); }
void* evenstep_events(Session* session) { return session->events.data(); }

// End a session; return the number of calls and callbacks that may still write into its ring.
uint64_t evenstep_close(Session* session) {
  session->words[ARMED].store(0);
  Session* mine = session;
  current.compare_exchange_strong(mine, nullptr);
  return session->users.load();
}
uint64_t evenstep_number(Session* session) { return session->add(NUMBER, 1) + 1; }
uint16_t evenstep_thread(Session* session) { return session->thread(); }

void evenstep_meet(Session* session, void (*meet)(const char* name, int size)) { session->meet.store(meet); }
Group* evenstep_group(Session* session, const char* name, uint32_t index, const int32_t* ranks,
                      uint64_t members, uint64_t sequence) {
  return session->enter(name, index, std::vector<int32_t>(ranks, ranks + members), sequence);
}
void evenstep_retire(Group* group) { group->retired.store(true); }
uint64_t evenstep_sequence(Group* group) { return group->sequence.load(); }

// Record the calls of this thread apart, from now on; where the session is not armed they pass.
// Without a session they are the program's again.
void evenstep_set_apart(Session* session, void* ring) {
  if (session) session->ring = static_cast<Record*>(ring);
  mine.apart = session;
}
void evenstep_gate(Session* session, void (*gate)()) { session->gate.store(gate); }
void evenstep_capture(Session* session, uint64_t captures) {
  std::lock_guard<std::mutex> lock(session->capture);
  session->store(CAPTURES, captures);
}
// Without effect once the session is closed: its ring may be unmapped.
void evenstep_look(Session* session) {
  if (const Hold hold(session); hold) session->look();
}

// Begin a batch of this thread; or end it, and return its number, 0 where it has no marks.
uint64_t evenstep_batch(Session* session, bool begins) {
  const Hold hold(session);
  if (begins && hold && !mine.batch) mine.batch = new Batch;
  if (begins) return 0;
  const std::unique_ptr<Batch> batch(std::exchange(mine.batch, nullptr));
  if (!hold || !batch || batch->empty()) return 0;
  std::lock_guard<std::mutex> lock(session->mutex);
  session->batches[++session->launched] = std::move(*batch);
  return session->launched;
}

// The current stream is about to wait for a batch.
void evenstep_batch_reached(Session* session, uint64_t number) {
  const Hold hold(session);
  if (!hold || session->load(CAPTURES)) return;
  std::lock_guard<std::mutex> lock(session->mutex);
  const auto found = session->batches.find(number);
  if (found == session->batches.end()) return;
  try {
    std::shared_ptr<c10::Event> now;
    Timer* last = nullptr;
    for (auto& [timer, mark] : found->second) {
      if (timer != last) now = timer->reached();
      last = timer;
      mark->reached = now;
    }
  } catch (const std::exception& error) {
    session->fail(error.what());
  }
}

// The current stream waits for a batch; or nobody will, and the ends of its operations are unknown.
void evenstep_batch_ended(Session* session, uint64_t number, bool waited) {
  const Hold hold(session);
  if (!hold) return;
  Batch batch;
  {
    std::lock_guard<std::mutex> lock(session->mutex);
    auto found = session->batches.extract(number);
    if (found) batch = std::move(found.mapped());
  }
  try {
    for (auto& [timer, mark] : batch) {
      if (waited && !session->load(CAPTURES))
        timer->end(std::move(mark));
      else
        session->close(mark->seq, now_ns());
    }
  } catch (const std::exception& error) {
    session->fail(error.what());
  }
}
const char* evenstep_failure(Session* session) { return session->failure.c_str(); }

// Rest until `due`, until the step has lasted `overdue` (0: no limit), or until `wake` can be read;
// meanwhile write the heartbeat.
uint64_t evenstep_rest(Session* session, uint64_t* beat, uint64_t due, uint64_t overdue,
                       int wake) {
  const uint64_t least = now_ns() + SHORTEST_REST_NS;
  for (;;) {
    const uint64_t now = now_ns();
    __atomic_store_n(beat, now, __ATOMIC_RELAXED);
    const uint64_t end = overdue ? std::min(due, session->load(BEGAN) + overdue) : due;
    if (now >= std::max(end, least)) return 0;
    const uint64_t rest = std::min(std::max(end, now + SHORTEST_REST_NS) - now, BEAT_NS);
    const timespec timeout{time_t(rest / 1000000000), long(rest % 1000000000)};
    pollfd wakes{wake, POLLIN, 0};
    const uint64_t ran = process_ns();
    if (ppoll(&wakes, 1, &timeout, nullptr)) return 0;
    const uint64_t lasted = now_ns() - now;
    if (lasted > rest + BEAT_NS + process_ns() - ran) return lasted;
  }
}

// Record the finished collectives of all devices; for the background thread.
void evenstep_poll(Session* session) {
  const Hold hold(session);
  if (!hold) return;
  std::vector<Timer*> timers;
  {
    std::lock_guard<std::mutex> lock(session->mutex);
    for (auto& [device, timer] : session->timers) timers.push_back(timer.get());
  }
  try {
    for (Timer* timer : timers) timer->poll(*session);
  } catch (const std::exception& error) {
    session->fail(error.what());
  }
}
}
