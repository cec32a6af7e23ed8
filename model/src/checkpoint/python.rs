//! JSON as Python writes it, with three numbers that JSON lacks.

const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// The same with each of them as an object, in the form that `transformers` gives them since its version 5.
pub(super) fn to_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    // Every other piece is the inside of a string.
    for (index, piece) in pieces(text).enumerate() {
        if index > 0 {
            json.push('"');
        }
        match index % 2 {
            0 => json.push_str(&with_objects(piece)),
            _ => json.push_str(piece),
        }
    }
    json
}

/// What is between the quotation marks that are no part of a string.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_inside, mut is_escaped) = (false, false);
    text.split(move |c| {
        if is_inside && (is_escaped || c == '\\') {
            is_escaped = !is_escaped;
            return false;
        }
        is_inside ^= c == '"';
        c == '"'
    })
}

fn with_objects(piece: &str) -> String {
    let words = piece.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    words
        .map(|word| {
            let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            match WORDS.contains(&bare) {
                true => format!("{{\"__float__\": \"{bare}\"}}{}", &word[bare.len()..]),
                false => word.to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::to_json;

    #[test]
    fn numbers_of_python_become_objects_outside_of_strings_alone() {
        let text = r#"{"a": [0.0, Infinity],"b":-Infinity, "c NaN \" Infinity \\": NaN, "é": "-Infinity", "d": 1e-5}"#;
        let json: serde_json::Value = serde_json::from_str(&to_json(text)).unwrap();
        let object = |word: &str| serde_json::json!({"__float__": word});
        assert_eq!(
            json,
            serde_json::json!({
                "a": [0.0, object("Infinity")],
                "b": object("-Infinity"),
                "c NaN \" Infinity \\": object("NaN"),
                "é": "-Infinity",
                "d": 1e-5,
            })
        );
        for text in [
            "",
            "{\"a",
            "\\",
            "\"\\",
            "{\"a\": Infinity",
            "NaNs -Infinity1",
            "\u{e9}Infinity",
        ] {
            assert_eq!(
                to_json(text).replace("{\"__float__\": \"Infinity\"}", "Infinity"),
                text
            );
        }
    }
}
