//! Names of tensors: the forward pass asks for GGUF's, whatever the file calls them.
//!
//! Where a file of `transformers` has something in a form that GGUF doesn't know, the name is one of our own: `ffn_gate_up`
//! has the rows of `ffn_gate` and those of `ffn_up`, and `ffn_gate.3` is the fourth expert's.

/// How the tensors of a checkpoint are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// As in GGUF.
    Gguf,
    /// As in `transformers`.
    HuggingFace(Style),
}

/// How a family of `transformers` calls what others call otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// A layer has norms behind attention and feed-forward, which changes what the others are called.
    PostNorms,
    GraniteHybrid,
    /// Qwen's with experts, and with recurrent layers.
    QwenMoe,
}

impl Style {
    /// By `model_type`.
    pub(super) fn of(model_type: &str) -> Self {
        match model_type {
            "granitemoehybrid" => Self::GraniteHybrid,
            "qwen2_moe" | "qwen3_moe" | "qwen3_next" => Self::QwenMoe,
            kind if kind.starts_with("gemma") && kind != "gemma" => Self::PostNorms,
            _ => Self::Plain,
        }
    }

    /// The name within a layer of what GGUF calls `part`, a `weight` or a `bias`.
    fn of_part(self, part: &str, kind: &str) -> String {
        let whole = match self {
            // Of what these call otherwise, nothing has a bias beside its weight.
            _ if kind == "bias" && part != "ssm_dt" => None,
            Self::GraniteHybrid => granite(part),
            Self::QwenMoe => qwen_moe(part),
            Self::Plain | Self::PostNorms => None,
        };
        if let Some(name) = whole {
            return name;
        }
        let part = match part {
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            "attn_norm" => "input_layernorm",
            "ffn_norm" if self == Self::PostNorms => "pre_feedforward_layernorm",
            "ffn_norm" | "post_attention_norm" => "post_attention_layernorm",
            "post_ffw_norm" => "post_feedforward_layernorm",
            "ssm_conv1d" if self == Self::GraniteHybrid => "mamba.conv1d",
            "ssm_conv1d" => "linear_attn.conv1d",
            other => other,
        };
        format!("{part}.{kind}")
    }
}

/// Where Granite 4 differs.
fn granite(part: &str) -> Option<String> {
    let name = match part {
        "ssm_in" => "mamba.in_proj.weight",
        "ssm_a" => "mamba.A_log",
        "ssm_d" => "mamba.D",
        "ssm_dt" => "mamba.dt_bias",
        "ssm_norm" => "mamba.norm.weight",
        "ssm_out" => "mamba.out_proj.weight",
        "ffn_gate_up" | "ffn_gate_up_shexp" => "shared_mlp.input_linear.weight",
        "ffn_down" | "ffn_down_shexp" => "shared_mlp.output_linear.weight",
        "ffn_gate_inp" => "block_sparse_moe.router.layer.weight",
        "ffn_gate_up_exps" => "block_sparse_moe.input_linear.weight",
        "ffn_down_exps" => "block_sparse_moe.output_linear.weight",
        _ => return None,
    };
    Some(name.to_owned())
}

/// Where Qwen's with experts differ.
fn qwen_moe(part: &str) -> Option<String> {
    if let Some((part, expert)) = part.split_once('.') {
        let part = part.strip_prefix("ffn_")?;
        return Some(format!("mlp.experts.{expert}.{part}_proj.weight"));
    }
    let name = match part {
        "ssm_in" => "linear_attn.in_proj_qkvz.weight",
        "ssm_ba" => "linear_attn.in_proj_ba.weight",
        "ssm_a" => "linear_attn.A_log",
        "ssm_dt" => "linear_attn.dt_bias",
        "ssm_norm" => "linear_attn.norm.weight",
        "ssm_out" => "linear_attn.out_proj.weight",
        "ffn_gate_inp" => "mlp.gate.weight",
        "ffn_gate_inp_shexp" => "mlp.shared_expert_gate.weight",
        "ffn_gate_shexp" => "mlp.shared_expert.gate_proj.weight",
        "ffn_up_shexp" => "mlp.shared_expert.up_proj.weight",
        "ffn_down_shexp" => "mlp.shared_expert.down_proj.weight",
        "ffn_gate_up_exps" => "mlp.experts.gate_up_proj",
        "ffn_down_exps" => "mlp.experts.down_proj",
        _ => return None,
    };
    Some(name.to_owned())
}

impl Names {
    /// The file's name of a tensor that GGUF calls `name`.
    pub(super) fn of(self, name: &str) -> String {
        let Self::HuggingFace(style) = self else {
            return name.to_owned();
        };
        let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, rest)) = in_layer else {
            return match name {
                "token_embd.weight" => "model.embed_tokens.weight",
                "output_norm.weight" => "model.norm.weight",
                "output.weight" => "lm_head.weight",
                other => other,
            }
            .to_owned();
        };
        let (part, kind) = rest.rsplit_once('.').unwrap_or((rest, "weight"));
        format!("model.layers.{layer}.{}", style.of_part(part, kind))
    }

    /// Whether a tensor of the file is none that a step needs: old versions of `transformers` saved the rotary angles,
    /// which follow from the configuration, and Qwen3-Next has a layer that guesses further tokens.
    pub(super) fn is_beside(self, name: &str) -> bool {
        match self {
            Self::Gguf => false,
            Self::HuggingFace(style) => {
                name.ends_with(".rotary_emb.inv_freq")
                    || (style == Style::QwenMoe && name.starts_with("mtp."))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, Style};

    #[test]
    fn gguf_names_become_those_of_transformers() {
        let named = |kind| Names::HuggingFace(Style::of(kind));
        for (kind, name, expected) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            (
                "llama",
                "blk.12.attn_q.bias",
                "model.layers.12.self_attn.q_proj.bias",
            ),
            (
                "llama",
                "blk.0.ffn_norm.weight",
                "model.layers.0.post_attention_layernorm.weight",
            ),
            (
                "granitemoehybrid",
                "blk.3.ssm_conv1d.bias",
                "model.layers.3.mamba.conv1d.bias",
            ),
            (
                "granitemoehybrid",
                "blk.3.ssm_dt.bias",
                "model.layers.3.mamba.dt_bias",
            ),
            ("qwen3_next", "blk.3.ssm_a", "model.layers.3.linear_attn.A_log"),
            (
                "qwen3_next",
                "blk.3.ffn_gate.7.weight",
                "model.layers.3.mlp.experts.7.gate_proj.weight",
            ),
            (
                "qwen3_next",
                "blk.3.ssm_conv1d.weight",
                "model.layers.3.linear_attn.conv1d.weight",
            ),
        ] {
            assert_eq!(named(kind).of(name), expected);
            assert_eq!(Names::Gguf.of(name), name);
        }
        let norms = ["ffn_norm", "post_attention_norm", "post_ffw_norm"];
        let expected = ["pre_feedforward", "post_attention", "post_feedforward"];
        for (name, expected) in norms.into_iter().zip(expected) {
            let expected = format!("model.layers.3.{expected}_layernorm.weight");
            assert_eq!(named("gemma2").of(&format!("blk.3.{name}.weight")), expected);
        }
    }
}
