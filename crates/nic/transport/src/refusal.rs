//! Why a call of the application was refused: an errno together with the object, its field, the value of the
//! field, and one sentence for people.
//!
//! An errno cannot say which of ten attributes was wrong. [`refuse!`](crate::refuse) is the only way to make
//! a [`VerbsError`], so no errno reaches the application without its reason:
//!
//! ```
//! use roxie_transport::{Errno, RecvQueue, RecvWr};
//!
//! let mut queue = RecvQueue::new(1, 1, roxie_transport::PdId(0))?;
//! let receive = RecvWr { wr_id: 1, sg_list: &[] };
//! queue.post(&receive)?;
//! let refused = queue.post(&receive).expect_err("the queue is full");
//! assert_eq!(refused.kind(), Errno::ENOMEM);
//! assert_eq!((refused.object(), refused.field(), refused.value()), ("receive queue", "max_recv_wr", 1));
//! assert_eq!(refused.to_string(), "the queue has room for 1 receive and is full");
//! # Ok::<(), roxie_transport::VerbsError>(())
//! ```

use core::fmt;
use core::net::IpAddr;
use std::io;

use wire::{Gid, Qpn};

use crate::attr::{QpState, QpType};
use crate::error::Errno;
use crate::wc::WcOpcode;

/// Numbers in a sentence, the value of the field among them. Three are enough for every refusal, and keep the
/// error at 40 bytes: a full send queue is refused in the loop of an application.
const VALUES: usize = 3;

/// A refused call: it changed nothing. Made by [`refuse!`](crate::refuse); making one allocates nothing.
#[derive(Clone, Copy)]
pub struct VerbsError {
    rule: Rule,
    values: [u64; VALUES],
    kind: Errno,
}

/// What a call was refused for, without the numbers of the call. A function: pointers in a table of all rules
/// would be 40 KiB that the loader writes in each process.
pub type Rule = fn() -> Parts;

/// The parts of a [`Rule`].
pub struct Parts {
    #[doc(hidden)]
    pub object: &'static str,
    #[doc(hidden)]
    pub field: &'static str,
    #[doc(hidden)]
    pub remedy: Option<&'static str>,
    #[doc(hidden)]
    pub sentence: fn(&[u64; VALUES], &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl VerbsError {
    /// A refusal with the first of `values` as value of the field.
    #[cold]
    #[must_use]
    pub fn new<const N: usize>(kind: Errno, rule: Rule, values: [u64; N]) -> Self {
        const { assert!(0 < N && N <= VALUES) };
        let values = core::array::from_fn(|at| values.get(at).copied().unwrap_or(0));
        Self { rule, values, kind }
    }

    /// The refusal that became this I/O error.
    #[must_use]
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Which error it is.
    #[must_use]
    pub const fn kind(self) -> Errno {
        self.kind
    }

    /// The Linux error number, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.kind.number()
    }

    /// What kind of object refused: `queue pair`, `receive queue`, `argument`.
    #[must_use]
    pub fn object(&self) -> &'static str {
        (self.rule)().object
    }

    /// The field, argument or resource that was wrong or exhausted, by the name that a program uses.
    #[must_use]
    pub fn field(&self) -> &'static str {
        (self.rule)().field
    }

    /// The value of the field as the C interface has it; 0 for NULL.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.values[0]
    }

    /// What the user or the program can do, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        (self.rule)().remedy
    }
}

/// The sentence for people, with the remedy.
impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { sentence, remedy, .. } = (self.rule)();
        sentence(&self.values, f)?;
        remedy.map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl fmt::Debug for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.kind)
    }
}

/// Equal for the same errno, field and numbers.
impl PartialEq for VerbsError {
    fn eq(&self, other: &Self) -> bool {
        let key = |error: &Self| (error.kind, error.object(), error.field(), error.values);
        key(self) == key(other)
    }
}

impl Eq for VerbsError {}

impl core::error::Error for VerbsError {}

/// The error keeps its reason: [`VerbsError::in_io`] returns it.
impl From<VerbsError> for io::Error {
    fn from(refused: VerbsError) -> Self {
        io::Error::new(io::Error::from_raw_os_error(refused.errno()).kind(), refused)
    }
}

/// A value of a sentence, kept as a number.
pub trait Value {
    /// The number.
    fn pack(self) -> u64;
    /// The value that [`pack`](Self::pack) made the number of.
    fn unpack(number: u64) -> Self;
    /// The value with this number; `None` if none has it.
    fn known(number: u64) -> Option<Self>
    where
        Self: Copy,
    {
        Some(Self::unpack(number)).filter(|value| value.pack() == number)
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Value for $integer {
            fn pack(self) -> u64 {
                self as u64
            }
            fn unpack(number: u64) -> Self {
                number as Self
            }
        }
    )*};
}
integers! { u8 u16 u32 u64 usize i32 }

impl Value for Qpn {
    fn pack(self) -> u64 {
        self.value().into()
    }
    fn unpack(number: u64) -> Self {
        Qpn::new(number as u32)
    }
}

/// Makes a [`Value`](crate::refusal::Value) of an enum without fields, of which all variants are listed.
#[macro_export]
macro_rules! enum_value {
    ($($ty:ty: $first:ident $($variant:ident)*;)+) => {$(
        impl $crate::refusal::Value for $ty {
            fn pack(self) -> u64 {
                self as u64
            }
            fn unpack(number: u64) -> Self {
                let all = [$(Self::$variant),*];
                all.into_iter().find(|variant| *variant as u64 == number).unwrap_or(Self::$first)
            }
        }
    )+};
}

