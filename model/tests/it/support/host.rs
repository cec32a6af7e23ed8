use met_backend_api::{
    abi::{HostServices, HostServices_TO, LogLevel, LogRecord},
    abi_stable::{sabi_trait::TD_Opaque, std_types::RStr},
    sdk::Host,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A host that cancels a load, or does something else, at the N-th time it is asked whether to cancel.
#[derive(Clone, Default)]
pub struct TestHost {
    asked: Arc<AtomicUsize>,
    cancel_at: Option<usize>,
    act_at: Option<(usize, Act)>,
}

type Act = Arc<dyn Fn() + Send + Sync>;

impl TestHost {
    pub fn quiet() -> Host {
        Self::default().services()
    }

    pub fn cancelling_at(n: usize) -> Self {
        Self {
            cancel_at: Some(n),
            ..Self::default()
        }
    }

    pub fn acting_at(n: usize, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            act_at: Some((n, Arc::new(act))),
            ..Self::default()
        }
    }

    pub fn services(&self) -> Host {
        HostServices_TO::from_ptr(
            met_backend_api::abi_stable::std_types::RArc::new(self.clone()),
            TD_Opaque,
        )
    }

    pub fn times_asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl HostServices for TestHost {
    fn log_enabled(&self, _level: LogLevel, _target: RStr<'_>) -> bool {
        false
    }
    fn log(&self, _record: &LogRecord<'_>) {}
    fn progress(&self, _stage: RStr<'_>, done: u64, total: u64) {
        assert!(done <= total);
    }
    fn cancelled(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((_, act)) = self.act_at.as_ref().filter(|(n, _)| asked == *n) {
            act();
        }
        self.cancel_at.is_some_and(|n| asked >= n)
    }
}
