use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        self.0 = hasher.finish();
        self.0 as usize % bound
    }
}

const VALUES: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1.5",
    "1e999",
    "99999999999999999999",
    "\"\"",
    "\"\\ud800\"",
    "\"\u{1f600}\"",
    "[]",
    "[[]]",
    "{}",
    "[null]",
    "{\"a\":{\"b\":[1,2,3]}}",
    "\"user\"",
    "2",
];
const BYTES: &[u8] = b"{}[]\",:\\\0\x7f\xff\xc3 019eE+-.ntfu";

/// A valid body with something wrong: at the level of bytes, or of a value.
fn mutate(body: &str, random: &mut Random) -> Vec<u8> {
    let mut bytes = body.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let end = at + random.below((bytes.len() - at).min(8) + 1);
        match random.below(6) {
            0 => bytes.truncate(at.max(1)),
            1 => drop(bytes.drain(at..end)),
            2 => bytes[at] = BYTES[random.below(BYTES.len())],
            3 => bytes.insert(at, BYTES[random.below(BYTES.len())]),
            4 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            // A value in place of another one.
            _ => {
                let from = bytes[at..]
                    .iter()
                    .position(|byte| *byte == b':')
                    .map_or(at, |offset| at + offset + 1);
                let to = bytes[from..]
                    .iter()
                    .position(|byte| b",}".contains(byte))
                    .map_or(from, |offset| from + offset);
                bytes.splice(from..to, VALUES[random.below(VALUES.len())].bytes());
            }
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
    bytes
}

#[tokio::test]
async fn ten_thousand_malformed_requests_give_no_500() {
    let server = Server::start().await;
    let chat = chat(json!({
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "n": 1, "stop": ["x"], "seed": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
        "presence_penalty": 1, "logit_bias": {"7": 2.5}, "max_tokens": 3, "logprobs": true, "top_logprobs": 2,
        "stream": true, "stream_options": {"include_usage": true}, "metadata": {"k": "v"}, "tools": [],
        "response_format": {"type": "text"},
    }))
    .to_string();
    let completion =
        completion(json!({"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "stop": "x", "seed": 3}))
            .to_string();
    let mut random = Random(1);
    let mut client = server.client().await;
    let mut refused = 0;
    for number in 0..10_000 {
        let (path, body) = match number % 2 {
            0 => ("/v1/chat/completions", &chat),
            _ => ("/v1/completions", &completion),
        };
        let body = mutate(body, &mut random);
        let reply = client.request("POST", path, "", &body).await;
        let shown = String::from_utf8_lossy(&body);
        assert!(
            matches!(reply.status, 200 | 400 | 404),
            "{}: {shown}\n{}",
            reply.status,
            reply.text()
        );
        if reply.status != 200 {
            assert!(reply.json()["error"]["message"].is_string(), "{shown}");
            refused += 1;
        }
    }
    assert!(refused > 5000, "only {refused} were wrong");
    server.until_idle().await;
}
