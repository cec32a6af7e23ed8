//! The operators' routes over their real listeners.

use super::*;
use crate::{
    config::{Config, Reloader},
    loader::Builtins,
    slot::{Slots, swap::Supervisor},
};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

async fn get(path: &std::path::Path, route: &str) -> String {
    let mut stream = UnixStream::connect(path).await.expect("it listens");
    let request = format!("GET {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    answer
}

#[test]
fn addresses_are_read() {
    assert_eq!("unix:/run/x".parse(), Ok(AdminAddress::Unix("/run/x".into())));
    assert_eq!(
        "127.0.0.1:9".parse(),
        Ok(AdminAddress::Tcp(([127, 0, 0, 1], 9).into()))
    );
    for bad in ["", "unix:", "nowhere", "127.0.0.1"] {
        assert!(bad.parse::<AdminAddress>().is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_unix_socket_answers_and_is_gone_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("admin.sock");
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "not ours").expect("written");
    let refused = AdminListener::bind(&AdminAddress::Unix(other.clone()))
        .await
        .err();
    assert!(refused.is_some_and(|error| error.to_string().contains("is no socket")));
    assert_eq!(std::fs::read_to_string(&other).ok().as_deref(), Some("not ours"));

    // As a server that was killed leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let address = AdminAddress::Unix(path.clone());
    let listener = AdminListener::bind(&address)
        .await
        .expect("a stale file is replaced");
    assert!(AdminListener::bind(&address).await.is_err(), "a live one isn't");

    let supervisor = Supervisor::new(Arc::new(Slots::new()));
    supervisor.slots().add("chat");
    let operators = Arc::new(Operators {
        reloader: Reloader::new(None, Config::default(), Builtins::default(), supervisor.clone()),
        supervisor,
        builtins: Builtins::default(),
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(listener.serve(move |token| router(operators, token), async {
        let _ = stopped.await;
    }));
    let answer = get(&path, "/slots").await;
    assert!(
        answer.contains("200 OK") && answer.contains(r#""slot":"chat""#),
        "{answer}"
    );
    let answer = get(&path, "/slots/chat/ledger").await;
    assert!(
        answer.contains("200 OK") && answer.contains(r#""entries":[]"#),
        "{answer}"
    );
    for unknown in ["/slots/other/ledger", "/unload"] {
        let answer = get(&path, unknown).await;
        assert!(
            answer.contains("404") && answer.contains(r#""error""#),
            "{answer}"
        );
    }
    stop.send(()).expect("it serves");
    served.await.expect("no panic").expect("no error");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_tcp_listener_without_a_token_is_refused() {
    let address = AdminAddress::Tcp(([127, 0, 0, 1], 0).into());
    let error = AdminListener::bind(&address)
        .await
        .err()
        .expect("MET_ADMIN_TOKEN is not set here");
    assert!(error.to_string().contains("MET_ADMIN_TOKEN"), "{error}");
}