enum_value! {
    QpState: Reset Init Rtr Rts Sqd Sqe Err;
    QpType: Rc Uc Ud Gsi XrcIni XrcTgt;
    WcOpcode: Send RdmaWrite RdmaRead CompSwap FetchAdd BindMw LocalInv Tso Flush AtomicWrite RegMr Recv
        RecvRdmaWithImm;
}

/// An IP address as two values: the lower half of its GID, then the upper half.
#[must_use]
pub fn ip_halves(ip: IpAddr) -> [u64; 2] {
    let gid = u128::from_be_bytes(Gid::from(ip).0);
    [gid as u64, (gid >> 64) as u64]
}

/// The address of [`ip_halves`].
#[must_use]
pub fn ip_of(low: u64, high: u64) -> IpAddr {
    Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes()).ip()
}

/// An operating system's error, with its text.
pub struct Os(pub i32);

impl Value for Os {
    fn pack(self) -> u64 {
        self.0.pack()
    }
    fn unpack(number: u64) -> Self {
        Self(i32::unpack(number))
    }
}

impl From<&io::Error> for Os {
    fn from(error: &io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(Errno::EIO.number()))
    }
}

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Makes a [`Rule`]: `rule!("object", "field"; value, more as Qpn; "a sentence with {value} and {more}";
/// "the remedy")`. The names in the sentence are those of the values; a value is a number unless `as` names
/// its type, and `let name = expression;` before the sentence makes another of them. `is "{value}"` is a
/// sentence that begins with the field: `field is 7`. The remedy may be omitted.
#[macro_export]
macro_rules! rule {
    ($object:literal, $field:expr; $($name:ident $(as $ty:ty)?),+; $(let $made:ident = $from:expr;)*
     is $sentence:literal $(; $remedy:expr)?) => {
        $crate::rule!(@make $object, $field, [$($name $(as $ty)?),+] [$($made = $from),*] [$field, " is "]
            $sentence $($remedy)?)
    };
    ($object:literal, $field:expr; $($name:ident $(as $ty:ty)?),+; $(let $made:ident = $from:expr;)*
     $sentence:literal $(; $remedy:expr)?) => {
        $crate::rule!(@make $object, $field, [$($name $(as $ty)?),+] [$($made = $from),*] []
            $sentence $($remedy)?)
    };
    (@make $object:literal, $field:expr, [$($name:ident $(as $ty:ty)?),+] [$($made:ident = $from:expr),*]
     [$($begin:expr),*] $sentence:literal $($remedy:expr)?) => {{
        const { assert!(!$object.is_empty() && !$field.is_empty(), "a refusal names an object and a field") };
        let rule: $crate::refusal::Rule = || $crate::refusal::Parts {
            object: $object,
            field: $field,
            remedy: $crate::rule!(@remedy $($remedy)?),
            sentence: |&[$($name,)+ ..], f| {
                $(let $name = $crate::rule!(@unpack $name $($ty)?);)+
                $(let _ = &$name;)+
                $(let $made = $from;)*
                $(f.write_str($begin)?;)*
                ::core::write!(f, $sentence)
            },
        };
        rule
    }};
    (@remedy) => { None };
    (@remedy $remedy:expr) => { Some($remedy) };
    (@unpack $name:ident) => { $name };
    (@unpack $name:ident $ty:ty) => { <$ty as $crate::refusal::Value>::unpack($name) };
}

/// Makes a [`VerbsError`]: `refuse!(EINVAL, "queue pair", "port_num"; port; is "{port}, the only one is 1")`.
/// The errno is a constant of [`Errno`], or any `Errno` in parentheses; the rest is as for
/// [`rule!`](crate::rule). The first value is that of the field.
#[macro_export]
macro_rules! refuse {
    (($kind:expr), $object:literal, $field:expr; $($name:ident $(as $ty:ty)?),+; $($text:tt)+) => {
        $crate::VerbsError::new(
            $kind,
            $crate::rule!($object, $field; $($name $(as $ty)?),+; $($text)+),
            [$($crate::refusal::Value::pack($name)),+],
        )
    };
    ($kind:ident, $($rest:tt)+) => { $crate::refuse!(($crate::Errno::$kind), $($rest)+) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_errno_object_field_value_and_remedy() {
        let (qpn, state) = (Qpn::new(0x12), QpState::Init);
        let refused = refuse!(EBUSY, "queue pair", "state"; state as QpState, qpn as Qpn;
            "the queue pair {qpn} is in {state}"; "reset it");
        assert_eq!((refused.kind(), refused.errno()), (Errno::EBUSY, 16));
        assert_eq!((refused.object(), refused.field(), refused.value()), ("queue pair", "state", 1));
        assert_eq!(refused.remedy(), Some("reset it"));
        assert_eq!(refused.to_string(), "the queue pair 0x000012 is in INIT; reset it");
        assert_eq!(format!("{refused:?}"), "EBUSY: the queue pair 0x000012 is in INIT; reset it");
    }

    #[test]
    fn a_refusal_is_small_and_costs_an_accepted_call_one_comparison() {
        assert_eq!(size_of::<VerbsError>(), 40);
        assert_eq!(size_of::<Result<(), VerbsError>>(), size_of::<VerbsError>());
    }

    #[test]
    fn an_io_error_keeps_the_refusal() {
        let port = 7;
        let refused = refuse!(EADDRINUSE, "identifier", "port"; port; is "{port}, which is in use");
        let error = io::Error::from(refused);
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::AddrInUse, "port is 7, which is in use")
        );
        assert_eq!(VerbsError::in_io(&error), Some(&refused));
    }
}
