// The part of OpenCL's C interface that kforge calls, resolved at run time: no headers and no library are needed to compile, and
// a machine without a loader says so in words. Names, types and numbers are those of the OpenCL 1.2 and 2.0 specifications.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace kforge_opencl {

using Status = int32_t;
using Handle = void *;  // of a platform, device, context, queue, program, kernel or memory object

constexpr uint64_t all_devices = 0xFFFFFFFF, device_cpu = 1 << 1, device_gpu = 1 << 2;
constexpr uint32_t platform_version = 0x0901, platform_name = 0x0902;
constexpr uint32_t device_type = 0x1000, device_units = 0x1002, device_group_size = 0x1004, device_alignment = 0x1019,
                   device_cache_bytes = 0x101E, device_memory_bytes = 0x101F, device_fp_config = 0x101B,
                   device_local_bytes = 0x1023, device_unified = 0x1035, device_name = 0x102B, device_vendor = 0x102C,
                   driver_version = 0x102D, device_version = 0x102F, device_extensions = 0x1030;
constexpr uint64_t fp_denormals = 1 << 0, fp_fma = 1 << 5, fp_correct_divide_sqrt = 1 << 7;
constexpr uint32_t program_binary_sizes = 0x1165, program_binaries = 0x1166, build_log = 0x1183, kernel_arguments = 0x1191;
constexpr uint64_t memory_read_write = 1 << 0, memory_read_only = 1 << 2, memory_host_pointer = 1 << 3;

// The functions, each of the name that it has in the specification without "cl".
struct Api {
    Status (*GetPlatformIDs)(uint32_t, Handle *, uint32_t *);
    Status (*GetPlatformInfo)(Handle, uint32_t, size_t, void *, size_t *);
    Status (*GetDeviceIDs)(Handle, uint64_t, uint32_t, Handle *, uint32_t *);
    Status (*GetDeviceInfo)(Handle, uint32_t, size_t, void *, size_t *);
    Handle (*CreateContext)(const intptr_t *, uint32_t, const Handle *, void *, void *, Status *);
    Handle (*CreateCommandQueue)(Handle, Handle, uint64_t, Status *);
    Handle (*CreateProgramWithSource)(Handle, uint32_t, const char **, const size_t *, Status *);
    Handle (*CreateProgramWithBinary)(Handle, uint32_t, const Handle *, const size_t *, const unsigned char **, Status *,
                                      Status *);
    Status (*BuildProgram)(Handle, uint32_t, const Handle *, const char *, void *, void *);
    Status (*GetProgramBuildInfo)(Handle, Handle, uint32_t, size_t, void *, size_t *);
    Status (*GetProgramInfo)(Handle, uint32_t, size_t, void *, size_t *);
    Handle (*CreateKernel)(Handle, const char *, Status *);
    Status (*GetKernelInfo)(Handle, uint32_t, size_t, void *, size_t *);
    Status (*SetKernelArg)(Handle, uint32_t, size_t, const void *);
    Status (*EnqueueNDRangeKernel)(Handle, Handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,
                                   const Handle *, Handle *);
    Status (*Finish)(Handle);
    Handle (*CreateBuffer)(Handle, uint64_t, size_t, void *, Status *);
    Status (*ReleaseMemObject)(Handle);

    // Loads the system's loader; what is wrong, or "".
    std::string load() {
        void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return "there is no OpenCL loader (libOpenCL.so.1; Debian has ocl-icd-libopencl1)";
        std::string lost;
        const auto take = [&](auto &function, const char *name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) lost = name;
        };
        take(GetPlatformIDs, "clGetPlatformIDs");
        take(GetPlatformInfo, "clGetPlatformInfo");
        take(GetDeviceIDs, "clGetDeviceIDs");
        take(GetDeviceInfo, "clGetDeviceInfo");
        take(CreateContext, "clCreateContext");
        take(CreateCommandQueue, "clCreateCommandQueue");
        take(CreateProgramWithSource, "clCreateProgramWithSource");
        take(CreateProgramWithBinary, "clCreateProgramWithBinary");
        take(BuildProgram, "clBuildProgram");
        take(GetProgramBuildInfo, "clGetProgramBuildInfo");
        take(GetProgramInfo, "clGetProgramInfo");
        take(CreateKernel, "clCreateKernel");
        take(GetKernelInfo, "clGetKernelInfo");
        take(SetKernelArg, "clSetKernelArg");
        take(EnqueueNDRangeKernel, "clEnqueueNDRangeKernel");
        take(Finish, "clFinish");
        take(CreateBuffer, "clCreateBuffer");
        take(ReleaseMemObject, "clReleaseMemObject");
        return lost.empty() ? "" : "the OpenCL loader lacks " + lost;
    }

    // Devices of all platforms, in the loader's order: what a device's number counts.
    std::vector<Handle> devices() const {
        uint32_t count = 0;
        std::vector<Handle> found;
        if (GetPlatformIDs(0, nullptr, &count) != 0 || count == 0) return found;
        std::vector<Handle> platforms(count);
        GetPlatformIDs(count, platforms.data(), nullptr);
        for (Handle platform : platforms) {
            uint32_t n = 0;
            if (GetDeviceIDs(platform, all_devices, 0, nullptr, &n) != 0) continue;
            std::vector<Handle> some(n);
            GetDeviceIDs(platform, all_devices, n, some.data(), nullptr);
            found.insert(found.end(), some.begin(), some.end());
        }
        return found;
    }

    std::string text(Handle device, uint32_t what) const {
        size_t bytes = 0;
        if (GetDeviceInfo(device, what, 0, nullptr, &bytes) != 0 || bytes == 0) return "";
        std::string found(bytes, '\0');
        GetDeviceInfo(device, what, bytes, found.data(), nullptr);
        return found.c_str();
    }

    // An unsigned number of at most 64 bits; 0 where the device does not say.
    uint64_t number(Handle device, uint32_t what) const {
        uint64_t found = 0;
        size_t bytes = 0;
        if (GetDeviceInfo(device, what, 0, nullptr, &bytes) != 0 || bytes > sizeof found) return 0;
        return GetDeviceInfo(device, what, bytes, &found, nullptr) == 0 ? found : 0;
    }
};

}  // namespace kforge_opencl
