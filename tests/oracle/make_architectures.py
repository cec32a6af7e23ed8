#!/usr/bin/env python3
"""Makes a tiny random model of each architecture, as a Hugging Face folder and as GGUF, with what transformers says.

  make_architectures.py --out ../fixtures/architectures

Each folder NAME holds `config.json` and safetensors, and `expected.json`: forced tokens, and the 64 tokens that
follow the first of them when the likeliest is always taken. `logits.f32` beside it has the logits of the forced tokens
(little-endian f32, [tokens, vocab]). Both are from transformers in f32 on the weights as stored. NAME.gguf has the
same weights, where GGUF knows the architecture.

The seed is the first with which each of the 64 choices is clear, so that rounding of another kind doesn't change the
text. The folder `llama` has a tokenizer and a chat template, too, so that it can be served.
"""

import argparse
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

import make_tiny
import reference

GREEDY = 64
PROMPT = 24
FORCED = 48
# The least lead of a choice, and how many tokens must be different: Gemma's tied embedding likes to repeat.
CLEAR = {"gemma2": (0.03, 8), "gemma3_text": (0.03, 8)}
USUAL = (0.08, 16)

SHAPE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    vocab_size=96,
    num_hidden_layers=2,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

# name: (dtype, settings)
MODELS = {
    "llama": (torch.float16, dict(vocab_size=make_tiny.VOCAB, rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "mistral": (torch.float32, dict(sliding_window=12, tie_word_embeddings=False)),
    "qwen2": (torch.bfloat16, dict(tie_word_embeddings=True)),
    "qwen3": (torch.bfloat16, dict(tie_word_embeddings=False)),
    "gemma2": (
        torch.bfloat16,
        dict(
            num_hidden_layers=4,
            sliding_window=12,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=6.0,
            final_logit_softcapping=20.0,
        ),
    ),
    "gemma3_text": (
        torch.bfloat16,
        dict(
            num_hidden_layers=7,
            sliding_window=12,
            query_pre_attn_scalar=16,
            rope_parameters={
                "sliding_attention": dict(rope_type="default", rope_theta=10000.0),
                "full_attention": dict(rope_type="linear", factor=4.0, rope_theta=1000000.0),
            },
        ),
    ),
}


def make_model(kind, dtype, settings, seed):
    """A random model in f32, of weights that `dtype` can hold, and whose layers, norms, attention patterns and logits all
    matter to the result."""
    config = AutoConfig.for_model(kind, **(SHAPE | settings))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    random = np.random.default_rng(seed)
    gemma = kind.startswith("gemma")
    state = {}
    for name, value in model.state_dict().items():
        noise = random.standard_normal(tuple(value.shape))
        part = name.split(".")[-2]
        if part == "lm_head" and config.tie_word_embeddings:
            continue
        if part in ("embed_tokens", "lm_head"):
            scale = np.sqrt(config.hidden_size) if gemma and part == "embed_tokens" else 1.0
            weight = noise * 3.0 / np.sqrt(value.shape[1]) / scale * (2.5 if gemma else 1.0)
        elif part.endswith("norm"):
            # Gemma adds 1. Loud blocks keep a tied embedding from repeating its input.
            loud = part.startswith("post_") and gemma
            weight = 0.3 * noise + (1.5 if loud else 0.0 if gemma else 1.0)
        elif name.endswith(".bias"):
            weight = 0.5 * noise
        else:
            gain = 1.7 if part in ("q_proj", "k_proj") else 1.2
            weight = noise * gain / np.sqrt(value.shape[1])
        state[name] = torch.from_numpy(weight.astype(np.float32)).to(dtype).float()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model


@torch.no_grad()
def logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def greedy(model, prompt, margin):
    """The tokens that follow, the least lead of one over the next best, and how many are different."""
    tokens, lead = list(prompt), np.inf
    for _ in range(GREEDY):
        last = logits(model, tokens)[-1]
        best, second = np.sort(last)[[-1, -2]]
        lead = min(lead, best - second)
        if lead < margin:
            break
        tokens.append(int(last.argmax()))
    made = tokens[len(prompt) :]
    return made, float(lead), len(set(made))


def write_gguf(path, kind, model, dtype):
    """The model as llama.cpp's converter writes it, in the folder's types; without a vocabulary."""
    config = model.config
    arch = {"gemma3_text": "gemma3"}.get(kind, kind)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), config.num_hidden_layers
    )
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        value = value.float().numpy()
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            value = reference.permute_rows(value, heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1.0
        if value.ndim == 1:
            writer.add_tensor(target, value.astype(np.float32))
        elif dtype == torch.bfloat16:
            bits = gguf.quantize(np.ascontiguousarray(value), gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(target, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(target, np.ascontiguousarray(value).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_text(folder):
    """tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja."""
    tokens, merges = make_tiny.make_vocabulary()
    merges = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(make_tiny.SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    start, end = make_tiny.SPECIAL[1:]
    settings = dict(bos_token=start, eos_token=end, add_bos_token=False, tokenizer_class="PreTrainedTokenizerFast")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[0, 2])) + "\n")
    (folder / "chat_template.jinja").write_text(make_tiny.TEMPLATE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parent.parent / "fixtures" / "architectures"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--only", nargs="*", help="names of models")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind, (dtype, settings) in MODELS.items():
        if args.only and kind not in args.only:
            continue
        margin, least = CLEAR.get(kind, USUAL)
        for seed in range(1000):
            model = make_model(kind, dtype, settings, seed)
            random = np.random.default_rng(seed)
            forced = random.integers(3, model.config.vocab_size, FORCED).tolist()
            made, lead, distinct = greedy(model, forced[:PROMPT], margin)
            if lead >= margin and distinct >= least:
                break
        else:
            raise SystemExit(f"{kind}: no seed gives a clear text")
        folder = args.out / kind
        shutil.rmtree(folder, ignore_errors=True)
        # Another copy: a conversion of the whole model rounds its rotary angles, too.
        stored = make_model(kind, dtype, settings, seed).to(dtype)
        stored.save_pretrained(folder, max_shard_size="40KB" if kind == "llama" else "1GB")
        if kind == "llama":
            write_text(folder)
        else:
            (folder / "generation_config.json").unlink(missing_ok=True)
        values = logits(model, forced)
        values.astype("<f4").tofile(folder / "logits.f32")
        expected = dict(seed=seed, vocab=model.config.vocab_size, prompt=PROMPT, tokens=forced, greedy=made)
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        size = sum(file.stat().st_size for file in folder.iterdir())
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)
        if kind != "mistral":
            write_gguf(args.out / f"{kind}.gguf", kind, model, dtype)
        print(f"{kind:12} seed {seed}, {size} bytes, logits std {values.std():.2f}, least lead {lead:.3f}, {distinct} tokens")


if __name__ == "__main__":
    main()
