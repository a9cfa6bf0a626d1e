// A stand-in for CUDA in a torch that was built without it: torch's CUDA dispatch key, served by the CPU's kernels in
// the host's memory. What can be told apart on a GPU is told apart here: the memory of the host and of two devices,
// generators, streams, events, pinned memory, copies that are under way, waits, a limit on memory, CUDA graphs.
// stand_in.py loads it and lists what it claims about CUDA; test_stand_in.py checks the claims, here and on a GPU.
//
// Time does not pass by itself. A kernel runs when it is called, but counts as done only once the host has waited for
// its stream. Of two streams, each knows of the other's work what an event has told it (`Clock`, a vector clock); what
// touches memory that another stream may still be at is an error. A GPU would give wrong numbers, now and then.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <unordered_map>

using namespace at;

namespace stand_in {

constexpr auto KIND = c10::DeviceType::CUDA;
constexpr int DEVICES = 2;
constexpr int POOL = 32;                         // c10/cuda/CUDAStream.cpp: kStreamsPerPool, then they come again
constexpr int64_t CAPACITY = int64_t(16) << 30;  // of each device
constexpr size_t POISONED = size_t(1) << 20;     // bytes at the start of a block; a test may ask for gigabytes

thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId streams[DEVICES] = {0, 0};
thread_local int inside = 0;  // in a kernel of the CPU: what it does with host tensors is no crossing

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

// Who holds the lock may need Python's: the last reference to a tensor may be a Python object. So nobody waits for it
// with Python's lock in hand.
extern "C" {
int PyGILState_Check(void);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
}
struct Lock {
  std::mutex inner;
  void lock() {
    if (inner.try_lock()) return;
    if (!PyGILState_Check()) return inner.lock();
    auto* thread = PyEval_SaveThread();
    inner.lock();
    PyEval_RestoreThread(thread);
  }
  void unlock() { inner.unlock(); }
};
Lock lock;  // for all that follows, as far as it is not atomic or of one thread

std::vector<std::string> faults;
void fault(const std::string& text) { faults.push_back(text); }

c10::DeviceIndex place(c10::DeviceIndex index) { return index < 0 ? current : index; }

// Streams ------------------------------------------------------------------------------------------------------------

using Clock = std::vector<int64_t>;  // how much of each lane's work is known to be done before
struct Moment {
  int lane = -1;
  int64_t tick = 0;
};

std::map<std::pair<int, c10::StreamId>, int> lanes;  // each stream of each device
std::vector<std::pair<int, c10::StreamId>> streamOf;
std::vector<Clock> clocks;  // of each lane; its own entry counts its work
Clock host;                 // what the host has waited for

int64_t& at_(Clock& clock, int lane) {
  if ((int)clock.size() <= lane) clock.resize(lane + 1, 0);
  return clock[lane];
}
void learn(Clock& clock, const Clock& other) {
  for (int each = 0; each < (int)other.size(); ++each) at_(clock, each) = std::max(at_(clock, each), other[each]);
}
int laneOf(int device, c10::StreamId stream) {
  auto found = lanes.find({device, stream});
  if (found != lanes.end()) return found->second;
  int lane = (int)clocks.size();
  lanes[{device, stream}] = lane;
  streamOf.push_back({device, stream});
  clocks.emplace_back();
  return lane;
}
int laneNow(int device) { return laneOf(device, streams[device]); }
// The next piece of work on a lane: it comes after all that the host has waited for.
Moment launch(int lane) {
  learn(clocks[lane], host);
  return {lane, ++at_(clocks[lane], lane)};
}
bool knows(Clock& clock, const Moment& moment) { return moment.lane < 0 || at_(clock, moment.lane) >= moment.tick; }
std::string named(int lane) {
  return "stream " + std::to_string(streamOf[lane].second) + " of cuda:" + std::to_string(streamOf[lane].first);
}

// CUDA graphs: what is recorded ----------------------------------------------------------------------------------------

struct Recording {
  int64_t number = 0;
  int lane = -1;
  bool broken = false;
  std::vector<std::function<void()>> steps;
  std::map<void*, std::pair<c10::Storage, std::string>> before;  // memory that a recorded kernel writes to
  std::vector<c10::Storage> made;                                // memory of the recording's own
  std::pair<uint64_t, uint64_t> generators[DEVICES];
};
std::map<int64_t, std::shared_ptr<Recording>> recordings;
std::shared_ptr<Recording> recording;  // the one that is being made
std::atomic<int> recordingDevice{-1};
std::atomic<c10::StreamId> recordingStream{0};
bool capturing() { return recordingDevice == current && recordingStream == streams[current]; }

// Waits --------------------------------------------------------------------------------------------------------------

enum Kind { ITEM, TO_HOST, TO_DEVICE, OPERATOR, STREAM, DEVICE, EVENT, PAGEABLE, UNDER_WAY };
// torch's sync debug mode speaks where torch calls c10/cuda/CUDAFunctions.h's memcpy_and_sync and stream_synchronize.
// cudaDeviceSynchronize, cudaEventSynchronize and a cudaMemcpyAsync of pageable memory wait without a word.
bool toldByTorch(Kind kind) { return kind <= STREAM; }

using Listener = void (*)(int kind, const char* detail);
std::atomic<Listener> listener{nullptr};
std::atomic<int> debugMode{0};  // 1 warns, 2 raises an error

void tell(Kind kind, const std::string& detail = "") {
  if (inside) return;
  if (capturing() && kind != UNDER_WAY) {
    recording->broken = true;
    TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing");
  }
  if (auto heard = listener.load()) heard(kind, detail.c_str());
  if (!toldByTorch(kind)) return;
  if (debugMode == 1) TORCH_WARN("called a synchronizing CUDA operation");
  TORCH_CHECK(debugMode != 2, "called a synchronizing CUDA operation");
}

// Copies that are under way --------------------------------------------------------------------------------------------

struct Copy {
  Moment moment;
  c10::Storage kept;  // of the host's side
  char* at;
  std::string bytes;  // what arrives, or what had left
  bool toHost;
};
std::deque<Copy> copies;
constexpr size_t MOST = 512;  // then the oldest arrives: a device works on while nobody waits

void arrive(Copy& copy) {
  if (copy.toHost) std::memcpy(copy.at, copy.bytes.data(), copy.bytes.size());
  else if (std::memcmp(copy.at, copy.bytes.data(), copy.bytes.size()) != 0)
    fault("pinned memory was written to while a copy of it to the device was under way");
}
// The host has waited: it knows what the clock knows, and these copies are there. Call with the lock held.
void waited(const Clock& clock) {
  learn(host, clock);
  std::deque<Copy> left;
  for (auto& copy : copies) {
    if (knows(host, copy.moment)) arrive(copy);
    else left.push_back(std::move(copy));
  }
  copies.swap(left);
}
void waitedForLane(int lane) { waited(Clock(clocks[lane])); }
void waitedForDevice(int device) {
  for (int lane = 0; lane < (int)clocks.size(); ++lane)
    if (streamOf[lane].first == device) waitedForLane(lane);
}
void begin(Copy copy) {
  copies.push_back(std::move(copy));
  if (copies.size() <= MOST) return;
  at_(host, copies.front().moment.lane) = std::max(at_(host, copies.front().moment.lane), copies.front().moment.tick);
  arrive(copies.front());
  copies.pop_front();
}

// Memory of the devices ------------------------------------------------------------------------------------------------

struct Statistics {
  int64_t now = 0, peak = 0, total = 0, freed = 0, blocks = 0, most = 0, refused = 0, limit = CAPACITY;
};
Statistics statistics[DEVICES];

struct Block {
  int device;
  size_t size;
  char* at;
  int lane;                 // of the stream that it was allocated on
  int64_t recording;        // that it was allocated in
  Moment written;           // for the last time
  std::vector<Moment> read; // since then, by each lane for the last time
  std::set<int> recorded;   // by record_stream
};

void poison(char* at, size_t size) { std::memset(at, 0xFF, std::min(size, POISONED)); }

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  std::lock_guard<Lock> held(lock);
  auto& own = clocks[block->lane];
  auto users = block->read;
  users.push_back(block->written);
  for (auto& user : users)
    if (user.lane != block->lane && !knows(own, user) && !knows(host, user) && !block->recorded.count(user.lane))
      fault("memory of " + named(block->lane) + " was given back while " + named(user.lane) +
            " may still use it: record_stream is missing");
  auto& counted = statistics[block->device];
  counted.now -= block->size, counted.freed += block->size, --counted.blocks;
  poison(block->at, block->size);
  std::free(block->at);
  delete block;
}

