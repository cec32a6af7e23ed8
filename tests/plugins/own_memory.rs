/// All memory of this library is an arena of its own, which goes with it: whoever reads of it afterwards crashes, and so
/// does whoever frees memory of another's here.
mod own_memory {
    use std::{
        alloc::{GlobalAlloc, Layout},
        sync::atomic::{AtomicUsize, Ordering},
    };

    const BYTES: usize = 256 << 20;
    static START: AtomicUsize = AtomicUsize::new(0);
    static TAKEN: AtomicUsize = AtomicUsize::new(0);

    #[global_allocator]
    static ARENA: Arena = Arena;

    struct Arena;

    // SAFETY: hands out parts of one mapping, each once.
    unsafe impl GlobalAlloc for Arena {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let start = start();
            let size = layout.size() + layout.align();
            let taken = TAKEN.fetch_add(size, Ordering::Relaxed);
            if start == 0 || taken + size > BYTES {
                return std::ptr::null_mut();
            }
            (start + taken).next_multiple_of(layout.align()) as *mut u8
        }

        unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
            let start = START.load(Ordering::Acquire);
            if !(start..start + BYTES).contains(&(memory as usize)) {
                std::process::abort();
            }
        }
    }

    fn start() -> usize {
        let known = START.load(Ordering::Acquire);
        if known != 0 {
            return known;
        }
        // SAFETY: a new mapping.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return 0;
        }
        match START.compare_exchange(0, mapped as usize, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mapped as usize,
            Err(first) => {
                // SAFETY: nobody was given this mapping.
                unsafe { libc::munmap(mapped, BYTES) };
                first
            }
        }
    }

    #[used]
    #[unsafe(link_section = ".fini_array")]
    static AT_UNLOAD: extern "C" fn() = give_back;

    extern "C" fn give_back() {
        // SAFETY: the library is being unloaded: nobody uses its memory.
        unsafe { libc::munmap(START.load(Ordering::Acquire) as *mut _, BYTES) };
    }
}
