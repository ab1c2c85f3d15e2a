//! libroxie_audit.so, which `roxie run` names in `LD_AUDIT` (rtld-audit(7)).
//!
//! The loader asks this library before it looks for a shared object. Each name of libibverbs or librdmacm
//! becomes the path of roxie's: also a name with a hash, as Python wheels have, one that a RUNPATH would
//! find, and a path given to dlopen(3). `LD_LIBRARY_PATH` reaches only the plain names. If the limits of
//! memory are too low for roxie's libraries, the program gets those that it would have without roxie.
//!
//! With `ROXIE_RUN`, a directory of `roxie run`, it also says once that it redirected a library, and at the
//! end of the command that neither the command nor a program that it started opened the device.
//!
//! The program `rdma` of iproute2 gets libroxie_preload.so (`preload.rs`).
//!
//! The loader gives an audit library a namespace of its own, with a second copy of every dependency. So this
//! library has none: it calls the kernel directly and allocates nothing.

#![cfg_attr(not(test), no_std)]
#![no_builtins]

mod kernel;
mod names;
mod preload;
mod report;
mod text;

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint};
use core::sync::atomic::{AtomicU8, Ordering};

use names::{Library, base_name};
use preload::Preload;
use report::Report;
use text::Text;

/// `LA_SER_ORIG` of link.h: the name as the program gave it.
const LA_SER_ORIG: c_uint = 1;

/// Addresses and bytes of data that a program needs for roxie's libraries and those that it loads after them,
/// the C library for example: 6 and 0.5 MiB with the release profile. Half: the loader fails and the program
/// does not start. Double: fewer programs see a device, which they could not start (`Refusal::NoMemory`).
const ADDRESSES: usize = 8 << 20;
const DATA: usize = 1 << 20;
/// Addresses that the second start of [`preload`] may have used more than the first when it loads roxie's
/// libraries: 25 KiB with iproute2 6.1.
const SECOND_START: usize = 1 << 20;

/// The start of `struct link_map` of link.h.
#[derive(Debug)]
#[repr(C)]
pub struct LinkMap {
    _addr: usize,
    name: *const c_char,
}

/// What the environment says, read once.
struct State {
    /// Paths of roxie's libraries; empty if this library was not loaded through `LD_AUDIT`.
    ibverbs: Text<4096>,
    rdmacm: Text<4096>,
    report: Report,
    preload: Preload,
}

impl State {
    /// Whether the process has memory for roxie's libraries, and so many more addresses: for all of them or
    /// for none. The first call decides, and says what follows from it.
    fn has_memory(&self, more: usize) -> bool {
        const UNKNOWN: u8 = 0;
        const YES: u8 = 1;
        const NO: u8 = 2;
        static MEMORY: AtomicU8 = AtomicU8::new(UNKNOWN);
        if MEMORY.load(Ordering::Relaxed) == UNKNOWN {
            let has_memory = kernel::has_memory(ADDRESSES + more, DATA);
            MEMORY.store(if has_memory { YES } else { NO }, Ordering::Relaxed);
            if !has_memory {
                self.report.short_of_memory();
            }
        }
        MEMORY.load(Ordering::Relaxed) == YES
    }
}

struct Once(UnsafeCell<State>);

// SAFETY: `start` writes it before the loader calls any other function here, and before there are threads.
unsafe impl Sync for Once {}

static STATE: Once = Once(UnsafeCell::new(State {
    ibverbs: Text::new(),
    rdmacm: Text::new(),
    report: Report::new(),
    preload: Preload::new(),
}));

fn state() -> &'static State {
    // SAFETY: nothing writes after `start`.
    unsafe { &*STATE.0.get() }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Constructor; the GNU loader passes the arguments of `main`.
extern "C" fn start(_: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    // SAFETY: see `Once`.
    let state = unsafe { &mut *STATE.0.get() };
    // SAFETY: NULL-terminated arrays of strings, which live as long as the process.
    let (program, variables) = unsafe { (strings(argv).next(), strings(envp)) };
    state.report.name(program.map_or(b"the program", base_name));
    for variable in variables {
        if let Some(list) = names::value(variable, b"LD_AUDIT=")
            && let Some(dir) = names::own_dir(list)
        {
            state.ibverbs.set(&[dir, b"/libibverbs.so.1\0"]);
            state.rdmacm.set(&[dir, b"/librdmacm.so.1\0"]);
            // SAFETY: as above.
            unsafe { state.preload.prepare(dir, argv, envp) };
        }
        if let Some(dir) = names::value(variable, b"ROXIE_RUN=") {
            state.report.begin(dir);
        }
        state.report.is_quiet |= names::value(variable, b"ROXIE_QUIET=").is_some_and(|value| value != b"0");
    }
}

/// Destructor.
extern "C" fn end() {
    state().report.end();
}

/// The strings of a NULL-terminated array.
///
/// # Safety
/// NULL, or such an array of strings that live as long as the process.
unsafe fn strings(array: *const *const c_char) -> impl Iterator<Item = &'static [u8]> {
    let mut at = array;
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: the array ends with NULL, and behind that this function does not read.
        let string = unsafe { *at };
        // SAFETY: as above.
        at = if string.is_null() { core::ptr::null() } else { unsafe { at.add(1) } };
        // SAFETY: a string of the array.
        unsafe { bytes(string) }
    })
}

/// The bytes of a C string, without the terminating zero; `None` for NULL.
///
/// # Safety
/// NULL, or a string that is not changed during `'a`.
unsafe fn bytes<'a>(string: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as the caller guarantees.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// The version of the interface that the loader offers is accepted.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered
}

/// Returns the name to look for instead of `name`, which the object of `cookie` needs.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(
    name: *const c_char,
    cookie: *const *const LinkMap,
    flag: c_uint,
) -> *const c_char {
    // SAFETY: the loader passes a string.
    let Some(wanted) = (unsafe { bytes(name) }) else { return name };
    let state = state();
    let ours = match Library::of(wanted) {
        Some(Library::Ibverbs) => state.ibverbs.bytes(),
        Some(Library::Rdmacm) => state.rdmacm.bytes(),
        None => {
            state.preload.library(wanted, || state.has_memory(SECOND_START));
            return name;
        }
    };
    // Without the terminating zero.
    let Some(path) = ours.split_last().map(|(_, path)| path) else { return name };
    if flag != LA_SER_ORIG {
        // A place where the loader looks for the name, because memory is short: not in roxie's directory.
        let is_ours = names::dir(wanted) == names::dir(path);
        return if is_ours { core::ptr::null() } else { name };
    }
    if !state.has_memory(0) {
        return name;
    }
    if !Library::is_plain(wanted) && wanted != path {
        // SAFETY: the cookie of an object is its link map, because `la_objopen` does not change it.
        let by = unsafe { cookie.as_ref().and_then(|map| map.as_ref()).and_then(|map| bytes(map.name)) };
        state.report.redirected(wanted, by.filter(|by| !by.is_empty()), path);
    }
    ours.as_ptr().cast()
}

/// Records which libraries the program loads.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(map: *const LinkMap, _namespace: isize, _cookie: *mut usize) -> c_uint {
    // SAFETY: the loader passes an object with a name.
    if let Some(name) = unsafe { map.as_ref().and_then(|map| bytes(map.name)) } {
        state().report.loaded(name);
    }
    0
}

/// Before the constructors of the program's libraries run.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_preinit(_cookie: *mut usize) {
    state().preload.begin();
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        kernel::exit(134);
    }
}
