PROMPT = "The capital of France is"


def test_a_text_is_continued(client, model):
    reply = client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0)
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-") and reply.model == model
    [choice] = reply.choices
    assert choice.text and choice.finish_reason in ("stop", "length") and choice.logprobs is None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_prompts_come_as_texts_or_tokens(client, model):
    def texts(prompt, **options):
        reply = client.completions.create(model=model, prompt=prompt, max_tokens=5, temperature=0, **options)
        assert [choice.index for choice in reply.choices] == list(range(len(reply.choices)))
        return [choice.text for choice in reply.choices], reply.usage

    [one], usage = texts(PROMPT)
    both, sum_usage = texts([PROMPT, PROMPT])
    assert both == [one, one] and sum_usage.prompt_tokens == 2 * usage.prompt_tokens
    tokens, token_usage = texts([1000, 1001, 1002])
    assert token_usage.prompt_tokens == 3
    assert texts([[1000, 1001, 1002], [1000, 1001, 1002]])[0] == tokens * 2
    assert texts([PROMPT, PROMPT], n=2)[0] == [one] * 4


def test_a_stream_says_the_same(client, model):
    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)
    chunks = list(client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_logprobs_are_parallel_lists(client, model):
    reply = client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2)
    text, logprobs = reply.choices[0].text, reply.choices[0].logprobs
    assert "".join(logprobs.tokens) == text
    assert len(logprobs.token_logprobs) == len(logprobs.tokens) == len(logprobs.top_logprobs)
    position = 0
    for token, offset, top in zip(logprobs.tokens, logprobs.text_offset, logprobs.top_logprobs):
        assert offset == position and token in top and 2 <= len(top) <= 3
        position += len(token)
    zero = client.completions.create(model=model, prompt=PROMPT, max_tokens=2, temperature=0, logprobs=0)
    assert all(len(top) == 1 for top in zero.choices[0].logprobs.top_logprobs)
