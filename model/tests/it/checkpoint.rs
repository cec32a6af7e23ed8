//! GGUF files that are right are read; files that are wrong give an error that names the field.

use crate::support::{TempFile, Value, Writer};
use met_kernels::TensorType;
use met_model::{Checkpoint, ErrorKind, checkpoint::Array};

fn sample() -> Writer {
    let mut w = Writer::default();
    w.set("general.architecture", Value::Text("llama".into()))
        .set("n", Value::U32(7))
        .set("minus", Value::I32(-3))
        .set("big", Value::U64(1 << 40))
        .set("x", Value::F32(0.5))
        .set("yes", Value::Bool(true))
        .set("tokens", Value::Texts(vec!["a".into(), "".into(), "é🙂".into()]))
        .set("scores", Value::F32s(vec![1.0, -2.0]))
        .set("types", Value::I32s(vec![1, 3, -6]))
        .set("nested", Value::Nested(vec![vec![1, 2], vec![], vec![3]]))
        .floats("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("m", TensorType::Q4_0, &[64, 2], (0..72).collect());
    w
}

fn error(bytes: Vec<u8>) -> String {
    let e = Checkpoint::from_bytes(bytes).expect_err("the file is wrong");
    assert_eq!(e.kind, ErrorKind::Invalid);
    e.message
}

#[test]
fn values_and_tensors_are_read_in_both_versions() {
    for version in [2, 3] {
        let mut w = sample();
        w.version = version;
        let c = Checkpoint::from_bytes(w.bytes()).unwrap();
        let m = c.metadata();
        assert_eq!(m.require::<&str>("general.architecture").unwrap(), "llama");
        assert_eq!(m.get::<u32>("n").unwrap(), Some(7));
        assert_eq!(m.get::<i32>("minus").unwrap(), Some(-3));
        assert_eq!(m.get::<u64>("big").unwrap(), Some(1 << 40));
        assert_eq!(m.get::<f32>("x").unwrap(), Some(0.5));
        assert_eq!(m.get::<bool>("yes").unwrap(), Some(true));
        assert_eq!(m.get::<Vec<&str>>("tokens").unwrap().unwrap(), ["a", "", "é🙂"]);
        assert_eq!(m.get::<Vec<f32>>("scores").unwrap().unwrap(), [1.0, -2.0]);
        assert_eq!(m.get::<Vec<i32>>("types").unwrap().unwrap(), [1, 3, -6]);
        assert_eq!(
            m.get::<Vec<Vec<i32>>>("nested").unwrap().unwrap(),
            [vec![1, 2], vec![], vec![3]]
        );
        assert_eq!(m.get::<Array>("tokens").unwrap().unwrap().len(), 3);
        assert_eq!(m.get::<u32>("absent").unwrap(), None);

        assert_eq!(c.tensors().len(), 2);
        let norm = c.weight("norm").unwrap();
        assert_eq!((norm.rows, norm.cols), (1, 3));
        let mut second = [0; 4];
        norm.read(4, &mut second).unwrap();
        assert_eq!(second, 2f32.to_le_bytes());
        assert_eq!(norm.read(9, &mut second).unwrap_err().kind, ErrorKind::Bug);
        let matrix = c.weight("m").unwrap();
        assert_eq!((matrix.rows, matrix.cols, matrix.ty), (2, 64, TensorType::Q4_0));
        let mut data = [0; 72];
        matrix.read(0, &mut data).unwrap();
        assert!(data.into_iter().eq(0..72));
        assert!(c.weight("absent").is_none());
        assert_eq!(c.parameters(), 131);
        assert_eq!(c.quantization(), "Q4_0");
    }
}

#[test]
fn a_value_of_another_type_or_range_is_an_error_that_names_the_key() {
    let c = Checkpoint::from_bytes(sample().bytes()).unwrap();
    let m = c.metadata();
    for message in [
        m.get::<u32>("big").unwrap_err().message,
        m.get::<u32>("x").unwrap_err().message,
        m.get::<&str>("n").unwrap_err().message,
        m.get::<Vec<i32>>("tokens").unwrap_err().message,
        m.get::<bool>("tokens").unwrap_err().message,
    ] {
        assert!(message.contains("must be"), "{message}");
    }
    assert!(m.get::<u32>("minus").unwrap_err().message.contains("`minus`"));
    assert!(
        m.require::<u32>("absent")
            .unwrap_err()
            .message
            .contains("`absent` is missing")
    );
}

#[test]
fn identity_follows_metadata_and_content() {
    let identity = |w: &Writer| Checkpoint::from_bytes(w.bytes()).unwrap().identity().unwrap();
    let first = sample();
    assert_eq!(identity(&first), identity(&sample()));
    let mut other = sample();
    other.set("n", Value::U32(8));
    assert_ne!(identity(&first), identity(&other));
    for byte in [0, 35, 71] {
        let mut other = sample();
        other.tensors[1].3[byte] ^= 1;
        assert_ne!(identity(&first), identity(&other), "byte {byte}");
    }
}

#[test]
fn wrong_files_are_refused_by_the_name_of_the_field() {
    let with = |change: &dyn Fn(&mut Writer)| {
        let mut w = sample();
        change(&mut w);
        error(w.bytes())
    };
    let mut big_endian = sample().bytes();
    big_endian[4..8].reverse();
    for (message, part) in [
        (error(b"GGML...".to_vec()), "begins with \"GGML\""),
        (error(Vec::new()), "magic"),
        (error(big_endian), "big-endian"),
        (with(&|w| w.version = 1), "version is 1"),
        (
            with(&|w| w.pairs.push(("n".into(), Value::U8(0)))),
            "`n` occurs twice",
        ),
        (
            with(&|w| w.pairs.push((String::new(), Value::U8(0)))),
            "name of metadata key",
        ),
        (
            with(&|w| w.tensors.push(w.tensors[0].clone())),
            "`norm` occurs twice",
        ),
        (
            with(&|w| w.tensors[0].2 = vec![0]),
            "dimension 0 of tensor `norm`",
        ),
        (
            with(&|w| w.tensors[0].2 = vec![usize::MAX, 8]),
            "dimension 1 of tensor `norm`",
        ),
        (
            with(&|w| w.tensors[0].2 = vec![1; 5]),
            "number of dimensions of tensor `norm` is 5",
        ),
        (
            with(&|w| w.tensors[0].2 = vec![]),
            "number of dimensions of tensor `norm` is 0",
        ),
        (with(&|w| w.tensors[1].2 = vec![63, 2]), "multiple of 32"),
        (with(&|w| w.tensors[1].2 = vec![64, 3]), "reaches past the end"),
        (with(&|w| w.tensors[0].2 = vec![9]), "`norm` and `m` overlap"),
        (with(&|w| w.tensors[0].0 = "n".repeat(65)), "name of tensor 0"),
        (
            with(&|w| w.pairs.push(("general.alignment".into(), Value::U32(24)))),
            "general.alignment",
        ),
        (
            with(&|w| w.pairs.push(("general.alignment".into(), Value::Bool(true)))),
            "general.alignment",
        ),
        (
            with(&|w| w.pairs.push(("general.alignment".into(), Value::U32(64)))),
            "offset of tensor `m`",
        ),
        (
            with(&|w| w.pairs.push(("split.count".into(), Value::U32(3)))),
            "split over 3 files",
        ),
    ] {
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
}

#[test]
fn a_long_header_is_read_to_its_end_and_an_endless_one_is_refused() {
    let tokens: Vec<String> = (0..500_000).map(|i| format!("token {i}")).collect();
    let mut w = sample();
    w.set("tokens", Value::Texts(tokens.clone()));
    let file = TempFile::new(&w.bytes());
    let c = Checkpoint::open(file.path()).unwrap();
    assert_eq!(c.metadata().get::<Vec<&str>>("tokens").unwrap().unwrap(), tokens);
    assert_eq!(c.floats("norm", 3).unwrap().unwrap(), [1.0, 2.0, 3.0]);

    let mut endless = w.header();
    let count = endless
        .windows(8)
        .position(|w| w == 500_000u64.to_le_bytes())
        .unwrap();
    endless[count..count + 8].copy_from_slice(&(1u64 << 32).to_le_bytes());
    let file = TempFile::new(&endless);
    let grown = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    grown.set_len(1 << 40).unwrap();
    let error = Checkpoint::open(file.path()).unwrap_err().message;
    assert!(
        error.contains("metadata key `tokens`") && error.contains("at most"),
        "{error}"
    );
}

#[test]
fn a_folder_with_one_file_is_that_file() {
    let dir = std::env::temp_dir().join(format!("met-model-checkpoint-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let open = || {
        Checkpoint::open(&dir)
            .map(|c| c.file_bytes())
            .map_err(|e| e.message)
    };
    assert!(open().unwrap_err().contains("no .gguf file"));
    std::fs::write(dir.join("model.safetensors"), b"").unwrap();
    assert!(open().unwrap_err().contains("config.json"));
    std::fs::write(dir.join("b.gguf"), sample().bytes()).unwrap();
    assert_eq!(open(), Ok(sample().bytes().len() as u64));
    std::fs::write(dir.join("a.gguf"), b"").unwrap();
    assert!(open().unwrap_err().contains("a.gguf, b.gguf"));
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(open().unwrap_err().contains("can't be opened"));
}
