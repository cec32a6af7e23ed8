//! What templates call: the functions, filters and methods that `transformers` and Python offer them.

use super::json;
use jiff::{ZonedDateTime, fmt::strtime};
use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    value::{Kwargs, from_args},
};
use minijinja_contrib::pycompat;

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Raised(pub String);

/// Adds them to an environment.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.set_unknown_method_callback(method);
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let failed = |e: jiff::Error| Error::new(ErrorKind::InvalidOperation, e.to_string());
    strtime::format(format, &ZonedDateTime::now()).map_err(failed)
}

/// As in Python, where none can't be iterated over.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `transformers`' own filter, which is Python's `json.dumps` and, unlike Jinja's, escapes nothing for HTML.
fn tojson(state: &State, value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = json::Style {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        separators: match separators.as_deref() {
            None => None,
            Some([item, key]) => Some((item.clone(), key.clone())),
            Some(_) => {
                let message = "separators must be a pair of texts";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        },
    };
    options.assert_all_used()?;
    json::dumps(value, &style, &|bytes| state.consume_fuel(bytes as u64 / 64 + 1)).map(Value::from)
}

/// Python's methods: those of `pycompat`, and a few of text that it lacks.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(text.strip_prefix(prefix).unwrap_or(text).into());
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(text.strip_suffix(suffix).unwrap_or(text).into());
            }
            "rsplit" => {
                let (separator, most): (&str, Option<usize>) = from_args(args)?;
                let mut parts: Vec<&str> = match (separator, most) {
                    ("", _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                    (_, Some(most)) => text.rsplitn(most.saturating_add(1), separator).collect(),
                    (_, None) => text.rsplit(separator).collect(),
                };
                parts.reverse();
                return Ok(parts.into_iter().map(Value::from).collect());
            }
            _ => (),
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}
