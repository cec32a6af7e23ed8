import pytest

MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]


def test_an_answer_has_text_and_exact_usage(client, model):
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, temperature=0)
    assert reply.object == "chat.completion" and reply.model == model
    assert reply.id.startswith("chatcmpl-") and reply.created > 0 and reply.system_fingerprint
    [choice] = reply.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert 0 < usage.completion_tokens <= 12 and usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_the_limit_ends_an_answer_with_length(client, model):
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        reply = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, **limit)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage.completion_tokens == 3


def test_roles_and_parts_reach_the_prompt(client, model):
    def prompt_tokens(messages):
        reply = client.chat.completions.create(model=model, messages=messages, max_tokens=1)
        return reply.usage.prompt_tokens

    one = prompt_tokens([{"role": "user", "content": "Hello there"}])
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    assert prompt_tokens([{"role": "user", "content": parts}]) == one
    conversation = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Hello there"},
    ]
    assert prompt_tokens(conversation) > prompt_tokens(conversation[:2])
    system = [{**conversation[0], "role": "system"}, *conversation[1:]]
    assert prompt_tokens(system) == prompt_tokens(conversation)


def test_an_answer_can_be_sent_back_as_the_client_dumps_it(client, model):
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3)
    messages = [*MESSAGES, reply.choices[0].message.model_dump(), {"role": "user", "content": "More."}]
    assert client.chat.completions.create(model=model, messages=messages, max_tokens=3).choices


def test_n_choices_share_one_prompt(client, model):
    one = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6)
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6, n=4, seed=1, temperature=1.5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in reply.choices}) > 1
    assert reply.usage.prompt_tokens == one.usage.prompt_tokens
    assert 4 <= reply.usage.completion_tokens <= 24


def test_a_seed_reproduces_and_its_absence_varies(client, model):
    def answer(**seed):
        reply = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=24, temperature=1.5, **seed
        )
        return reply.choices[0].message.content

    assert answer(seed=7) == answer(seed=7)
    assert len({answer(seed=seed) for seed in range(4)}) > 1
    assert len({answer() for _ in range(4)}) > 1


def test_a_stop_text_is_not_part_of_the_answer_and_its_tokens_count(client, model):
    def ask(**options):
        return client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=24, temperature=0, **options
        )

    whole = ask()
    text = whole.choices[0].message.content
    stop = text[5:9]
    stopped = ask(stop=["\u0000never", stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert 0 < stopped.usage.completion_tokens <= whole.usage.completion_tokens
    assert "".join(
        chunk.choices[0].delta.content or "" for chunk in ask(stop=stop, stream=True)
    ) == text[: text.index(stop)]


def test_logprobs_cover_the_answer(client, model):
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    entries = reply.choices[0].logprobs.content
    answer = reply.choices[0].message.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        # Greedy takes the most probable one.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
    bare = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, logprobs=True)
    assert all(entry.top_logprobs == [] for entry in bare.choices[0].logprobs.content)
    none = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4)
    assert none.choices[0].logprobs is None


def test_a_bias_forbids_and_forces(client, model):
    def first(**options):
        reply = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=1, temperature=0, logprobs=True, **options
        )
        return reply.choices[0].logprobs.content[0].token

    forced = {first(logit_bias={str(token): 100}) for token in (1000, 2000)}
    assert len(forced) == 2 and first() not in forced


def test_sampling_parameters_are_accepted(client, model):
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=4, temperature=0.7, top_p=0.9, presence_penalty=0.5,
        frequency_penalty=0.5, user="someone", metadata={"purpose": "test"}, store=False, tools=[],
        response_format={"type": "text"},
        extra_body={"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True},
    )
    assert reply.usage.completion_tokens == 4
