//! GGUF files that are split into parts.

use crate::support::{TempFolder, Tiny, Value, Writer};
use met_model::{Checkpoint, Decoder, ModelConfig, checkpoint::stored_bytes};

fn name(number: usize) -> String {
    format!("tiny-{number:05}-of-00003.gguf")
}

/// Three parts of a tiny model: the first has all metadata, each some tensors.
fn parts() -> [Writer; 3] {
    let whole = Tiny::default().writer();
    let mut tensors = whole.tensors.clone();
    let count = tensors.len();
    [0, 1, 2].map(|number| {
        let mut part = if number == 0 {
            whole.clone()
        } else {
            Writer::default()
        };
        let left = tensors.len();
        part.tensors = tensors.drain(..left.div_ceil(3 - number)).collect();
        part.set("split.no", Value::U32(number as u32))
            .set("split.count", Value::U32(3))
            .set("split.tensors.count", Value::I32(count as i32));
        part
    })
}

fn write(folder: &TempFolder, parts: &[Writer; 3]) {
    for (number, part) in (1..).zip(parts) {
        folder.write(&name(number), part.bytes());
    }
}

#[test]
fn any_part_and_the_folder_stand_for_the_whole() {
    let folder = TempFolder::new();
    write(&folder, &parts());
    let one = Checkpoint::from_bytes(Tiny::default().writer().bytes()).unwrap();
    let paths = (1..=3).map(|number| folder.path().join(name(number)));
    for path in paths.chain([folder.path().to_owned()]) {
        let split = Checkpoint::open(&path).unwrap();
        assert_eq!(split.tensors().len(), one.tensors().len());
        assert_eq!(split.parameters(), one.parameters());
        for tensor in one.tensors() {
            let read = |checkpoint: &Checkpoint| {
                let weight = checkpoint.weight(&tensor.name).unwrap();
                let mut bytes = vec![0; weight.data.len()];
                weight.read(0, &mut bytes).unwrap();
                bytes
            };
            assert!(read(&split) == read(&one), "{}", tensor.name);
        }
        let config = ModelConfig::from_checkpoint(&split).unwrap();
        Decoder::bind(config, &split).unwrap();
        assert!(split.identity().is_ok());
    }
}

#[test]
fn parts_that_dont_belong_together_are_refused() {
    let error = |change: &dyn Fn(&mut [Writer; 3])| {
        let folder = TempFolder::new();
        let mut parts = parts();
        change(&mut parts);
        write(&folder, &parts);
        Checkpoint::open(folder.path()).unwrap_err().message
    };
    for (message, part) in [
        (error(&|parts| parts.swap(1, 2)), "`split.no` is 2, but must be 1"),
        (
            error(&|parts| {
                parts[2].set("split.count", Value::U32(4));
            }),
            "split over 4 files",
        ),
        (
            error(&|parts| {
                parts[1].tensors.pop();
            }),
            "`split.tensors.count`",
        ),
        (
            error(&|parts| parts[2].tensors = parts[1].tensors.clone()),
            "occurs twice",
        ),
    ] {
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
    let folder = TempFolder::new();
    write(&folder, &parts());
    std::fs::remove_file(folder.path().join(name(2))).unwrap();
    let message = Checkpoint::open(folder.path()).unwrap_err().message;
    assert!(
        message.contains("tiny-00002-of-00003.gguf: can't be opened"),
        "{message}"
    );
    folder.write("tiny-00001-of-99999.gguf", b"");
    let message = Checkpoint::open(folder.path().join("tiny-00001-of-99999.gguf"))
        .unwrap_err()
        .message;
    assert!(message.contains("99999 parts"), "{message}");
}

#[test]
fn a_model_is_as_large_as_all_its_files() {
    let folder = TempFolder::new();
    folder.write("a-00001-of-00003.gguf", vec![0; 10]);
    folder.write("a-00002-of-00003.gguf", vec![0; 32]);
    folder.write("b.gguf", vec![0; 7]);
    let bytes = |name: &str| stored_bytes(&folder.path().join(name));
    assert_eq!(
        ["a-00001-of-00003.gguf", "b.gguf", "c.gguf", ""].map(bytes),
        [42, 7, 0, 0]
    );
    let folder = TempFolder::new();
    folder.write("config.json", vec![0; 2]);
    folder.write("model.safetensors", vec![0; 40]);
    assert_eq!(stored_bytes(folder.path()), 42);
}
