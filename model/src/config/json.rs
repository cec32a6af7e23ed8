//! Fields of `config.json`: asked for by name and type; `null` is as good as absent.

use crate::{Error, Result};
use serde_json::{Map, Value};

/// An object's fields.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A number from 1 to `most`.
    pub(super) fn size(self, key: &str, most: usize) -> Result<usize> {
        self.optional_size(key, most)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_size(self, key: &str, most: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match size.filter(|size| (1..=most).contains(size)) {
            Some(size) => Ok(Some(size)),
            None => Err(wrong(key, value, &format!("a whole number from 1 to {most}"))),
        }
    }

    /// A number from 0 to `most`.
    pub(super) fn count(self, key: &str, most: usize) -> Result<Option<usize>> {
        match self.get(key).and_then(Value::as_u64) {
            Some(0) => Ok(Some(0)),
            _ => self.optional_size(key, most),
        }
    }

    /// A number above 0.
    pub(super) fn positive(self, key: &str) -> Result<f64> {
        self.optional_positive(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_positive(self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64().filter(|x| x.is_finite() && *x > 0.0) {
            Some(x) => Ok(Some(x)),
            None => Err(wrong(key, value, "a number above 0")),
        }
    }

    pub(super) fn flag(self, key: &str) -> Result<Option<bool>> {
        let wrong = |value| wrong(key, value, "true or false");
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| wrong(value)))
            .transpose()
    }

    pub(super) fn text(self, key: &str) -> Result<Option<&'a str>> {
        let wrong = |value| wrong(key, value, "a text");
        self.get(key)
            .map(|value| value.as_str().ok_or_else(|| wrong(value)))
            .transpose()
    }

    pub(super) fn list(self, key: &str) -> Result<Option<&'a [Value]>> {
        let wrong = |value| wrong(key, value, "a list");
        self.get(key)
            .map(|value| value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(value)))
            .transpose()
    }

    pub(super) fn object(self, key: &str) -> Result<Option<Self>> {
        let wrong = |value| wrong(key, value, "an object");
        self.get(key)
            .map(|value| value.as_object().map(Self).ok_or_else(|| wrong(value)))
            .transpose()
    }

    /// Whether it is this text.
    pub(super) fn is_text(self, key: &str, text: &str) -> bool {
        self.get(key).and_then(Value::as_str) == Some(text)
    }

    /// Whether it is there, be it `null`.
    pub(super) fn is_stated(self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }
}

pub(super) fn missing(key: &str) -> Error {
    Error::invalid(format!("`{key}` is missing"))
}

/// The longest value that an error shows.
const MAX_SHOWN: usize = 60;

pub(super) fn wrong(key: &str, value: &Value, expected: &str) -> Error {
    let mut shown = value.to_string();
    if shown.chars().count() > MAX_SHOWN {
        shown = shown.chars().take(MAX_SHOWN).chain(['…']).collect();
    }
    Error::invalid(format!("`{key}` is {shown}, but must be {expected}"))
}