std::string sized(int64_t bytes) {  // c10/cuda/CUDACachingAllocator.cpp: format_size
  char text[64];
  if (bytes <= 1024) std::snprintf(text, sizeof text, "%lld bytes", (long long)bytes);
  else if (bytes <= 1048576) std::snprintf(text, sizeof text, "%.2f KiB", bytes / 1024.0);
  else if (bytes <= 1073741824) std::snprintf(text, sizeof text, "%.2f MiB", bytes / 1048576.0);
  else std::snprintf(text, sizeof text, "%.2f GiB", bytes / 1073741824.0);
  return text;
}

struct DeviceMemory final : c10::Allocator {
  DataPtr allocate(size_t wanted) override {
    Device device(KIND, current);
    if (!wanted) return {nullptr, nullptr, &release_nothing, device};
    int64_t size = (wanted + 511) / 512 * 512;  // kMinBlockSize of the caching allocator
    std::lock_guard<Lock> held(lock);
    auto& counted = statistics[current];
    if (counted.now + size > counted.limit) {
      ++counted.refused;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", sized(wanted), ". GPU ",
                       (int)current, " has a total capacity of ", sized(CAPACITY), " of which ",
                       sized(CAPACITY - counted.now), " is free. ", sized(counted.limit), " allowed; ",
                       sized(counted.now), " is allocated by PyTorch (a stand-in for CUDA).");
    }
    void* at = nullptr;
    if (posix_memalign(&at, 512, size)) throw std::bad_alloc();
    poison((char*)at, size);  // nothing is zero by luck
    counted.now += size, counted.total += size, ++counted.blocks;
    counted.peak = std::max(counted.peak, counted.now), counted.most = std::max(counted.most, counted.blocks);
    auto* block = new Block{current, (size_t)size, (char*)at, laneNow(current), capturing() ? recording->number : 0, {}, {}, {}};
    return {at, block, &release, device};
  }
  static void release_nothing(void*) {}
  DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
