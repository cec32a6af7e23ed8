//! Writes small GGUF files.

use met_kernels::TensorType;

/// A value to write.
#[derive(Clone)]
pub enum Value {
    U8(u8),
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    Nested(Vec<Vec<i32>>),
}

/// A GGUF file in the making.
#[derive(Clone)]
pub struct Writer {
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(String, Value)>,
    pub tensors: Vec<(String, TensorType, Vec<usize>, Vec<u8>)>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl Writer {
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.pairs.retain(|(k, _)| k != key);
        self.pairs.push((key.to_owned(), value));
        self
    }

    /// A tensor; `shape` has the contiguous dimension first.
    pub fn tensor(&mut self, name: &str, ty: TensorType, shape: &[usize], data: Vec<u8>) -> &mut Self {
        assert_eq!(ty.bytes_of(shape.iter().product()), Some(data.len()), "{name}");
        self.tensors.push((name.to_owned(), ty, shape.to_vec(), data));
        self
    }

    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, TensorType::F32, shape, data)
    }

    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            text(&mut out, key);
            out.extend(value.id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0usize;
        for (name, ty, shape, data) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for &n in shape {
                out.extend((n as u64).to_le_bytes());
            }
            out.extend(type_id(*ty).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + data.len()).next_multiple_of(self.alignment);
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(data);
        }
        out
    }
}

impl Value {
    fn id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::F32s(_) | Self::I32s(_) | Self::Nested(_) => 9,
            Self::U64(_) => 10,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.push(*v),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push((*v).into()),
            Self::Text(v) => text(out, v),
            Self::Texts(v) => {
                array(out, 8, v.len());
                v.iter().for_each(|s| text(out, s));
            }
            Self::F32s(v) => {
                array(out, 6, v.len());
                out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::I32s(v) => {
                array(out, 5, v.len());
                out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Nested(v) => {
                array(out, 9, v.len());
                v.iter().for_each(|inner| Self::I32s(inner.clone()).write(out));
            }
        }
    }
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn array(out: &mut Vec<u8>, id: u32, len: usize) {
    out.extend(id.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

pub fn type_id(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q8_0 => 8,
        TensorType::Q2_K => 10,
        TensorType::Q3_K => 11,
        TensorType::Q4_K => 12,
        TensorType::Q5_K => 13,
        TensorType::Q6_K => 14,
        TensorType::BF16 => 30,
    }
}
