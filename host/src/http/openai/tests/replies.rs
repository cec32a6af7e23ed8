use bytes::BytesMut;

use super::*;
use crate::request::FinishReason;

fn logprobs() -> Vec<TokenLogprob> {
    let entry = |bytes: &[u8], logprob| Logprob {
        bytes: bytes.to_vec(),
        logprob,
    };
    vec![
        TokenLogprob {
            token: entry(b"Hi", -0.5),
            top: vec![entry(b"Ho", -0.25), entry(b"Hi", -0.5)],
            offset: 0,
        },
        TokenLogprob {
            token: entry(b"\xf0\x9f", f32::NEG_INFINITY),
            top: vec![],
            offset: 2,
        },
    ]
}

fn events(write: impl Fn(&mut BytesMut)) -> Vec<Value> {
    let mut out = BytesMut::new();
    write(&mut out);
    let text = String::from_utf8(out.to_vec()).unwrap();
    let datas = text
        .strip_suffix("\n\n")
        .unwrap()
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap());
    datas.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn a_whole_chat_has_openais_shape() {
    let head = Head::new(Form::Chat, "chat".into(), "fp".into(), false);
    let choice = WholeChoice {
        text: "Hi".into(),
        logprobs: Some(logprobs()),
        finish: FinishReason::Length,
    };
    let usage = Usage {
        prompt_tokens: 3,
        completion_tokens: 2,
        total_tokens: 5,
        prompt_tokens_details: PromptDetails { cached_tokens: 1 },
    };
    let reply: Value = serde_json::from_slice(&head.whole(&[choice], usage).unwrap()).unwrap();
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(
        (&reply["object"], &reply["model"]),
        (&json!("chat.completion"), &json!("chat"))
    );
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1}
        })
    );
    assert_eq!(
        reply["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": null},
            "logprobs": {"refusal": null, "content": [
                {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [
                    {"token": "Ho", "logprob": -0.25, "bytes": [72, 111]},
                    {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
                ]},
                {"token": "\\xf0\\x9f", "logprob": -9999.0, "bytes": [240, 159], "top_logprobs": []},
            ]},
            "finish_reason": "length",
        }])
    );
}

#[test]
fn a_whole_completion_has_openais_shape() {
    let head = Head::new(Form::Completion, "chat".into(), "fp".into(), false);
    let choice = WholeChoice {
        text: "Hi".into(),
        logprobs: Some(logprobs()),
        finish: FinishReason::Stop,
    };
    let reply: Value = serde_json::from_slice(&head.whole(&[choice], Usage::default()).unwrap()).unwrap();
    assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(reply["object"], "text_completion");
    assert_eq!(
        reply["choices"],
        json!([{
            "index": 0,
            "text": "Hi",
            "logprobs": {
                "tokens": ["Hi", "bytes:\\xf0\\x9f"],
                "token_logprobs": [-0.5, -9999.0],
                "top_logprobs": [{"Hi": -0.5, "Ho": -0.25}, {"bytes:\\xf0\\x9f": -9999.0}],
                "text_offset": [0, 2],
            },
            "finish_reason": "stop",
        }])
    );
}

#[test]
fn chat_chunks_open_with_the_role_and_end_with_the_usage() {
    let head = Head::new(Form::Chat, "chat".into(), "fp".into(), true);
    let chunks = events(|out| {
        head.write_opening(out, 1);
        head.write_text(out, 1, "a\nb\u{2028}", None);
        head.write_finish(out, 1, FinishReason::Stop);
        head.write_usage(out, Usage::default());
    });
    let delta = |chunk: &Value| {
        (
            chunk["choices"][0]["delta"].clone(),
            chunk["choices"][0]["finish_reason"].clone(),
        )
    };
    assert_eq!(
        delta(&chunks[0]),
        (
            json!({"role": "assistant", "content": "", "refusal": null}),
            json!(null)
        )
    );
    assert_eq!(
        delta(&chunks[1]),
        (json!({"content": "a\nb\u{2028}"}), json!(null))
    );
    assert_eq!(delta(&chunks[2]), (json!({}), json!("stop")));
    assert!(
        chunks[..3]
            .iter()
            .all(|c| c["usage"].is_null() && c.get("usage").is_some())
    );
    assert!(chunks[..3].iter().all(|c| c["choices"][0]["index"] == 1));
    assert_eq!(chunks[3]["choices"], json!([]));
    assert_eq!(chunks[3]["usage"]["total_tokens"], 0);
    assert!(
        chunks
            .iter()
            .all(|c| c["object"] == "chat.completion.chunk" && c["id"] == chunks[0]["id"])
    );
}

#[test]
fn completion_chunks_carry_text_and_no_usage_unasked() {
    let head = Head::new(Form::Completion, "chat".into(), "fp".into(), false);
    let chunks = events(|out| {
        head.write_opening(out, 0);
        head.write_text(out, 0, "a", None);
        head.write_finish(out, 0, FinishReason::Length);
        head.write_usage(out, Usage::default());
    });
    assert_eq!(chunks.len(), 2);
    assert_eq!(
        chunks[0]["choices"],
        json!([{"index": 0, "text": "a", "logprobs": null, "finish_reason": null}])
    );
    assert_eq!(
        chunks[1]["choices"],
        json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": "length"}])
    );
    assert!(chunks.iter().all(|c| c.get("usage").is_none()));
}
