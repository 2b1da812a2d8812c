// kforge-opencl: looks at this machine's OpenCL devices, and turns source into a device's binary.
//
//   kforge-opencl devices                          one line of fields a device, separated by tabs (devices.py)
//   kforge-opencl build DEVICE SOURCE OUTPUT OPTIONS    in the sandbox: reads and writes files of the current folder
//
// The compiler's log goes to standard output. Exit status 1: the source was refused; 2: the machine is at fault.
#include "api.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace {

using namespace kforge_opencl;

constexpr int refused = 1, unable = 2;

int fail(const std::string &why) {
    std::fprintf(stderr, "kforge-opencl: %s\n", why.c_str());
    return unable;
}

void print_field(const std::string &text) {
    for (char c : text) std::putchar(c == '\t' || c == '\n' ? ' ' : c);
    std::putchar('\t');
}

int devices(const Api &api) {
    for (Handle device : api.devices()) {
        for (uint32_t what : {device_name, device_vendor, device_version, driver_version, device_extensions}) {
            print_field(api.text(device, what));
        }
        for (uint32_t what : {device_type, device_units, device_group_size, device_cache_bytes, device_memory_bytes,
                              device_local_bytes, device_unified, device_fp_config}) {
            print_field(std::to_string(api.number(device, what)));
        }
        Handle platform = nullptr;
        char name[256] = {};
        api.GetDeviceInfo(device, 0x1031, sizeof platform, &platform, nullptr);  // CL_DEVICE_PLATFORM
        api.GetPlatformInfo(platform, platform_name, sizeof name - 1, name, nullptr);
        print_field(name);
        std::putchar('\n');
    }
    return 0;
}

int build(const Api &api, size_t number, const char *source_file, const char *output_file, const char *options) {
    const std::vector<Handle> all = api.devices();
    if (number >= all.size()) return fail("there is no OpenCL device " + std::to_string(number));
    Handle device = all[number];
    std::ifstream input(source_file, std::ios::binary);
    std::stringstream read;
    read << input.rdbuf();
    const std::string source = read.str();
    const char *text = source.c_str();
    const size_t length = source.size();
    Status status = 0;
    Handle context = api.CreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
    if (status != 0) return fail("the device gives no context: error " + std::to_string(status));
    Handle program = api.CreateProgramWithSource(context, 1, &text, &length, &status);
    if (status != 0) return fail("the device takes no source: error " + std::to_string(status));
    const Status built = api.BuildProgram(program, 1, &device, options, nullptr, nullptr);
    size_t bytes = 0;
    api.GetProgramBuildInfo(program, device, build_log, 0, nullptr, &bytes);
    std::string log(bytes, '\0');
    api.GetProgramBuildInfo(program, device, build_log, bytes, log.data(), nullptr);
    std::fputs(log.c_str(), stdout);
    if (built != 0) return refused;
    size_t size = 0;
    if (api.GetProgramInfo(program, program_binary_sizes, sizeof size, &size, nullptr) != 0 || size == 0) {
        return fail("the device gives no binary of its program");
    }
    std::vector<unsigned char> binary(size);
    unsigned char *at = binary.data();
    if (api.GetProgramInfo(program, program_binaries, sizeof at, &at, nullptr) != 0) {
        return fail("the device gives no binary of its program");
    }
    std::ofstream(output_file, std::ios::binary).write(reinterpret_cast<char *>(binary.data()), static_cast<long>(size));
    std::fflush(stdout);
    std::_Exit(0);  // without the driver's own ending, which need not survive the sandbox
}

}  // namespace

int main(int argc, char **argv) {
    Api api;
    if (const std::string wrong = api.load(); !wrong.empty()) return fail(wrong);
    const std::string verb = argc > 1 ? argv[1] : "";
    if (verb == "devices") return devices(api);
    if (verb == "build" && argc == 6) return build(api, std::strtoul(argv[2], nullptr, 10), argv[3], argv[4], argv[5]);
    return fail("usage: devices | build DEVICE SOURCE OUTPUT OPTIONS");
}
