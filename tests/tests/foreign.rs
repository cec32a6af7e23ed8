//! Libraries that are built with other tools, flags and languages live the same life, and go, or say why they stay.

use met_backend_api::ErrorKind;
use met_host::loader::{self, BackendSource, Builtins, Library, Services, Unload};
use met_tests::{
    life::{PATIENCE, life, spec, with_option},
    plugins::{self, Edit, Variant},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

#[test]
fn other_flags_and_another_panic_hook_change_nothing() {
    let variant = Variant {
        edits: &[(
            "echo/echo.rs",
            "        event!(Info, \"opened device",
            "        std::panic::set_hook(Box::new(|_| {}));\n        event!(Info, \"opened device",
        )],
        flags: "-C opt-level=s -C codegen-units=1 -C target-cpu=native -C overflow-checks=on -C debuginfo=0 \
                -C force-frame-pointers=yes -C relocation-model=pic",
        ..Variant::default()
    };
    let library = source(&built("flags", &variant));
    assert_eq!(life(&library), life(&source(&echo())));
    for behaviour in [
        "thread-local with a destructor",
        "key with a destructor",
        "panic in drop",
    ] {
        with_option(&library, Some(("behaviour", behaviour)), |_| Ok(())).unwrap();
    }
    let panic = with_option(&library, Some(("behaviour", "panic in open")), |_| Ok(()));
    assert_eq!(panic.unwrap_err().kind, ErrorKind::Bug);
}

#[test]
fn nothing_that_a_call_gave_is_the_librarys_memory() {
    let variant = Variant {
        more: &["own_memory.rs"],
        ..Variant::default()
    };
    let library = source(&built("own-memory", &variant));
    for _ in 0..3 {
        assert_eq!(life(&library), life(&source(&echo())));
    }
    // A refusal tells of types by names that lie in the library.
    let variant = Variant {
        edits: &[(
            "backend-api/src/abi/device.rs",
            "pub ledger_count: u64",
            "pub ledger_count: u32",
        )],
        ..variant
    };
    let refused = Library::load(&source(&built("own-memory-layout", &variant))).unwrap_err();
    assert!(refused.to_string().contains("ledger_count"), "{refused}");
}

const CPP: Variant<'static> = Variant {
    edits: &[CPP_OPTIONS],
    more: &["cpp.rs"],
    cpp: Some("parts.cpp"),
    link_arguments: &[],
    flags: "",
};
const CPP_OPTIONS: Edit<'static> = (
    "echo/echo.rs",
    "(\"thread until\", path) =>",
    "(\"C++ in\", folder) => cpp::begin(folder, false)?,\n\
     (\"C++ with a thread in\", folder) => cpp::begin(folder, true)?,\n\
     (\"thread until\", path) =>",
);

#[test]
fn cpp_parts_are_destroyed_and_their_library_goes() {
    let library = source(&built("cpp", &CPP));
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        with_option(
            &library,
            Some(("C++ in", folder.path().to_str().unwrap())),
            |_| Ok(()),
        )
        .unwrap();
        let marks = fs::read_to_string(folder.path().join("marks")).unwrap();
        let marks: Vec<&str> = marks.lines().collect();
        assert_eq!(
            marks,
            ["thread-local object", "thread-local object", "static object"]
        );
    }
    assert_eq!(life(&library), life(&source(&echo())));
}

#[test]
fn a_thread_of_cpp_parts_is_named_and_its_library_goes_when_it_ends() {
    assert!(loader::watches_threads());
    let folder = tempfile::tempdir().unwrap();
    let mut library = opened(
        &built("cpp", &CPP),
        "C++ with a thread in",
        folder.path().to_str().unwrap(),
    );
    retained(&mut library, "its code still runs on cpp-kept (thread ");
    fs::write(folder.path().join("until"), "").unwrap();
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
    let marks = fs::read_to_string(folder.path().join("marks")).unwrap();
    assert!(marks.ends_with("static object\n"), "{marks}");
}

#[test]
fn a_library_that_is_linked_to_stay_says_so() {
    let variant = Variant {
        link_arguments: &["-Wl,-z,nodelete"],
        ..Variant::default()
    };
    let mut library = Library::load(&source(&built("staying", &variant))).unwrap();
    retained(&mut library, "it was linked with -z nodelete");
    retained(&mut library, "it was linked with -z nodelete");
}

