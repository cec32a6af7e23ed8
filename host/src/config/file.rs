//! The configuration file, in TOML.
//!
//! ```toml
//! listen = "127.0.0.1:8080"
//! admin = "unix:/run/met-host.sock"
//! drain_deadline_s = 30
//!
//! [slot.chat]
//! backend = "builtin:cpu"
//! model = "models/chat.gguf"
//! kv_memory = "512M"
//! ```

use super::{SlotConfig, slot::seconds};
use crate::{admin::AdminAddress, loader::Builtins, slot::check_name};
use serde::{Deserialize, Deserializer, de::Error};
use std::{
    collections::BTreeMap, fmt::Display, fs, io::Read, net::SocketAddr, ops::Range, path::Path,
    time::Duration,
};
use toml::de::DeTable;

/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// A server's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Address of the HTTP API.
    pub listen: Option<SocketAddr>,
    /// Address of the operators' listener.
    pub admin: Option<AdminAddress>,
    /// Clients must send this key.
    pub api_key: Option<String>,
    /// Seconds that running requests get when the server stops.
    pub drain_deadline_s: Option<f64>,
    /// The slots, by name.
    pub slots: BTreeMap<String, SlotConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<SocketAddr>,
    #[serde(default, deserialize_with = "admin")]
    admin: Option<AdminAddress>,
    api_key: Option<String>,
    drain_deadline_s: Option<f64>,
    #[serde(default)]
    slot: BTreeMap<String, SlotConfig>,
}

impl Config {
    /// Reads a file. The error names the file and the line.
    pub fn read(path: &Path, builtins: &Builtins) -> Result<Self, String> {
        let at = |problem: String| format!("{}: {problem}", path.display());
        let mut text = String::new();
        fs::File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .map_err(|error| at(error.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(at(format!(
                "more than {MAX_BYTES} bytes are more than any configuration needs"
            )));
        }
        Self::parse(&text, builtins).map_err(at)
    }

    /// Parses a file's text. The error names the line.
    pub fn parse(text: &str, builtins: &Builtins) -> Result<Self, String> {
        let unreadable = |error: toml::de::Error| {
            let message = error.message().trim().replace('\n', ", ");
            format!("line {}: {message}", line(text, error.span()))
        };
        let file: File = toml::from_str(text).map_err(unreadable)?;
        let table = DeTable::parse(text).map_err(unreadable)?;
        let at = |path: &[&str], problem: &dyn Display| {
            let place = match path {
                [_, slot, ..] => format!(", [slot.{slot}]"),
                _ => String::new(),
            };
            format!(
                "line {}{place}: {problem}",
                line(text, span_of(table.get_ref(), path))
            )
        };
        seconds("drain_deadline_s", file.drain_deadline_s, Duration::ZERO)
            .map_err(|misfit| at(&[misfit.field], &misfit))?;
        for (name, slot) in &file.slot {
            check_name(name).map_err(|problem| at(&["slot", name], &problem))?;
            slot.order(None, builtins)
                .map_err(|misfit| at(&["slot", name, misfit.field], &misfit))?;
        }
        Ok(Self {
            listen: file.listen,
            admin: file.admin,
            api_key: file.api_key,
            drain_deadline_s: file.drain_deadline_s,
            slots: file.slot,
        })
    }
}

/// Where the value stands that this path of keys leads to, or the last table on the way to it.
fn span_of(table: &DeTable<'_>, path: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.get_key_value(*first)?;
    let inner = value.get_ref().as_table().and_then(|table| span_of(table, rest));
    Some(inner.unwrap_or(key.span()))
}

/// The line that a span begins on, counted from 1.
fn line(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start.min(text.len()));
    text.as_bytes()[..start]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

fn admin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AdminAddress>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(D::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, &Builtins::default().with("cpu", met_cpu::root_module))
    }

    #[test]
    fn a_file_names_slots_and_listeners() {
        let config = parse(
            "listen = \"127.0.0.1:0\"\nadmin = \"unix:/run/x\"\ndrain_deadline_s = 2.5\n\n\
             [slot.chat]\nmodel = \"a.gguf\"\nkv_memory = \"64M\"\n\n[slot.\"code 7b\"]\nbackend = \"lib.so\"\n",
        )
        .expect("it parses");
        assert_eq!(config.admin, Some(AdminAddress::Unix("/run/x".into())));
        assert_eq!(config.drain_deadline_s, Some(2.5));
        let names: Vec<&String> = config.slots.keys().collect();
        assert_eq!(names, ["chat", "code 7b"]);
        assert_eq!(config.slots["chat"].model.as_deref(), Some("a.gguf"));
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn a_bad_file_says_which_line() {
        for (text, line, says) in [
            ("listen = 3", 1, "socket address"),
            ("\nlissten = \"127.0.0.1:0\"", 2, "lissten"),
            ("[slot.chat]\n\nmodle = \"a\"", 3, "modle"),
            ("[slot.chat]\nmodel = \"a\"\nplan = \"both\"", 3, "both"),
            (
                "# a\n\n[slot.chat]\n\nbackend = \"builtin:tpu\"",
                5,
                "builtin:cpu",
            ),
            ("[slot]\nchat.model = \"a\"\nchat.max_seqs = 0", 3, "max_seqs"),
            (
                "[slot.chat]\n\ndrain_deadline_s = -1",
                3,
                "[slot.chat]: drain_deadline_s",
            ),
            ("\n\ndrain_deadline_s = nan", 3, "drain_deadline_s"),
            ("[slot.a]\n[slot.\"b/c\"]", 2, "name"),
            ("[slot.chat]\nmodel = ", 2, ""),
            ("admin = \"nowhere\"", 1, "nowhere"),
            ("[slot.\"\"]", 1, "name"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(&format!("line {line}")), "{text:?}: {error}");
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
