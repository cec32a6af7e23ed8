//! Sizes as operators write them: `512M`, `1.5GiB`, `4096`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::str::FromStr;

/// A number of bytes. Suffixes K, M, G and T, alone or as `KiB` or `KB`, are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let scale = match unit
            .trim()
            .to_ascii_lowercase()
            .trim_end_matches("ib")
            .trim_end_matches('b')
        {
            "" => 1,
            "k" => 1 << 10,
            "m" => 1 << 20,
            "g" => 1 << 30,
            "t" => 1u64 << 40,
            _ => return Err(format!("'{unit}' is no unit of size; write K, M, G or T")),
        };
        let number: f64 = number
            .parse()
            .map_err(|_| format!("'{text}' is no size; write 512M, say"))?;
        let bytes = number * scale as f64;
        if bytes > (1u64 << 60) as f64 {
            return Err(format!("'{text}' is more than any machine has"));
        }
        Ok(Self(bytes as u64))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// A number, or a text as on the command line.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size is a number of bytes, or a text like \"512M\"")]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Self(bytes)),
            Form::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_operators_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2 gb", 2 << 30),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "12Q", "1.2.3K", "-1", "9999999T"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
