#!/usr/bin/env python3
"""Makes the tiny GGUF fixtures and their reference logits.

  make_tiny.py --out ../fixtures --ggml libggml-base.so

Each `tiny-NAME.gguf` is a random Llama of two layers, with a byte-level BPE vocabulary of 320 tokens and a
ChatML template. Beside it lie `tiny-NAME.json` (the forced tokens and what the file is) and
`tiny-NAME.logits.f32` (little-endian f32, [tokens, vocab], from transformers on the dequantised weights).

The weights come from a fixed seed, so a file changes only where this script does. Rows of the embedding that
stand for other than readable ASCII, and for special tokens, are small, so that generated text is mostly readable and long.
The K quantisers are llama.cpp's, called through its libggml-base.so; the others are the gguf package's.
"""

import argparse
import ctypes
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, quantize
from gguf.constants import GGML_QUANT_SIZES, RopeScalingType, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import reference

VOCAB = 320
CONTEXT = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEXT = """The ferry leaves at seven, and the last bus back is at nine. She wrote the list on the back of a
letter: bread, salt, two lamps, a rope. Nobody in the village had seen the river so high before. The
engine started on the third try; then the whole pier shook, and the gulls rose from the roofs. We waited
for the others, but there was nothing to see in the rain, and the road was under water by the time the
light had gone. In the morning the user and the assistant of the system went home."""

# Two shapes. `narrow` keeps the wide float types small; `wide` has rows of 256, which the K types need.
NARROW = dict(hidden_size=128, intermediate_size=192, num_attention_heads=2, num_key_value_heads=1)
WIDE = dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256
)
LINEAR = dict(rope_type="linear", factor=4.0)

# name: (shape, weight type, pre-tokenizer, rope, tied embeddings, biases)
FILES = {
    "f32": (NARROW, T.F32, "smollm", {}, True, False),
    "f16": (NARROW, T.F16, "smollm", {}, True, False),
    "bf16": (NARROW, T.BF16, "smollm", {}, True, False),
    "q4_0": (NARROW, T.Q4_0, "smollm", {}, True, False),
    "q4_1": (NARROW, T.Q4_1, "smollm", {}, True, False),
    "q5_0": (NARROW, T.Q5_0, "smollm", {}, True, False),
    "q5_1": (NARROW, T.Q5_1, "smollm", {}, True, False),
    "q8_0": (NARROW, T.Q8_0, "smollm", {}, True, False),
    "q2_k": (WIDE, T.Q2_K, "gpt-2", {}, True, False),
    "q3_k": (WIDE, T.Q3_K, "gpt-2", {}, True, False),
    "q4_k": (WIDE, T.Q4_K, "gpt-2", {}, True, False),
    "q5_k": (WIDE, T.Q5_K, "gpt-2", {}, True, False),
    "q6_k": (WIDE, T.Q6_K, "gpt-2", {}, True, False),
    "untied-q4_1": (NARROW, T.Q4_1, "smollm", {}, False, False),
    "bias-q8_0": (NARROW, T.Q8_0, "smollm", {}, True, True),
    "llama3rope-q8_0": (NARROW, T.Q8_0, "smollm", LLAMA3, True, False),
    "linear-q4_0": (NARROW, T.Q4_0, "smollm", LINEAR, False, False),
}


def make_vocabulary():
    """Tokens and merges of a byte-level BPE, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    assert len(tokens) == VOCAB
    return tokens, merges


def readable(token):
    """Whether a token is printable ASCII, spaces and newlines (written Ġ and Ċ in this alphabet) and not special."""
    return token not in SPECIAL and all(c in "ĠĊ" or "!" <= c <= "~" for c in token)


def make_model(shape, rope, tied, biased, tokens, seed):
    """A random model whose layers, norms, attention patterns and logits all matter to the result."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        num_hidden_layers=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | rope,
        tie_word_embeddings=tied,
        attention_bias=biased,
        attn_implementation="eager",
        **shape,
    )
    random = np.random.default_rng(seed)
    model = LlamaForCausalLM(config).float().eval()
    gains = {"q_proj": 1.4, "k_proj": 1.4}
    quiet = np.array([1.0 if readable(t) else 0.3 for t in tokens])
    state = {}
    for name, value in model.state_dict().items():
        shape_of = tuple(value.shape)
        noise = random.standard_normal(shape_of)
        part = name.split(".")[-2]
        if part == "lm_head" and tied:
            continue
        if part in ("embed_tokens", "lm_head"):
            weight = noise * 3.0 / np.sqrt(shape_of[1]) * quiet[:, None]
        elif name.endswith("norm.weight"):
            weight = 1.0 + 0.2 * noise
        elif name.endswith("o_proj.bias"):
            weight = np.zeros(shape_of)
        elif name.endswith(".bias"):
            weight = 0.5 * noise
        else:
            weight = noise * gains.get(part, 1.0) / np.sqrt(shape_of[1])
        state[name] = torch.from_numpy(weight.astype(np.float32))
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


