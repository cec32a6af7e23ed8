#!/usr/bin/env python3
"""Live swaps: the gap that a client sees, the time to the other model, and memory. Beside llama-server's router.

  swap.py --peer llama-server --ours target/release/met-host [--library libmet_cpu.so] A.gguf B.gguf [--rounds 5] [--json FILE]

Measured a round, over the OpenAI interface with streams:
  gap     the longest pause between two texts of one running stream: alone; across a swap side by side and one that
          drains first, its request carried over to the same model; and side by side to the other model, where it
          finishes. Also the median pause of the stream alone, which is a decode step.
  switch  from the order to the first text of the other model: idle, and while a stream of 200 tokens of the old one
          runs. Ours: the swap's order, then a request as soon as the event of its `switch` comes. The router's: a
          request for the other model, with --models-max 1. Both find memory that the machine has at hand: where it is
          a virtual one whose host takes freed memory back, the first write to a page would measure the host.
  memory  anonymous memory of our process after 70 and after 120 swaps.
Either side may be left out. A round that other work on the machine disturbed is made again. Only 127.0.0.1 is used,
and only processes started here are ended.
"""

import argparse
import asyncio
import json
import mmap
import os
import re
import signal
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import aiohttp

import quiet
import report
from serve import REQUEST_TIMEOUT, Server, Stream, ask, messages, peer_server

# The warm-up is longer than the server keeps reports.
RUNNING, MORE, SWAPS, WARM_UP = 200, 400, 50, 70
AT_HAND, WRITTEN = 2**30, b"\x01" * 2**20
HELLO = [{"role": "user", "content": "Hi"}]


class Operator:
    """Our server's operators' listener."""

    def __init__(self, path):
        self.path = path

    async def __aenter__(self):
        self.http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self.path, force_close=True), timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
        )
        return self

    async def __aexit__(self, *_):
        await self.http.close()

    async def swap(self, **order):
        async with self.http.post("http://admin/slots/chat/swap", json={"drain_deadline_s": REQUEST_TIMEOUT} | order) as answer:
            report = await answer.json()
        if report.get("outcome") != "swapped":
            raise RuntimeError(f"the swap failed: {report}")
        return report

    async def switched(self, order):
        """Orders a swap; returns once it has switched, with the task that waits for its report."""
        async with self.http.get("http://admin/events") as events:
            swap = asyncio.create_task(self.swap(**order))
            async for line in events.content:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if (event["event"], event.get("step")) == ("step", "switch"):
                        return swap
                    if event["event"] == "ended":
                        break
        await swap
        raise RuntimeError("the swap ended without a switch")


async def started(http, server, model, limit):
    """A stream that has given some text, and its task."""
    stream = Stream(0)
    task = asyncio.create_task(ask(http, server, model, messages(60), limit, stream))
    while len(stream.times) < 10 and not task.done():
        await asyncio.sleep(0.005)
    return stream, task


def session():
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT), connector=aiohttp.TCPConnector(limit=0, force_close=True)
    )


async def gaps(server, args, keep):
    a, b = map(str, args.models)
    async with session() as http, Operator(server.socket) as operator:
        await server.ready(http)
        stream, task = await started(http, server, "chat", MORE)
        await task
        keep("gap: decode step, ms", statistics.median(stream.gaps()) * 1e3)
        keep("gap: alone, ms", max(stream.gaps()[10:]) * 1e3)
        for name, order in {
            "carried, side by side": dict(plan="side_by_side", in_flight="carry", backend=args.library),
            "carried, drain first": dict(plan="drain_first", in_flight="carry", backend="builtin:cpu"),
            "finishing, side by side": dict(plan="side_by_side", in_flight="finish", model=b),
        }.items():
            stream, task = await started(http, server, "chat", MORE)
            swapped = await operator.swap(**order)
            await task
            if order["in_flight"] == "carry" and swapped["carried"] != 1:
                raise RuntimeError(f"nothing was carried: {swapped}")
            keep(f"gap: {name}, ms", max(stream.gaps()[10:]) * 1e3)
            keep(f"swap: {name}, ms", swapped["ms"])
        await operator.swap(model=a)


