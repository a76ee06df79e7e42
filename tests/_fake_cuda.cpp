// A CUDA device that computes nothing, for fake tensors in a torch without CUDA.
//
// Indexing asks for the device, autograd for its streams and events. They are all there, and empty.
// Loaded with LD_PRELOAD, so that the two functions below take the place of torch's.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device;
using c10::Stream;
constexpr auto CUDA = c10::DeviceType::CUDA;

struct Guard : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  Device getDevice() const override { return Device(CUDA, 0); }
  Device exchangeDevice(Device) const override { return Device(CUDA, 0); }
  Stream getStream(Device device) const noexcept override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(getDevice()); }
  void record(void**, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
};

static c10::impl::DeviceGuardImplRegistrar registrar(CUDA, new Guard());

struct Hooks : at::CUDAHooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return CUDA; }
}

namespace at::detail {
const CUDAHooksInterface& getCUDAHooks() {
  static Hooks hooks;
  return hooks;
}
}
