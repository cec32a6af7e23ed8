mod replies;

use serde_json::{Value, json};

use super::*;
use crate::{http::ApiError, request::SessionId};

fn chat_with(fields: Value) -> Result<ChatRequest, ApiError> {
    let mut body = json!({"model": "chat", "messages": [{"role": "user", "content": "Hi"}]});
    merge(&mut body, fields);
    ChatRequest::parse(body.to_string().as_bytes())
}

fn completion_with(fields: Value) -> Result<CompletionRequest, ApiError> {
    let mut body = json!({"model": "chat", "prompt": "Hi"});
    merge(&mut body, fields);
    CompletionRequest::parse(body.to_string().as_bytes())
}

fn merge(body: &mut Value, fields: Value) {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
}

#[test]
fn a_chat_of_all_parameters_is_read() {
    let request = chat_with(json!({
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]},
            {"role": "assistant", "content": "c", "refusal": null, "tool_calls": null, "annotations": []},
            {"role": "tool", "tool_call_id": "1", "content": "d"},
        ],
        "n": 3, "stop": ["x", "y"], "seed": -5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"7": 2.5, "3": -100},
        "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 4, "stream": true, "ignore_eos": true,
        "stream_options": {"include_usage": true}, "user": "u", "metadata": {"k": "v"}, "store": false,
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "service_tier": "auto",
        "session_id": "x".repeat(128),
    }))
    .unwrap();
    let messages: Vec<_> = request
        .messages
        .iter()
        .map(|m| (m.role.name(), m.content.as_str()))
        .collect();
    assert_eq!(
        messages,
        [
            ("system", "Be brief."),
            ("user", "ab\n"),
            ("assistant", "c"),
            ("tool", "d")
        ]
    );
    assert_eq!(request.messages[1].fields["name"], "Ann");
    assert_eq!(request.messages[3].fields["tool_call_id"], "1");
    assert_eq!(request.logprobs, Some(4));
    let options = request.options;
    assert_eq!((options.n, options.max_tokens), (3, Some(9)));
    assert_eq!(options.stop, ["x", "y"]);
    assert_eq!(options.session, SessionId::new(&"x".repeat(128)));
    assert_eq!(options.bias, [(3, -100.0), (7, 2.5)]);
    assert!(options.ignore_eos && options.stream && options.include_usage);
    let sampling = options.sampling;
    assert_eq!(sampling.seed, (-5i64) as u64);
    assert_eq!(
        (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.top_k
        ),
        (0.5, 0.9, 0.1, 40)
    );
    assert_eq!(
        (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty
        ),
        (1.1, 1.0, -1.0)
    );
}

#[test]
fn a_top_p_of_zero_is_the_smallest_that_a_backend_takes() {
    let options = chat_with(json!({"top_p": 0})).unwrap().options;
    assert!(options.sampling.top_p > 0.0 && options.sampling.top_p < 1e-30);
}

#[test]
fn absent_parameters_have_openais_defaults() {
    let request = chat_with(json!({"temperature": null, "stop": null, "tools": null})).unwrap();
    let options = request.options;
    assert_eq!((options.n, options.max_tokens, request.logprobs), (1, None, None));
    assert_eq!(
        (
            options.sampling.temperature,
            options.sampling.top_p,
            options.sampling.top_k
        ),
        (1.0, 1.0, 0)
    );
    assert!(!options.stream && !options.ignore_eos && options.stop.is_empty() && options.bias.is_empty());
    assert_ne!(
        options.sampling.seed,
        chat_with(json!({})).unwrap().options.sampling.seed
    );
}

