#!/usr/bin/env python3
"""Compares logits with the f32 reference, with the same tokens forced on every side.

  logits.py --cache DIR [--ours target/release/forced-logits] [--no-peer] [--json FILE] MODEL.gguf...

For each model, every position of twelve short prompts and of one of 1,500 tokens is compared:
  ref   transformers in f32 on the dequantised weights of that very file (cached in DIR by content)
  peer  llama.cpp through llama_cpp, 2 threads, its defaults (flash attention too)
  ours  `forced-logits MODEL TOKENS.json OUT.f32`, where OUT is little-endian f32 [positions, vocab]

KL is KL(ref || side) of a position. The top-5 error is |log p_ref - log p_side| over the five tokens that the
reference likes best at a position.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import torch
import transformers

import prompts
import reference

LONG = 1500
OURS_TIMEOUT = 1800


@llama_cpp.llama_log_callback
def _silent(level, text, data):
    pass


class Peer:
    """llama.cpp with one model: its token ids of a text, and its logits at every position."""

    def __init__(self, path, threads):
        llama_cpp.llama_log_set(_silent, None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.threads = threads

    def tokenize(self, text):
        data = text.encode()
        out = (llama_cpp.llama_token * (len(data) + 16))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), out, len(out), False, True)
        return list(out[:count])

    def logits(self, texts):
        """One array [len(ids), vocab] a text, each text from an empty cache, in batches of the context's size."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = 2048
        params.n_threads = params.n_threads_batch = self.threads
        context = llama_cpp.llama_init_from_model(self.model, params)
        step = llama_cpp.llama_n_ubatch(context)
        width = llama_cpp.llama_vocab_n_tokens(self.vocab)
        batch = llama_cpp.llama_batch_init(step, 0, 1)
        for ids in texts:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            rows = []
            for start in range(0, len(ids), step):
                part = ids[start : start + step]
                batch.n_tokens = len(part)
                for i, token in enumerate(part):
                    batch.token[i] = token
                    batch.pos[i] = start + i
                    batch.n_seq_id[i] = 1
                    batch.seq_id[i][0] = 0
                    batch.logits[i] = 1
                if llama_cpp.llama_decode(context, batch) != 0:
                    raise SystemExit("llama_decode failed")
                rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(part), width)).copy())
            yield np.concatenate(rows)
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)

    def close(self):
        llama_cpp.llama_model_free(self.model)


def forced_texts(peer):
    """Names and token ids of all prompts for the vocabulary of a model."""
    texts = {name: peer.tokenize(text) for name, text in prompts.SHORT.items()}
    long = peer.tokenize(prompts.long_text())
    if len(long) < LONG:
        raise SystemExit(f"the long prompt has only {len(long)} tokens")
    return texts | {"long": long[:LONG]}


def split(flat, texts):
    """Consecutive pieces of [positions, vocab], one a text."""
    start = 0
    for ids in texts:
        yield flat[start : start + len(ids)]
        start += len(ids)


def reference_logits(path, texts, cache):
    """The reference of all texts as one memory-mapped array, made once a content."""
    key = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            key.update(block)
    key.update(json.dumps([texts, transformers.__version__, torch.__version__]).encode())
    key.update(Path(reference.__file__).read_bytes())
    kept = cache / f"{key.hexdigest()[:32]}.f32"
    if not kept.exists():
        model, _ = reference.load(path)
        part = kept.with_suffix(".part")
        with open(part, "wb") as out:
            for ids in texts:
                reference.logits(model, ids).astype("<f4").tofile(out)
        part.rename(kept)
    return np.memmap(kept, "<f4", "r").reshape(sum(map(len, texts)), -1)


def our_logits(program, path, texts, folder, width):
    """What our program gives for the same texts."""
    tokens, out = folder / "tokens.json", folder / "out.f32"
    tokens.write_text(json.dumps(texts))
    subprocess.run([program, path, tokens, out], check=True, timeout=OURS_TIMEOUT)
    return np.memmap(out, "<f4", "r").reshape(sum(map(len, texts)), width)


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))


def errors(ref, other, chunk=64):
    """KL a position, the top-5 errors, and whether the likeliest token is the same."""
    kl, top, same = [], [], []
    for start in range(0, len(ref), chunk):
        raw = np.asarray(other[start : start + chunk])
        if not np.isfinite(raw).all():
            raise SystemExit(f"logits that are not finite near position {start}")
        p, q = log_softmax(ref[start : start + chunk]), log_softmax(raw)
        kl.append((np.exp(p) * (p - q)).sum(axis=-1))
        best = np.argpartition(p, -5, axis=-1)[:, -5:]
        top.append(np.abs(np.take_along_axis(p, best, -1) - np.take_along_axis(q, best, -1)))
        same.append(p.argmax(axis=-1) == q.argmax(axis=-1))
    return np.concatenate(kl), np.concatenate(top), np.concatenate(same)


def summary(parts):
    kl, top, same = (np.concatenate(column) for column in zip(*parts))
    return {
        "positions": len(kl),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "top5_mean": float(top.mean()),
        "top5_median": float(np.median(top)),
        "top5_max": float(top.max()),
        "same_best": float(same.mean()),
    }


def compare(path, args):
    """All figures of one model: {side: {"all": ..., "long": ..., prompt: ...}}."""
    peer = Peer(path, args.threads)
    named = forced_texts(peer)
    texts = list(named.values())
    ref = reference_logits(path, texts, args.cache)
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        sides = {}
        if args.peer:
            sides["peer"] = peer.logits(texts)
        if args.ours:
            sides["ours"] = split(our_logits(args.ours, path, texts, Path(folder), ref.shape[1]), texts)
        result = {}
        for side, pieces in sides.items():
            parts = [errors(r, x) for r, x in zip(split(ref, texts), pieces, strict=True)]
            result[side] = {"all": summary(parts)} | {n: summary([p]) for n, p in zip(named, parts)}
    peer.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for reference logits, about 0.5 GB a model")
    parser.add_argument("--ours", type=Path, help="path of forced-logits; left out where it is not given")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    if args.ours:
        args.ours = args.ours.resolve(strict=True)
    torch.set_num_threads(args.threads)

    print("KL and top-5 log-probability error against f32, all positions; in brackets the 1,500-token prompt alone")
    head = f"{'model':34} {'side':5} {'KL mean':>20} {'KL max':>9} {'top5 mean':>20} {'median':>8} {'max':>7} {'same best':>9}"
    print(head)
    results = {}
    for path in args.models:
        results[path.name] = compare(path, args)
        for side, by_prompt in results[path.name].items():
            a, long = by_prompt["all"], by_prompt["long"]
            print(
                f"{path.stem[-34:]:34} {side:5} {a['kl_mean']:9.6f} ({long['kl_mean']:8.6f}) {a['kl_max']:9.5f}"
                f" {a['top5_mean']:10.5f} ({long['top5_mean']:7.5f}) {a['top5_median']:8.5f} {a['top5_max']:7.4f}"
                f" {a['same_best']:9.4f}"
            )
            sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
