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
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

import make_tiny
import reference

GREEDY = 64
PROMPT = 24
FORCED = 48
# The least lead of a choice, and how many tokens must be different: a tied embedding likes to repeat.
CLEAR = {"gemma2": (0.03, 8), "gemma3_text": (0.03, 8), "granitemoehybrid": (0.05, 8)} | {
    name: (0.04, 16) for name in ("granitemoehybrid-experts", "qwen2_moe", "qwen3_moe", "qwen3_next")
}
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

GRANITE = dict(
    head_dim=None,
    num_hidden_layers=4,
    layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    mamba_n_heads=4,
    mamba_d_head=16,
    mamba_d_state=24,
    mamba_chunk_size=16,
    shared_intermediate_size=48,
    embedding_multiplier=0.4,
    attention_multiplier=0.2,
    residual_multiplier=1.4,
    logits_scaling=0.8,
)

# name: (dtype, settings). The name is the architecture's, and what it is a variant of behind a dash.
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
    "qwen2_moe": (
        torch.bfloat16,
        dict(
            head_dim=None,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            norm_topk_prob=False,
            tie_word_embeddings=False,
        ),
    ),
    "qwen3_moe": (
        torch.bfloat16,
        dict(
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            norm_topk_prob=True,
            tie_word_embeddings=False,
        ),
    ),
    "granite": (
        torch.bfloat16,
        dict(
            head_dim=None,
            embedding_multiplier=0.4,
            attention_multiplier=0.2,
            residual_multiplier=1.4,
            logits_scaling=0.8,
            tie_word_embeddings=False,
        ),
    ),
    "granitemoehybrid": (torch.bfloat16, GRANITE | dict(num_local_experts=0, num_experts_per_tok=0, tie_word_embeddings=True)),
    "granitemoehybrid-experts": (
        torch.float16,
        GRANITE
        | dict(
            num_local_experts=6,
            num_experts_per_tok=2,
            intermediate_size=24,
            position_embedding_type="rope",
            tie_word_embeddings=False,
            layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        ),
    ),
    "qwen3_next": (
        torch.bfloat16,
        dict(
            num_hidden_layers=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=12,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            tie_word_embeddings=False,
        ),
    ),
}