#[test]
fn a_library_with_unique_symbols_says_so() {
    let file = tempfile::Builder::new().suffix(".so").tempfile().unwrap();
    fs::write(file.path(), with_unique_symbols(fs::read(echo()).unwrap())).unwrap();
    let mut library = Library::load(&source(file.path())).unwrap();
    retained(
        &mut library,
        "it has unique symbols: build its C++ parts with -fno-gnu-unique",
    );
}

/// Marks what a library exports as g++ marks the inline statics of templates.
fn with_unique_symbols(mut library: Vec<u8>) -> Vec<u8> {
    use object::{
        Endianness,
        elf::{STB_GLOBAL, STB_GNU_UNIQUE, STT_OBJECT},
        read::elf::{ElfFile64, FileHeader, SectionHeader, Sym},
    };
    let parsed = ElfFile64::<Endianness>::parse(&*library).unwrap();
    let endian = parsed.endian();
    let sections = parsed.elf_header().sections(endian, &*library).unwrap();
    let table = sections
        .iter()
        .find(|section| section.sh_type(endian) == object::elf::SHT_DYNSYM)
        .unwrap();
    let (start, size) = (
        table.sh_offset(endian) as usize,
        table.sh_entsize(endian) as usize,
    );
    let exported: Vec<usize> = parsed
        .elf_dynamic_symbol_table()
        .iter()
        .enumerate()
        .filter(|(_, symbol)| {
            symbol.st_bind() == STB_GLOBAL && symbol.st_type() == STT_OBJECT && !symbol.is_undefined(endian)
        })
        .map(|(index, _)| start + index * size + 4)
        .collect();
    assert!(!exported.is_empty());
    for info in exported {
        library[info] = (STB_GNU_UNIQUE.0 << 4) | STT_OBJECT.0;
    }
    library
}

#[test]
fn a_thread_local_on_a_thread_that_nobody_knows_of_is_thought_of() {
    let mut library = Library::load(&source(&echo())).unwrap();
    let opener = library.opener();
    let engine = thread::spawn(move || {
        let spec = spec(Some(("behaviour", "tell of a function")));
        opener
            .open(&spec, &Services::default())
            .map(drop)
            .unwrap_err()
            .message
            .to_string()
    });
    let address = usize::from_str_radix(&engine.join().unwrap(), 16).unwrap();
    // SAFETY: the address of a function of this type, whose library is mapped.
    let touch = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address) };
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (touched, known) = std::sync::mpsc::channel();
    let stranger = thread::spawn(move || {
        touch();
        touched.send(()).unwrap();
        wait.recv().unwrap();
    });
    known.recv().unwrap();
    retained(
        &mut library,
        "a thread that has not ended holds a thread-local of it that has a destructor",
    );
    go.send(()).unwrap();
    stranger.join().unwrap();
}

fn opened(file: &Path, option: &str, value: &str) -> Library {
    let library = Library::load(&source(file)).unwrap();
    let (opener, spec) = (library.opener(), spec(Some((option, value))));
    let engine = thread::spawn(move || opener.open(&spec, &Services::default()).map(drop));
    engine.join().unwrap().unwrap();
    library
}

fn retained(library: &mut Library, why: &str) {
    let began = Instant::now();
    loop {
        match library.close(Duration::ZERO) {
            // A thread that begins takes its name a moment later.
            Unload::Retained { reason } if !reason.starts_with(why) && began.elapsed() < PATIENCE => {
                thread::yield_now();
            }
            Unload::Retained { reason } => return assert!(reason.starts_with(why), "{reason}"),
            other => panic!("expected it to be retained: {other:?}"),
        }
    }
}

fn source(file: &Path) -> BackendSource {
    BackendSource::parse(file.to_str().unwrap(), &Builtins::default()).unwrap()
}

fn built(name: &str, variant: &Variant<'_>) -> PathBuf {
    plugins::built(Path::new(env!("CARGO_TARGET_TMPDIR")), name, variant)
}

fn echo() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| plugins::plugin("echo").unwrap()).clone()
}