DeviceMemory deviceMemory;

Block* blockOf(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage()) return nullptr;
  auto& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &release ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

// A kernel at this moment reads or writes the tensor: what did other streams do with it?
void use(const Tensor& tensor, const Moment& moment, bool writes) {
  auto* block = blockOf(tensor);
  if (!block) return;
  auto& known = clocks[moment.lane];
  auto check = [&](const Moment& other, const char* does) {
    if (other.lane == moment.lane || knows(known, other)) return;
    auto text = named(moment.lane) + (writes ? " writes to" : " reads") + " memory that " + named(other.lane) +
                " may still be " + does + ": no event lies between them";
    fault(text);
    TORCH_CHECK(false, "stand-in for CUDA: ", text);
  };
  check(block->written, "writing to");
  if (writes) {
    for (auto& each : block->read) check(each, "reading");
    block->read.clear();
    block->written = moment;
    return;
  }
  for (auto& each : block->read)
    if (each.lane == moment.lane) { each = moment; return; }
  block->read.push_back(moment);
}

// Pinned memory --------------------------------------------------------------------------------------------------------

std::map<char*, size_t> pinned;
std::mutex pinnedLock;
void releasePinned(void* at) {
  { std::lock_guard<std::mutex> held(pinnedLock); pinned.erase((char*)at); }
  std::free(at);
}
struct PinnedMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    void* at = nullptr;
    if (posix_memalign(&at, 64, std::max<size_t>(size, 64))) throw std::bad_alloc();
    poison((char*)at, size);
    { std::lock_guard<std::mutex> held(pinnedLock); pinned[(char*)at] = std::max<size_t>(size, 64); }
    return {at, at, &releasePinned, Device(kCPU)};
  }
  DeleterFnPtr raw_deleter() const override { return &releasePinned; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
PinnedMemory pinnedMemory;
bool isPinned(const void* at) {
  std::lock_guard<std::mutex> held(pinnedLock);
  auto found = pinned.upper_bound((char*)at);
  if (found == pinned.begin()) return false;
  --found;
  return (char*)at < found->first + found->second;
}

// Generators -----------------------------------------------------------------------------------------------------------

// As CUDA's: a seed and an offset, which each kernel moves on. A kernel draws from a host generator made of both.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index)
      : GeneratorImpl(Device(KIND, index), DispatchKeySet(DispatchKey::CUDA)) {}
  static uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  Generator next() {
    auto made = at::detail::createCPUGenerator(mixed(seed_ ^ mixed(offset_)));
    offset_ += 4;
    return made;
  }
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t seed() override {
    std::random_device source;
    set_current_seed((uint64_t(source()) << 32) | source());
    return seed_;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {  // ATen/cuda/CUDAGeneratorImpl.cpp: 16 bytes
    auto state = at::detail::empty_cpu({16}, ScalarType::Byte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    std::memcpy(state.mutable_data_ptr(), &seed_, 8);
    std::memcpy((char*)state.mutable_data_ptr() + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == 16 || state.numel() == 8, "RNG state is wrong size");
    auto* bytes = (const char*)state.data();
    std::memcpy(&seed_, bytes, 8);
    offset_ = 0;
    if (state.numel() == 16) std::memcpy(&offset_, bytes + 8, 8);
  }
  DeviceGenerator* clone_impl() const override {
    auto* made = new DeviceGenerator(device().index());
    made->seed_ = seed_, made->offset_ = offset_;
    return made;
  }
  uint64_t seed_ = default_rng_seed_val, offset_ = 0;
};
Generator& defaultGenerator(c10::DeviceIndex index) {
  static std::vector<Generator> all = {make_generator<DeviceGenerator>(0), make_generator<DeviceGenerator>(1)};
  return all.at(place(index));
}
DeviceGenerator* own(const Generator& generator) {
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
}
std::atomic<bool> givesDefault{false};  // Python has no other way to a default generator than to make one

// What torch asks of an accelerator --------------------------------------------------------------------------------------

struct Hooks final : CUDAHooksInterface {
  Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex index) const override { return defaultGenerator(index); }
  Generator getNewGenerator(DeviceIndex index) const override {
    return givesDefault ? defaultGenerator(index) : make_generator<DeviceGenerator>(place(index));
  }
  Device getDeviceFromPtr(void*) const override { return Device(KIND, current); }
  bool isPinnedPtr(const void* at) const override { return isPinned(at); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinnedMemory; }
  Allocator* getCUDADeviceAllocator() const override { return &deviceMemory; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  void setCurrentDevice(DeviceIndex index) const override { current = index; }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current, place(index)); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  int getNumGPUs() const override { return DEVICES; }
  void deviceSynchronize(DeviceIndex index) const override;
};

struct Event {
  Clock clock;
  bool asked = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device device) const override {
    Device before(KIND, current);
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(KIND, current); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "CUDA error: invalid device ordinal");
    current = place(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = place(device.index()); }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }

  static c10::Stream made(DeviceIndex device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, Device(KIND, device), id);
  }
  c10::Stream getStream(Device device) const override {
    return made(place(device.index()), streams[place(device.index())]);
  }
  c10::Stream getDefaultStream(Device device) const override { return made(place(device.index()), 0); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(Device device, int) const override {
    static std::atomic<int64_t> count{0};
    return made(place(device.index()), 1 + count++ % POOL);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    streams[stream.device_index()] = stream.id();
    return before;
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return recordingDevice == stream.device_index() && recordingStream == stream.id();
  }
  // Asked for the first time, work is not done; asked again, it is, as if time had passed.
  bool queryStream(const c10::Stream& stream) const override {
    std::lock_guard<Lock> held(lock);
    static std::map<int, int64_t> asked;
    int lane = laneOf(stream.device_index(), stream.id());
    int64_t tick = at_(clocks[lane], lane);
    if (knows(host, {lane, tick})) return true;
    if (!asked.count(lane) || asked[lane] != tick) { asked[lane] = tick; return false; }
    waitedForLane(lane);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    tell(STREAM);
    std::lock_guard<Lock> held(lock);
    waitedForLane(laneOf(stream.device_index(), stream.id()));
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    tell(DEVICE);
    std::lock_guard<Lock> held(lock);
    waitedForDevice(place(index));
  }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<Lock> held(lock);
    int lane = laneOf(stream.device_index(), stream.id());
    launch(lane);
    if (!*event) *event = new Event();
    *static_cast<Event*>(*event) = {clocks[lane]};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    std::lock_guard<Lock> held(lock);
    learn(clocks[laneOf(stream.device_index(), stream.id())], static_cast<Event*>(event)->clock);
  }
  bool queryEvent(void* given) const override {
    auto* event = static_cast<Event*>(given);
    if (!event) return true;
    std::lock_guard<Lock> held(lock);
    bool done = true;
    for (int lane = 0; lane < (int)event->clock.size(); ++lane) done = done && knows(host, {lane, event->clock[lane]});
    if (!done && !std::exchange(event->asked, true)) return false;
    waited(event->clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    tell(EVENT);
    std::lock_guard<Lock> held(lock);
    if (event) waited(static_cast<Event*>(event)->clock);
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    if (pointer.get_deleter() != &release) return;
    std::lock_guard<Lock> held(lock);
    static_cast<Block*>(pointer.get_context())->recorded.insert(laneOf(stream.device_index(), stream.id()));
  }
};
void Hooks::deviceSynchronize(DeviceIndex index) const { Guard().synchronizeDevice(index); }

