#!/usr/bin/env python3
"""Prefill and decode of a hybrid model with random weights, beside transformers on the CPU, alternating in one run.

  hybrid.py --ours target/release/met-host FOLDER [--rounds 3] [--json FILE]

Makes the model in FOLDER where it is not there: the sizes of Granite 4.0 H 350M (28 layers of Mamba-2, 4 of attention),
in BF16. Needs torch, transformers and safetensors. Prefill of 512 tokens and decode of 64, in tokens a second with 2
threads: transformers in F32 (on most CPUs its fastest type), ours in BF16 as stored and quantised to Q8_0 at load.
"""

import argparse
import json
import signal
from pathlib import Path
from time import perf_counter

import quiet
import report
from compare import run_rows

PROMPT, GENERATED = 512, 64
# The first is the one beside transformers' in the table.
KINDS = {"BF16": [], "Q8_0": ["--quantize", "Q8_0"]}


def make(folder):
    import torch
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    layers = ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)]
    config = GraniteMoeHybridConfig(
        vocab_size=100352, hidden_size=768, num_hidden_layers=32, layer_types=layers, num_attention_heads=12,
        num_key_value_heads=4, shared_intermediate_size=2048, intermediate_size=2048, num_local_experts=0,
        num_experts_per_tok=0, mamba_n_heads=48, mamba_d_head=32, mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4,
        mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, position_embedding_type="nope",
        tie_word_embeddings=True, embedding_multiplier=12.0, attention_multiplier=0.015625, residual_multiplier=0.246,
        logits_scaling=3.0, max_position_embeddings=32768, rms_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    GraniteMoeHybridForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


class Transformers:
    """The model, loaded once."""

    def __init__(self, folder, threads):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.prompt = torch.arange(PROMPT)[None] * 7919 % 100352

    def rates(self):
        with self.torch.inference_mode():
            begun = perf_counter()
            out = self.model(self.prompt, use_cache=True, logits_to_keep=1)
            prefilled = perf_counter()
            for _ in range(GENERATED):
                token = out.logits[:, -1:].argmax(-1)
                out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
            decoded = perf_counter()
        return {f"prefill {PROMPT}": [PROMPT / (prefilled - begun)], f"decode {GENERATED}": [GENERATED / (decoded - prefilled)]}


def our_rates(program, folder, threads, more):
    sizes = ["-p", PROMPT, "-n", GENERATED, "-d", 0, "-t", threads, "-r", 1]
    rows = run_rows([program, "bench", "-m", folder, *map(str, sizes), *more, "--json"])
    return {(f"prefill {row['n_prompt']}" if row["n_prompt"] else f"decode {row['n_gen']}"): row["samples_ts"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ours", type=Path, required=True, help="path of met-host")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for a quiet machine; 0: measure at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # Ended from outside, it still ends what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not (args.folder / "config.json").exists():
        make(args.folder)
    program = args.ours.resolve(strict=True)
    peer = Transformers(args.folder, args.threads)
    peer.rates()
    samples = {kind: {"peer": {}, "ours": {}} for kind in KINDS}
    for _ in range(args.rounds):
        theirs, _ = quiet.measured(peer.rates, args.quiet)
        for kind, more in KINDS.items():
            ours, _ = quiet.measured(lambda: our_rates(program, args.folder, args.threads, more), args.quiet)
            for side, rates in (("peer", theirs), ("ours", ours)):
                for name, values in rates.items():
                    samples[kind][side].setdefault(name, []).extend(values)
    results = {kind: report.summarise(of_kind) for kind, of_kind in samples.items()}
    for kind, summary in results.items():
        report.print_table(f"transformers in F32 and ours in {kind}, {args.threads} threads, tokens a second", summary)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
