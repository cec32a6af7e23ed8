//! What a library's file says of it.

use object::{
    Endianness, ReadCache, ReadRef, elf,
    read::elf::{Dyn, ElfFile64, ProgramHeader},
};
use std::fs::File;

/// The processors that this program runs on; `None` where it is not known how ELF calls them.
const OWN_MACHINE: Option<elf::Machine> = if cfg!(target_arch = "x86_64") {
    Some(elf::EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(elf::EM_AARCH64)
} else {
    None
};

/// Checks that the file is a library, and not a part of one: the dynamic linker maps what is not there,
/// and the process dies on the first touch.
pub(super) fn check(file: &File) -> Result<(), String> {
    let cache = ReadCache::new(file);
    let parsed = ElfFile64::<Endianness, _>::parse(&cache).map_err(|e| e.to_string())?;
    let endian = parsed.endian();
    if parsed.elf_header().e_type.get(endian) != elf::ET_DYN {
        return Err("it is not a shared object".to_owned());
    }
    // The dynamic linker says of these that there is no such file.
    if OWN_MACHINE.is_some_and(|own| own != parsed.elf_header().e_machine.get(endian)) {
        let own = std::env::consts::ARCH;
        return Err(format!(
            "it is built for another processor than this program, {own}"
        ));
    }
    let length = (&cache).len().map_err(|()| "its length is unknown")?;
    let is_whole = parsed.elf_program_headers().iter().all(|header| {
        let end = header.p_offset(endian).checked_add(header.p_filesz(endian));
        end.is_some_and(|end| end <= length)
    });
    if is_whole {
        Ok(())
    } else {
        Err("it is cut off".to_owned())
    }
}

/// Why a library stays mapped after it was closed, where its file is the reason.
pub(super) fn reason_to_stay(file: &File) -> Option<&'static str> {
    let cache = ReadCache::new(file);
    let parsed = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = parsed.endian();
    let (dynamic, _) = parsed.elf_section_table().dynamic(endian, &cache).ok()??;
    let is_flagged = dynamic.iter().any(|entry| {
        entry.d_tag(endian) == elf::DT_FLAGS_1 && entry.d_val(endian) & elf::DF_1_NODELETE.0 != 0
    });
    if is_flagged {
        return Some("it was linked with -z nodelete");
    }
    let mut symbols = parsed.elf_dynamic_symbol_table().iter();
    symbols
        .any(|symbol| symbol.st_bind() == elf::STB_GNU_UNIQUE)
        .then_some("it has unique symbols: build its C++ parts with -fno-gnu-unique")
}