// Tensors --------------------------------------------------------------------------------------------------------------

Tensor over(c10::Storage storage, DispatchKey key, const Tensor& form) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), form.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes(), form.strides(), form.storage_offset());
  if (form.is_conj()) made._set_conj(true);
  if (form.is_neg()) made._set_neg(true);
  return made;
}
// The same memory, seen as the host's, without a share in it.
Tensor asHost(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  Inside cpu;
  at::AutoDispatchBelowADInplaceOrView below;
  auto& storage = tensor.storage();
  void* base = const_cast<void*>(storage.data());
  auto seen = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                    c10::DataPtr(base, Device(kCPU)), c10::GetAllocator(kCPU), true);
  return over(c10::Storage(std::move(seen)), DispatchKey::CPU, tensor);
}
// The same memory, without autograd's view of it: a recorded kernel keeps it.
Tensor bare(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::AutoDispatchBelowADInplaceOrView below;
  return over(tensor.storage(), tensor.is_cpu() ? DispatchKey::CPU : DispatchKey::CUDA, tensor);
}
void copyOnHost(const Tensor& to, const Tensor& from) {
  Inside cpu;
  asHost(to).copy_(asHost(from));
}

Tensor emptyStrided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype, std::optional<Layout>,
                    std::optional<Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard guard;
  if (device && device->has_index()) guard.reset_device(*device);
  return at::detail::empty_strided_generic(size, stride, &deviceMemory, DispatchKeySet(DispatchKey::CUDA),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}
Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device> device,
             std::optional<bool> pin, std::optional<MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard guard;
  if (device && device->has_index()) guard.reset_device(*device);
  return at::detail::empty_generic(size, &deviceMemory, DispatchKeySet(DispatchKey::CUDA),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}
