#!/usr/bin/env python3
"""Compiles the kernels to the PTX files that lie in `ptx/`, which are committed.

  build.py           compile what is stale
  build.py --all     compile everything
  build.py --check   compile everything and compare, writing nothing

Needs NVRTC, from `pip install nvidia-cuda-nvrtc-cu12==12.9.86`. With `--ptxas PATH` each file is assembled, too: ptxas
12.0 (`nvidia-cuda-nvcc-cu12==12.0.140`) tells that drivers for CUDA 12.0 take it.

The first line of a PTX file has two digests: of what it was made from (this list of options, its macro, and every source
file that it includes), and of the text that follows. A test of the CUDA backend compares both without a compiler.
"""

import argparse
import ctypes
import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PTX = HERE / "ptx"
NVRTC_VERSION = (12, 9)
OPTIONS = ["--gpu-architecture=compute_80", "--std=c++17", "--fmad=false"]
# What NVRTC 12.9 writes needs a driver for CUDA 12.9; the kernels use nothing that 8.0 lacks.
PTX_VERSION = ".version 8.0"

FORMATS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
RECURRENT = ["conv", "scan", "delta_rule"]
# output name: (source, macro)
TARGETS = {
    **{name: (f"{name}.cu", None) for name in ["norm", "elementwise", "rope", "sample", *RECURRENT, "experts"]},
    **{f"linear_{name.lower()}": ("linear.cu", f"FORMAT={name}") for name in FORMATS},
    **{f"plain_{name.lower()}": ("plain.cu", f"ELEMENT={name}") for name in ["F32", "F16", "BF16"]},
    **{f"attention_{dim}": ("attention.cu", f"DIM={dim}") for dim in [32, 64, 96, 128, 256]},
}


def includes(source):
    """The file and all that it includes, in the order in which they are first met."""
    found = [source]
    for name in re.findall(r'^#include "(.+)"', (HERE / source).read_text(), re.M):
        found += [file for file in includes(name) if file not in found]
    return found


def digest(source, macro):
    """What the test of the CUDA backend computes as well."""
    hash = hashlib.sha256()
    for line in [*OPTIONS, PTX_VERSION, macro or ""]:
        hash.update(line.encode() + b"\n")
    for file in includes(source):
        hash.update((HERE / file).read_bytes())
    return hash.hexdigest()


class Nvrtc:
    """The few calls that compile a text."""

    def __init__(self):
        self.lib = ctypes.CDLL(str(self.find()))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != NVRTC_VERSION:
            sys.exit(f"NVRTC is {major.value}.{minor.value}, but the committed PTX is made by {NVRTC_VERSION}")

    @staticmethod
    def find():
        for folder in sys.path:
            path = Path(folder) / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
            if path.exists():
                return path
        sys.exit("NVRTC is missing: pip install nvidia-cuda-nvrtc-cu12==12.9.86")

    def call(self, name, *args):
        if code := getattr(self.lib, name)(*args):
            self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.lib.nvrtcGetErrorString(code).decode()}")

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def compile(self, source, macro):
        headers = [file for file in includes(source) if file != source]
        texts = (ctypes.c_char_p * len(headers))(*[(HERE / name).read_bytes() for name in headers])
        names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
        options = OPTIONS + ([f"-D{macro}"] if macro else [])
        options = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        program = ctypes.c_void_p()
        code = (HERE / source).read_bytes()
        self.call("nvrtcCreateProgram", ctypes.byref(program), code, source.encode(), len(headers), texts, names)
        try:
            self.call("nvrtcCompileProgram", program, len(options), options)
        except RuntimeError:
            sys.exit(self.text(program, "ProgramLog"))
        ptx = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        body = ptx[ptx.index(".version"):]
        return re.sub(r"^\.version .*", PTX_VERSION, body, count=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile what is fresh, too")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file isn't what it would be")
    parser.add_argument("--ptxas", help="assembles each file for compute 8.0")
    args = parser.parse_args()
    PTX.mkdir(exist_ok=True)
    nvrtc, wrong = None, []
    for name, (source, macro) in TARGETS.items():
        path = PTX / f"{name}.ptx"
        old = path.read_text() if path.exists() else ""
        first = f"// {source} {macro or '-'} {digest(source, macro)}"
        with_digest = lambda body: f"{first} {hashlib.sha256(body.encode()).hexdigest()}\n{body}"
        if args.all or args.check or old != with_digest(old.partition("\n")[2]):
            nvrtc = nvrtc or Nvrtc()
            new = with_digest(nvrtc.compile(source, macro))
            if args.check and new != old:
                wrong.append(path.name)
            elif new != old:
                path.write_text(new)
                print(f"{path.name}: {len(new)} bytes")
        if args.ptxas:
            subprocess.run([args.ptxas, "-v", "--gpu-name=sm_80", "-o", "/dev/null", path], check=True)
    wrong += [path.name for path in PTX.iterdir() if path.stem not in TARGETS]
    if args.check and wrong:
        sys.exit(f"stale: {', '.join(wrong)}; run build.py and commit the result")


main()
