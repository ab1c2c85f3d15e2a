//! SIGSEGV and SIGBUS handlers: faults of guarded instructions are handled here, all others are passed to
//! the handler that the application had installed (sigaction(2)).
//!
//! An application may install handlers of its own after these, and they may call the handler that they
//! replaced. Each installation therefore is a layer with a function of its own, and passes faults to the
//! action that it replaced: the function that is called tells which action is next. A chain
//! application -> roxie -> crash reporter -> roxie runs every handler once, newest first.
//!
//! The mask and the flags of a layer are those of the action that it replaced, because the kernel applies
//! them before any handler runs.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{machine, pages};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// Different actions of the application, for each signal, that registrations of memory may find. With
/// more, the last layer forgets the action that it replaced before.
const LAYERS: usize = 8;
/// Calls of one layer for one fault, each deeper in the stack than the one before, after which the handlers
/// evidently call each other forever.
const ROUNDS_MAX: usize = 8;
/// Attempts to install a handler while other threads install theirs, or while a sanitizer ignores it.
const ATTEMPTS: usize = 4;
/// Flags of the replaced action that the kernel must see. `SA_RESETHAND` is not among them: it would
/// remove the layer; `Layer::take` does what it asks for.
const KEPT_FLAGS: c_int = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
/// SIGBUS: memory is damaged somewhere, not at the instruction that was interrupted (`siginfo.h`).
const BUS_MCEERR_AO: c_int = 5;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The functions of the layers. Each has its own address, since each passes another number on.
static HANDLERS: [Handler; LAYERS] =
    [handle::<0>, handle::<1>, handle::<2>, handle::<3>, handle::<4>, handle::<5>, handle::<6>, handle::<7>];

static SEGV: [Layer; LAYERS] = [const { Layer::new() }; LAYERS];
static BUS: [Layer; LAYERS] = [const { Layer::new() }; LAYERS];

/// One installed handler.
struct Layer {
    /// The action that it replaced, one of [`ACTIONS`]; null in an unused layer.
    before: AtomicPtr<libc::sigaction>,
    /// `before` has `SA_RESETHAND` and was called.
    is_spent: AtomicBool,
    /// The context and the stack frame of the last call, and how many calls before it were for the same
    /// context from shallower frames.
    context: AtomicUsize,
    frame: AtomicUsize,
    rounds: AtomicUsize,
}

impl Layer {
    const fn new() -> Self {
        Self {
            before: AtomicPtr::new(ptr::null_mut()),
            is_spent: AtomicBool::new(false),
            context: AtomicUsize::new(0),
            frame: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
        }
    }

    fn before(&self) -> Option<&libc::sigaction> {
        // SAFETY: null or set by `set`, to an action that lives forever.
        unsafe { self.before.load(Ordering::Acquire).as_ref() }
    }

    fn has_replaced(&self, action: &libc::sigaction) -> bool {
        self.before().is_some_and(|before| are_equal(before, action))
    }

    /// Records the replaced action.
    fn set(&self, before: &'static libc::sigaction) {
        self.before.store(ptr::from_ref(before).cast_mut(), Ordering::Release);
        self.is_spent.store(false, Ordering::Relaxed);
    }

    /// Returns the handler to call; `None` if the default action or `SIG_IGN` is next.
    fn take(&self, context: usize, frame: usize) -> Option<&libc::sigaction> {
        let before = self.before().filter(|before| is_handler(before))?;
        let resets = before.sa_flags & libc::SA_RESETHAND != 0;
        let is_spent = resets && self.is_spent.swap(true, Ordering::Relaxed);
        (!is_spent && !self.goes_round(context, frame)).then_some(before)
    }