void fit(const Tensor& self, int64_t bytes) {
  if ((size_t)bytes <= self.storage().nbytes()) return;
  c10::DeviceGuard guard(self.device());
  auto fresh = deviceMemory.allocate(bytes);
  if (self.storage().nbytes()) std::memcpy(fresh.get(), self.storage().data(), self.storage().nbytes());
  self.storage().set_data_ptr_noswap(std::move(fresh));
  self.storage().set_nbytes(bytes);
}
const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  fit(self, at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset()));
  impl->set_sizes_contiguous(size);
  if (format && *format != MemoryFormat::Preserve && *format != MemoryFormat::Contiguous)
    impl->empty_tensor_restride(*format);
  return self;
}
Tensor& setStorage(Tensor& self, Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(storage.device_type() == KIND, "Expected a storage of the device, but got one of the host");
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}
Tensor& setSource(Tensor& self, Storage storage) {
  int64_t count = storage.nbytes() / self.dtype().itemsize();
  return setStorage(self, storage, 0, {count}, {1});
}
Tensor& setTensor(Tensor& self, const Tensor& other) {
  return setStorage(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}
Tensor asStrided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }
Tensor reshapeAlias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}
void recordStream(Tensor& self, Stream stream) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream); }

// Recording ------------------------------------------------------------------------------------------------------------

// A recorded kernel computes nothing yet. Here it runs all the same, for the shapes, and its marks are taken back.
void aboutToWrite(const Tensor& tensor) {
  auto* block = blockOf(tensor);
  if (!block || block->recording == recording->number || recording->before.count(block->at)) return;
  recording->before[block->at] = {tensor.storage(), std::string(block->at, block->size)};
}
void recorded(std::function<void()> step, const std::vector<Tensor>& touched) {
  for (auto& tensor : touched)
    if (auto* block = blockOf(tensor); block && block->recording == recording->number)
      recording->made.push_back(tensor.storage());
  recording->steps.push_back(std::move(step));
}

// Copies ---------------------------------------------------------------------------------------------------------------

// ATen/native/cuda/Copy.cu, copy_requires_temporaries. Of a host's side that is not contiguous torch makes a copy first,
// in memory that is not pinned. Another dtype is made on the device, if the copy is non_blocking.
bool direct(const Tensor& onHost, const Tensor& onDevice) {
  bool alike = onHost.strides() == onDevice.strides() && onHost.is_non_overlapping_and_dense();
  return onHost.sizes() == onDevice.sizes() && (onHost.is_contiguous() || (alike && onHost.dtype() == onDevice.dtype()));
}

Tensor& copy_(Tensor& self, const Tensor& from, bool nonBlocking) {
  if (self.unsafeGetTensorImpl() == from.unsafeGetTensorImpl()) return self;
  if (inside || !self.numel()) {
    copyOnHost(self, from);
    return self;
  }
  bool toHost = self.is_cpu(), fromHost = from.is_cpu();
  if (!toHost && !fromHost) {
    std::unique_lock<Lock> held(lock);
    int lane = laneNow(from.get_device());
    if (self.device() != from.device()) {  // both devices' streams wait for each other: copy_device_to_device
      int other = laneNow(self.get_device());
      launch(lane), launch(other);
      learn(clocks[lane], clocks[other]);
      learn(clocks[other], clocks[lane]);
    }
    auto moment = launch(lane);
    use(from, moment, false);
    use(self, moment, true);
    if (self.device() != from.device()) learn(clocks[laneNow(self.get_device())], clocks[lane]);
  } else {
    const Tensor& device = toHost ? from : self;
    const Tensor& other = toHost ? self : from;
    bool isDirect = direct(other, device) && isPinned(other.const_data_ptr());
    auto detail = std::string(c10::toString(from.scalar_type())) + ", " + std::to_string(from.nbytes()) + " bytes";
    tell(!nonBlocking ? (toHost ? TO_HOST : TO_DEVICE) : isDirect ? UNDER_WAY : PAGEABLE, detail);
    std::unique_lock<Lock> held(lock);
    auto moment = launch(laneNow(device.get_device()));
    use(device, moment, !toHost);
    if (nonBlocking && isDirect && !capturing()) {
      auto* at = (char*)other.const_data_ptr();
      if (toHost) copyOnHost(self, from);
      begin({moment, other.storage(), at, std::string(at, other.nbytes()), toHost});
      if (toHost) {
        std::memset(at, 0xFF, other.nbytes());  // read before it is there, it is this
        return self;
      }
    } else if (!nonBlocking || toHost) {
      waitedForLane(moment.lane);
    }
  }
  if (capturing()) {
    aboutToWrite(self);
    auto to = bare(self), source = bare(from);
    recorded([to, source]() mutable { copyOnHost(to, source); }, {to, source});
  }
  copyOnHost(self, from);
  return self;
}
Tensor copyFrom(const Tensor& self, const Tensor& to, bool nonBlocking) {
  auto target = to;
  copy_(target, self, nonBlocking);
  return to;
}
Tensor copyFromAndResize(const Tensor& self, const Tensor& to) {
  auto target = to;
  target.resize_(self.sizes());
  copy_(target, self, false);
  return to;
}
Scalar item(const Tensor& self) {
  tell(ITEM, c10::toString(self.scalar_type()));
  if (!inside) {
    std::lock_guard<Lock> held(lock);
    auto moment = launch(laneNow(self.get_device()));
    use(self, moment, false);
    waitedForLane(moment.lane);
  }
  Inside cpu;
  return asHost(self).item();
}

