//! Conversations that name their session, seen from outside: by the tokens that were found in the cache.

use super::*;

const PATH: &str = "/v1/chat/completions";
/// The template's two and the text's 98 tokens: 6 blocks are full.
const LENGTH: usize = 98;
const FULL: u64 = 96;

/// A message that begins like no other.
fn message(number: usize) -> String {
    let words = format!("{number} ").repeat(LENGTH);
    words[..LENGTH].to_owned()
}

/// Asks, and gives how many tokens were found in the cache.
async fn ask(client: &mut Client, number: usize, session: Option<&str>) -> u64 {
    let messages = json!([{"role": "user", "content": message(number)}]);
    let body = chat(json!({"messages": messages, "session_id": session, "max_tokens": 20}));
    let reply = client.post(PATH, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let cached = &reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap()
}

/// With a model of attention alone, and with one that has recurrent state.
async fn servers(session_ttl: Duration) -> [Server; 2] {
    let options = EngineOptions {
        session_ttl,
        ..EngineOptions::default()
    };
    let device = || FakeDevice::new(64, 16, 8);
    [
        Server::start_on(device(), options, None).await,
        Server::start_on(device().with_state(8, 8), options, None).await,
    ]
}

#[tokio::test]
async fn a_session_is_found_again_after_others_have_used_all_that_was_free() {
    for server in servers(Duration::from_secs(600)).await {
        let mut client = server.client().await;
        assert_eq!(ask(&mut client, 1, Some("mine")).await, 0);
        assert_eq!(ask(&mut client, 2, None).await, 0);
        assert_eq!(ask(&mut client, 2, None).await, FULL, "found by its prefix");
        for other in 10..40 {
            ask(&mut client, other, None).await;
        }
        assert_eq!(ask(&mut client, 2, None).await, 0, "nobody kept it");
        assert_eq!(ask(&mut client, 1, Some("mine")).await, FULL);
        let counts = server.engine.snapshot().counts;
        assert_eq!((counts.sessions, counts.blocks_used), (1, counts.blocks_pinned));
        let page = client.get("/metrics").await;
        let page = page.text();
        for name in ["met_sessions", "met_kv_blocks_pinned", "met_state_snapshots_used"] {
            assert!(page.contains(name), "{name}");
        }
    }
}

#[tokio::test]
async fn a_session_ends_and_what_it_kept_is_used_again() {
    for server in servers(Duration::from_millis(20)).await {
        let mut client = server.client().await;
        for round in 0..3 {
            for session in 0..4 {
                ask(&mut client, session, Some(&format!("session-{session}"))).await;
            }
            server.until(|counts| counts.sessions == 0).await;
            server.until_idle().await;
            for other in 10..40 {
                ask(&mut client, 100 * round + other, None).await;
            }
            assert_eq!(ask(&mut client, 0, None).await, 0);
        }
        let counts = server.engine.snapshot().counts;
        assert!(counts.snapshots_used <= counts.snapshots_total);
        assert_eq!((counts.blocks_pinned, counts.state_slots_used), (0, 0));
    }
}

#[tokio::test]
async fn the_choices_of_a_request_are_one_turn() {
    let server = Server::start().await;
    let body =
        chat(json!({"n": 3, "session_id": "mine", "messages": [{"role": "user", "content": message(1)}]}));
    assert_eq!(server.client().await.post(PATH, &body).await.status, 200);
    server
        .until(|counts| counts.active == 0 && counts.sessions == 1)
        .await;
}
