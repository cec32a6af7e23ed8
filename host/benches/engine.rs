//! What a step costs beside the device: the time from one `collect`'s return to the next one's call, with
//! clients that read their streams.
//!
//!     cargo bench -p met-host --bench engine

use met_backend_api::{
    Batch, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ReleaseReport, SweepReport, Ticket,
    TokenLogprob, sdk::Output,
};
use met_host::{
    engine::{DeviceIo, Engine, EngineOptions},
    request::{Request, Sampling},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

const TOKENS: u32 = 2000;

fn main() {
    println!(
        "{:>9} {:>9} {:>9} {:>9}",
        "sequences", "p50 µs", "p99 µs", "mean µs"
    );
    for sequences in [1, 8, 64] {
        let mut times = measure(sequences);
        times.sort_unstable();
        let at = |share: usize| micros(times[(times.len() - 1) * share / 100]);
        let mean = micros(times.iter().sum::<Duration>() / times.len() as u32);
        println!("{sequences:>9} {:>9.1} {:>9.1} {mean:>9.1}", at(50), at(99));
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The host's time of each step with `sequences` rows.
fn measure(sequences: u32) -> Vec<Duration> {
    let times = Arc::new(Mutex::new(Vec::with_capacity(TOKENS as usize)));
    let device = Instrument::new(sequences, Arc::clone(&times));
    let engine = Engine::start("bench", EngineOptions::default(), move || {
        Ok(Box::new(device) as Box<dyn DeviceIo>)
    })
    .expect("the instrument opens");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let clients: Vec<_> = (0..sequences)
            .map(|seed| {
                let request = Request {
                    prompt: vec![1; 8],
                    max_tokens: TOKENS,
                    sampling: Sampling {
                        seed: seed.into(),
                        presence_penalty: 0.1,
                        ..Sampling::default()
                    },
                    stop_tokens: vec![0],
                    ..Request::default()
                };
                let mut stream = engine.submit(request).expect("room");
                tokio::spawn(async move { while stream.next().await.is_some() {} })
            })
            .collect();
        for client in clients {
            client.await.expect("no panic");
        }
    });
    engine.shutdown(Duration::ZERO);
    let times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    assert!(times.len() >= TOKENS as usize / 2, "too few steps had every row");
    times
}

/// A device that takes a fixed time and samples anything.
struct Instrument {
    device: DeviceInfo,
    model: ModelInfo,
    rows: usize,
    ticket: Ticket,
    returned: Instant,
    times: Arc<Mutex<Vec<Duration>>>,
}

/// What a step takes: long enough for the clients to wait, as they do.
const STEP: Duration = Duration::from_micros(500);

impl Instrument {
    fn new(rows: u32, times: Arc<Mutex<Vec<Duration>>>) -> Self {
        let model = ModelInfo {
            vocab_size: 49152,
            context_length: 4096,
            block_size: 16,
            block_count: 64 * 256,
            max_rows: rows,
            max_batch_tokens: 512,
            max_in_flight: 1,
            ..ModelInfo::default()
        };
        let device = DeviceInfo {
            index: 0,
            kind: "bench".into(),
            name: "bench".into(),
            features: "".into(),
            total_memory: 0,
            compute_units: 1,
        };
        Self {
            device,
            model,
            rows: 0,
            ticket: 0,
            returned: Instant::now(),
            times,
        }
    }
}

impl DeviceIo for Instrument {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }
    fn model(&self) -> &ModelInfo {
        &self.model
    }
    fn memory(&mut self) -> Result<MemoryInfo, Error> {
        Ok(MemoryInfo::default())
    }
    fn ledger(&mut self) -> Result<Vec<LedgerEntry>, Error> {
        Ok(Vec::new())
    }
    fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error> {
        self.rows = batch.rows.len();
        self.ticket += 1;
        Ok(self.ticket)
    }
    fn collect(&mut self, _: Ticket, out: Output<'_>) -> Result<(), Error> {
        let host = self.returned.elapsed();
        if self.rows == self.model.max_rows as usize {
            self.times
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(host);
        }
        std::thread::sleep(STEP);
        for (at, row) in out.rows.iter_mut().enumerate() {
            row.sampled = TokenLogprob {
                token: 1 + (self.ticket as u32 * 31 + at as u32) % 49151,
                logprob: -1.0,
            };
        }
        self.returned = Instant::now();
        Ok(())
    }
    fn copy_blocks_out(&mut self, _: &[u32], _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn copy_blocks_in(&mut self, _: &[u32], _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn save_state(&mut self, _: u32, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn restore_state(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn free_state(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn take_snapshot(&mut self, _: u32, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn use_snapshot(&mut self, _: u32, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn synchronize(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        Ok(ReleaseReport::default())
    }
    fn drop_model(&mut self) {}
    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        Ok(SweepReport::default())
    }
}