def back_memory():
    """Has the machine's host give it memory, which is then free: more than a switch needs, and only for seconds."""
    with mmap.mmap(-1, AT_HAND, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for _ in range(0, AT_HAND, len(WRITTEN)):
            memory.write(WRITTEN)


async def our_switches(server, args, keep):
    async with session() as http, Operator(server.socket) as operator:
        await server.ready(http)
        await ask(http, server, "chat", HELLO, 4)
        for number in range(4):
            order = dict(model=str(args.models[1 - number % 2]), plan=["side_by_side", "drain_first"][number // 2])
            back_memory()
            begun = perf_counter()
            swap = await operator.switched(order)
            first = await ask(http, server, "chat", HELLO, 1)
            keep(f"switch: idle{', drain first' if number // 2 else ''}, ms", (first.times[0] - begun) * 1e3)
            await swap
        for number in range(2):
            back_memory()
            _, task = await started(http, server, "chat", RUNNING)
            begun = perf_counter()
            swap = await operator.switched(dict(model=str(args.models[1 - number]), plan="side_by_side"))
            first = await ask(http, server, "chat", HELLO, 1)
            keep("switch: while the old model streams, ms", (first.times[0] - begun) * 1e3)
            await task
            await swap


async def peer_switches(server, args, keep):
    async with session() as http:
        await server.ready(http)
        async with http.get(server.address + "/v1/models") as answer:
            listed = [model["id"] for model in (await answer.json())["data"]]
        names = [next(name for name in listed if name.startswith(model.stem)) for model in args.models]
        await ask(http, server, names[0], HELLO, 4)
        for number in range(2):
            back_memory()
            first = await ask(http, server, names[1 - number], HELLO, 1)
            keep("switch: idle, ms", first.first() * 1e3)
        for number in range(2):
            back_memory()
            _, task = await started(http, server, names[number], RUNNING)
            first = await ask(http, server, names[1 - number], HELLO, 1)
            keep("switch: while the old model streams, ms", first.first() * 1e3)
            await asyncio.gather(task, return_exceptions=True)


def anonymous(pid):
    """Bytes, from the page tables."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(re.search(rf"^{name}:\s+(\d+) kB", rollup, re.M)[1]) * 1024 for name in ("Anonymous", "Swap"))


async def memory(server, args, keep):
    async with session() as http, Operator(server.socket) as operator:
        await server.ready(http)
        for number in range(WARM_UP + SWAPS):
            if number == WARM_UP:
                before = anonymous(server.process.pid)
            backend = [args.library, "builtin:cpu"][number // 2 % 2]
            await operator.swap(model=str(args.models[1 - number % 2]), backend=backend)
            await ask(http, server, "chat", HELLO, 4)
        after = anonymous(server.process.pid)
    keep(f"memory: anonymous after {WARM_UP} swaps, MiB", before / 2**20)
    keep(f"memory: anonymous after {WARM_UP + SWAPS} swaps, MiB", after / 2**20)
    keep("memory: more a swap, KiB", (after - before) / SWAPS / 1024)


def our_server(args, folder):
    socket = f"{folder}/admin.sock"
    command = [args.ours, "--model", args.models[0], "--listen", "127.0.0.1:0", "--admin", f"unix:{socket}"]
    command += ["--threads", str(args.threads), "--kv-memory", "256M", *args.our_args.split()]
    server = Server([str(part) for part in command])
    server.socket = socket
    return server


def router(args, folder):
    models = Path(folder) / "models"
    models.mkdir(exist_ok=True)
    for model in args.models:
        if not (models / model.name).exists():
            os.symlink(model.resolve(), models / model.name)
    router_args = argparse.Namespace(threads=args.threads, peer_args=f"--models-max 1 {args.peer_args}")
    return peer_server(args.peer, models, router_args, option="--models-dir")


def one_life(start, measure, args):
    """Starts a server, measures it, and stops it: {name: [values]}."""
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        server = start(args, folder)
        try:
            asyncio.run(measure(server, args, lambda name, value: kept.setdefault(name, []).append(value)))
        finally:
            server.stop()
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, type=Path)
    parser.add_argument("--peer", type=Path, help="path of llama-server")
    parser.add_argument("--ours", type=Path, help="path of met-host")
    parser.add_argument("--library", help="path of libmet_cpu.so; beside met-host unless it is given")
    parser.add_argument("--peer-args", default="-np 8 --kv-unified", help="further arguments of llama-server")
    parser.add_argument("--our-args", default="", help="further arguments of met-host")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for a quiet machine; 0: measure at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # Ended from outside, it still ends what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lives = []
    if args.ours:
        args.ours = args.ours.resolve(strict=True)
        args.library = str(Path(args.library or args.ours.parent / "libmet_cpu.so").resolve(strict=True))
        args.models = [model.resolve(strict=True) for model in args.models]
        lives += [("ours", our_server, our_switches)]
    if args.peer:
        args.peer = args.peer.resolve(strict=True)
        lives += [("peer", router, peer_switches)]
    if not lives:
        parser.error("give --peer, --ours or both")

    samples = {side: {} for side, _, _ in lives}
    rounds = [lives if number % 2 == 0 else lives[::-1] for number in range(args.rounds)]
    if args.ours:
        rounds += [[("ours", our_server, gaps)]] * args.rounds + [[("ours", our_server, memory)]]
    for number, order in enumerate(rounds):
        for side, start, measure in order:
            kept, noise = quiet.measured(lambda: one_life(start, measure, args), args.quiet)
            for name, values in (kept | {"CPU used by others, %": [noise]}).items():
                samples[side].setdefault(name, []).extend(values)
        print(f"round {number + 1} of {len(rounds)}", flush=True)
    summary = report.summarise(samples)
    report.print_table(f"{args.models[0].name} and {args.models[1].name}, {args.threads} threads", summary)
    if args.json:
        args.json.write_text(json.dumps({"models": [m.name for m in args.models], "summary": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
