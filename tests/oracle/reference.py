"""The reference: a Llama GGUF, dequantised to f32 and run by transformers on the CPU.

Nothing here knows of kernels, caches or batches: one plain forward pass over the whole text.
"""

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def permute_rows(rows, heads):
    """Rows of a q or k projection from half-split order (transformers) to interleaved pairs (GGUF)."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(shape)


def unpermute_rows(rows, heads):
    """The inverse of `permute_rows`."""
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def metadata(reader):
    """All key-value pairs of a GGUF as plain Python values."""
    return {name: field.contents() for name, field in reader.fields.items()}


def config_of(meta, tied, biased):
    """A transformers config from GGUF metadata."""
    heads = meta["llama.attention.head_count"]
    rope = {"rope_type": "default", "rope_theta": meta.get("llama.rope.freq_base", 10000.0)}
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": meta["llama.rope.scaling.factor"]}
    elif scaling != "none":
        raise ValueError(f"llama.rope.scaling.type {scaling!r} has no reference here")
    return LlamaConfig(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=meta.get("llama.attention.head_count_kv", heads),
        head_dim=meta.get("llama.rope.dimension_count", meta["llama.embedding_length"] // heads),
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters=rope,
        tie_word_embeddings=tied,
        attention_bias=biased,
        attn_implementation="eager",
        dtype="float32",
    )


def load(path):
    """The model of a Llama GGUF with its weights dequantised to f32, and the file's metadata."""
    reader = GGUFReader(path)
    meta = metadata(reader)
    if meta["general.architecture"] != "llama":
        raise ValueError(f"{path}: architecture {meta['general.architecture']!r} has no reference here")
    names = {t.name for t in reader.tensors}
    tied = "output.weight" not in names
    biased = any(name.endswith("attn_q.bias") for name in names)
    model = LlamaForCausalLM(config_of(meta, tied, biased)).float().eval()

    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items() if name.endswith(".bias")}
    rope_freqs = None
    for tensor in reader.tensors:
        value = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name == "rope_freqs.weight":
            rope_freqs = torch.from_numpy(value.copy())
            continue
        if tensor.name in TOP_NAMES:
            name = TOP_NAMES[tensor.name]
        else:
            _, layer, part, kind = tensor.name.split(".")
            if part == "attn_q":
                value = unpermute_rows(value, model.config.num_attention_heads)
            elif part == "attn_k":
                value = unpermute_rows(value, model.config.num_key_value_heads)
            name = f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"
        state[name] = torch.from_numpy(value.copy())
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    if rope_freqs is not None:
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq / rope_freqs
    return model, meta


@torch.inference_mode()
def logits(model, ids):
    """f32 logits of every position, [len(ids), vocab]."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
