//! JSON as Python's `json.dumps` writes it.

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Its arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// Whether other characters than ASCII are escaped.
    pub ascii: bool,
    pub sort_keys: bool,
    /// Spaces for each level; `None` writes one line.
    pub indent: Option<usize>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
}

/// A value may contain itself.
const MAX_DEPTH: usize = 128;
const MAX_INDENT: usize = 16;

/// The value as JSON. `charge` is told of the bytes as they are written, and may refuse.
pub(super) fn dumps(
    value: &Value,
    style: &Style,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let (item, key) = match (&style.separators, style.indent) {
        (Some((item, key)), _) => (item.as_str(), key.as_str()),
        (None, Some(_)) => (",", ": "),
        (None, None) => (", ", ": "),
    };
    let mut writer = Writer {
        out: String::new(),
        charged: 0,
        style,
        item,
        key,
        charge,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    charged: usize,
    style: &'a Style,
    item: &'a str,
    key: &'a str,
    charge: &'a dyn Fn(usize) -> Result<(), Error>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        (self.charge)(self.out.len() - self.charged)?;
        self.charged = self.out.len();
        let refused = |why: &str| Err(Error::new(ErrorKind::BadSerialization, why.to_owned()));
        if depth > MAX_DEPTH {
            return refused("the value is nested too deep for JSON");
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.list('[', ']', value.try_iter()?, depth, |writer, item| {
                    writer.value(&item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', keys.into_iter(), depth, |writer, key| {
                    writer.object_key(&key);
                    writer.out.push_str(writer.key);
                    writer.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return refused(&format!("a value of type {kind} has no JSON")),
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.out.push_str(self.item);
            }
            empty = false;
            self.line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out
                .extend(std::iter::repeat_n(' ', depth * indent.min(MAX_INDENT)));
        }
    }

    fn object_key(&mut self, key: &Value) {
        match key.as_str() {
            Some(text) => self.text(text),
            None => {
                let mut plain = Writer {
                    out: String::new(),
                    ..*self
                };
                match key.kind() {
                    ValueKind::None => plain.out.push_str("null"),
                    ValueKind::Bool => plain.out.push_str(if key.is_true() { "true" } else { "false" }),
                    _ => plain.number(key),
                }
                let name = plain.out;
                self.text(&name);
            }
        }
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(real) if !value.is_integer() => self.out.push_str(&real_number(real)),
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python writes it: the shortest digits that read back as it, with an exponent where that is below
/// -4 or above 15.
fn real_number(real: f64) -> String {
    if real.is_nan() {
        return "NaN".to_owned();
    }
    if real.is_infinite() {
        return if real > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{real:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        e if (-4..16).contains(&e) => format!("{real:?}"),
        e => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn dump(value: &Value, style: &Style) -> String {
        dumps(value, style, &|_| Ok(())).unwrap()
    }

    #[test]
    fn objects_are_written_as_python_does() {
        let value = context! { name => "f<a>'\"\u{e9}\n\u{1}", list => vec![1, 2], none => (), empty => Vec::<i32>::new(), ok => true };
        assert_eq!(
            dump(&value, &Style::default()),
            "{\"name\": \"f<a>'\\\"\u{e9}\\n\\u0001\", \"list\": [1, 2], \"none\": null, \"empty\": [], \"ok\": true}"
        );
        let style = Style {
            indent: Some(2),
            ascii: true,
            sort_keys: true,
            ..Style::default()
        };
        assert_eq!(
            dump(&context! { b => vec![1], a => "\u{1f600}" }, &style),
            "{\n  \"a\": \"\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ]\n}"
        );
        let style = Style {
            separators: Some((",".to_owned(), ":".to_owned())),
            ..Style::default()
        };
        assert_eq!(dump(&context! { a => 1, b => 2 }, &style), r#"{"a":1,"b":2}"#);
    }

    #[test]
    fn numbers_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::INFINITY, "Infinity"),
        ];
        for (real, expected) in cases {
            assert_eq!(dump(&real.into(), &Style::default()), expected);
        }
        assert_eq!(dump(&u64::MAX.into(), &Style::default()), "18446744073709551615");
    }
}
