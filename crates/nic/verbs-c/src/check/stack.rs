//! Call stacks of the application: captured by the unwinder, kept once each.
//!
//! Programs have no frame pointers, so each capture would cost the unwinder some microseconds. Posts come
//! from the same place again and again. So each thread remembers, for a value of the stack pointer, where on
//! the stack the return addresses were and what they were. If they are the same again, so is the call stack,
//! and the unwinder does not run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::{LazyLock, Mutex, OnceLock};

use super::numbers::NumberMap;
use super::options::lock;

/// Frames of the application that are kept, from the innermost one on.
const FRAMES_MAX: usize = 32;
/// Frames of this library that a capture passes first, at most.
const OWN_FRAMES_MAX: usize = 32;
/// Stack pointers that a thread remembers; a program has fewer places that post.
const REMEMBERED_MAX: usize = 1024;

/// A call stack of a thread; equal ones have equal numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Site(u32);

impl Site {
    /// Its number in this process.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// The site with this number less one; `None` for 0.
    pub(super) fn of(next: u32) -> Option<Self> {
        next.checked_sub(1).map(Self)
    }
}

/// What a [`Site`] stands for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Stack {
    /// Return addresses in the application, innermost first.
    pub(super) frames: Box<[usize]>,
    /// Name and number of the thread.
    pub(super) thread: Box<str>,
}

#[derive(Default)]
pub(super) struct Sites {
    stacks: Vec<Stack>,
    numbers: HashMap<Stack, Site>,
}

pub(super) static SITES: LazyLock<Mutex<Sites>> = LazyLock::new(Mutex::default);

/// Where a return address lies on the stack, and the address.
type Slot = (usize, usize);

/// The slots of a call stack, and its site.
type Remembered = (Box<[Slot]>, Site);

thread_local! {
    /// The addresses of the stack of this thread: what is remembered lies there, for other stacks
    /// (coroutines, signal handlers) may be unmapped.
    static STACK: Range<usize> = own_stack();
    static REMEMBERED: RefCell<NumberMap<usize, Remembered>> = RefCell::default();
}

#[allow(
    missing_docs,
    reason = "the unwinder of the platform (libgcc_s), which the standard library uses, too"
)]
unsafe extern "C" {
    fn _Unwind_Backtrace(trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int, to: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

/// `_URC_NO_REASON` and `_URC_END_OF_STACK`.
const GO_ON: c_int = 0;
const STOP: c_int = 5;

#[derive(Default)]
struct Frames {
    slots: Vec<Slot>,
    application: Vec<usize>,
}

extern "C" fn frame(context: *mut c_void, frames: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes its context, and what `here` gave it.
    let (ip, cfa, frames) =
        unsafe { (_Unwind_GetIP(context), _Unwind_GetCFA(context), &mut *frames.cast::<Frames>()) };
    if ip == 0 {
        return STOP;
    }
    frames.slots.push((cfa.wrapping_sub(size_of::<usize>()), ip));
    if !is_own(ip) {
        frames.application.push(ip);
    }
    let is_full = frames.application.len() >= FRAMES_MAX || frames.slots.len() >= FRAMES_MAX + OWN_FRAMES_MAX;
    if is_full { STOP } else { GO_ON }
}

/// Whether an address is in this library.
fn is_own(ip: usize) -> bool {
    static OWN: OnceLock<(usize, usize)> = OnceLock::new();
    let (first, end) = *OWN.get_or_init(|| {
        let own = is_own as *const () as usize;
        let found = modules().into_iter().find(|module| (module.first..module.end).contains(&own));
        found.map_or((0, 0), |module| (module.first, module.end))
    });
    (first..end).contains(&ip)
}

/// The value of the stack pointer, near enough: equal calls from equal depths give equal values.
#[inline(always)]
fn depth() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here).addr()
}

