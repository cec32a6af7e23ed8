#!/usr/bin/env python3
"""Clients of the official package stream without pause while a slot is swapped again and again.

  swaps.py --host met-host --library libmet_cpu.so MODEL_A MODEL_B [--clients 16] [--swaps 100] [--tokens 32] [--json FILE]

Each swap changes the backend or the model, with either plan and with requests in flight that finish or are carried
over. What must hold, and is checked of every answer: no error, no retry, a stream that ends with its finish reason and
`[DONE]`, and the whole text of one model, which served at some moment between the request and its first chunk. Prints
what happened; the exit code is 0 only where all of it held. Everything started here is ended here.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import openai

PROMPTS = ["the sea", "a lamp", "bread", "the ferry", "a river", "the road", "a bird", "winter"]
TIMEOUT = 600
WAIT = 60


class Tail(httpx.SyncByteStream):
    """A response's bytes, of which the last ones are kept."""

    def __init__(self, stream, kept):
        self.stream, self.kept = stream, kept

    def __iter__(self):
        for part in self.stream:
            self.kept[:] = (self.kept + part)[-64:]
            yield part

    def close(self):
        self.stream.close()


class Transport(httpx.HTTPTransport):
    """Keeps the end of the latest response, which the package itself does not show."""

    def __init__(self):
        super().__init__()
        self.tail = bytearray()

    def handle_request(self, request):
        response = super().handle_request(request)
        self.tail.clear()
        response.stream = Tail(response.stream, self.tail)
        return response


@dataclass
class Answer:
    client: int
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    longest_gap: float = 0.0
    text: str = ""
    finish: str = ""
    done: bool = False
    error: str = ""


@dataclass
class Served:
    """Which model served, and when: it did at some moment of every one of its spans."""

    spans: list = field(default_factory=list)

    def models(self, start, end):
        return {model for model, since, until in self.spans if since <= end and until >= start}


class Client:
    """One user of the package: greedy where its number is even, else with a seed."""

    def __init__(self, number, url, tokens):
        self.number = number
        self.transport = Transport()
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT,
            http_client=httpx.Client(transport=self.transport, timeout=TIMEOUT),
        )
        self.options = dict(
            model="chat", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True},
            messages=[{"role": "user", "content": f"Tell me of {PROMPTS[number % len(PROMPTS)]}, {number}."}],
            **(dict(temperature=0) if number % 2 == 0 else dict(temperature=0.8, seed=number)),
        )

    def ask(self):
        answer = Answer(self.number, sent=time.monotonic())
        last = None
        try:
            for chunk in self.openai.chat.completions.create(**self.options):
                now = time.monotonic()
                if last is None:
                    answer.first = now
                else:
                    answer.longest_gap = max(answer.longest_gap, now - last)
                last = now
                for choice in chunk.choices:
                    answer.text += choice.delta.content or ""
                    answer.finish = choice.finish_reason or answer.finish
            answer.done = bytes(self.transport.tail).endswith(b"data: [DONE]\n\n")
        except Exception as error:  # Whatever it is, it is what the user would see.
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended = time.monotonic()
        return answer


