//! The whole front end over real sockets, with an engine whose device is a fake: it answers every prompt with the
//! alphabet.

mod answers;
mod client;
mod limits;
mod malformed;
mod sessions;
mod streams;
pub mod text;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Client;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::{AppState, router, serve};
use crate::{
    engine::{
        Engine, EngineOptions,
        testing::{FakeControls, FakeDevice},
    },
    slot::{Generation, Slots},
    text::Text,
};

/// The token that ends an answer.
const END: u32 = 0;

/// A server on a port of its own.
struct Server {
    address: SocketAddr,
    engine: Engine,
    device: FakeControls,
    slots: Arc<Slots<Text>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(EngineOptions::default(), None).await
    }

    async fn start_with(options: EngineOptions, api_key: Option<&str>) -> Self {
        Self::start_on(FakeDevice::new(64, 16, 8), options, api_key).await
    }

    async fn start_on(device: FakeDevice, options: EngineOptions, api_key: Option<&str>) -> Self {
        let device = device.sampling(|seen| match seen.last().copied() {
            Some(letter) if (b'a'..=b'y').contains(&(letter as u8)) => letter + 1,
            Some(letter) if letter == u32::from(b'z') => END,
            _ => u32::from(b'a'),
        });
        let controls = device.controls();
        let engine = Engine::start("chat", options, move || Ok(Box::new(device))).unwrap();
        let slots = Arc::new(Slots::new());
        let slot = slots.add("chat");
        slot.switch(Some(Generation::new(
            slot.next_number(),
            engine.clone(),
            Arc::new(text::text()),
        )));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let state = AppState {
            slots: slots.clone(),
            api_key: api_key.map(Into::into),
        };
        let shutdown = async move {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve(listener, router(state), shutdown));
        Self {
            address,
            engine,
            device: controls,
            slots,
            stop: Some(stop),
            task,
        }
    }

    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// A client for which the system keeps little that it has not read.
    async fn slow_client(&self) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Client::over(socket.connect(self.address).await.unwrap())
    }

    /// Waits until the engine's counts are as asked.
    async fn until(&self, done: impl Fn(&crate::scheduler::Counts) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(&self.engine.snapshot().counts) {
            assert!(Instant::now() < end, "{:?}", self.engine.snapshot().counts);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until no request is left, whether it runs or waits.
    async fn until_idle(&self) {
        self.until(|counts| {
            counts.waiting + counts.prefilling + counts.active + counts.preempted + counts.swapped == 0
        })
        .await;
        self.until(|counts| counts.blocks_used == 0).await;
        assert_eq!(
            self.slots
                .get("chat")
                .unwrap()
                .current()
                .map_or(0, |generation| generation.leases()),
            0
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.device.release();
        self.engine.shutdown(Duration::ZERO);
    }
}

/// A body of a chat with further fields.
fn chat(fields: Value) -> Value {
    with(
        json!({"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}),
        fields,
    )
}

/// A body of a completion with further fields.
fn completion(fields: Value) -> Value {
    with(json!({"model": "chat", "prompt": "Hi:"}), fields)
}

fn with(mut body: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}