    /// Returns whether handlers call each other forever: no handler returned, and the stack only grows.
    /// Another thread's fault resets the count, which then starts anew.
    fn goes_round(&self, context: usize, frame: usize) -> bool {
        let is_same = self.context.swap(context, Ordering::Relaxed) == context;
        let is_deeper = frame < self.frame.swap(frame, Ordering::Relaxed);
        if !(is_same && is_deeper) {
            self.rounds.store(0, Ordering::Relaxed);
            return false;
        }
        self.rounds.fetch_add(1, Ordering::Relaxed) + 1 >= ROUNDS_MAX
    }
}

/// Actions of the application that were replaced. Their memory is never freed, because a handler may be
/// reading it; so each different one is here once, however often the application installs it.
static ACTIONS: Mutex<Vec<&libc::sigaction>> = Mutex::new(Vec::new());

/// Installs the handlers; guarded accesses are safe from then on. If the application has installed
/// handlers of its own since, they are replaced and get the faults of all other instructions. Cheap
/// enough to call on every registration of memory.
pub fn watch() {
    // One thread at a time.
    let mut actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    for signal in SIGNALS {
        install(signal, &mut actions);
    }
}

/// Returns the copy of an action that lives forever.
fn kept(action: &libc::sigaction, actions: &mut Vec<&'static libc::sigaction>) -> &'static libc::sigaction {
    if let Some(known) = actions.iter().find(|known| are_equal(known, action)) {
        return known;
    }
    let action: &'static libc::sigaction = Box::leak(Box::new(*action));
    actions.push(action);
    action
}

fn layers_of(signal: c_int) -> &'static [Layer; LAYERS] {
    if signal == libc::SIGBUS { &BUS } else { &SEGV }
}

fn install(signal: c_int, actions: &mut Vec<&'static libc::sigaction>) {
    let layers = layers_of(signal);
    let mut now = exchange(signal, None);
    for _ in 0..ATTEMPTS {
        if HANDLERS.iter().any(|ours| *ours as usize == now.sa_sigaction) {
            return;
        }
        let known = |layer: &Layer| layer.has_replaced(&now);
        let free = |layer: &Layer| layer.before().is_none();
        let layer = layers.iter().position(known).or_else(|| layers.iter().position(free));
        let layer = layer.unwrap_or(LAYERS - 1);
        // Before the handler can run.
        layers[layer].set(kept(&now, actions));
        // SAFETY: zero bytes are a valid `sigaction` with an empty mask.
        let mut ours: libc::sigaction = unsafe { mem::zeroed() };
        ours.sa_sigaction = HANDLERS[layer] as usize;
        ours.sa_flags = libc::SA_SIGINFO;
        if is_handler(&now) {
            ours.sa_flags |= now.sa_flags & KEPT_FLAGS;
            ours.sa_mask = now.sa_mask;
        }
        let replaced = exchange(signal, Some(&ours));
        if are_equal(&replaced, &now) {
            return;
        }
        // Another thread installed a handler in between.
        now = replaced;
    }
}

/// Returns the action of the signal, after installing `new` in its place.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `old` has room for the answer, and zero bytes are a valid value. Handlers that are installed
    // live as long as the library, which is never unloaded, and call only async-signal-safe functions.
    unsafe {
        libc::sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), old.as_mut_ptr());
        old.assume_init()
    }
}

fn is_handler(action: &libc::sigaction) -> bool {
    ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
}

fn are_equal(a: &libc::sigaction, b: &libc::sigaction) -> bool {
    // SAFETY: both sets were initialised by sigaction(2) or with zeros.
    let blocks = |action: &libc::sigaction, n| unsafe { libc::sigismember(&raw const action.sa_mask, n) };
    a.sa_sigaction == b.sa_sigaction
        && a.sa_flags == b.sa_flags
        && (1..=libc::SIGRTMAX()).all(|n| blocks(a, n) == blocks(b, n))
}

extern "C" fn handle<const LAYER: usize>(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel, or the handler that passes a fault on, gives the context of this thread.
    if !unsafe { resume(signal, info, context) || open(signal, info, context) } {
        pass_on(LAYER, signal, info, context);
    }
}

