#!/usr/bin/env python3
"""Two servers beside each other: llama-server and met-host, each started in turn, several rounds.

  serve.py --peer llama-server --ours target/release/met-host MODEL.gguf... [--rounds 3] [--json FILE]

Measured a round and a server, over the OpenAI chat interface with streams:
  start      from the start of the process to the first text of a short answer
  one        one stream of 205 tokens in and 128 out: time to the first text, then tokens a second
  eight      eight such streams at once: all tokens over all the time, and the median time to the first text
  pause      the longest pause of a running stream while a prompt of 1,400 tokens arrives, and that prompt's own
             time to the first text
  memory     the peaks: VmHWM, and the largest anonymous and file-backed parts seen
Every prompt differs from its first word on, so that no prefix cache can help. Either side may be left out.
A round that other work on the machine disturbed is made again.
Only 127.0.0.1 is used, every wait is bounded, and only processes started here are ended.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

import aiohttp

import quiet
import report

START_TIMEOUT = 120
REQUEST_TIMEOUT = 180
STOP_TIMEOUT = 15
PROMPT, GENERATE, STREAMS, LONG_PROMPT = 205, 128, 8, 1400
# Tokens that the chat template and the fixed words add to a prompt's drawn words.
OVERHEAD = 26
WORDS = (
    "time person year way day thing man world life hand part child eye woman place work week case point government "
    "company number group problem fact river mountain window garden bridge engine letter winter summer market paper "
    "metal ocean island forest signal school teacher doctor story music color table chair kitchen corner street city "
    "road train ship plane cloud storm light shadow stone glass silver copper iron bread water fruit animal horse bird "
    "fish tree leaf root flower"
).split()


def messages(tokens):
    """A chat of about `tokens` tokens that no other request shares a beginning with."""
    draw = random.SystemRandom()
    words = [draw.choice(WORDS) for _ in range(max(8, tokens - OVERHEAD))]
    system = " ".join([words[0].capitalize(), *words[1:6]])
    return [
        {"role": "system", "content": system + "."},
        {"role": "user", "content": " ".join(words[6:]) + ". Write a long story that uses these words."},
    ]


class Server:
    """A server process, its address, and a thread that watches its memory."""

    def __init__(self, command, address=None):
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.address = address
        self.listening = threading.Event()
        self.last_lines = []
        self.memory = {"VmHWM": 0, "RssAnon": 0, "RssFile": 0}
        threading.Thread(target=self._read_output, daemon=True).start()
        threading.Thread(target=self._watch_memory, daemon=True).start()

    def _read_output(self):
        for line in self.process.stdout:
            self.last_lines = self.last_lines[-20:] + [line.rstrip()]
            found = re.search(r"listening on (http://127\.0\.0\.1:\d+)", line)
            if found and not self.address:
                self.address = found.group(1)
                self.listening.set()

    def _watch_memory(self):
        while self.process.poll() is None:
            try:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:
                return
            for name in self.memory:
                found = re.search(rf"^{name}:\s+(\d+) kB", status, re.M)
                if found:
                    self.memory[name] = max(self.memory[name], int(found.group(1)))
            time.sleep(0.02)

    async def ready(self, http):
        """Waits until the server answers, and returns the name of its model."""
        deadline = self.started + START_TIMEOUT
        while time.perf_counter() < deadline and self.process.poll() is None:
            try:
                if self.address:
                    async with http.get(self.address + "/health") as answer:
                        if answer.status == 200:
                            break
                        # A server without this route is ready once it listens.
                        if answer.status == 404 and self.listening.is_set():
                            break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.005)
        else:
            raise RuntimeError("the server did not start:\n" + "\n".join(self.last_lines))
        async with http.get(self.address + "/v1/models") as answer:
            return (await answer.json())["data"][0]["id"]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Stream:
    """One streamed answer: when its pieces of text came, and what it used."""

    def __init__(self, sent):
        self.sent = sent
        self.times = []
        self.usage = None
        self.finished = None

    def first(self):
        return self.times[0] - self.sent

    def rate(self):
        return (self.usage["completion_tokens"] - 1) / (self.times[-1] - self.times[0])

    def gaps(self):
        return [later - earlier for earlier, later in zip(self.times, self.times[1:])]


async def ask(http, server, model, chat, limit, stream=None):
    """One streamed request, to its end."""
    body = {
        "model": model,
        "messages": chat,
        "max_tokens": limit,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream = stream or Stream(0)
    stream.sent = time.perf_counter()
    async with http.post(server.address + "/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if event.get("error"):
                raise RuntimeError(f"error in a stream: {event['error']}")
            stream.usage = event.get("usage") or stream.usage
            if any(choice["delta"].get("content") for choice in event.get("choices", [])):
                stream.times.append(time.perf_counter())
    stream.finished = time.perf_counter()
    return stream


async def pause(http, server, model):
    """A running stream's longest gap from the arrival of a long prompt to its end, and the long prompt's first text."""
    running = Stream(0)
    task = asyncio.create_task(ask(http, server, model, messages(60), 1500, running))
    try:
        while len(running.times) < 20 and not task.done():
            await asyncio.sleep(0.005)
        long = await ask(http, server, model, messages(LONG_PROMPT), 8)
        await asyncio.sleep(0.3)
        if task.done():
            task.result()
            raise RuntimeError("the running stream ended before the long prompt was answered")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    times = [t for t in running.times if t >= long.sent - 0.1]
    return max(later - earlier for earlier, later in zip(times, times[1:])), long


async def one_round(server):
    """All measures of one started server: {name: [values]}."""
    kept = {}

    def keep(name, value):
        kept.setdefault(name, []).append(value)

    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        model = await server.ready(http)
        hello = await ask(http, server, model, [{"role": "user", "content": "Hi"}], 4)
        keep("start to first text, ms", (hello.times[0] - server.started) * 1e3)

        for _ in range(2):
            one = await ask(http, server, model, messages(PROMPT), GENERATE)
            keep("one stream: prompt tokens", one.usage["prompt_tokens"])
            keep("one stream: first text, ms", one.first() * 1e3)
            keep("one stream: decode, tokens/s", one.rate())

        all_streams = await asyncio.gather(
            *(ask(http, server, model, messages(PROMPT), GENERATE) for _ in range(STREAMS))
        )
        tokens = sum(s.usage["completion_tokens"] for s in all_streams)
        span = max(s.finished for s in all_streams) - min(s.sent for s in all_streams)
        keep("eight streams: total, tokens/s", tokens / span)
        keep("eight streams: first text p50, ms", statistics.median(s.first() for s in all_streams) * 1e3)

        longest, long = await pause(http, server, model)
        keep("long prompt: tokens", long.usage["prompt_tokens"])
        keep("long prompt: stream's pause, ms", longest * 1e3)
        keep("long prompt: first text, ms", long.first() * 1e3)
    for name, label in (("VmHWM", "resident"), ("RssAnon", "anonymous"), ("RssFile", "file")):
        keep(f"peak memory: {label}, MiB", server.memory[name] / 1024)
    return kept


def one_life(start, program, model, args):
    """Starts a server, measures it, and stops it."""
    server = start(program, model, args)
    try:
        return asyncio.run(one_round(server))
    finally:
        server.stop()


def peer_server(program, model, args, option="-m"):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1", "--port", str(port), "-t", str(args.threads)]
    return Server([program, option, model, *where, *args.peer_args.split()], address)


def our_server(program, model, args):
    command = [program, "--model", model, "--listen", "127.0.0.1:0", "--threads", str(args.threads)]
    return Server([*command, *args.our_args.split()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer", type=Path, help="path of llama-server")
    parser.add_argument("--ours", type=Path, help="path of met-host")
    parser.add_argument("--peer-args", default="-np 8 --kv-unified", help="further arguments of llama-server")
    parser.add_argument("--our-args", default="", help="further arguments of met-host")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for a quiet machine; 0: measure at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # Ended from outside, it still ends what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sides = {}
    if args.peer:
        sides["peer"] = (args.peer.resolve(strict=True), peer_server)
    if args.ours:
        sides["ours"] = (args.ours.resolve(strict=True), our_server)
    if not sides:
        parser.error("give --peer, --ours or both")

    results = {}
    for model in args.models:
        samples = {side: {} for side in sides}
        for round_number in range(args.rounds):
            order = list(sides) if round_number % 2 == 0 else list(reversed(sides))
            for side in order:
                program, start = sides[side]
                kept, noise = quiet.measured(lambda: one_life(start, program, model, args), args.quiet)
                for name, values in (kept | {"CPU used by others, %": [noise]}).items():
                    samples[side].setdefault(name, []).extend(values)
        summary = report.summarise(samples)
        results[model.name] = {"summary": summary}
        report.print_table(f"{model.name}, {args.threads} threads", summary)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
