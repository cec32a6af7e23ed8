#!/usr/bin/env python3
"""Compares the logits of every tiny fixture with transformers in f32, as `logits.py` does for real models.

  tiny.py [--ours target/release/forced-logits] [--no-peer] [--fixtures DIR]

One table: a row a fixture, with the KL and the top-5 log-probability errors of ours and of llama.cpp over the
fixture's forced tokens. The reference is computed afresh, and `drift` is the largest difference between its logits
and those that the fixture carries: what the Rust tests compare with. The exit status is 1 where a fixture has
drifted, or where we are further from the reference than the peer.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

import logits
import reference

# A fixture is made by another build of torch, perhaps, which sums in another order.
DRIFT = 1e-3
SIDES = ("ours", "peer")


def compare(path, args, folder):
    """The drift of one fixture, and its figures: {side: summary}."""
    about = json.loads(path.read_text())
    model, ids = path.with_name(about["model"]), about["tokens"]
    ref = reference.logits(reference.load(model)[0], ids)
    kept = np.fromfile(path.with_name(about["logits"]), "<f4").reshape(ref.shape)
    given = {}
    if args.ours:
        given["ours"] = logits.our_logits(args.ours, model, [ids], folder, about["vocab"])
    if args.peer:
        peer = logits.Peer(model, args.threads)
        (given["peer"],) = peer.logits([ids])
        peer.close()
    return np.abs(ref - kept).max(), {s: logits.summary([logits.errors(ref, x)]) for s, x in given.items()}


def row(s):
    if not s:
        return " | " + " " * 35
    return f" | {s['kl_mean']:8.1e} {s['kl_max']:8.1e} {s['top5_mean']:9.5f} {s['top5_max']:7.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures", type=Path, default=Path(__file__).parent.parent / "fixtures")
    parser.add_argument("--ours", type=Path, help="path of forced-logits; left out where it is not given")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.ours:
        args.ours = args.ours.resolve(strict=True)
    torch.set_num_threads(args.threads)

    print(f"{'':24} {'':8}" + "".join(f" | {side:^35}" for side in SIDES))
    print(f"{'fixture':24} {'drift':>8}" + f" | {'KL mean':>8} {'max':>8} {'top5 mean':>9} {'max':>7}" * 2)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(args.fixtures.glob("tiny-*.json")):
            drift, sides = compare(path, args, Path(folder))
            print(f"{path.stem:24} {drift:8.1e}" + "".join(row(sides.get(side)) for side in SIDES), flush=True)
            further = len(sides) == 2 and sides["ours"]["kl_mean"] > sides["peer"]["kl_mean"]
            if drift > DRIFT or further:
                wrong.append(path.stem)
    if wrong:
        raise SystemExit("drifted, or further from the reference than the peer: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
