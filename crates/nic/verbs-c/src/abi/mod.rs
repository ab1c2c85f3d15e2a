//! The C layouts and constants: what programs compiled against rdma-core's headers read and write directly.
//!
//! Shapes are those of rdma-core 65. Programs built with older headers see the same offsets, because
//! structures only grow (`ibv_port_attr` and `ibv_qp_ex` at the end, `verbs_context` at the front). Every
//! layout is asserted at compile time here, and `tests/abi.rs` compares layouts and constants with the
//! installed C headers.

#![allow(non_camel_case_types, missing_docs)] // The names are C's; the manual pages document them.

pub mod cm;
pub mod context;
pub mod counters;
pub mod device;
pub mod memory;
pub mod objects;
pub mod steering;
pub mod work;

/// A structure and where its members are, for the comparison with the C headers.
#[cfg(test)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    /// Member paths and offsets.
    pub members: &'static [(&'static str, usize)],
}

/// A C structure that may consist of zero bytes.
///
/// # Safety
/// Zero bytes are a valid value: no member is a reference or an enum without a zero.
pub unsafe trait Zeroed: Sized {
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: types with this trait may be zero.
        unsafe { std::mem::zeroed() }
    }
}

/// Bytes by which `pthread_mutex_t` is longer than the 40 of x86-64, Power and RISC-V: 8 on aarch64. It adds
/// to the size of structures that contain a mutex, and to the offsets of their later members.
const M: usize = size_of::<libc::pthread_mutex_t>() - 40;

/// Asserts sizes and offsets at compile time, and lists them for the test. The structures get [`Zeroed`].
macro_rules! layouts {
    ($($name:ident: $size:tt { $($($member:ident).+ @ $offset:expr),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$name>() == $size, stringify!($name));
            $(assert!(std::mem::offset_of!($name, $($member).+) == $offset, stringify!($name.$($member).+));)*
        };)*
        $(
            // SAFETY: the members are numbers, arrays, raw pointers and optional functions.
            unsafe impl crate::abi::Zeroed for $name {}
        )*
        #[cfg(test)]
        pub const LAYOUTS: &[crate::abi::Layout] = &[$(crate::abi::Layout {
            name: stringify!($name),
            size: $size,
            members: &[$((concat!($(".", stringify!($member)),+), $offset)),*],
        }),*];
    };
}
pub(crate) use layouts;

/// Defines constants under their C names, and lists them for the test.
macro_rules! constants {
    ($($ty:ty { $($name:ident = $value:expr),* $(,)? })*) => {
        $($(pub const $name: $ty = $value;)*)*
        #[cfg(test)]
        pub const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($name), $name as i64),)*)*];
    };
}
pub(crate) use constants;
