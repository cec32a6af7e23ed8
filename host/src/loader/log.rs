//! A backend's log events as real `tracing` events: with its own target, level, file, line and fields.
//!
//! `tracing` wants an event's description to live for ever. So each is made once for its content, and
//! loading a library again adds none. Their number is bounded; past the bound an event keeps its level
//! and message, and carries the rest as text.

use met_backend_api::{
    LogLevel,
    abi::{LogField, LogRecord, LogValue},
};
use std::{
    collections::HashMap,
    fmt::Write,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{LazyLock, OnceLock, PoisonError, RwLock},
};
use tracing_core::{
    Callsite, Event, Field, Level, LevelFilter, Metadata, dispatcher,
    field::{FieldSet, Value},
    identify_callsite,
    metadata::Kind,
    subscriber::Interest,
};

/// Most descriptions that are kept.
const MOST_PLACES: usize = 4096;
/// Most fields of an event with its message, which is what `tracing` takes. Further ones are dropped.
const MOST_VALUES: usize = 32;
const MESSAGE: &str = "message";

/// Whether any subscriber wants this level.
pub(super) fn is_enabled(level: LogLevel) -> bool {
    as_tracing(level) <= LevelFilter::current()
}

/// Hands an event to the current subscriber.
pub(super) fn dispatch(record: &LogRecord<'_>) {
    match PLACES.find_or_add(record) {
        Some(metadata) => dispatch_as(metadata, record),
        None => dispatch_as_text(record),
    }
}

fn dispatch_as(metadata: &'static Metadata<'static>, record: &LogRecord<'_>) {
    dispatcher::get_default(|subscriber| {
        if !subscriber.enabled(metadata) {
            return;
        }
        let message = record.message.as_str();
        // Texts need a place of their own: what is recorded is a reference to a `&str`.
        let texts: [&str; MOST_VALUES] =
            std::array::from_fn(|i| match record.fields.get(i).map(|f| f.value) {
                Some(LogValue::Str(text)) => text.as_str(),
                _ => "",
            });
        let fields = metadata.fields();
        let Some(first) = fields.iter().next() else { return };
        let names: [Field; MOST_VALUES] = {
            let mut names = fields.iter();
            std::array::from_fn(|_| names.next().unwrap_or_else(|| first.clone()))
        };
        // Position 0 is the message; a position without a value is skipped.
        let mut values: [(&Field, Option<&dyn Value>); MOST_VALUES] =
            std::array::from_fn(|i| (&names[i], None));
        values[0].1 = Some(&message);
        for (i, field) in fields_of(record).iter().enumerate() {
            values[i + 1].1 = Some(match &field.value {
                LogValue::I64(v) => v,
                LogValue::U64(v) => v,
                LogValue::F64(v) => v,
                LogValue::Bool(v) => v,
                LogValue::Str(_) => &texts[i],
            });
        }
        subscriber.event(&Event::new(metadata, &fields.value_set(&values)));
    });
}

/// For events past the bound: the same words under descriptions of ours.
fn dispatch_as_text(record: &LogRecord<'_>) {
    let mut text = record.message.as_str().to_owned();
    for field in fields_of(record) {
        // Writing to a String does not fail.
        let _ = write!(text, " {}={:?}", field.name, field.value);
    }
    let (target, file, line) = (record.target.as_str(), record.file.as_str(), record.line);
    macro_rules! at {
        ($level:expr) => {
            tracing::event!(target: "backend", $level, from = target, file, line, "{text}")
        };
    }
    match record.level {
        LogLevel::Error => at!(Level::ERROR),
        LogLevel::Warn => at!(Level::WARN),
        LogLevel::Info => at!(Level::INFO),
        LogLevel::Debug => at!(Level::DEBUG),
        LogLevel::Trace => at!(Level::TRACE),
    }
}

fn fields_of<'a>(record: &LogRecord<'a>) -> &'a [LogField<'a>] {
    let fields = record.fields.as_slice();
    &fields[..fields.len().min(MOST_VALUES - 1)]
}

