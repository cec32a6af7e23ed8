//! Names of tensors: the forward pass asks for GGUF's, whatever the file calls them.

/// How the tensors of a checkpoint are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// As in GGUF.
    Gguf,
    /// As in `transformers`.
    HuggingFace {
        /// Whether a layer has norms behind attention and feed-forward, which changes what the others are called.
        post_norms: bool,
    },
}

impl Names {
    /// The file's name of a tensor that GGUF calls `name`.
    pub(super) fn of(self, name: &str) -> String {
        let Self::HuggingFace { post_norms } = self else {
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
            "ffn_norm" if post_norms => "pre_feedforward_layernorm",
            "ffn_norm" | "post_attention_norm" => "post_attention_layernorm",
            "post_ffw_norm" => "post_feedforward_layernorm",
            other => other,
        };
        format!("model.layers.{layer}.{part}.{kind}")
    }

    /// Whether a tensor of the file is no weight: old versions of `transformers` saved the rotary angles, which
    /// follow from the configuration.
    pub(super) fn is_derived(self, name: &str) -> bool {
        self != Self::Gguf && name.ends_with(".rotary_emb.inv_freq")
    }
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn gguf_names_become_those_of_transformers() {
        let plain = Names::HuggingFace { post_norms: false };
        let gemma = Names::HuggingFace { post_norms: true };
        for (name, expected) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            (
                "blk.0.ffn_norm.weight",
                "model.layers.0.post_attention_layernorm.weight",
            ),
        ] {
            assert_eq!(plain.of(name), expected);
            assert_eq!(Names::Gguf.of(name), name);
        }
        let norms = ["ffn_norm", "post_attention_norm", "post_ffw_norm"];
        let expected = ["pre_feedforward", "post_attention", "post_feedforward"];
        for (name, expected) in norms.into_iter().zip(expected) {
            let expected = format!("model.layers.3.{expected}_layernorm.weight");
            assert_eq!(gemma.of(&format!("blk.3.{name}.weight")), expected);
        }
    }
}
