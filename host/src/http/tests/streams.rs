use met_backend_api::ErrorKind;

use super::*;
use crate::engine::testing::error;

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn each_token_is_an_event_and_the_usage_comes_last() {
    let server = Server::start().await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3}));
    let reply = server.client().await.post(PATH, &body).await;
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let events = reply.events();
    let deltas: Vec<_> = events
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].clone())
        .collect();
    assert_eq!(
        deltas,
        [
            json!(""),
            json!("a"),
            json!("b"),
            json!("c"),
            Value::Null,
            Value::Null
        ]
    );
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(
        events[5]["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    assert_eq!(events[5]["choices"], json!([]));
    assert!(!reply.text().contains("\nid:") && !reply.text().contains("\nretry:"));
}

#[tokio::test]
async fn a_stop_text_never_shows_in_a_stream() {
    let server = Server::start().await;
    let reply = server
        .client()
        .await
        .post(
            PATH,
            &chat(json!({"stream": true, "stop": "cde", "logprobs": true})),
        )
        .await;
    let events = reply.events();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "ab");
    let tokens = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten();
    assert_eq!(
        tokens
            .map(|token| token["token"].as_str().unwrap())
            .collect::<String>(),
        "ab"
    );
    server.until_idle().await;
}

#[tokio::test]
async fn choices_of_a_stream_interleave() {
    let server = Server::start().await;
    server.device.hold("collect");
    let mut client = server.client().await;
    let body = chat(json!({"stream": true, "n": 3, "max_tokens": 5})).to_string();
    client.send("POST", PATH, "", body.as_bytes()).await;
    server
        .until(|counts| counts.waiting == 0 && counts.prefilling + counts.active == 3)
        .await;
    // Each has its first token before any has its second.
    server.device.pass();
    let mut reply = client.head().await;
    while reply.text().matches(r#""content":"a""#).count() < 3 {
        assert!(!reply.text().contains("keep-alive"), "{}", reply.text());
        let chunk = client.chunk(&mut reply).await.unwrap();
        reply.body.extend(chunk);
    }
    server.device.release();
    let mut texts = vec![String::new(); 3];
    for event in client.finish(reply).await.events() {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or(""));
    }
    assert_eq!(texts, ["abcde"; 3]);
}

#[tokio::test]
async fn a_connection_serves_on_after_a_stream() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for _ in 0..3 {
        assert_eq!(
            client
                .post(PATH, &chat(json!({"stream": true})))
                .await
                .events()
                .len(),
            28
        );
        assert_eq!(client.post(PATH, &chat(json!({}))).await.status, 200);
    }
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_a_status_that_is_tried_again() {
    let server = Server::start().await;
    server
        .device
        .fail("collect", [error(ErrorKind::Invalid, "no such thing")]);
    let reply = server
        .client()
        .await
        .post(PATH, &chat(json!({"stream": true})))
        .await;
    assert_eq!(reply.status, 400);
    server
        .device
        .fail("collect", [error(ErrorKind::Fault, "the card is gone")]);
    let reply = server
        .client()
        .await
        .post(PATH, &chat(json!({"stream": true})))
        .await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "backend_failed");
    assert!(
        !error["message"].as_str().unwrap().contains("card"),
        "the reason is the operator's: {error}"
    );
}

#[tokio::test]
async fn a_failure_within_a_stream_is_its_last_event() {
    let server = Server::start().await;
    server.device.set_step_time(Duration::from_millis(5));
    let mut client = server.client().await;
    client
        .send(
            "POST",
            PATH,
            "",
            chat(json!({"stream": true, "ignore_eos": true}))
                .to_string()
                .as_bytes(),
        )
        .await;
    let mut reply = client.head().await;
    reply.body = client.chunk(&mut reply).await.unwrap();
    server
        .device
        .fail("collect", [error(ErrorKind::Fault, "the card is gone")]);
    let reply = client.finish(reply).await;
    assert_eq!(reply.events().last().unwrap()["error"]["code"], "backend_failed");
    let health = client.get("/health").await;
    assert_eq!(health.status, 503);
    assert!(health.text().contains("the card is gone"), "{}", health.text());
}

#[tokio::test]
async fn a_client_that_leaves_is_cancelled() {
    let server = Server::start().await;
    server.device.set_step_time(Duration::from_millis(5));
    for stream in [true, false] {
        let mut client = server.client().await;
        let body = chat(json!({"stream": stream, "ignore_eos": true})).to_string();
        client.send("POST", PATH, "", body.as_bytes()).await;
        server.until(|counts| counts.active == 1).await;
        drop(client);
        server.until_idle().await;
    }
}

#[tokio::test]
async fn two_hundred_clients_that_leave_mid_stream_leave_nothing_behind() {
    let server = Server::start().await;
    // None is answered before the last one has come.
    server.device.set_step_time(Duration::from_millis(200));
    let body = chat(json!({"stream": true, "ignore_eos": true})).to_string();
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut client = server.client().await;
        client.send("POST", PATH, "", body.as_bytes()).await;
        clients.push(client);
    }
    server
        .until(|counts| {
            counts.active + counts.prefilling + counts.preempted + counts.swapped + counts.waiting == 200
        })
        .await;
    drop(clients);
    server.until_idle().await;
    assert_eq!(
        server.client().await.post(PATH, &chat(json!({}))).await.status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let server = Server::start().await;
    server.device.hold("collect");
    let mut client = server.client().await;
    client
        .send(
            "POST",
            PATH,
            "",
            chat(json!({"stream": true})).to_string().as_bytes(),
        )
        .await;
    let mut reply = client.head().await;
    for _ in 0..3 {
        assert_eq!(client.chunk(&mut reply).await.unwrap(), b": keep-alive\n\n");
    }
    server.device.release();
}

#[tokio::test]
async fn a_client_that_does_not_read_is_paused_then_given_up_and_others_go_on() {
    let options = EngineOptions {
        channel: 16,
        slow_client: Duration::from_secs(2),
        ..EngineOptions::default()
    };
    let server = Server::start_with(options, None).await;
    let body =
        completion(json!({"stream": true, "ignore_eos": true, "n": 4, "max_tokens": 1000, "logprobs": 5}));
    let mut slow = server.slow_client().await;
    slow.send("POST", "/v1/completions", "", body.to_string().as_bytes())
        .await;
    let reply = slow.head().await;
    server.until(|counts| counts.paused > 0).await;
    assert_eq!(
        server.client().await.post(PATH, &chat(json!({}))).await.status,
        200
    );
    server
        .until(|counts| counts.waiting + counts.prefilling + counts.active + counts.preempted == 0)
        .await;
    assert_eq!(server.engine.snapshot().counts.blocks_used, 0);
    // It is told when it reads again.
    let reply = slow.finish(reply).await;
    assert_eq!(reply.events().last().unwrap()["error"]["code"], "slow_client");
    server.until_idle().await;
}