#[test]
fn a_wrong_chat_parameter_is_refused_by_name() {
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "Hi"}, message]});
    let many_biases: Value = (0..2000)
        .map(|token| (token.to_string(), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for (fields, param) in [
        (json!({"model": null}), "model"),
        (json!({"model": 5}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (message(json!("Hi")), "messages[1]"),
        (message(json!({"content": "Hi"})), "messages[1].role"),
        (
            message(json!({"role": "robot", "content": "Hi"})),
            "messages[1].role",
        ),
        (message(json!({"role": "user"})), "messages[1].content"),
        (
            message(json!({"role": "user", "content": 5})),
            "messages[1].content",
        ),
        (
            message(json!({"role": "user", "content": ["Hi"]})),
            "messages[1].content[0]",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})),
            "messages[1].content[0].type",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text"}]})),
            "messages[1].content[0].text",
        ),
        (
            message(json!({"role": "user", "content": "Hi", "mood": "good"})),
            "messages[1].mood",
        ),
        (
            message(json!({"role": "tool", "content": "Hi"})),
            "messages[1].tool_call_id",
        ),
        (
            message(json!({"role": "assistant", "content": "Hi", "tool_calls": [{}]})),
            "messages[1].tool_calls",
        ),
        (json!({"n": 0}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"n": 1000}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", 1]}), "stop"),
        (json!({"stop": "a".repeat(2000)}), "stop"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"seed": "1"}), "seed"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": []}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias"),
        (json!({"logit_bias": {"word": 1}}), "logit_bias"),
        (json!({"logit_bias": {"-1": 1}}), "logit_bias"),
        (json!({"logit_bias": many_biases}), "logit_bias"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens"),
        (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_tokens"),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {}}), "stream_options"),
        (json!({"stream": true, "stream_options": 1}), "stream_options"),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (
            json!({"stream": true, "stream_options": {"fast": true}}),
            "stream_options.fast",
        ),
        (json!({"session_id": 7}), "session_id"),
        (json!({"session_id": ""}), "session_id"),
        (json!({"session_id": "two words"}), "session_id"),
        (json!({"session_id": "s\u{e9}ance"}), "session_id"),
        (json!({"session_id": "x".repeat(129)}), "session_id"),
        (json!({"metadata": {"k": 1}}), "metadata"),
        (json!({"user": 1}), "user"),
        (json!({"store": true}), "store"),
        (json!({"service_tier": "flex"}), "service_tier"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"prompt": "Hi"}), "prompt"),
        (json!({"echo": false}), "echo"),
        (json!({"temprature": 1}), "temprature"),
    ] {
        let error = chat_with(fields.clone()).expect_err(&fields.to_string());
        assert_eq!(
            (error.status.as_u16(), error.param.as_deref()),
            (400, Some(param)),
            "{fields}: {error}"
        );
    }
}

#[test]
fn a_wrong_completion_parameter_is_refused_by_name() {
    for (fields, param) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": {"text": "Hi"}}), "prompt"),
        (json!({"prompt": ["Hi", 1]}), "prompt"),
        (json!({"prompt": [1, "Hi"]}), "prompt"),
        (json!({"prompt": [[1], 2]}), "prompt"),
        (json!({"prompt": [[1], []]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": [4294967296u64]}), "prompt"),
        (json!({"prompt": ["Hi", "Ho"], "n": 65}), "n"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"echo": true}), "echo"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"messages": []}), "messages"),
        (json!({"max_completion_tokens": 5}), "max_completion_tokens"),
    ] {
        let error = completion_with(fields.clone()).expect_err(&fields.to_string());
        assert_eq!(
            (error.status.as_u16(), error.param.as_deref()),
            (400, Some(param)),
            "{fields}: {error}"
        );
    }
}

#[test]
fn prompts_come_as_text_or_tokens_one_or_many() {
    let prompts = |prompt: Value| completion_with(json!({"prompt": prompt})).unwrap().prompts;
    let text = |text: &str| Prompt::Text(text.into());
    assert_eq!(prompts(json!("a")), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
    assert_eq!(
        prompts(json!([[1, 2], [3]])),
        [Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])]
    );
    let spaced = br#"{"model": "chat", "prompt": [ "a" ], "best_of": 1}"#;
    assert_eq!(CompletionRequest::parse(spaced).unwrap().prompts, [text("a")]);
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "null",
        "[]",
        "{",
        "{}}",
        "{\"model\": \"a\"",
        "\u{feff}{}",
        deep.as_str(),
    ] {
        assert_eq!(
            ChatRequest::parse(body.as_bytes()).unwrap_err().status.as_u16(),
            400,
            "{body:.20}"
        );
    }
    assert_eq!(
        ChatRequest::parse(b"{\"model\": \"\xff\"}")
            .unwrap_err()
            .status
            .as_u16(),
        400
    );
    let twice = ChatRequest::parse(br#"{"model": "a", "model": "b"}"#).unwrap_err();
    assert!(twice.message.contains("'model' comes twice"), "{twice}");
}

#[test]
fn a_nested_value_does_not_exhaust_the_stack() {
    let body = format!(
        r#"{{"model": "chat", "messages": {}}}"#,
        "[".repeat(1_000_000) + &"]".repeat(1_000_000)
    );
    assert_eq!(
        ChatRequest::parse(body.as_bytes()).unwrap_err().status.as_u16(),
        400
    );
}