class Quantizer:
    """Rows of f32 to blocks of a weight type."""

    def __init__(self, ggml):
        self.ggml = ctypes.CDLL(ggml)
        self.ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.ggml.ggml_quantize_chunk.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]

    def __call__(self, rows, kind):
        try:
            return quantize(rows, kind)
        except NotImplementedError:
            pass
        block, size = GGML_QUANT_SIZES[kind]
        count, width = rows.shape
        out = np.zeros((count, width // block * size), dtype=np.uint8)
        written = self.ggml.ggml_quantize_chunk(
            int(kind), rows.ctypes.data, out.ctypes.data, 0, count, width, None
        )
        assert written == out.nbytes
        return out


def write_gguf(path, model, kind, pre, tokens, merges, quantizer):
    """The model as a GGUF: 2-D weights in `kind`, norms, biases and rope factors in f32."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    rope = config.rope_parameters
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if t in SPECIAL else TokenType.NORMAL for t in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(SPECIAL.index("<|im_start|>"))
    writer.add_eos_token_id(SPECIAL.index("<|im_end|>"))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)

    if rope["rope_type"] == "llama3":
        plain = 1.0 / 10000.0 ** (np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    to_gguf = {theirs: ours for ours, theirs in reference.TOP_NAMES.items()}
    layer_to_gguf = {theirs: ours for ours, theirs in reference.LAYER_NAMES.items()}
    for name, value in model.state_dict().items():
        value = value.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings or name.endswith("o_proj.bias"):
            continue
        if name in to_gguf:
            target = to_gguf[name]
        else:
            _, _, layer, part = name.split(".", 3)
            part, suffix = part.rsplit(".", 1)
            target = f"blk.{layer}.{layer_to_gguf[part]}.{suffix}"
            if part.endswith("q_proj"):
                value = reference.permute_rows(value, config.num_attention_heads)
            elif part.endswith("k_proj"):
                value = reference.permute_rows(value, config.num_key_value_heads)
        value = np.ascontiguousarray(value)
        if value.ndim == 2:
            writer.add_tensor(target, quantizer(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def forced_tokens(seed):
    """A ChatML opening, then tokens drawn evenly from the whole vocabulary."""
    random = np.random.default_rng(seed)
    return [1] + random.integers(3, VOCAB, 28).tolist() + [2, 1] + [int(random.integers(3, VOCAB))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "fixtures")
    parser.add_argument("--ggml", required=True, help="path of llama.cpp's libggml-base.so")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokens, merges = make_vocabulary()
    quantizer = Quantizer(args.ggml)
    for seed, (name, (shape, kind, pre, rope, tied, biased)) in enumerate(FILES.items()):
        made = make_model(shape, rope, tied, biased, tokens, seed)
        path = args.out / f"tiny-{name}.gguf"
        write_gguf(path, made, kind, pre, tokens, merges, quantizer)

        forced = forced_tokens(seed)
        read, _ = reference.load(path)
        logits = reference.logits(read, forced)
        drift = np.abs(logits - reference.logits(made, forced)).max()
        if kind == T.F32:
            assert drift < 1e-4, "what was read back is not what was written"
        logits.astype("<f4").tofile(args.out / f"tiny-{name}.logits.f32")
        about = dict(
            model=path.name,
            logits=f"tiny-{name}.logits.f32",
            vocab=VOCAB,
            weights=kind.name,
            tied=tied,
            bias=biased,
            rope=rope or None,
            tokens=forced,
        )
        (args.out / f"tiny-{name}.json").write_text(json.dumps(about) + "\n")
        print(f"{path.name:28} {path.stat().st_size:8} bytes, logits std {logits.std():.2f}, quantisation moved {drift:.3g}")


if __name__ == "__main__":
    main()
