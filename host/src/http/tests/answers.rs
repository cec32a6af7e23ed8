use super::*;

#[tokio::test]
async fn a_chat_is_answered_to_its_end() {
    let server = Server::start().await;
    let reply = server
        .client()
        .await
        .post("/v1/chat/completions", &chat(json!({})))
        .await;
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/json"))
    );
    let reply = reply.json();
    assert_eq!(reply["model"], "chat");
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["content"], "abcdefghijklmnopqrstuvwxyz");
    assert_eq!(
        (&choice["finish_reason"], &choice["logprobs"]),
        (&json!("stop"), &Value::Null)
    );
    // The template puts one token before the message, and one after it.
    assert_eq!(
        reply["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 26, "total_tokens": 30, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    assert!(reply["system_fingerprint"].as_str().unwrap().starts_with("fp_"));
}

#[tokio::test]
async fn max_tokens_or_the_context_end_an_answer() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for fields in [json!({"max_tokens": 3}), json!({"max_completion_tokens": 3})] {
        let reply = client.post("/v1/chat/completions", &chat(fields)).await.json();
        assert_eq!(reply["choices"][0]["message"]["content"], "abc");
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
    }
    let endless = client
        .post("/v1/completions", &completion(json!({"ignore_eos": true})))
        .await
        .json();
    assert_eq!(endless["choices"][0]["finish_reason"], "length");
    assert_eq!(endless["usage"]["total_tokens"], 64 * 16);
}

#[tokio::test]
async fn a_stop_text_is_cut_off_and_counted() {
    let server = Server::start().await;
    let reply = server
        .client()
        .await
        .post("/v1/chat/completions", &chat(json!({"stop": ["xyz", "efg"]})))
        .await
        .json();
    assert_eq!(reply["choices"][0]["message"]["content"], "abcd");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["usage"]["completion_tokens"], 7);
    server.until_idle().await;
}

#[tokio::test]
async fn every_choice_of_every_prompt_has_its_index() {
    let server = Server::start().await;
    let body = completion(json!({"prompt": ["Hi:", "abc"], "n": 2, "max_tokens": 2}));
    let reply = server.client().await.post("/v1/completions", &body).await.json();
    let texts: Vec<_> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["index"].clone(), c["text"].clone()))
        .collect();
    let expected =
        [(0, "ab"), (1, "ab"), (2, "de"), (3, "de")].map(|(index, text)| (json!(index), json!(text)));
    assert_eq!(texts, expected);
    assert_eq!(
        reply["usage"],
        json!({"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn logprobs_end_where_the_text_ends() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let body = completion(json!({"stop": "cd", "logprobs": 1}));
    let reply = client.post("/v1/completions", &body).await.json();
    assert_eq!(
        reply["choices"][0]["logprobs"],
        json!({
            "tokens": ["a", "b"],
            "token_logprobs": [-97.0, -98.0],
            "top_logprobs": [{"a": -97.0, "<end>": -97.0}, {"b": -98.0, "<end>": -98.0}],
            "text_offset": [0, 1],
        })
    );
    let body = chat(json!({"max_tokens": 1, "logprobs": true, "top_logprobs": 1}));
    let reply = client.post("/v1/chat/completions", &body).await.json();
    assert_eq!(
        reply["choices"][0]["logprobs"]["content"],
        json!([{
            "token": "a", "logprob": -97.0, "bytes": [97],
            "top_logprobs": [{"token": "<end>", "logprob": -97.0, "bytes": [60, 101, 110, 100, 62]}],
        }])
    );
}

#[tokio::test]
async fn what_the_model_does_not_have_is_refused_by_name() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for (path, body, status, param, code) in [
        (
            "/v1/chat/completions",
            chat(json!({"model": "other"})),
            404,
            "model",
            "model_not_found",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"max_tokens": 2000})),
            400,
            "messages",
            "context_length_exceeded",
        ),
        (
            "/v1/completions",
            completion(json!({"prompt": vec![1; 1024]})),
            400,
            "prompt",
            "context_length_exceeded",
        ),
        (
            "/v1/completions",
            completion(json!({"prompt": [1, 256]})),
            400,
            "prompt",
            "invalid_value",
        ),
        (
            "/v1/completions",
            completion(json!({"prompt": ""})),
            400,
            "prompt",
            "invalid_value",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"logit_bias": {"256": 1}})),
            400,
            "logit_bias",
            "invalid_value",
        ),
    ] {
        let reply = client.post(path, &body).await;
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"], &error["code"]),
            (status, &json!(param), &json!(code)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let list = client.get("/v1/models").await.json();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"]),
        (&json!("list"), &json!("chat"))
    );
    assert_eq!(client.get("/v1/models/chat").await.json(), list["data"][0]);
    let missing = client.get("/v1/models/org/other").await;
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[tokio::test]
async fn readiness_says_why_not() {
    let server = Server::start().await;
    let mut client = server.client().await;
    assert_eq!(
        client.get("/health").await.json(),
        json!({"status": "ready", "models": ["chat"]})
    );
    server.slots.get("chat").unwrap().switch(None);
    let reply = client.get("/health").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("2")));
    assert_eq!(reply.json()["error"]["message"], "the model 'chat' is not loaded");
    assert_eq!(client.get("/health/live").await.status, 200);
    let refused = client.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_status() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.get("/v1/models/metrics-test").await;
    client.get("/made-up").await;
    let reply = client.get("/metrics").await;
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    for route in ["/v1/models/{*id}", "unknown"] {
        let line = format!(r#"met_http_requests_total{{route="{route}",method="GET",status="404"}}"#);
        assert!(reply.text().contains(&line), "{}", reply.text());
    }
}

#[tokio::test]
async fn gauges_are_those_of_the_generation_that_serves_and_go_with_their_slot() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let slot = server.slots.add("gauged");
    let of_blocks = |blocks: u32| {
        let options = EngineOptions::default();
        let device = FakeDevice::new(blocks, 16, 8);
        let engine = Engine::start("gauged", options, move || Ok(Box::new(device))).unwrap();
        Generation::new(slot.next_number(), engine, Arc::new(text::text()))
    };
    let line = |blocks: u32| format!("met_kv_blocks_total{{model=\"gauged\"}} {blocks}\n");

    let old = of_blocks(48);
    slot.switch(Some(old.clone()));
    let page = client.get("/metrics").await;
    let page = page.text();
    assert!(page.contains(&line(48)), "{page}");
    slot.switch(Some(of_blocks(24)));
    // The last that the old one does.
    old.teardown(Duration::from_secs(60));
    let page = client.get("/metrics").await;
    let page = page.text();
    assert!(page.contains(&line(24)) && !page.contains(&line(48)), "{page}");

    server.slots.remove("gauged");
    let end = Instant::now() + Duration::from_secs(60);
    while client.get("/metrics").await.text().contains(&line(24)) {
        assert!(Instant::now() < end, "the slot is gone");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