class Server:
    def __init__(self, args, folder):
        self.args, self.admin = args, f"unix:{folder}/admin.sock"
        self.log = open(f"{folder}/log", "w+")
        command = [args.host, "--model", args.models[0], "--listen", "127.0.0.1:0", "--admin", self.admin]
        command += ["--threads", str(args.threads), "--ctx", "1024", "--kv-memory", args.kv_memory]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = ""
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break

    def swap(self, backend, model, plan, in_flight):
        command = [self.args.host, "swap", "chat", "--json", "--admin", self.admin, "--backend", backend, "--model", model]
        command += ["--plan", plan, "--in-flight", in_flight, "--drain-deadline", str(TIMEOUT)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(f"the swap's exit code is {done.returncode}: {done.stdout} {done.stderr}")
        return json.loads(done.stdout)

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def order(args, number):
    """The backend, the model and how of a swap. Model and backend change in turn, so half of them can carry."""
    backend, model = [(args.library, 0), (args.library, 1), ("builtin:cpu", 1), ("builtin:cpu", 0)][number % 4]
    plan = ["side_by_side", "drain_first"][number // 4 % 2]
    in_flight = ["carry", "finish"][number // 8 % 2]
    return backend, model, plan, in_flight


def run(args, server):
    clients = [Client(number, server.url, args.tokens) for number in range(args.clients)]
    # What each model says undisturbed.
    references = [[], []]
    for model in (1, 0):
        server.swap("builtin:cpu", args.models[model], "side_by_side", "finish")
        references[model] = [client.ask() for client in clients]
        bad = [a for a in references[model] if a.error or not a.done or not a.finish]
        if bad:
            raise RuntimeError(f"undisturbed answers fail: {bad}")
    if any(a.text == b.text for a, b in zip(*references)):
        raise RuntimeError("the two models say the same, so no answer tells which one it is of")

    answers, lock, stop = [], threading.Lock(), threading.Event()

    def stream(client):
        while not stop.is_set():
            answer = client.ask()
            with lock:
                answers.append(answer)

    threads = [threading.Thread(target=stream, args=(client,)) for client in clients]
    served, reports, current, since = Served(), [], 0, time.monotonic()
    for thread in threads:
        thread.start()
    try:
        for number in range(args.swaps):
            backend, model, plan, in_flight = order(args, number)
            begun = time.monotonic()
            report = server.swap(backend, args.models[model], plan, in_flight)
            ended = time.monotonic()
            served.spans.append((current, since, ended))
            current, since = model, begun
            reports.append(report)
            # Every swap meets streams that have begun since the last one.
            with lock:
                count = len(answers)
            deadline = time.monotonic() + WAIT
            while len(answers) < count + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT)
    served.spans.append((current, since, time.monotonic()))
    return references, answers, reports, served


def judge(args, references, answers, reports, served, status):
    """What happened, and what should not have."""
    texts = [[a.text for a in of_model] for of_model in references]
    errors = [a for a in answers if a.error]
    truncated = [a for a in answers if not a.error and (a.finish != "length" or not a.done)]
    wrong = []
    for a in answers:
        possible = served.models(a.sent, a.first)
        if not a.error and a.text not in {texts[model][a.client] for model in possible}:
            wrong.append(a)
    unclean = [
        r for r in reports
        if r["outcome"] != "swapped" or r["cancelled"] or r["released"]["swept"]["count"] or r["released"]["left"]
        or r["library"]["state"] == "retained"
    ]
    swap_ms = lambda plan: sorted(r["ms"] for r in reports if r["plan"] == plan)
    median = lambda values: values[len(values) // 2] if values else None
    undisturbed = max(a.longest_gap for of_model in references for a in of_model)
    result = {
        "clients": args.clients, "swaps": len(reports), "answers": len(answers), "errors": len(errors),
        "truncated": len(truncated), "wrong_model": len(wrong), "unclean_swaps": len(unclean),
        "carried": sum(r["carried"] for r in reports), "held": sum(r["held_requests"] for r in reports),
        "longest_pause_s": round(max(a.longest_gap for a in answers), 3),
        "longest_pause_undisturbed_s": round(undisturbed, 3),
        "longest_first_chunk_s": round(max(a.first - a.sent for a in answers if a.first), 3),
        "swap_ms_side_by_side": median(swap_ms("side_by_side")), "swap_ms_drain_first": median(swap_ms("drain_first")),
        "server_exit": status,
    }
    failed = errors + truncated + wrong + unclean
    for what in failed[:3]:
        print(what, file=sys.stderr)
    held_what_was_promised = not failed and status == 0 and len(answers) >= args.swaps
    # A run in which nothing was carried or held would prove little.
    return result, held_what_was_promised and result["carried"] > 0 and result["held"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--host", required=True, help="path of met-host")
    parser.add_argument("--library", required=True, help="path of libmet_cpu.so")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=32, help="length of each answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-memory", default="128M")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, folder)
        try:
            outcome = run(args, server)
        finally:
            status = server.stop()
        result, good = judge(args, *outcome, status)
        if not good:
            server.log.seek(0)
            print(server.log.read()[-4000:], file=sys.stderr)
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
