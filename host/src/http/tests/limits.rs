use super::*;

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn every_error_has_openais_shape() {
    let server = Server::start().await;
    let json_type = "Content-Type: application/json\r\n";
    let big = vec![b' '; 5 << 20];
    for (method, path, headers, body, status) in [
        ("GET", "/nowhere", "", &b""[..], 404),
        ("POST", "/v1/nowhere", "", &big, 404),
        ("GET", PATH, "", b"", 405),
        ("DELETE", "/v1/models", "", &big, 405),
        ("OPTIONS", PATH, "", b"", 405),
        ("BREW", PATH, "", b"", 405),
        ("POST", PATH, json_type, b"{", 400),
        ("POST", PATH, json_type, &big, 413),
        ("POST", PATH, "Content-Type: text/plain\r\n", b"{}", 415),
    ] {
        let reply = server.client().await.request(method, path, headers, body).await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(reply.header("x-request-id").is_some());
        code(&reply);
        assert_eq!(reply.header("allow").is_some(), status == 405, "{method} {path}");
    }
}

/// Asks for the shape of an error, and gives its code.
fn code(reply: &client::Reply) -> String {
    let mut error = reply.json();
    let mut names: Vec<_> = error["error"].as_object_mut().unwrap().keys().cloned().collect();
    names.sort();
    assert_eq!(names, ["code", "message", "param", "type"], "{}", reply.text());
    error["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_refused_in_openais_shape() {
    let server = Server::start().await;
    let many: String = (0..100).map(|n| format!("A{n}: b\r\n")).collect();
    for (head, status, expected) in [
        ("garbage\r\n\r\n".to_owned(), 400, "malformed_http"),
        ("GET /health HTTP/2.0\r\n\r\n".to_owned(), 400, "malformed_http"),
        (
            format!("GET /health HTTP/1.1\r\n{many}\r\n"),
            431,
            "headers_too_large",
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)),
            431,
            "headers_too_large",
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
            400,
            "malformed_http",
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(),
            400,
            "malformed_http",
        ),
    ] {
        for before in ["", "GET /health HTTP/1.1\r\nHost: test\r\n\r\n"] {
            let mut client = server.client().await;
            client.write(before.as_bytes()).await;
            client.write(head.as_bytes()).await;
            if !before.is_empty() {
                let mut healthy = client.head().await;
                assert_eq!(healthy.status, 200);
                client.chunk(&mut healthy).await.unwrap();
            }
            let mut reply = client.head().await;
            assert_eq!(
                (reply.status, reply.header("connection")),
                (status, Some("close")),
                "{head:.60}"
            );
            assert!(reply.header("x-request-id").is_some() && reply.header("date").is_some());
            reply.body = client.chunk(&mut reply).await.unwrap();
            assert_eq!(code(&reply), expected, "{head:.60}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_longer_or_shorter_than_announced_is_refused() {
    let server = Server::start().await;
    let body = chat(json!({})).to_string();
    let announce = |length: usize| {
        format!("POST {PATH} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    // What is left over is no head.
    let mut client = server.client().await;
    client.write(announce(body.len() - 9).as_bytes()).await;
    for expected in ["", "malformed_http"] {
        let mut reply = client.head().await;
        assert_eq!(reply.status, 400);
        reply.body = client.chunk(&mut reply).await.unwrap();
        assert_eq!(code(&reply), expected);
    }
    assert!(client.rest().await.is_empty());
    // What is missing may come with a later request, whose body is then not JSON.
    let mut client = server.client().await;
    client.write(announce(body.len() + 5).as_bytes()).await;
    client.write(b"xxxxx").await;
    let mut reply = client.head().await;
    assert_eq!(reply.status, 400);
    reply.body = client.chunk(&mut reply).await.unwrap();
    code(&reply);
    // One that leaves instead is cancelled.
    let mut client = server.client().await;
    client.write(announce(body.len() + 5).as_bytes()).await;
    drop(client);
    // More than is ever read is refused before it comes.
    let mut client = server.client().await;
    client.write(announce(1 << 40).as_bytes()).await;
    let mut reply = client.head().await;
    reply.body = client.chunk(&mut reply).await.unwrap();
    assert_eq!((reply.status, code(&reply).as_str()), (413, "body_too_large"));
    server.until_idle().await;
}

#[tokio::test]
async fn head_and_a_missing_content_type_are_fine() {
    let server = Server::start().await;
    let mut client = server.client().await;
    assert_eq!(client.request("HEAD", "/health", "", b"").await.status, 200);
    assert_eq!(
        client
            .request("POST", PATH, "", chat(json!({})).to_string().as_bytes())
            .await
            .status,
        200
    );
    let charset = "Content-Type: application/json; charset=utf-8\r\n";
    assert_eq!(
        client
            .request("POST", PATH, charset, chat(json!({})).to_string().as_bytes())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_key_is_asked_for_where_there_is_one() {
    let server = Server::start_with(EngineOptions::default(), Some("secret")).await;
    let mut client = server.client().await;
    for (headers, status) in [
        ("", 401),
        ("Authorization: Bearer wrong!\r\n", 401),
        ("Authorization: Basic secret\r\n", 401),
        ("Authorization: Bearer secret\r\n", 200),
        ("authorization: bearer secret\r\n", 200),
    ] {
        let reply = client.request("GET", "/v1/models", headers, b"").await;
        assert_eq!(reply.status, status, "{headers}");
        assert!(status == 200 || reply.json()["error"]["code"] == "invalid_api_key");
    }
    assert_eq!(client.post(PATH, &chat(json!({}))).await.status, 401);
    assert_eq!(client.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_full_line_says_when_to_come_back() {
    let server = Server::start_with(
        EngineOptions {
            max_waiting: 2,
            ..EngineOptions::default()
        },
        None,
    )
    .await;
    server.device.hold("collect");
    let reply = server.client().await.post(PATH, &chat(json!({"n": 20}))).await;
    assert_eq!(reply.status, 429);
    assert!(reply.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(reply.json()["error"]["code"], "queue_full");
    // None of them was taken: the line is as it was.
    server.device.release();
    assert_eq!(
        server.client().await.post(PATH, &chat(json!({}))).await.status,
        200
    );
    server.until_idle().await;
}

#[tokio::test]
async fn a_stop_lets_running_answers_end() {
    let mut server = Server::start().await;
    server.device.set_step_time(Duration::from_millis(5));
    let mut client = server.client().await;
    client
        .send(
            "POST",
            PATH,
            "",
            chat(json!({"stream": true})).to_string().as_bytes(),
        )
        .await;
    let reply = client.head().await;
    server.stop.take().unwrap().send(()).unwrap();
    let reply = client.finish(reply).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    assert!(client.rest().await.is_empty());
    (&mut server.task).await.unwrap();
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_a_stop() {
    let mut server = Server::start().await;
    let mut idle = server.client().await;
    assert_eq!(idle.get("/health").await.status, 200);
    server.stop.take().unwrap().send(()).unwrap();
    (&mut server.task).await.unwrap();
    assert!(idle.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.write(b"GET /health HTTP/1.1\r\nHost: ").await;
    assert_eq!(String::from_utf8(client.rest().await).unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_cut_off() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client
        .write(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n{")
        .await;
    let mut reply = client.head().await;
    reply.body = client.chunk(&mut reply).await.unwrap();
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (408, &json!("body_timeout"))
    );
}
