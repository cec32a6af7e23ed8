import threading
from concurrent.futures import ThreadPoolExecutor

import openai

# A prompt that costs nothing.
PROMPT = [1000]


def fill_the_line(client, model):
    """Asks for more than the server lets wait; returns what it took, and what it said to the rest."""

    def ask(_):
        try:
            return client.completions.create(
                model=model, prompt=PROMPT, n=8, stream=True, extra_body={"ignore_eos": True}
            )
        except openai.RateLimitError as refusal:
            return refusal

    with ThreadPoolExecutor(80) as pool:
        answers = list(pool.map(ask, range(80)))
    refusals = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
    return [answer for answer in answers if answer not in refusals], refusals


def test_the_client_comes_back_when_the_line_was_full(client, url, model):
    streams, refusals = fill_the_line(client, model)
    assert refusals and refusals[0].code == "queue_full"
    assert int(refusals[0].response.headers["retry-after"]) > 0
    answered = threading.Event()
    http_client = openai.DefaultHttpxClient(event_hooks={"response": [lambda _: answered.set()]})
    patient = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8, http_client=http_client)
    with patient, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(
            patient.completions.with_raw_response.create, model=model, prompt=PROMPT, n=128, max_tokens=1
        )
        assert answered.wait(60)
        for stream in streams:
            stream.close()
        reply = reply.result()
    assert reply.retries_taken > 0 and len(reply.parse().choices) == 128
