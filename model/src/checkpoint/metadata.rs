//! Typed key-value pairs of a checkpoint. Arrays stay as bytes until they are asked for.

use super::cursor::Cursor;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::{collections::HashMap, fmt::Arguments, ops::Range};

/// Arrays of arrays are followed this deep.
const MAX_NESTING: usize = 4;

/// A checkpoint's metadata.
#[derive(Debug, Default)]
pub struct Metadata {
    /// The part of the file that `slots` point into.
    header: Vec<u8>,
    slots: HashMap<String, Slot>,
}

/// A value as it is stored.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// An array.
    Array(Array<'a>),
}

/// An array whose elements are decoded when they are asked for.
#[derive(Clone, Debug)]
pub struct Array<'a> {
    ty: ValueType,
    count: usize,
    bytes: &'a [u8],
}

/// What a value can be asked for as.
pub trait FromMetadata<'a>: Sized {
    /// Its name in errors.
    fn expected() -> String;
    /// The value, where it is of this type and in its range.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

impl Metadata {
    /// Reads `count` pairs, and keeps a copy of what `cursor` has passed.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        let mut slots = HashMap::new();
        for index in 0..count {
            let (key, slot) = read_pair(cursor, index)?;
            if slots.contains_key(&key) {
                return Err(Error::invalid(format!("metadata key `{key}` occurs twice")));
            }
            slots.insert(key, slot);
        }
        Ok(Self {
            header: cursor.passed().to_owned(),
            slots,
        })
    }

    /// A key's value; `None` where there is no such key, an error where it is of another type.
    ///
    /// Whole numbers of any width convert where they are in range; `Vec<T>` takes an array of any length.
    pub fn get<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let found = value.describe();
        T::from_value(value).map(Some).ok_or_else(|| {
            Error::invalid(format!(
                "metadata key `{key}` must be {}, but is {found}",
                T::expected()
            ))
        })
    }

    /// Like [`get`](Self::get), where a missing key is an error.
    pub fn require<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| {
            Error::invalid(format!(
                "metadata key `{key}` is missing; it must be {}",
                T::expected()
            ))
        })
    }

    /// A key's value as it is stored.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let slot = self.slots.get(key)?;
        let bytes = self.header.get(slot.range.clone())?;
        match slot.elements {
            Some((ty, count)) => Some(Value::Array(Array { ty, count, bytes })),
            None => read_value(&mut Cursor::whole(bytes), slot.ty, 0, format_args!("{key}")).ok(),
        }
    }

    /// A hash of the pairs whose keys begin with `prefix`, in whatever order they are stored.
    pub fn digest(&self, prefix: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        for key in self.keys().into_iter().filter(|key| key.starts_with(prefix)) {
            let Some(Slot { ty, elements, range }) = self.slots.get(key) else {
                continue;
            };
            let bytes = &self.header[range.clone()];
            let (element, count) = elements.unwrap_or((*ty, 1));
            for number in [key.len(), *ty as usize, element as usize, count, bytes.len()] {
                hash.update((number as u64).to_le_bytes());
            }
            hash.update(key);
            hash.update(bytes);
        }
        hash.finalize().into()
    }

    /// Every key, sorted.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<_> = self.slots.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }
}

impl<'a> Array<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (mut cursor, ty) = (Cursor::whole(self.bytes), self.ty);
        // The array was walked when the file was opened, so an element that can't be read doesn't occur.
        (0..self.count).map_while(move |i| read_value(&mut cursor, ty, 0, format_args!("element {i}")).ok())
    }
}

/// Where a value lies in the header: for arrays the elements alone.
#[derive(Debug)]
struct Slot {
    ty: ValueType,
    elements: Option<(ValueType, usize)>,
    range: Range<usize>,
}

fn read_pair(cursor: &mut Cursor<'_>, index: u64) -> Result<(String, Slot)> {
    let key = cursor.text(format_args!("name of metadata key {index}"))?;
    if key.is_empty() || key.len() > u16::MAX as usize {
        return Err(Error::invalid(format!(
            "name of metadata key {index}: {} bytes long, but 1 to 65535 are allowed",
            key.len()
        )));
    }
    let ty = ValueType::read(cursor, format_args!("type of metadata key `{key}`"))?;
    let start = cursor.position();
    let value = read_value(cursor, ty, 0, format_args!("metadata key `{key}`"))?;
    let end = cursor.position();
    let (elements, range) = match value {
        Value::Array(array) => (Some((array.ty, array.count)), end - array.bytes.len()..end),
        _ => (None, start..end),
    };
    Ok((key.to_owned(), Slot { ty, elements, range }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// In the order of their numbers.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, field: Arguments<'_>) -> Result<Self> {
        let id = cursor.u32(field)?;
        let known = usize::try_from(id).ok().and_then(|i| Self::ALL.get(i));
        known.copied().ok_or_else(|| {
            Error::invalid(format!(
                "{field} is {id}, but 0 to {} are known",
                Self::ALL.len() - 1
            ))
        })
    }

    /// Bytes of a value, or the fewest of one whose size varies.
    fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::Array => 12,
        }
    }

    fn is_sized(self) -> bool {
        !matches!(self, Self::Bool | Self::Text | Self::Array)
    }
}