// Every other kernel -----------------------------------------------------------------------------------------------------

const std::set<std::string> WAITING = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::bincount", "aten::equal", "aten::repeat_interleave", "aten::multinomial", "aten::_ctc_loss",
};
const std::set<std::string> INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"};

// Whether a kernel writes to an argument. native_batch_norm's schema does not tell of the running averages.
bool written(const c10::Argument& argument) {
  auto* alias = argument.alias_info();
  return (alias && alias->isWrite()) || argument.name() == "running_mean" || argument.name() == "running_var";
}
template <typename F>
void eachTensor(const IValue& value, F&& seen) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) seen(value.toTensor());
  } else if (value.isList()) {
    for (auto& each : value.toListRef())
      if (each.isTensor() && each.toTensor().defined()) seen(each.toTensor());
  }
}
template <typename F>
IValue mapped(const IValue& value, F&& made) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(made(value.toTensor())) : value;
  if (value.isTensorList()) {
    std::vector<Tensor> all;
    for (const Tensor& each : value.toTensorVector()) all.push_back(made(each));
    return IValue(c10::List<Tensor>(all));
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (std::optional<Tensor> each : value.toOptionalTensorVector())
      all.push_back(each && each->defined() ? std::optional<Tensor>(made(*each)) : std::nullopt);
    return IValue(all);
  }
  return value;
}

// The device of a kernel's tensors. A tensor of another place is an error, as in c10/core/impl/DeviceGuardImplInterface
// and TensorIterator::compute_types; kernels that go element by element read a host tensor without dimensions.
c10::DeviceIndex deviceOf(const c10::OperatorHandle& op, const IValue* arguments) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  bool indexes = INDEXING.count(name), many = name.rfind("aten::_foreach", 0) == 0;
  bool reads = indexes || many || op.hasTag(at::Tag::pointwise) || name.rfind("aten::_fused_", 0) == 0 ||
               name == "aten::fill_" || name == "aten::masked_fill_" || name == "aten::masked_fill" || name == "aten::where";
  std::optional<Device> where;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& argument = schema.arguments()[i];
    bool writes = written(argument);
    if (arguments[i].isDevice() && !where) where = arguments[i].toDevice();
    eachTensor(arguments[i], [&](const Tensor& tensor) {
      if (tensor.is_cpu()) {
        bool index = indexes && argument.name() == "indices";
        if (!writes && (index || (reads && tensor.dim() == 0))) {
          if (indexes) tell(TO_DEVICE, index ? "an index of the host" : "a value of the host");
          return;
        }
        TORCH_CHECK(false, "Expected all tensors to be on the same device, but got ", argument.name(),
                    " is on cpu, different from other tensors on ", where ? where->str() : "cuda",
                    " (when checking argument in ", name, ")");
      }
      TORCH_CHECK(!where || !where->has_index() || tensor.device() == *where,
                  "Expected all tensors to be on the same device, but found at least two devices, ", *where, " and ",
                  tensor.device(), "! (when checking argument ", argument.name(), " in ", name, ")");
      where = tensor.device();
    });
  }
  return place(where ? where->index() : -1);
}
bool waits(const c10::OperatorHandle& op, const IValue* arguments) {
  const auto& name = op.schema().name();
  if (WAITING.count(name)) return name != "aten::repeat_interleave" || arguments[1].isNone();
  bool mask = false;
  // A mask is turned into numbers by nonzero: ATen/native/IndexingUtils.h, expandTensors. Of `index` that comes before.
  if (INDEXING.count(name) && name != "aten::index")
    eachTensor(arguments[1], [&](const Tensor& each) { mask = mask || each.dtype() == kBool || each.dtype() == kByte; });
  if (name == "aten::normal" || name == "aten::normal_")  // at::normal checks that no deviation is negative
    eachTensor(arguments[1], [&](const Tensor&) { mask = true; });
  return mask;
}

struct Call {  // one call of a kernel
  const c10::OperatorHandle& op;
  c10::DeviceIndex device;
  std::vector<std::pair<Tensor, Tensor>> seen{};  // tensors as given, and as the host sees them

  Tensor onHost(const Tensor& tensor) {
    auto made = asHost(tensor);
    if (!tensor.is_cpu()) seen.emplace_back(tensor, made);
    return made;
  }
  // Results that the CPU's kernel has put elsewhere than where it was told: it has resized them.
  void resized() {
    for (auto& [given, made] : seen) {
      bool elsewhere = made.storage().data() != given.storage().data();
      if (given.sizes() != made.sizes() || (elsewhere && made.numel())) {
        fit(given, at::detail::computeStorageNbytes(made.sizes(), made.strides(), given.dtype().itemsize(),
                                                    given.storage_offset()));
        given.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
        if (elsewhere && made.numel()) copyOnHost(given, made);
      } else if (given.strides() != made.strides()) {
        given.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
      }
    }
  }
  Tensor back(const Tensor& result) {
    for (auto& [given, made] : seen)
      if (made.is_same(result)) return given;
    for (auto& [given, made] : seen)
      if (made.numel() && result.numel() && made.storage().data() == result.storage().data()) {
        at::AutoDispatchBelowADInplaceOrView below;
        return over(given.storage(), DispatchKey::CUDA, result);
      }
    c10::DeviceGuard guard(Device(KIND, device));
    auto made = emptyStrided(result.sizes(), result.strides(), result.scalar_type(), std::nullopt,
                             Device(KIND, device), std::nullopt);
    if (result.numel()) copyOnHost(made, result);
    return made;
  }
};

