#!/usr/bin/env python3
"""Compiles the test kernels (*.cu) here to the PTX that is committed beside them.

Needs `pip install nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79`.
"""

import ctypes
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent


def installed(path):
    found = [Path(folder) / "nvidia" / path for folder in sys.path if (Path(folder) / "nvidia" / path).exists()]
    return str(found[0]) if found else sys.exit(f"{path} is missing; see the head of this file")


nvrtc = ctypes.CDLL(installed("cuda_nvrtc/lib/libnvrtc.so.12"))
options = ["--gpu-architecture=compute_80", "--std=c++17", f"-I{installed('cuda_runtime/include')}"]


def text(program, what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


for source in sorted(HERE.glob("*.cu")):
    program = ctypes.c_void_p()
    code = source.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, source.name.encode(), 0, None, None) == 0
    encoded = [option.encode() for option in options]
    if nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)):
        sys.exit(text(program, "ProgramLog"))
    # The simulated driver is of CUDA 12.2, as old as cards with compute capability 8.0 may have.
    ptx = re.sub(r"^\.version .*", ".version 8.0", text(program, "PTX"), count=1, flags=re.M)
    source.with_suffix(".ptx").write_text(ptx[ptx.index(".version"):])
