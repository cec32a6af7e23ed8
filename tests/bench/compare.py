#!/usr/bin/env python3
"""Speed of the bare engine beside llama.cpp's, alternating in one run.

  compare.py --peer llama-bench --ours target/release/met-host MODEL.gguf... [--rounds 3] [--json FILE]

Prefill of 512 tokens, decode of 128, and decode of 64 at a depth of 2,048, in tokens a second with 2 threads. The
peer runs with flash attention on and off, and the better median counts. Either side may be left out. A call that
other work on the machine disturbed is made again.
"""

import argparse
import json
import signal
import statistics
import subprocess
from pathlib import Path

import quiet
import report

# name: (prompt tokens, generated tokens, depth) of the two calls a round
CALLS = [(512, 128, 0), (0, 64, 2048)]
TIMEOUT = 900


def measure_name(row):
    if row["n_prompt"]:
        return f"prefill {row['n_prompt']}"
    return f"decode {row['n_gen']}" + (f" at depth {row['n_depth']}" if row["n_depth"] else "")


def run_rows(command):
    """The rows that a benchmark program prints as a JSON array."""
    done = subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def peer_rows(program, model, call, args):
    prompt, generated, depth = map(str, call)
    sizes = ["-p", prompt, "-n", generated, "-d", depth, "-t", str(args.threads), "-r", str(args.repeat)]
    return run_rows([program, "-m", model, *sizes, "-fa", "on,off", "-o", "json"])


def our_rows(program, model, call, args):
    prompt, generated, depth = map(str, call)
    sizes = ["-p", prompt, "-n", generated, "-d", depth, "-t", str(args.threads), "-r", str(args.repeat)]
    return run_rows([program, "bench", "-m", model, *sizes, "--json"])


def one_model(model, sides, args):
    """Samples of each side: {side: {measure: [tokens a second]}}, and the peer's medians by flash attention."""
    samples = {side: {} for side in sides}
    noises = {side: [] for side in sides}
    for round_number in range(args.rounds):
        order = list(sides) if round_number % 2 == 0 else list(reversed(sides))
        for call in CALLS:
            for side in order:
                program, rows_of = sides[side]
                rows, noise = quiet.measured(lambda: rows_of(program, model, call, args), args.quiet)
                noises[side].append(noise)
                for row in rows:
                    kept = samples[side].setdefault(measure_name(row), {})
                    kept.setdefault(row.get("flash_attn", 0), []).extend(row["samples_ts"])
    settings = {}
    best = {side: {} for side in sides}
    for side, by_measure in samples.items():
        for measure, by_flash in by_measure.items():
            best[side][measure] = max(by_flash.values(), key=statistics.median)
            if side == "peer":
                settings[measure] = {f"flash {'on' if f else 'off'}": statistics.median(v) for f, v in by_flash.items()}
    for side in sides:
        best[side]["CPU used by others, %"] = noises[side]
    return best, settings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer", type=Path, help="path of llama-bench")
    parser.add_argument("--ours", type=Path, help="path of met-host")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions within a call")
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for a quiet machine; 0: measure at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # Ended from outside, it still ends what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sides = {}
    if args.peer:
        sides["peer"] = (args.peer.resolve(strict=True), peer_rows)
    if args.ours:
        sides["ours"] = (args.ours.resolve(strict=True), our_rows)
    if not sides:
        parser.error("give --peer, --ours or both")

    results = {}
    for model in args.models:
        samples, settings = one_model(model, sides, args)
        summary = report.summarise(samples)
        results[model.name] = {"summary": summary, "peer_settings": settings}
        report.print_table(f"{model.name}, {args.threads} threads, tokens a second", summary)
        for measure, by_setting in settings.items():
            print(f"  peer, {measure}: " + ", ".join(f"{name} {value:.1f}" for name, value in by_setting.items()))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
