//! Probes that bpftrace and perf can attach to (USDT): a no-op instruction each, and a note that names it.
//!
//! The format of the notes is that of SystemTap's sys/sdt.h, version 3: address of the no-op, address of the
//! base section, address of the semaphore, then provider, name and arguments.

/// Defines a function with a probe of the provider `roxie`: `usdt!(pub fn name(first, second));` with up to
/// six arguments of type `u64`. Call it only if [`is_on`](crate::trace::is_on).
#[macro_export]
macro_rules! usdt {
    ($(#[$doc:meta])* $view:vis fn $name:ident($($arg:ident),+)) => {
        $(#[$doc])*
        #[inline(never)]
        $view fn $name($($arg: u64),+) {
            $crate::usdt_note!(stringify!($name), $($arg),+);
        }
    };
}

/// The no-op and the note of one probe.
#[doc(hidden)]
#[macro_export]
macro_rules! usdt_note {
    ($name:expr, $a:ident) => {
        $crate::usdt_asm!($name, "8@{0}", $a)
    };
    ($name:expr, $a:ident, $b:ident) => {
        $crate::usdt_asm!($name, "8@{0} 8@{1}", $a, $b)
    };
    ($name:expr, $a:ident, $b:ident, $c:ident) => {
        $crate::usdt_asm!($name, "8@{0} 8@{1} 8@{2}", $a, $b, $c)
    };
    ($name:expr, $a:ident, $b:ident, $c:ident, $d:ident) => {
        $crate::usdt_asm!($name, "8@{0} 8@{1} 8@{2} 8@{3}", $a, $b, $c, $d)
    };
    ($name:expr, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident) => {
        $crate::usdt_asm!($name, "8@{0} 8@{1} 8@{2} 8@{3} 8@{4}", $a, $b, $c, $d, $e)
    };
    ($name:expr, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {
        $crate::usdt_asm!($name, "8@{0} 8@{1} 8@{2} 8@{3} 8@{4} 8@{5}", $a, $b, $c, $d, $e, $f)
    };
}

/// As [`usdt_note!`], with the text of the arguments: size and register of each.
#[doc(hidden)]
#[macro_export]
macro_rules! usdt_asm {
    ($name:expr, $arguments:literal, $($arg:ident),+) => {
        // SAFETY: executes one no-op; the rest describes it in sections that no code reads.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        unsafe {
            $crate::usdt_raw_asm!($name, $arguments, $($arg),+)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _unused = ($($arg),+,);
    };
}

/// The assembly: registers have other names in each syntax.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! usdt_raw_asm {
    ($name:expr, $arguments:literal, $($arg:ident),+) => {
        $crate::usdt_text!($name, $arguments, ($($arg),+), (att_syntax, nomem, nostack, preserves_flags))
    };
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! usdt_raw_asm {
    ($name:expr, $arguments:literal, $($arg:ident),+) => {
        $crate::usdt_text!($name, $arguments, ($($arg),+), (nomem, nostack, preserves_flags))
    };
}

/// The text of the assembly.
#[doc(hidden)]
#[macro_export]
macro_rules! usdt_text {
    ($name:expr, $arguments:literal, ($($arg:ident),+), ($($option:ident),+)) => {
        std::arch::asm!(
            "990: nop",
            ".pushsection .note.stapsdt, \"\", \"note\"",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b",
            ".8byte {base}",
            ".8byte {semaphore}",
            ".asciz \"roxie\"",
            concat!(".asciz \"", $name, "\""),
            concat!(".asciz \"", $arguments, "\""),
            "994: .balign 4",
            ".popsection",
            $(in(reg) $arg,)+
            base = sym $crate::trace::probe_base,
            semaphore = sym $crate::trace::SEMAPHORE,
            options($($option),+),
        )
    };
}