/// Returns the call stack of this thread in the application.
#[inline(never)]
pub(super) fn here() -> Site {
    let depth = depth();
    let is_on_own = |slot: usize| STACK.try_with(|stack| stack.contains(&slot)).unwrap_or(false);
    let known = REMEMBERED.try_with(|remembered| {
        let remembered = remembered.borrow();
        remembered.get(&depth).filter(|(slots, _)| slots.iter().all(holds)).map(|(_, site)| *site)
    });
    if let Ok(Some(site)) = known {
        return site;
    }
    let mut frames = Frames::default();
    // SAFETY: `frame` gets `frames`, which lives longer than the call.
    unsafe { _Unwind_Backtrace(frame, (&raw mut frames).cast()) };
    let stack = Stack { frames: frames.application.into(), thread: thread_name().into() };
    let site = intern(stack);
    // The first frame is this function: its slot is that of a call that has ended. A slot that does not hold
    // its return address belongs to a signal frame or another machine: then nothing is remembered.
    let slots: Box<[Slot]> = frames.slots.iter().skip(1).copied().collect();
    let is_certain = |slot: &Slot| is_on_own(slot.0) && holds(slot);
    if cfg!(target_arch = "x86_64") && is_on_own(depth) && !slots.is_empty() && slots.iter().all(is_certain) {
        // At the end of a thread there is nothing left to write to.
        let _ = REMEMBERED.try_with(|remembered| {
            let mut remembered = remembered.borrow_mut();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert(depth, (slots, site));
        });
    }
    site
}

/// Whether a place of the stack of this thread holds this return address.
fn holds(&(slot, ip): &Slot) -> bool {
    // SAFETY: `slot` is in the stack of this thread, further out than this frame, because only then it is
    // looked at or remembered; that stays mapped while the thread runs.
    unsafe { (slot as *const usize).read_volatile() == ip }
}

/// The addresses of the stack of this thread; none if they are not known.
fn own_stack() -> Range<usize> {
    let (mut attr, mut low, mut size) = (MaybeUninit::uninit(), ptr::null_mut(), 0);
    // SAFETY: the first call initialises `attr`, or fails; the second one writes to two variables of this
    // function.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) != 0 {
            return 0..0;
        }
        libc::pthread_attr_getstack(attr.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(attr.as_mut_ptr());
    }
    low.addr()..low.addr() + size
}

/// The call stack of an instruction that faulted, captured in a signal handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured {
    pc: usize,
    /// The frame of the instruction was passed.
    is_there: bool,
    /// Addresses after calls in the application, innermost first.
    frames: [usize; FRAMES_MAX],
    count: usize,
}

impl Captured {
    pub(super) const NONE: Self = Self { pc: 0, is_there: false, frames: [0; FRAMES_MAX], count: 0 };

    /// Captures the call stack of the instruction at `pc`, of this thread, below the signal handler that
    /// calls this. Allocates nothing, once [`prepare`] was called.
    pub(super) fn after_fault(pc: usize) -> Self {
        let mut captured = Self { pc, ..Self::NONE };
        // SAFETY: `frame_below_fault` gets `captured`, which lives longer than the call.
        unsafe { _Unwind_Backtrace(frame_below_fault, (&raw mut captured).cast()) };
        if captured.count == 0 {
            captured.push(pc + 1);
        }
        captured
    }

    fn push(&mut self, ip: usize) {
        if let Some(frame) = self.frames.get_mut(self.count) {
            *frame = ip;
            self.count += 1;
        }
    }
}

extern "C" fn frame_below_fault(context: *mut c_void, captured: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes its context, and what `after_fault` gave it.
    let (ip, captured) = unsafe { (_Unwind_GetIP(context), &mut *captured.cast::<Captured>()) };
    if captured.is_there && ip != 0 && !is_own(ip) {
        captured.push(ip);
    } else if ip == captured.pc {
        captured.is_there = true;
        // Reports name the instruction before a return address.
        captured.push(ip + 1);
    }
    if ip == 0 || captured.count == FRAMES_MAX { STOP } else { GO_ON }
}

/// Makes ready what captures in signal handlers need.
pub(super) fn prepare() {
    is_own(0);
    Captured::after_fault(0);
}