def make_model(kind, dtype, settings, seed):
    """A random model in f32, of weights that `dtype` can hold, and whose layers, norms, attention patterns and logits all
    matter to the result."""
    settings = {key: value for key, value in (SHAPE | settings).items() if value is not None}
    config = AutoConfig.for_model(kind, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    random = np.random.default_rng(seed)
    gemma = kind.startswith("gemma")
    adds = gemma or kind == "qwen3_next"
    state = {}
    for name, value in model.state_dict().items():
        noise = random.standard_normal(tuple(value.shape))
        part, last = name.split(".")[-2:]
        if part == "lm_head" and config.tie_word_embeddings:
            continue
        if part in ("embed_tokens", "lm_head"):
            scale = np.sqrt(config.hidden_size) if gemma and part == "embed_tokens" else 1.0
            weight = noise * 3.0 / np.sqrt(value.shape[1]) / scale * (2.5 if gemma else 1.0)
        elif part.endswith("norm"):
            # Gemma adds 1. Loud blocks keep a tied embedding from repeating its input.
            loud = part.startswith("post_") and gemma
            weight = 0.3 * noise + (1.5 if loud else 0.0 if adds and "linear_attn" not in name else 1.0)
        elif last in ("bias", "dt_bias"):
            weight = 0.5 * noise
        elif last == "A_log":
            weight = 0.7 * noise
        elif last == "D":
            weight = 1.0 + 0.3 * noise
        elif part == "conv1d":
            weight = 0.6 * noise
        else:
            gain = 1.7 if part in ("q_proj", "k_proj", "in_proj", "in_proj_qkvz") else 1.2
            weight = noise * gain / np.sqrt(value.shape[-1])
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
    if kind == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    else:
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
        if arch in ("llama", "granite") and name.endswith(("q_proj.weight", "k_proj.weight")):
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


HYBRID_NAMES = {
    "mamba.in_proj.weight": "ssm_in.weight",
    "mamba.conv1d.weight": "ssm_conv1d.weight",
    "mamba.conv1d.bias": "ssm_conv1d.bias",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.norm.weight": "ssm_norm.weight",
    "mamba.out_proj.weight": "ssm_out.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.output_linear.weight": "ffn_down_exps.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def granite_tensors(rest, value, config):
    """A Granite layer's tensor as llama.cpp's converter splits and turns it."""
    shared = "_shexp" if config.num_local_experts else ""
    if rest == "shared_mlp.input_linear.weight":
        gate, up = np.split(value, 2)
        return {f"ffn_gate{shared}.weight": gate, f"ffn_up{shared}.weight": up}
    if rest == "shared_mlp.output_linear.weight":
        return {f"ffn_down{shared}.weight": value}
    if rest == "block_sparse_moe.input_linear.weight":
        gate, up = np.split(value, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    name = HYBRID_NAMES.get(rest, "ffn_norm.weight")
    if name == "ssm_norm.weight":
        value = value.reshape(config.mamba_n_groups, -1)
    elif name in ("ssm_a", "ssm_d"):
        value = value.reshape(-1, 1)
    elif name in ("attn_q.weight", "attn_k.weight"):
        heads = config.num_attention_heads if "_q" in name else config.num_key_value_heads
        value = reference.permute_rows(value, heads)
    return {name: value}


def qwen_tensors(rest, value, config):
    """The same of a Qwen layer, without its experts."""
    is_next = config.model_type == "qwen3_next"
    if rest == "linear_attn.in_proj_qkvz.weight":
        k, v = config.linear_key_head_dim, config.linear_value_head_dim
        group = config.linear_num_value_heads // config.linear_num_key_heads * v
        heads = value.reshape(config.linear_num_key_heads, 2 * k + 2 * group, -1)
        parts = np.split(heads, [k, 2 * k, 2 * k + group], axis=1)
        q, k, v, z = [part.reshape(-1, config.hidden_size) for part in parts]
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if is_next and rest.endswith("norm.weight") and "linear_attn" not in rest:
        value = value + 1.0
    if rest.endswith(".bias"):
        return {HYBRID_NAMES[rest.removesuffix("bias") + "weight"].removesuffix("weight") + "bias": value}
    return {HYBRID_NAMES.get(rest, "post_attention_norm.weight" if is_next else "ffn_norm.weight"): value}


def write_hybrid_gguf(path, kind, folder, config, dtype):
    """A folder with recurrent layers or experts as llama.cpp's converter writes it, in the folder's types; without a
    vocabulary."""
    arch = {"granitemoehybrid": "granitehybrid"}.get(kind, kind.replace("_", ""))
    granite = arch == "granitehybrid"
    ssm = None
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if granite:
        recurrent = [layer != "full_attention" for layer in config.layer_types]
        writer.add_head_count_kv([0 if is_recurrent else config.num_key_value_heads for is_recurrent in recurrent])
        experts = config.num_local_experts
        writer.add_feed_forward_length(config.intermediate_size if experts else config.shared_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        ssm = (config.mamba_d_conv, config.mamba_d_state, config.mamba_n_groups, config.mamba_n_heads)
        inner = config.mamba_n_heads * config.mamba_d_head
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0)))
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if hasattr(config, "shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        experts = config.num_experts
    if arch == "qwen3next":
        ssm = (config.linear_conv_kernel_dim, config.linear_key_head_dim, config.linear_num_key_heads, config.linear_num_value_heads)
        inner = config.linear_num_value_heads * config.linear_value_head_dim
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if ssm:
        writer.add_ssm_conv_kernel(ssm[0])
        writer.add_ssm_state_size(ssm[1])
        writer.add_ssm_group_count(ssm[2])
        writer.add_ssm_time_step_rank(ssm[3])
        writer.add_ssm_inner_size(inner)

    state = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= {name: value.float().numpy() for name, value in load_file(file).items()}
    out, stacks = {}, {}
    for name, value in state.items():
        if name in TOP_NAMES:
            is_norm = name == "model.norm.weight" and arch == "qwen3next"
            out[TOP_NAMES[name]] = value + 1.0 if is_norm else value
            continue
        _, _, layer, rest = name.split(".", 3)
        if rest.startswith("mlp.experts."):
            _, _, expert, part, _ = rest.split(".")
            stack = f"blk.{layer}.ffn_{part.removesuffix('_proj')}_exps.weight"
            stacks.setdefault(stack, {})[int(expert)] = value
            continue
        if rest.endswith("A_log"):
            value = -np.exp(value)
        elif "conv1d.weight" in rest:
            value = value.squeeze()
        tensors = (granite_tensors if granite else qwen_tensors)(rest, value, config)
        out |= {f"blk.{layer}.{part}": tensor for part, tensor in tensors.items()}
    out |= {name: np.stack([stack[expert] for expert in range(experts)]) for name, stack in stacks.items()}
    for name, value in out.items():
        value = np.ascontiguousarray(value)
        if value.ndim == 1 or "ssm_conv1d" in name or name.endswith(("ssm_a", "ssm_d", "norm.weight", "ffn_gate_inp.weight")):
            writer.add_tensor(name, value.astype(np.float32))
        elif dtype == torch.bfloat16:
            bits = gguf.quantize(value, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, value.astype(np.float16))
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
    for name, (dtype, settings) in MODELS.items():
        if args.only and name not in args.only:
            continue
        kind = name.split("-")[0]
        margin, least = CLEAR.get(name, USUAL)
        for seed in range(1000):
            model = make_model(kind, dtype, settings, seed)
            random = np.random.default_rng(seed)
            forced = random.integers(3, model.config.vocab_size, FORCED).tolist()
            made, lead, distinct = greedy(model, forced[:PROMPT], margin)
            if lead >= margin and distinct >= least:
                break
        else:
            raise SystemExit(f"{name}: no seed gives a clear text")
        folder = args.out / name
        shutil.rmtree(folder, ignore_errors=True)
        # Another copy: a conversion of the whole model rounds its rotary angles, too.
        stored = make_model(kind, dtype, settings, seed).to(dtype)
        stored.save_pretrained(folder, max_shard_size="40KB" if kind == "llama" else "1GB")
        if kind == "llama":
            write_text(folder)
        else:
            (folder / "generation_config.json").unlink(missing_ok=True)
        config = model.config
        values = logits(model, forced)
        values.astype("<f4").tofile(folder / "logits.f32")
        expected = dict(seed=seed, vocab=model.config.vocab_size, prompt=PROMPT, tokens=forced, greedy=made)
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        size = sum(file.stat().st_size for file in folder.iterdir())
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)
        if "moe" in kind or kind == "qwen3_next":
            write_hybrid_gguf(args.out / f"{name}.gguf", kind, folder, config, dtype)
        elif kind != "mistral":
            write_gguf(args.out / f"{name}.gguf", kind, model, dtype)
        print(f"{name:25} seed {seed}, {size} bytes, logits std {values.std():.2f}, least lead {lead:.3f}, {distinct} tokens")


if __name__ == "__main__":
    main()
