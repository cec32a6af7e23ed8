import asyncio
import json

import openai

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


def test_chunks_open_with_the_role_and_add_up_to_the_answer(client, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_last_chunk_has_the_usage_where_it_was_asked_for(client, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    whole = client.chat.completions.create(**options)
    *chunks, last = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


def test_choices_of_a_stream_are_told_apart_by_index(client, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=8, n=3, seed=3, temperature=1.2)
    whole = client.chat.completions.create(**options)
    texts, roles, ends = {}, {}, {}
    for chunk in client.chat.completions.create(**options, stream=True):
        [choice] = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.delta.role:
            roles[choice.index] = choice.delta.role
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(3)] == [choice.message.content for choice in whole.choices]
    assert roles == dict.fromkeys(range(3), "assistant") and set(ends) == {0, 1, 2}


def test_logprobs_of_a_stream_cover_its_text(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=1, stream=True
    )
    text, covered = "", b""
    for chunk in stream:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        if choice.logprobs:
            covered += b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert covered.decode() == text


def test_the_wire_is_plain_server_sent_events(raw, model):
    body = {"model": model, "messages": MESSAGES, "max_tokens": 4, "stream": True}
    with raw.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        text = "".join(response.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    *events, done, nothing = text.split("\n\n")
    assert done == "data: [DONE]" and nothing == ""
    for event in events:
        assert event.startswith(":") or json.loads(event.removeprefix("data: "))["choices"]


def test_a_connection_serves_on_after_a_stream(raw, model):
    body = {"model": model, "messages": MESSAGES, "max_tokens": 4, "stream": True}
    with raw.stream("POST", "/v1/chat/completions", json=body) as response:
        first = response.extensions["network_stream"].get_extra_info("client_addr")
        response.read()
    second = raw.get("/v1/models")
    assert second.status_code == 200
    assert second.extensions["network_stream"].get_extra_info("client_addr") == first


def test_a_stream_can_be_left(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    assert next(stream).choices
    stream.close()
    assert client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2).choices


def test_sixteen_streams_at_once_say_what_each_says_alone(url, model):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300) as client:
            async def ask(number):
                stream = await client.chat.completions.create(
                    model=model, temperature=0, max_tokens=16, stream=True,
                    messages=[{"role": "user", "content": f"Count from {number}."}],
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            together = await asyncio.gather(*(ask(number) for number in range(16)))
            assert [await ask(number) for number in (0, 15)] == [together[0], together[15]]

    asyncio.run(run())