fn read_value<'a>(
    cursor: &mut Cursor<'a>,
    ty: ValueType,
    depth: usize,
    field: Arguments<'_>,
) -> Result<Value<'a>> {
    Ok(match ty {
        ValueType::U8 => Value::Unsigned(u8::from_le_bytes(cursor.array(field)?).into()),
        ValueType::I8 => Value::Signed(i8::from_le_bytes(cursor.array(field)?).into()),
        ValueType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array(field)?).into()),
        ValueType::I16 => Value::Signed(i16::from_le_bytes(cursor.array(field)?).into()),
        ValueType::U32 => Value::Unsigned(u32::from_le_bytes(cursor.array(field)?).into()),
        ValueType::I32 => Value::Signed(i32::from_le_bytes(cursor.array(field)?).into()),
        ValueType::U64 => Value::Unsigned(u64::from_le_bytes(cursor.array(field)?)),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(cursor.array(field)?)),
        ValueType::F32 => Value::Float(f32::from_le_bytes(cursor.array(field)?).into()),
        ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array(field)?)),
        ValueType::Bool => match cursor.array(field)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => {
                return Err(Error::invalid(format!(
                    "{field}: a truth value is {other}, not 0 or 1"
                )));
            }
        },
        ValueType::Text => Value::Text(cursor.text(field)?),
        ValueType::Array => Value::Array(read_array(cursor, depth, field)?),
    })
}

fn read_array<'a>(cursor: &mut Cursor<'a>, depth: usize, field: Arguments<'_>) -> Result<Array<'a>> {
    if depth == MAX_NESTING {
        return Err(Error::invalid(format!(
            "{field}: arrays are nested deeper than {MAX_NESTING}"
        )));
    }
    let ty = ValueType::read(cursor, format_args!("element type of {field}"))?;
    let count = cursor.count(ty.min_bytes(), format_args!("length of {field}"))?;
    let start = cursor.position();
    if ty.is_sized() {
        cursor.take(count * ty.min_bytes() as u64, field)?;
    } else {
        for i in 0..count {
            read_value(cursor, ty, depth + 1, format_args!("element {i} of {field}"))?;
        }
    }
    Ok(Array {
        ty,
        // `count` fits: its elements are in memory.
        count: count as usize,
        bytes: cursor.since(start),
    })
}

impl Value<'_> {
    /// For errors: its type, and what it is where that is short.
    fn describe(&self) -> String {
        match self {
            Self::Unsigned(n) => format!("the number {n}"),
            Self::Signed(n) => format!("the number {n}"),
            Self::Float(x) => format!("the real number {x}"),
            Self::Bool(b) => format!("{b}"),
            Self::Text(_) => "a text".to_owned(),
            Self::Array(a) => format!("an array of {}", a.count),
        }
    }
}

macro_rules! whole_numbers {
    ($($ty:ty),*) => {$(
        impl<'a> FromMetadata<'a> for $ty {
            fn expected() -> String {
                concat!("a whole number (", stringify!($ty), ")").to_owned()
            }
            fn from_value(value: Value<'a>) -> Option<Self> {
                match value {
                    Value::Unsigned(n) => n.try_into().ok(),
                    Value::Signed(n) => n.try_into().ok(),
                    _ => None,
                }
            }
        }
    )*};
}
whole_numbers!(u32, u64, usize, i32, i64);

impl<'a> FromMetadata<'a> for f64 {
    fn expected() -> String {
        "a real number".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Float(x) => Some(x),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for f32 {
    fn expected() -> String {
        f64::expected()
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        f64::from_value(value).map(|x| x as f32)
    }
}

impl<'a> FromMetadata<'a> for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(b),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for &'a str {
    fn expected() -> String {
        "a text".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Text(s) => Some(s),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for Array<'a> {
    fn expected() -> String {
        "an array".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Array(a) => Some(a),
            _ => None,
        }
    }
}

impl<'a, T: FromMetadata<'a>> FromMetadata<'a> for Vec<T> {
    fn expected() -> String {
        format!("an array, each element {}", T::expected())
    }
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Array(a) => a.iter().map(T::from_value).collect(),
            _ => None,
        }
    }
}
