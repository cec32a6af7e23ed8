"""Writes fixture.bin: random blocks of every tensor type and their values by the `gguf` package, and quantize.bin.

For each type, in the order of TensorType::ALL: 2 × 256 elements' bytes, then the values as f32. The other file has
values as f32, then the blocks of Q8_0 that the package makes of them.
Run: pip install gguf && python3 fixture.py
"""

import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

# Where each type keeps its f16 scales, so that they can be made finite and of an ordinary size.
SCALES = {
    T.F32: [], T.F16: [], T.BF16: [],
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
ELEMENTS = 512

rng = np.random.default_rng(1)
out = bytearray()
for ty, scales in SCALES.items():
    length, size = GGML_QUANT_SIZES[ty]
    blocks = rng.integers(0, 256, (ELEMENTS // length, size), dtype=np.uint8)
    if ty in (T.F32, T.F16):
        dtype = np.float32 if ty == T.F32 else np.float16
        blocks = rng.normal(size=(ELEMENTS, 1)).astype(dtype).view(np.uint8)
    elif ty == T.BF16:
        blocks = rng.normal(size=(ELEMENTS, 1)).astype(np.float32).view(np.uint8)[:, 2:].copy()
    for at in scales:
        values = rng.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = values.view(np.uint8)
    values = dequantize(blocks, ty).astype(np.float32).reshape(-1)
    assert values.size == ELEMENTS and np.isfinite(values).all()
    out += blocks.tobytes() + values.tobytes()
pathlib.Path(__file__).with_name("fixture.bin").write_bytes(out)

# Values of every size, ties between two codes, and zeros.
values = rng.normal(size=(48, 32)) * 10.0 ** rng.integers(-7, 4, (48, 1))
ties = np.arange(-64, 64).reshape(4, 32) + 0.5
ties[:, 0] = 127.0
values = np.concatenate([values, ties, np.zeros((1, 32))]).astype(np.float32)
blocks = quantize(values, T.Q8_0)
pathlib.Path(__file__).with_name("quantize.bin").write_bytes(values.tobytes() + blocks.tobytes())