/// Lets the thread continue with an error if a guarded instruction faulted; returns whether one did.
///
/// # Safety
/// `info` and `context` are what the kernel gave for a signal of this thread.
unsafe fn resume(signal: c_int, info: *const libc::siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: upheld by the caller.
    let code = unsafe { (*info).si_code };
    if is_asynchronous(signal, code) {
        return false;
    }
    // SAFETY: upheld by the caller.
    let Some(pc) = (unsafe { program_counter(context) }) else { return false };
    // SAFETY: the pointer is into the context.
    let Some(next) = machine::resume_at(unsafe { *pc } as usize) else { return false };
    // SAFETY: as above; only the thread of the faulting instruction continues elsewhere.
    unsafe { *pc = next as _ };
    true
}

/// Lets the thread repeat an access of a page that a checker has protected; returns whether this was one.
///
/// # Safety
/// As [`resume`].
unsafe fn open(signal: c_int, info: *const libc::siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: upheld by the caller.
    unsafe {
        let Some(pc) = program_counter(context) else { return false };
        pages::handle(signal, info, *pc as usize, pages::is_write(context))
    }
}

/// Whether the interrupted instruction is not the cause of a signal with this `si_code`: a process sent the
/// signal, or memory is damaged elsewhere. Such a signal does not occur again when the handler returns.
fn is_asynchronous(signal: c_int, code: c_int) -> bool {
    code <= 0 || (signal == libc::SIGBUS && code == BUS_MCEERR_AO)
}

#[cfg(target_arch = "x86_64")]
unsafe fn program_counter(context: *mut c_void) -> Option<*mut i64> {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: upheld by the caller.
    Some(unsafe { &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] })
}

#[cfg(target_arch = "aarch64")]
unsafe fn program_counter(context: *mut c_void) -> Option<*mut u64> {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: upheld by the caller.
    Some(unsafe { &raw mut (*context).uc_mcontext.pc })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn program_counter(_context: *mut c_void) -> Option<*mut u64> {
    None
}

/// Calls the handler that the layer replaced. Needs little stack, because the application's alternate stack
/// may be small.
#[inline(never)]
fn pass_on(layer: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type Plain = extern "C" fn(c_int);
    let layer = &layers_of(signal)[layer];
    match layer.take(context.addr(), (&raw const signal).addr()) {
        // SAFETY: the flags say which of the two types the application installed.
        Some(before) => unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                mem::transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context);
            } else {
                mem::transmute::<usize, Plain>(before.sa_sigaction)(signal);
            }
        },
        None => {
            let ignores = layer.before().is_some_and(|before| before.sa_sigaction == libc::SIG_IGN);
            act_by_default(signal, info, ignores);
        }
    }
}

