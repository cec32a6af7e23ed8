import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "options, param",
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ],
)
def test_a_wrong_parameter_is_named(client, model, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, **options})
    assert error.value.param == param
    assert error.value.type == "invalid_request_error" and error.value.body["message"]


@pytest.mark.parametrize(
    "options, param",
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [99999999]}, "prompt"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_a_wrong_completion_parameter_is_named(client, model, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**{"model": model, "prompt": "Hi", **options})
    assert error.value.param == param


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert error.value.code == "model_not_found" and error.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


@pytest.mark.parametrize("options", [{"max_tokens": 10**9}, {"messages": [{"role": "user", "content": "sea " * 10**5}]}])
def test_what_exceeds_the_context_is_refused(client, model, options):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, **options})
    assert error.value.code == "context_length_exceeded"


def test_models_are_listed(client, model):
    listed = client.models.list()
    assert model in [entry.id for entry in listed.data]
    entry = client.models.retrieve(model)
    assert entry.object == "model" and entry.created > 0 and entry.owned_by


def test_every_error_has_the_same_shape(raw, model):
    big = b'{"model": "' + b"x" * (5 << 20) + b'"}'
    json = {"content-type": "application/json"}
    for method, path, status, options in [
        ("GET", "/nowhere", 404, {}),
        ("GET", "/v1/nowhere", 404, {}),
        ("GET", "/v1/chat/completions", 405, {}),
        ("DELETE", "/v1/models", 405, {}),
        ("POST", "/v1/chat/completions", 400, {"content": b"{", "headers": json}),
        ("POST", "/v1/chat/completions", 400, {"content": b"\xff", "headers": json}),
        ("POST", "/v1/chat/completions", 413, {"content": big, "headers": json}),
        ("POST", "/v1/chat/completions", 415, {"content": b"{}", "headers": {"content-type": "text/plain"}}),
    ]:
        response = raw.request(method, path, **options)
        assert response.status_code == status, (method, path)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}, (method, path)


def test_health_and_metrics(raw):
    assert raw.get("/health/live").status_code == 200
    assert raw.get("/health").status_code == 200
    assert raw.head("/health").status_code == 200
    metrics = raw.get("/metrics")
    assert metrics.status_code == 200 and metrics.headers["content-type"].startswith("text/plain")
    for name in [
        "met_requests_running", "met_requests_waiting", "met_prompt_tokens_total", "met_generated_tokens_total",
        "met_time_to_first_token_seconds_bucket", "met_inter_token_seconds_bucket", "met_kv_blocks_used",
        "met_http_requests_total",
    ]:
        assert f"\n{name}{{" in metrics.text, name
