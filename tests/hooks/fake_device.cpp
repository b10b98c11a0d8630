// A device of the type of CUDA for a torch without one: streams that are busy until a time, and events
// that pass in order, as in `fake_cuda.py`. The test turns its clock.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>

namespace {

constexpr c10::DeviceIndex INDEX = 0;
double now_ms = 0, busy_until_ms[2] = {0, 0};  // of the current stream, and of the pool's
int64_t made = 0, destroyed = 0;

struct Device final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, INDEX}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(0); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(1); }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    made += *event == nullptr;
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = std::max(now_ms, busy_until_ms[on.id()]);
  }
  bool queryEvent(void* event) const override { return *static_cast<double*>(event) <= now_ms; }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return *static_cast<double*>(to) - *static_cast<double*>(from);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    ++destroyed;
    delete static_cast<double*>(event);
  }

 private:
  c10::Stream stream(c10::StreamId id) const noexcept {
    return c10::Stream(c10::Stream::UNSAFE, getDevice(), id);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Device);

// A tensor that says it is on the device.
at::Tensor tensor() {
  static float memory[8];
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), sizeof memory, at::DataPtr(memory, {c10::kCUDA, INDEX}));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>());
  made.unsafeGetTensorImpl()->set_sizes_contiguous({8});
  return made;
}

TORCH_LIBRARY(evenstep_fake, library) { library.def("tensor() -> Tensor", &tensor); }

}  // namespace

extern "C" {
void fake_now(double ms) { now_ms = ms; }
void fake_busy(double until_ms) { busy_until_ms[0] = until_ms; }
int64_t fake_made() { return made; }
int64_t fake_destroyed() { return destroyed; }
}
