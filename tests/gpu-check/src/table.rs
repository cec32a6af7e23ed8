//! A part's result for people.

use serde_json::Value;
use std::fmt::Write;

/// A line a figure, and a line for each object of a list.
pub fn of(name: &str, part: &Value) -> String {
    let mut text = format!("{name}\n");
    write_object(&mut text, part);
    text
}

fn write_object(text: &mut String, object: &Value) {
    for (key, value) in object.as_object().into_iter().flatten() {
        match value {
            Value::Array(rows) if rows.iter().all(Value::is_object) => {
                for row in rows {
                    // Writing to a string can't fail.
                    let _ = writeln!(text, "  {key}: {}", line(row));
                }
            }
            Value::Object(_) => {
                let _ = writeln!(text, "  {key}: {}", line(value));
            }
            plain => {
                let _ = writeln!(text, "  {key}: {}", show(plain));
            }
        }
    }
}

/// The fields that there are, in one line.
fn line(object: &Value) -> String {
    let fields = object.as_object().into_iter().flatten();
    let fields = fields.filter(|(_, value)| !value.is_null());
    let fields: Vec<String> = fields
        .map(|(key, value)| format!("{key} {}", show(value)))
        .collect();
    fields.join("  ")
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().map_or_else(String::new, rounded),
        Value::Array(items) => items.iter().map(line).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// About four digits.
fn rounded(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => format!("{number:.0}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 1e-4 => format!("{number:.4}"),
        _ => format!("{number:.2e}"),
    }
}