/// Restores the default action, which kills the process with a core dump of the place of the fault: the
/// instruction faults again when the handler returns. An asynchronous signal is queued once more; if the
/// application ignores the signal, nothing happens, as the kernel would do.
#[cold]
fn act_by_default(signal: c_int, info: *const libc::siginfo_t, ignores: bool) {
    // SAFETY: plain system calls, which may be made in a handler; the kernel gave `info`.
    unsafe {
        let is_asynchronous = is_asynchronous(signal, (*info).si_code);
        if is_asynchronous && ignores {
            return;
        }
        libc::signal(signal, libc::SIG_DFL);
        if is_asynchronous {
            let (process, thread) = (libc::getpid(), crate::thread_id());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::*;

    /// Environment variable that is set in the inner process.
    const INSIDE: &str = "ROXIE_HANDLER_INSIDE";

    /// Runs the test in a process of its own; `None` in that process. `ROXIE_TEST_RUNNER` is an emulator with
    /// its options, as in `CARGO_TARGET_..._RUNNER`.
    fn outside(test: &str) -> Option<ExitStatus> {
        if std::env::var_os(INSIDE).is_some() {
            return None;
        }
        let name = format!("guarded::handler::tests::{test}");
        let file = std::env::current_exe().expect("a test knows its own file");
        let runner = std::env::var("ROXIE_TEST_RUNNER").unwrap_or_default();
        let mut words = runner.split_whitespace();
        let mut program = Command::new(words.next().map_or(file.as_os_str(), OsStr::new));
        if !runner.is_empty() {
            program.args(words).arg(&file);
        }
        Some(program.args([&name, "--exact", "--nocapture"]).env(INSIDE, "1").status().expect("it starts"))
    }

    fn set_action(signal: c_int, handler: usize) {
        // SAFETY: zero bytes are a valid `sigaction` with an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = handler;
        exchange(signal, Some(&action));
    }

    /// As the kernel does when it finds damaged memory that no thread uses now.
    fn report_damaged_memory() {
        // SAFETY: zero bytes are a valid `siginfo_t`; the kernel reads it.
        unsafe {
            let mut info: libc::siginfo_t = mem::zeroed();
            (info.si_signo, info.si_code) = (libc::SIGBUS, BUS_MCEERR_AO);
            let (process, thread) = (libc::getpid(), crate::thread_id());
            let queue = libc::SYS_rt_tgsigqueueinfo;
            assert_eq!(libc::syscall(queue, process, thread, libc::SIGBUS, &raw const info), 0);
        }
    }

    #[test]
    fn an_ignored_report_of_damaged_memory_leaves_the_handler_installed() {
        if let Some(status) = outside("an_ignored_report_of_damaged_memory_leaves_the_handler_installed") {
            return assert!(status.success(), "{status}");
        }
        set_action(libc::SIGBUS, libc::SIG_IGN);
        watch();
        let ours = exchange(libc::SIGBUS, None);
        report_damaged_memory();
        assert!(are_equal(&exchange(libc::SIGBUS, None), &ours));
    }

    #[test]
    fn a_report_of_damaged_memory_ends_a_process_that_has_no_handler() {
        if let Some(status) = outside("a_report_of_damaged_memory_ends_a_process_that_has_no_handler") {
            return assert_eq!(status.signal(), Some(libc::SIGBUS));
        }
        set_action(libc::SIGBUS, libc::SIG_DFL);
        watch();
        report_damaged_memory();
    }

    /// More different ones than there are layers.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn handlers_that_are_installed_again_and_again_take_no_further_memory() {
        use crate::guarded::{Unmapped, read};

        if let Some(status) = outside("handlers_that_are_installed_again_and_again_take_no_further_memory") {
            return assert!(status.success(), "{status}");
        }
        let count = || ACTIONS.lock().expect("no panic").len();
        let install_all = || {
            for handler in 1..=LAYERS + 3 {
                // An address that no fault calls.
                set_action(libc::SIGSEGV, 0x1000 * handler);
                watch();
            }
        };
        install_all();
        let (before, mut byte) = (count(), [0]);
        (0..100).for_each(|_| install_all());
        assert_eq!(count(), before);
        // SAFETY: no memory is there.
        assert_eq!(unsafe { read(0, &mut byte) }, Err(Unmapped), "the last layer is installed");
    }

    /// The addresses tell which layer a handler of the application means.
    #[test]
    fn each_layer_has_an_address_of_its_own() {
        for (i, a) in HANDLERS.iter().enumerate() {
            assert!(HANDLERS[i + 1..].iter().all(|b| *a as usize != *b as usize));
        }
    }

    #[test]
    fn handlers_that_call_each_other_forever_are_noticed() {
        let layer = Layer::new();
        assert!((0..ROUNDS_MAX).all(|depth| !layer.goes_round(7, 1000 - depth)));
        assert!(layer.goes_round(7, 1000 - ROUNDS_MAX));
        // Handlers that left by siglongjmp(3), and the same fault again.
        assert!((0..100).all(|_| !layer.goes_round(7, 1000)));
    }
}
