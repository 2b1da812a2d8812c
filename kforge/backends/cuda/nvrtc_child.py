"""Compiles kernel.cu to kernel.cubin with NVRTC: python nvrtc_child.py LIBRARY OPTION ...

Runs alone inside the sandbox and imports nothing but the standard library. What the compiler says goes to standard
output.
"""

import ctypes
import sys
from pathlib import Path


def main(library: str, options: list[str]) -> int:
    for builtins in sorted(Path(library).parent.glob("libnvrtc-builtins.so*")):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)  # which it would look for by name alone
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()

    def done(code: int, what: str) -> None:
        if code:
            print(f"{what}: {nvrtc.nvrtcGetErrorString(code).decode()}")
            sys.exit(1)

    def text_of(name: str) -> bytes:
        size = ctypes.c_size_t()
        done(getattr(nvrtc, f"{name}Size")(program, ctypes.byref(size)), f"{name}Size")
        found = ctypes.create_string_buffer(size.value)
        done(getattr(nvrtc, name)(program, found), name)
        return found.raw

    source = Path("kernel.cu").read_bytes()
    done(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None), "nvrtcCreateProgram")
    given = [option.encode() for option in options]
    code = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    print(text_of("nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace"))
    done(code, "nvrtcCompileProgram")
    Path("kernel.cubin").write_bytes(text_of("nvrtcGetCUBIN"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