void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), first = stack->size() - count;
  auto device = deviceOf(op, stack->data() + first);
  if (waits(op, stack->data() + first)) {
    tell(OPERATOR, schema.name());
    std::lock_guard<Lock> held(lock);
    if (!inside) waitedForLane(laneNow(device));
  }
  bool records = !inside && capturing();
  torch::jit::Stack kept;
  std::vector<Tensor> touched;
  if (!inside) {
    std::lock_guard<Lock> held(lock);
    auto moment = launch(laneNow(device));
    for (size_t i = 0; i < count; ++i) {
      bool writes = written(schema.arguments()[i]);
      eachTensor((*stack)[first + i], [&](const Tensor& each) {
        use(each, moment, writes);
        if (records && writes) aboutToWrite(each);
      });
    }
  }
  if (records)
    for (size_t i = 0; i < count; ++i) kept.push_back(mapped((*stack)[first + i], [&](const Tensor& each) {
      touched.push_back(bare(each));
      return touched.back();
    }));

  Call call{op, device};
  bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[first + i];
    auto& argument = schema.arguments()[i];
    if (value.isDevice()) value = IValue(Device(kCPU));
    else if (argument.name() == "generator" && draws) {
      auto given = value.isGenerator() ? value.toGenerator() : Generator();
      TORCH_CHECK(!given.defined() || given.device().is_cuda(),
                  "Expected a 'cuda' device type for generator but found 'cpu'");
      value = IValue(own(given.defined() ? given : defaultGenerator(device))->next());
      draws = false;
    } else value = mapped(value, [&](const Tensor& each) { return call.onHost(each); });
  }
  TORCH_CHECK(!draws, "stand-in for CUDA: ", schema.name(), " draws from no generator that can be named");
  {
    Inside cpu;
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
    call.resized();
  }
  size_t results = schema.returns().size();
  auto last = stack->size() - results;
  for (size_t i = last; i < stack->size(); ++i) {
    (*stack)[i] = mapped((*stack)[i], [&](const Tensor& each) { return call.back(each); });
    if (records) eachTensor((*stack)[i], [&](const Tensor& each) { touched.push_back(bare(each)); });
  }
  if (!records) return;
  std::vector<Tensor> made;
  for (size_t i = last; i < stack->size(); ++i)
    eachTensor((*stack)[i], [&](const Tensor& each) { made.push_back(bare(each)); });
  recorded(
      [op, kept, made] {
        auto again = kept;
        kernel(op, &again);
        size_t next = 0;
        for (auto& value : again)
          eachTensor(value, [&](const Tensor& each) {
            auto& to = made.at(next++);
            if (to.storage().data() != each.storage().data() && to.numel()) copyOnHost(to, each);
          });
      },
      touched);
}

// The CPU's draws from the host's generator, whatever it is given.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || !input.numel()) return {input.clone(), at::ones_like(input, input.options().dtype(kBool))};
  auto mask = at::empty_like(input, input.options().dtype(kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0), mask};
}
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double p,
                 bool causal, std::optional<double> scale, bool grouped) {
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, p, causal, std::nullopt, scale, grouped));
}
int64_t sdpChoice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                  std::optional<double>, bool) {
  return 0;  // the one in plain operations
}

// From Python ----------------------------------------------------------------------------------------------------------

thread_local std::string problem;
template <typename F>
const char* answered(F&& work) {  // the text of an error, or null
  try {
    work();
    return nullptr;
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  return problem.c_str();
}

void captureBegin(int64_t number) {
  TORCH_CHECK(!recording, "CUDA error: operation not permitted when stream is capturing");
  TORCH_CHECK(streams[current] != 0, "CUDA graphs must be captured on a non-default stream.");
  std::lock_guard<Lock> held(lock);
  auto made = std::make_shared<Recording>();
  made->number = number;
  made->lane = laneNow(current);
  for (int each = 0; each < DEVICES; ++each)
    made->generators[each] = {own(defaultGenerator(each))->seed_, own(defaultGenerator(each))->offset_};
  recording = made;
  recordingStream = streams[current];
  recordingDevice = current;
}
void captureEnd() {
  TORCH_CHECK(recording, "capture_end() called before capture_begin().");
  recordingDevice = -1;
  auto made = std::exchange(recording, nullptr);
  {
    std::lock_guard<Lock> held(lock);
    for (auto& [at, kept] : made->before) std::memcpy(at, kept.second.data(), kept.second.size());
    for (auto& storage : made->made) poison((char*)storage.mutable_data(), storage.nbytes());
    for (int each = 0; each < DEVICES; ++each)
      std::tie(own(defaultGenerator(each))->seed_, own(defaultGenerator(each))->offset_) = made->generators[each];
    learn(host, clocks[made->lane]);  // nothing of it is under way
  }
  made->before.clear();
  TORCH_CHECK(!made->broken, "CUDA error: operation failed due to a previous error during capture");
  recordings[made->number] = made;
}
void replay(int64_t number) {
  auto found = recordings.find(number);
  TORCH_CHECK(found != recordings.end(), "Called CUDAGraph::replay without a preceding successful capture.");
  auto steps = found->second;
  for (auto& step : steps->steps) step();
}

}  // namespace stand_in