/// Returns the site of a fault in the thread with this number.
pub(super) fn at_fault(captured: &Captured, thread: i32) -> Site {
    let frames = captured.frames[..captured.count].into();
    intern(Stack { frames, thread: name_of(thread).into() })
}

/// Whether addresses are on the stack of this thread.
pub(super) fn is_own_stack(range: Range<usize>) -> bool {
    STACK.try_with(|stack| range.start < stack.end && stack.start < range.end).unwrap_or(true)
}

fn intern(stack: Stack) -> Site {
    let mut sites = lock(&SITES);
    if let Some(site) = sites.numbers.get(&stack) {
        return *site;
    }
    let site = Site(sites.stacks.len() as u32);
    sites.stacks.push(stack.clone());
    sites.numbers.insert(stack, site);
    site
}

/// Returns what a site stands for.
pub(super) fn stack(site: Site) -> Stack {
    lock(&SITES).stacks[site.0 as usize].clone()
}

/// `main`, or the name of the thread and its number.
fn thread_name() -> String {
    name_of(sys::thread_id())
}

fn name_of(tid: i32) -> String {
    if tid as u32 == std::process::id() {
        return "main".to_owned();
    }
    // The thread of a fault may have ended.
    match fs::read_to_string(format!("/proc/self/task/{tid}/comm")) {
        Ok(name) => format!("{} (thread {tid})", name.trim_end()),
        Err(_) => format!("thread {tid}"),
    }
}

/// A loaded object file.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) path: String,
    /// What the loader added to the addresses in the file.
    pub(super) bias: usize,
    first: usize,
    end: usize,
}

impl Module {
    pub(super) fn contains(&self, ip: usize) -> bool {
        (self.first..self.end).contains(&ip)
    }
}

/// The object files that are loaded now.
pub(super) fn modules() -> Vec<Module> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader passes a description that lives for this call, and what `modules` gave it.
        let (info, to) = unsafe { (&*info, &mut *to.cast::<Vec<Module>>()) };
        // SAFETY: the loader's program headers and name of a loaded object.
        let (headers, name) = unsafe {
            (
                std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)),
                std::ffi::CStr::from_ptr(info.dlpi_name).to_string_lossy().into_owned(),
            )
        };
        let bias = info.dlpi_addr as usize;
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let range = |header: &libc::Elf64_Phdr| {
            let first = bias.wrapping_add(header.p_vaddr as usize);
            (first, first + header.p_memsz as usize)
        };
        let first = loaded.clone().map(|header| range(header).0).min().unwrap_or(0);
        let end = loaded.map(|header| range(header).1).max().unwrap_or(0);
        to.push(Module { path: name, bias, first, end });
        0
    }
    let mut found: Vec<Module> = Vec::new();
    // SAFETY: `add` gets the vector, which lives longer than the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    if let Some(program) = found.first_mut().filter(|module| module.path.is_empty()) {
        program.path =
            fs::read_link("/proc/self/exe").map(|path| path.display().to_string()).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_calls_have_one_site_and_other_threads_another() {
        let sites: Vec<Site> = (0..3).map(|_| here()).collect();
        assert!(sites.iter().all(|site| *site == sites[0]), "{sites:?}");
        assert_ne!(std::thread::spawn(here).join().expect("no panic"), sites[0]);
    }

    #[test]
    fn the_stack_of_a_thread_is_that_of_its_variables() {
        for _ in 0..2 {
            let here = 0_u8;
            let stack = own_stack();
            assert!(stack.contains(&(&raw const here).addr()), "{stack:x?}");
            std::thread::spawn(move || assert_ne!(own_stack(), stack)).join().expect("another stack");
        }
    }

    #[test]
    fn this_program_is_among_the_modules() {
        let own = this_program_is_among_the_modules as *const () as usize;
        let modules = modules();
        let found = modules.iter().find(|module| module.contains(own)).expect("loaded");
        assert!(found.path.contains("ibverbs"), "{found:?}");
    }
}
