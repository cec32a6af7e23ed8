//! A model file that changes under a load gives an error or the model that was opened; under a loaded model it
//! changes nothing.

use crate::support::{Sequence, TempFile, TestHost, Tiny, all_logits, spec};
use met_backend_api::{Want, sdk::BackendModel};
use met_kernels::{ErrorKind, Ledger, TensorType, cpu::CpuOps};
use met_model::{Checkpoint, LoadedModel, Result};
use std::{
    cell::RefCell,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, SystemTime},
};

type Change = fn(&Path);

/// What is done to the contents, and what only to the name.
const WRITES: [Change; 4] = [cut_to_nothing, cut_to_half, overwrite, append];
const NAMES: [Change; 3] = [remove, rename_away, rename_over];

fn open(path: &Path) -> fs::File {
    OpenOptions::new().write(true).open(path).unwrap()
}

fn cut_to_nothing(path: &Path) {
    open(path).set_len(0).unwrap();
}

fn cut_to_half(path: &Path) {
    let file = open(path);
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// In place, with as many other bytes.
fn overwrite(path: &Path) {
    use std::os::unix::fs::FileExt;
    let mut bytes = fs::read(path).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    open(path).write_all_at(&bytes, 0).unwrap();
}

fn append(path: &Path) {
    let file = open(path);
    file.set_len(file.metadata().unwrap().len() + 1).unwrap();
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn rename_away(path: &Path) {
    fs::rename(path, other_name(path)).unwrap();
}

fn rename_over(path: &Path) {
    fs::write(other_name(path), b"another file").unwrap();
    fs::rename(other_name(path), path).unwrap();
}

fn other_name(path: &Path) -> PathBuf {
    path.with_extension("other")
}

/// A tiny model whose file was last written a while ago, so that a write is seen by its time.
fn old_file(ty: TensorType) -> TempFile {
    let file = Tiny::of(ty).file();
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    open(file.0.as_path()).set_modified(hour_ago).unwrap();
    file
}

fn load(ledger: &Ledger, host: &TestHost, file: &TempFile) -> Result<LoadedModel<CpuOps>> {
    let ops = Rc::new(RefCell::new(CpuOps::new(2, ledger.clone())?));
    LoadedModel::load(ops, &host.services(), &spec(file.path()), || u64::MAX)
}

fn logits(model: &mut LoadedModel<CpuOps>) -> Vec<Vec<f32>> {
    let tokens = [1, 50, 3, 96];
    all_logits(model, &[Sequence::new(&tokens, 0, &[0], Want::AllLogits)]).1
}

/// The logits of an undisturbed model, and how often its load asks whether to cancel.
fn undisturbed(ty: TensorType) -> (Vec<Vec<f32>>, usize) {
    let host = TestHost::default();
    let mut model = load(&Ledger::default(), &host, &old_file(ty)).unwrap();
    (logits(&mut model), host.times_asked())
}

fn changing_at(n: usize, change: Change, file: &TempFile) -> TestHost {
    let path = file.0.clone();
    TestHost::acting_at(n, move || change(&path))
}

#[test]
fn what_is_written_to_a_file_during_a_load_is_an_error() {
    for ty in [TensorType::F16, TensorType::Q4_1] {
        let (expected, asked) = undisturbed(ty);
        for change in WRITES {
            for n in 1..=asked {
                let (file, ledger) = (old_file(ty), Ledger::default());
                match load(&ledger, &changing_at(n, change, &file), &file) {
                    Ok(mut model) => {
                        assert_eq!(n, asked, "all was read");
                        assert_eq!(logits(&mut model), expected);
                    }
                    Err(error) => {
                        assert_eq!(error.kind, ErrorKind::Invalid);
                        assert!(error.message.contains(file.path()), "{error}");
                        assert!(error.message.contains("was changed"), "{error}");
                        assert_eq!(ledger.total(), (0, 0));
                    }
                }
            }
        }
    }
}

#[test]
fn a_file_that_only_loses_its_name_during_a_load_is_loaded() {
    for ty in [TensorType::F16, TensorType::Q4_1] {
        let (expected, asked) = undisturbed(ty);
        for change in NAMES {
            for n in 1..=asked {
                let file = old_file(ty);
                let mut model = load(&Ledger::default(), &changing_at(n, change, &file), &file).unwrap();
                assert_eq!(logits(&mut model), expected);
                let _ = fs::remove_file(other_name(&file.0));
            }
        }
    }
}

#[test]
fn a_loaded_model_needs_its_file_no_more() {
    for ty in TensorType::ALL {
        let (expected, _) = undisturbed(ty);
        for change in WRITES.into_iter().chain(NAMES) {
            let file = old_file(ty);
            let mut model = load(&Ledger::default(), &TestHost::default(), &file).unwrap();
            change(&file.0);
            assert_eq!(logits(&mut model), expected);
            assert!(model.release_pools().unwrap().first_error().is_none());
            let _ = fs::remove_file(other_name(&file.0));
        }
    }
}

#[test]
fn a_checkpoint_that_was_written_to_since_names_the_file_and_the_tensor() {
    for change in WRITES {
        let file = old_file(TensorType::F16);
        let checkpoint = Checkpoint::open(file.path()).unwrap();
        change(&file.0);
        let weight = checkpoint.weight("blk.1.ffn_up.weight").unwrap();
        let error = weight.read(0, &mut [0; 64]).unwrap_err();
        for part in ["blk.1.ffn_up.weight", file.path(), "was changed"] {
            assert!(error.message.contains(part), "{error}");
        }
        let error = checkpoint.floats("output_norm.weight", 256).unwrap_err();
        assert!(error.message.contains("output_norm.weight"), "{error}");
        assert!(checkpoint.identity().is_err());
        assert_eq!(
            checkpoint.metadata().get::<u32>("llama.block_count").unwrap(),
            Some(2)
        );
    }
}