namespace {
// torch has asked for CUDA's hooks when it was imported, and keeps the object that answers that there is no CUDA. Like
// ours it has no data, so ours is made in its place.
static_assert(sizeof(stand_in::Hooks) == sizeof(CUDAHooksInterface));
const bool hooksAreOurs = (new (const_cast<CUDAHooksInterface*>(&at::detail::getCUDAHooks())) stand_in::Hooks({}), true);
c10::impl::DeviceGuardImplRegistrar guardRegistrar(stand_in::KIND, new stand_in::Guard());
const bool allocatorIsSet = (c10::SetAllocator(stand_in::KIND, &stand_in::deviceMemory), true);
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&stand_in::kernel>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", stand_in::empty);
  m.impl("empty_strided", stand_in::emptyStrided);
  m.impl("as_strided", stand_in::asStrided);
  m.impl("view", stand_in::view);
  m.impl("_reshape_alias", stand_in::reshapeAlias);
  m.impl("resize_", stand_in::resize_);
  m.impl("copy_", stand_in::copy_);
  m.impl("_copy_from", stand_in::copyFrom);
  m.impl("_copy_from_and_resize", stand_in::copyFromAndResize);
  m.impl("_local_scalar_dense", stand_in::item);
  m.impl("set_.source_Storage_storage_offset", stand_in::setStorage);
  m.impl("set_.source_Storage", stand_in::setSource);
  m.impl("set_.source_Tensor", stand_in::setTensor);
  m.impl("record_stream", stand_in::recordStream);
  m.impl("native_dropout", stand_in::dropout);
  m.impl("_fused_sdp_choice", stand_in::sdpChoice);
  m.impl("scaled_dot_product_attention", stand_in::attention);
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { m.impl("scaled_dot_product_attention", stand_in::attention); }

extern "C" {
int stand_in_devices() { return stand_in::DEVICES; }
int64_t stand_in_capacity() { return stand_in::CAPACITY; }
void stand_in_listen(stand_in::Listener listener) { stand_in::listener = listener; }
void stand_in_debug_mode(int mode) { stand_in::debugMode = mode; }
void stand_in_give_default(int gives) { stand_in::givesDefault = gives; }
int stand_in_device() { return stand_in::current; }
void stand_in_set_device(int index) { stand_in::current = index; }
int64_t stand_in_stream(int device) { return stand_in::streams[device]; }
void stand_in_set_stream(int device, int64_t id) { stand_in::current = device, stand_in::streams[device] = id; }
const char* stand_in_synchronize(int device) {
  return stand_in::answered([&] { stand_in::Guard().synchronizeDevice(device); });
}
void stand_in_limit(int device, int64_t bytes) { stand_in::statistics[device].limit = bytes; }
void stand_in_statistics(int device, int64_t* into) {
  std::lock_guard<stand_in::Lock> held(stand_in::lock);
  std::memcpy(into, &stand_in::statistics[device], sizeof(stand_in::Statistics));
}
void stand_in_forget_peak(int device) {
  std::lock_guard<stand_in::Lock> held(stand_in::lock);
  auto& counted = stand_in::statistics[device];
  counted.peak = counted.now, counted.most = counted.blocks;
}
int64_t stand_in_under_way() {
  std::lock_guard<stand_in::Lock> held(stand_in::lock);
  return stand_in::copies.size();
}
// The oldest fault that was not asked for yet, or null.
const char* stand_in_fault() {
  std::lock_guard<stand_in::Lock> held(stand_in::lock);
  if (stand_in::faults.empty()) return nullptr;
  stand_in::problem = stand_in::faults.front();
  stand_in::faults.erase(stand_in::faults.begin());
  return stand_in::problem.c_str();
}
int stand_in_capturing() { return stand_in::capturing(); }
const char* stand_in_capture_begin(int64_t number) {
  return stand_in::answered([&] { stand_in::captureBegin(number); });
}
const char* stand_in_capture_end() { return stand_in::answered([] { stand_in::captureEnd(); }); }
const char* stand_in_replay(int64_t number) { return stand_in::answered([&] { stand_in::replay(number); }); }
void stand_in_forget(int64_t number) { stand_in::recordings.erase(number); }
}
