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

use super::SlotConfig;
use crate::{admin::AdminAddress, loader::Builtins};
use serde::{Deserialize, Deserializer, de::Error};
use std::{collections::BTreeMap, fs, net::SocketAddr, ops::Range, path::Path};
use toml::Spanned;

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
    slot: BTreeMap<String, Spanned<SlotConfig>>,
}

impl Config {
    /// Reads a file. The error names the file and the line.
    pub fn read(path: &Path, builtins: &Builtins) -> Result<Self, String> {
        let at = |problem: String| format!("{}: {problem}", path.display());
        let size = fs::metadata(path).map_err(|error| at(error.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(at(format!("{size} bytes is more than any configuration needs")));
        }
        let text = fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
        Self::parse(&text, builtins).map_err(at)
    }

    /// Parses a file's text. The error names the line.
    pub fn parse(text: &str, builtins: &Builtins) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let message = error.message().trim().replace('\n', ", ");
            format!("line {}: {message}", line(text, error.span()))
        })?;
        let mut slots = BTreeMap::new();
        for (name, slot) in file.slot {
            let span = slot.span();
            let slot = slot.into_inner();
            let at = |problem: &str| {
                format!(
                    "line {}, [slot.{name}]: {problem}",
                    line(text, Some(span.clone()))
                )
            };
            if name.is_empty() || name.contains('/') {
                return Err(at("a slot's name is not empty and has no /"));
            }
            slot.order(None, builtins).map_err(|problem| at(&problem))?;
            slots.insert(name, slot);
        }
        Ok(Self {
            listen: file.listen,
            admin: file.admin,
            api_key: file.api_key,
            drain_deadline_s: file.drain_deadline_s,
            slots,
        })
    }
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
            ("# a\n\n[slot.chat]\nbackend = \"builtin:tpu\"", 3, "builtin:cpu"),
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
