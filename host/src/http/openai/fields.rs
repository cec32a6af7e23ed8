//! A JSON object taken apart field by field, so that each error can name its parameter and no field is ignored.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::RangeInclusive};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::http::error::{ApiError, shorten};

/// The fields of an object that were not taken yet, each still JSON text. A field that is `null` counts as absent.
pub struct Fields<'a> {
    path: String,
    fields: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// The fields of a request's body.
    pub fn of_body(body: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body)
            .map_err(|error| ApiError::bad_request(format!("the body must be UTF-8: {error}")))?;
        let Object(fields) = serde_json::from_str(text)
            .map_err(|error| ApiError::bad_request(format!("the body must be a JSON object: {error}")))?;
        Ok(Self {
            path: String::new(),
            fields,
        })
    }

    /// The fields of an object within a body; `path` names it in errors.
    pub fn of_value(value: &'a RawValue, path: String) -> Result<Self, ApiError> {
        match serde_json::from_str(value.get()) {
            Ok(Object(fields)) => Ok(Self { path, fields }),
            Err(error) => {
                let message = format!("'{path}' must be an object: {error}");
                Err(ApiError::invalid_value(path, message))
            }
        }
    }

    /// Takes a field that may be absent; `expected` completes "… must be".
    pub fn optional<T: Deserialize<'a>>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|_| self.wrong(name, expected))
    }

    /// Takes a field that must be there.
    pub fn required<T: Deserialize<'a>>(&mut self, name: &str, expected: &str) -> Result<T, ApiError> {
        self.optional(name, expected)?.ok_or_else(|| {
            let param = self.param(name);
            ApiError::invalid_value(
                param.clone(),
                format!("'{param}' is missing; it must be {expected}"),
            )
        })
    }

    /// Takes a number, or `default` where there is none.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>, default: f64) -> Result<f64, ApiError> {
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        match self.raw(name).map(|raw| serde_json::from_str::<f64>(raw.get())) {
            None => Ok(default),
            Some(Ok(number)) if range.contains(&number) => Ok(number),
            Some(_) => Err(self.wrong(name, &expected())),
        }
    }

    /// Takes a whole number.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        match self.raw(name).map(|raw| serde_json::from_str::<i64>(raw.get())) {
            None => Ok(None),
            Some(Ok(number)) if range.contains(&number) => Ok(Some(number)),
            Some(_) => {
                let expected = match *range.end() {
                    i64::MAX => format!("a whole number, at least {}", range.start()),
                    end => format!("a whole number from {} to {end}", range.start()),
                };
                Err(self.wrong(name, &expected))
            }
        }
    }

    /// Takes `true` or `false`; absent is `false`.
    pub fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.optional(name, "true or false")?.unwrap_or(false))
    }

    /// Takes a field that is not supported: only its `neutral` values (JSON texts), which change nothing, are accepted.
    pub fn unsupported(&mut self, name: &str, neutral: &[&str]) -> Result<(), ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(()) };
        // Neutral values are short: a long one is not parsed.
        let is_neutral = raw.get().len() <= 64
            && serde_json::from_str::<Value>(raw.get()).is_ok_and(|value| {
                neutral
                    .iter()
                    .any(|text| text.parse().is_ok_and(|n: Value| n == value))
            });
        if is_neutral {
            return Ok(());
        }
        let param = self.param(name);
        let message = match neutral {
            [] => format!("'{param}' is not supported; leave it out"),
            _ => format!(
                "'{param}' is not supported; leave it out, or give {}",
                neutral.join(" or ")
            ),
        };
        Err(ApiError::unsupported(param, message))
    }

    /// Takes a field as JSON text.
    pub fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.fields.remove(name).filter(|raw| raw.get() != "null")
    }

    /// The full name of a field in errors.
    pub fn param(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// The error of a field whose value is not as `expected`.
    pub fn wrong(&self, name: &str, expected: &str) -> ApiError {
        let param = self.param(name);
        let message = format!("'{param}' must be {expected}");
        ApiError::invalid_value(param, message)
    }

    /// Refuses what was not taken.
    pub fn finish(self) -> Result<(), ApiError> {
        let Some(name) = self.fields.keys().next() else {
            return Ok(());
        };
        let param = self.param(&shorten(name));
        let message = format!("'{param}' is not a parameter that this server knows");
        Err(ApiError {
            code: Some("unknown_parameter"),
            ..ApiError::unsupported(param, message)
        })
    }
}

/// A JSON object whose values are left as text; a name that comes twice is an error.
struct Object<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    if let Some(_first) = fields.insert(name.clone(), value) {
                        return Err(A::Error::custom(format!("'{}' comes twice", shorten(&name))));
                    }
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// A field's name, borrowed from the text where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