fn as_tracing(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

static PLACES: LazyLock<Places> = LazyLock::new(|| Places::at_most(MOST_PLACES));

/// The descriptions made so far, by the hash of their content.
struct Places {
    most: usize,
    hasher: RandomState,
    by_hash: RwLock<HashMap<u64, Vec<&'static Metadata<'static>>>>,
}

impl Places {
    fn at_most(most: usize) -> Self {
        Self {
            most,
            hasher: RandomState::new(),
            by_hash: RwLock::new(HashMap::new()),
        }
    }

    /// The description of an event's place; `None` past the bound.
    fn find_or_add(&self, record: &LogRecord<'_>) -> Option<&'static Metadata<'static>> {
        let hash = self.hash(record);
        let same =
            |places: &Vec<&'static Metadata<'static>>| places.iter().copied().find(|m| describes(m, record));
        {
            let by_hash = self.by_hash.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = by_hash.get(&hash).and_then(same) {
                return Some(found);
            }
        }
        let mut by_hash = self.by_hash.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = by_hash.get(&hash).and_then(same) {
            return Some(found);
        }
        if by_hash.values().map(Vec::len).sum::<usize>() >= self.most {
            return None;
        }
        let added = leak_metadata(record);
        by_hash.entry(hash).or_default().push(added);
        Some(added)
    }

    fn hash(&self, record: &LogRecord<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        (record.level as u8, record.line).hash(&mut hasher);
        (record.target.as_str(), record.file.as_str()).hash(&mut hasher);
        for field in fields_of(record) {
            field.name.as_str().hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn describes(metadata: &Metadata<'_>, record: &LogRecord<'_>) -> bool {
    *metadata.level() == as_tracing(record.level)
        && metadata.line() == Some(record.line)
        && metadata.target() == record.target.as_str()
        && metadata.file() == Some(record.file.as_str())
        && metadata.fields().len() == fields_of(record).len() + 1
        && metadata
            .fields()
            .iter()
            .skip(1)
            .zip(fields_of(record))
            .all(|(a, b)| a.name() == b.name.as_str())
}

/// The identity of a description, which points back to it.
struct Place(OnceLock<Metadata<'static>>);

impl Callsite for Place {
    fn set_interest(&self, _interest: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        self.0
            .get_or_init(|| unreachable!("set before the place is handed out"))
    }
}

fn leak_metadata(record: &LogRecord<'_>) -> &'static Metadata<'static> {
    let keep = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let names = fields_of(record).iter().map(|f| keep(f.name.as_str()));
    let names: Vec<&'static str> = std::iter::once(MESSAGE).chain(names).collect();
    let place: &'static Place = Box::leak(Box::new(Place(OnceLock::new())));
    place.0.get_or_init(|| {
        Metadata::new(
            "backend event",
            keep(record.target.as_str()),
            as_tracing(record.level),
            Some(keep(record.file.as_str())),
            Some(record.line),
            None,
            FieldSet::new(Box::leak(names.into_boxed_slice()), identify_callsite!(place)),
            Kind::EVENT,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn record<'a>(line: u32, message: &'a str, fields: &'a [LogField<'a>]) -> LogRecord<'a> {
        LogRecord {
            level: LogLevel::Warn,
            line,
            target: "met_x::part".into(),
            file: "part.rs".into(),
            message: message.into(),
            fields: fields.into(),
        }
    }

    fn field<'a>(name: &'a str, value: LogValue<'a>) -> LogField<'a> {
        LogField {
            name: name.into(),
            value,
        }
    }

    /// Keeps each event as text.
    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<String>>>);

    impl tracing::Subscriber for Capture {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "met_x::part" || metadata.target() == "backend"
        }
        fn event(&self, event: &Event<'_>) {
            struct Text(String);
            impl tracing_core::field::Visit for Text {
                fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                    write!(self.0, " {}={value:?}", field.name()).unwrap();
                }
            }
            let m = event.metadata();
            let mut text = Text(format!(
                "{} {} {:?}:{:?}",
                m.level(),
                m.target(),
                m.file(),
                m.line()
            ));
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
        fn new_span(&self, _: &tracing_core::span::Attributes<'_>) -> tracing_core::span::Id {
            tracing_core::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing_core::span::Id, _: &tracing_core::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing_core::span::Id, _: &tracing_core::span::Id) {}
        fn enter(&self, _: &tracing_core::span::Id) {}
        fn exit(&self, _: &tracing_core::span::Id) {}
    }

    #[test]
    fn an_event_keeps_its_place_and_its_fields() {
        let capture = Capture::default();
        let fields = [
            field("layers", LogValue::U64(30)),
            field("name", LogValue::Str("x".into())),
            field("share", LogValue::F64(0.5)),
        ];
        let many: Vec<_> = (0..40).map(|i| field("n", LogValue::I64(i))).collect();
        tracing::subscriber::with_default(capture.clone(), || {
            dispatch(&record(7, "loaded", &fields));
            dispatch(&record(8, "many", &many));
            dispatch_as_text(&record(9, "late", &fields));
        });
        let seen = capture.0.lock().unwrap();
        assert_eq!(
            seen[0],
            r#"WARN met_x::part Some("part.rs"):Some(7) message="loaded" layers=30 name="x" share=0.5"#
        );
        assert!(seen[1].ends_with("n=30"), "the 31 first fields: {}", seen[1]);
        let late = &seen[2];
        assert!(late.starts_with("WARN backend "), "{late}");
        for part in ["met_x::part", "part.rs", "line=9", "late layers=U64(30)"] {
            assert!(late.contains(part), "{late}");
        }
    }

    #[test]
    fn a_place_is_described_once_and_their_number_is_bounded() {
        let places = Places::at_most(2);
        let find = |line| {
            places
                .find_or_add(&record(line, "any", &[]))
                .map(std::ptr::from_ref)
        };
        assert_eq!(find(1), find(1));
        assert_ne!(find(1), find(2));
        assert_eq!(find(3), None);
        assert!(find(1).is_some());
    }
}
