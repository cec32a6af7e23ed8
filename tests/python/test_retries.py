import threading

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]


def fill_the_line(client, model):
    """Leaves streams open until the server refuses one more; returns them with the refusal."""
    streams = []
    for _ in range(64):
        try:
            streams.append(client.chat.completions.create(
                model=model, messages=MESSAGES, n=64, stream=True, extra_body={"ignore_eos": True}
            ))
        except openai.RateLimitError as refusal:
            return streams, refusal
    pytest.fail("the waiting line has no end")


def test_the_client_comes_back_when_the_line_was_full(client, url, model):
    streams, refusal = fill_the_line(client, model)
    assert refusal.code == "queue_full" and int(refusal.response.headers["retry-after"]) > 0
    retries = []
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8, timeout=120) as patient:

        def ask():
            reply = patient.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, max_tokens=2)
            assert reply.parse().choices
            retries.append(reply.retries_taken)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(timeout=0.5)
        for stream in streams:
            stream.close()
        thread.join(timeout=120)
    assert retries and retries[0] > 0
