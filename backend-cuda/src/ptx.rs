//! The kernels as PTX, made by `kernels/cuda/build.py`.

/// One compiled file.
#[derive(Debug)]
pub struct Ptx {
    /// Its name.
    pub name: &'static str,
    /// Its text; the first line says what it was made from.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Every file, by name.
        pub const FILES: &[Ptx] = &[$(Ptx {
            name: $name,
            text: include_str!(concat!("../../kernels/cuda/ptx/", $name, ".ptx")),
        }),*];
    };
}

files![
    "attention_128",
    "attention_256",
    "attention_32",
    "attention_64",
    "attention_96",
    "conv",
    "delta_rule",
    "elementwise",
    "experts",
    "linear_bf16",
    "linear_f16",
    "linear_q2_k",
    "linear_q3_k",
    "linear_q4_0",
    "linear_q4_1",
    "linear_q4_k",
    "linear_q5_0",
    "linear_q5_1",
    "linear_q5_k",
    "linear_q6_k",
    "linear_q8_0",
    "norm",
    "plain_bf16",
    "plain_f16",
    "plain_f32",
    "rope",
    "sample",
    "scan",
];
