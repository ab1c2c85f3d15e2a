//! Typed values in place of the raw arguments of C functions.
//!
//! A C function of this crate hands its pointer arguments to [`typed`] in its first lines. The returned
//! values carry the proof that the application kept the contract of the manual page, so the rest of the
//! function is safe code.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use roxie::transport::{Sge, VerbsError, refuse};

use crate::errno::no_argument;
use crate::object::{Object, is_live};
use crate::observer::{Public, Purpose, observer};

/// A typed value made of a raw argument of a C function.
pub(crate) trait FromC<Raw> {
    /// Returns the typed value.
    ///
    /// # Safety
    /// As for [`typed`].
    unsafe fn from_c(raw: Raw) -> Self;
}

/// Returns the typed values of the raw arguments of a C function.
///
/// # Safety
/// The arguments are those of a call by the application, which keeps the contract of the manual page of the
/// called function. The page is named at each call. For every pointer the contract says the same:
/// - A pointer to an object (`ibv_qp`, `rdma_cm_id`, ...) is NULL or was returned by this library, and no
///   thread destroys the object before the called function returns.
/// - A pointer to a structure, an array or a string is NULL or leads to as many initialised elements as the
///   other arguments say, aligned, and no thread writes to them before the called function returns. The same
///   holds for the pointers in the structure that the manual page asks for.
/// - A pointer to room for a result is NULL or leads to memory that no other thread uses before the called
///   function returns.
/// - The application does not use an object any more once a call to destroy it has succeeded.
#[inline(always)]
pub(crate) unsafe fn typed<Typed: FromC<Raw>, Raw>(raw: Raw) -> Typed {
    // SAFETY: the contract is that of this function.
    unsafe { Typed::from_c(raw) }
}

/// Tuples of arguments.
macro_rules! tuples {
    ($(($($typed:ident: $raw:ident = $arg:ident),+))*) => {$(
        impl<$($typed: FromC<$raw>, $raw),+> FromC<($($raw,)+)> for ($($typed,)+) {
            #[inline(always)]
            unsafe fn from_c(($($arg,)+): ($($raw,)+)) -> Self {
                // SAFETY: every argument keeps the contract.
                unsafe { ($($typed::from_c($arg),)+) }
            }
        }
    )*};
}

tuples! {
    (A: RawA = a, B: RawB = b)
    (A: RawA = a, B: RawB = b, C: RawC = c)
    (A: RawA = a, B: RawB = b, C: RawC = c, D: RawD = d)
}

/// An object of this library; `None` for NULL, and for an object that its kind knows to be destroyed.
impl<P: Public, T> FromC<*mut P> for Option<&Object<P, T>> {
    #[inline(always)]
    unsafe fn from_c(ptr: *mut P) -> Self {
        if !is_usable(ptr, Purpose::Use) || !is_live(ptr) {
            return None;
        }
        // SAFETY: NULL or exported and not destroyed.
        unsafe { Object::from_ptr(ptr) }
    }
}

/// Whether the pointer can be followed: always, unless the process is checked and the object is destroyed or
/// not one of this library.
#[inline(always)]
pub(crate) fn is_usable<P: Public>(ptr: *mut P, purpose: Purpose) -> bool {
    observer().is_none_or(|observer| ptr.is_null() || (observer.is_usable)(P::KIND, ptr.addr(), purpose))
}

/// An object argument of a function of the data path: `roxie check` looks at it before such a function runs.
pub(crate) struct Hot<P>(pub(crate) *mut P);

impl<P: Public, T> FromC<Hot<P>> for Option<&Object<P, T>> {
    #[inline(always)]
    unsafe fn from_c(Hot(ptr): Hot<P>) -> Self {
        // SAFETY: NULL or exported and not destroyed.
        unsafe { Object::from_ptr(ptr) }
    }
}

/// A structure that the application filled, or `None` for NULL.
impl<T> FromC<*const T> for Option<&T> {
    #[inline(always)]
    unsafe fn from_c(ptr: *const T) -> Self {
        // SAFETY: NULL or initialised and not written to meanwhile.
        unsafe { ptr.as_ref() }
    }
}

/// A structure that the application filled and this library may change, or `None` for NULL.
impl<T> FromC<*mut T> for Option<&mut T> {
    #[inline(always)]
    unsafe fn from_c(ptr: *mut T) -> Self {
        // SAFETY: NULL or initialised and not used by another thread meanwhile.
        unsafe { ptr.as_mut() }
    }
}

/// An array and its length, or `None` for NULL with a length. The address of an empty array may be anything.
impl<T> FromC<(*const T, usize)> for Option<&[T]> {
    #[inline(always)]
    unsafe fn from_c((first, count): (*const T, usize)) -> Self {
        match count {
            0 => Some(&[]),
            _ if first.is_null() => None,
            // SAFETY: `count` initialised elements that are not written to meanwhile.
            _ => Some(unsafe { slice::from_raw_parts(first, count) }),
        }
    }
}

/// An array that this library may change, and its length; `None` for NULL with a length.
impl<T> FromC<(*mut T, usize)> for Option<&mut [T]> {
    #[inline(always)]
    unsafe fn from_c((first, count): (*mut T, usize)) -> Self {
        match count {
            0 => Some(&mut []),
            _ if first.is_null() => None,
            // SAFETY: `count` elements that no other thread uses meanwhile.
            _ => Some(unsafe { slice::from_raw_parts_mut(first, count) }),
        }
    }
}

/// Bytes of the application; none for NULL.
impl FromC<(*const c_void, usize)> for &[u8] {
    #[inline(always)]
    unsafe fn from_c((first, count): (*const c_void, usize)) -> Self {
        // SAFETY: the contract is that of the array.
        unsafe { Option::from_c((first.cast::<u8>(), count)) }.unwrap_or_default()
    }
}

/// Bytes that this library may change; none for NULL.
impl FromC<(*mut c_void, usize)> for &mut [u8] {
    #[inline(always)]
    unsafe fn from_c((first, count): (*mut c_void, usize)) -> Self {
        // SAFETY: the contract is that of the array.
        unsafe { Option::from_c((first.cast::<u8>(), count)) }.unwrap_or_default()
    }
}

/// A string, or `None` for NULL.
impl FromC<*const c_char> for Option<&CStr> {
    unsafe fn from_c(ptr: *const c_char) -> Self {
        // SAFETY: not NULL, hence a string that ends with a zero byte.
        (!ptr.is_null()).then(|| unsafe { CStr::from_ptr(ptr) })
    }
}

/// An object or a structure of the application; `None` for NULL.
pub(crate) type Ref<'a, T> = Option<&'a T>;
/// Room for a result; `None` for NULL.
pub(crate) type Room<'a, T> = Option<Out<'a, T>>;

/// Room for one result.
pub(crate) struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

impl<T> FromC<*mut T> for Option<Out<'_, T>> {
    #[inline(always)]
    unsafe fn from_c(ptr: *mut T) -> Self {
        NonNull::new(ptr).map(|room| Out(room, PhantomData))
    }
}

impl<T> Out<'_, T> {
    /// Gives the application its result.
    #[inline(always)]
    pub(crate) fn write(&self, value: T) {
        // SAFETY: the application passed room for one value to `typed`; programs built for another structure
        // size may not have aligned it.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// Room for `size` bytes of results.
pub(crate) struct OutBytes<'a> {
    first: NonNull<u8>,
    size: usize,
    room: PhantomData<&'a mut [u8]>,
}

impl<T> FromC<(*mut T, usize)> for Option<OutBytes<'_>> {
    unsafe fn from_c((first, size): (*mut T, usize)) -> Self {
        NonNull::new(first.cast()).map(|first| OutBytes { first, size, room: PhantomData })
    }
}

impl OutBytes<'_> {
    /// Bytes that there is room for.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Copies what there is room for from `bytes` to offset `at`; returns the number of bytes.
    pub(crate) fn copy_at(&self, at: usize, bytes: &[u8]) -> usize {
        let count = self.room_at(at).min(bytes.len());
        // SAFETY: the application passed room for `size` bytes to `typed`, and `at + count` is within it.
        unsafe { self.first.as_ptr().wrapping_add(at).copy_from_nonoverlapping(bytes.as_ptr(), count) };
        count
    }

    /// Writes a structure at offset `at`, cut to the room there is.
    pub(crate) fn write_at<T: Copy>(&self, at: usize, value: &T) {
        let count = self.room_at(at).min(size_of::<T>());
        let from = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: as above; `value` has at least `count` bytes.
        unsafe { self.first.as_ptr().wrapping_add(at).copy_from_nonoverlapping(from, count) };
    }

    fn room_at(&self, at: usize) -> usize {
        self.size.saturating_sub(at)
    }

    /// Fills the room from offset `at` to its end with zeros.
    pub(crate) fn zero_from(&self, at: usize) {
        // SAFETY: the application passed room for `size` bytes to `typed`.
        unsafe { self.first.as_ptr().wrapping_add(at).write_bytes(0, self.room_at(at)) };
    }
}

/// A C structure of a work request.
pub(crate) trait WorkRequest {
    /// The next work request of the list, or NULL.
    fn next(&self) -> *mut Self;

    /// The scatter/gather list and its length.
    fn sg_list(&self) -> (*const Sge, c_int);
}

/// A list of work requests.
pub(crate) struct WrList<'a, W> {
    next: *mut W,
    list: PhantomData<&'a W>,
}

impl<W> FromC<*mut W> for WrList<'_, W> {
    #[inline(always)]
    unsafe fn from_c(next: *mut W) -> Self {
        WrList { next, list: PhantomData }
    }
}

impl<'a, W: WorkRequest> Iterator for WrList<'a, W> {
    type Item = Wr<'a, W>;

    #[inline(always)]
    fn next(&mut self) -> Option<Wr<'a, W>> {
        // SAFETY: the application passed a list that ends with NULL to `typed`.
        let wr = unsafe { self.next.as_ref() }?;
        self.next = wr.next();
        Some(Wr(wr))
    }
}

/// A work request. Its pointers are those that the opcode and the type of the queue ask for
/// (ibv_post_send(3), ibv_post_recv(3)).
pub(crate) struct Wr<'a, W>(&'a W);

impl<'a, W> Wr<'a, W> {
    /// The structure that the application filled.
    #[inline(always)]
    pub(crate) fn get(&self) -> &'a W {
        self.0
    }

    /// The pointer that the application gets back if this request is refused.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut W {
        std::ptr::from_ref(self.0).cast_mut()
    }

    /// The typed value of the pointers that a function reads from this request. Such a function captures no
    /// other pointers.
    #[inline(always)]
    pub(crate) fn follow<Typed: FromC<Raw>, Raw>(&self, pointers: fn(&'a W) -> Raw) -> Typed {
        // SAFETY: `typed` made this value, and its contract covers the pointers in it.
        unsafe { typed(pointers(self.0)) }
    }
}

impl<'a, W: WorkRequest> Wr<'a, W> {
    /// Returns the scatter/gather list; `EINVAL` for a negative length, and for NULL with a length.
    #[inline(always)]
    pub(crate) fn sg_list(&self) -> Result<&'a [Sge], VerbsError> {
        let (_, count) = self.0.sg_list();
        if count < 0 {
            return Err(refuse!(EINVAL, "work request", "num_sge"; count as i32; is "{count}"));
        }
        let list: Option<&[Sge]> = self.follow(|wr| {
            let (first, count) = wr.sg_list();
            (first, count as usize)
        });
        list.ok_or_else(|| no_argument!("sg_list"))
    }
}

/// An object that the application gives up if the call succeeds.
pub(crate) struct GivenUp<'a, O>(NonNull<O>, PhantomData<&'a O>);

// SAFETY: an object is destroyed by any thread.
unsafe impl<O: Sync> Send for GivenUp<'_, O> {}

impl<P: Public, T> FromC<*mut P> for Option<GivenUp<'_, Object<P, T>>> {
    #[inline(always)]
    unsafe fn from_c(ptr: *mut P) -> Self {
        if !is_usable(ptr, Purpose::Destroy) || !is_live(ptr) {
            return None;
        }
        // SAFETY: NULL or exported and not destroyed.
        unsafe { GivenUp::of(ptr.cast()) }
    }
}

impl<O> GivenUp<'_, O> {
    /// The object at `ptr`; `None` for NULL.
    ///
    /// # Safety
    /// `ptr` is NULL or the address of a live object in a `Box` that was given to the application, which
    /// gives it up.
    pub(crate) unsafe fn of(ptr: *mut O) -> Option<Self> {
        NonNull::new(ptr).map(|object| Self(object, PhantomData))
    }

    /// The object that the application never got, or that this library shares with it.
    pub(crate) fn never_given(object: Box<O>) -> Self {
        Self(NonNull::from(Box::leak(object)), PhantomData)
    }

    /// Frees the object.
    pub(crate) fn free(self) {
        let object = self.0.as_ptr();
        if let Some(observer) = observer() {
            // SAFETY: the application gave it up. Its memory stays, and no call follows the pointer any more.
            unsafe { ptr::drop_in_place(object) };
            return (observer.keep_memory)(object.addr(), Layout::new::<O>());
        }
        // SAFETY: the allocation was handed out by `Box::into_raw`, and the application gave it up.
        drop(unsafe { Box::from_raw(object) });
    }
}

impl<O> Deref for GivenUp<'_, O> {
    type Target = O;

    fn deref(&self) -> &O {
        // SAFETY: the object is alive until `free` consumes this value.
        unsafe { self.0.as_ref() }
    }
}

/// A number or pointer that fits a machine word, and the atomic type of the same layout.
pub(crate) trait Word: Copy {
    type Atomic;
    fn load(from: &Self::Atomic) -> Self;
    fn swap(to: &Self::Atomic, value: Self) -> Self;
    fn store(to: &Self::Atomic, value: Self);
}

macro_rules! words {
    ($($word:ty, $atomic:ty $(, $generic:ident)?;)*) => {$(
        impl$(<$generic>)? Word for $word {
            type Atomic = $atomic;

            #[inline(always)]
            fn load(from: &$atomic) -> Self {
                from.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn swap(to: &$atomic, value: Self) -> Self {
                to.swap(value, Ordering::Relaxed)
            }

            #[inline(always)]
            fn store(to: &$atomic, value: Self) {
                to.store(value, Ordering::Relaxed);
            }
        }
    )*};
}

words! {
    u8, AtomicU8;
    u32, AtomicU32;
    i32, AtomicI32;
    u64, AtomicU64;
    usize, AtomicUsize;
    *mut T, AtomicPtr<T>, T;
}

/// A member of the public part of an object. Applications read and write it at any time, so every access is
/// atomic.
#[repr(transparent)]
pub(crate) struct Member<W: Word>(W::Atomic);

impl<W: Word> Member<W> {
    /// The member at `ptr`.
    ///
    /// # Safety
    /// `ptr` leads to an aligned, initialised member that lives for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn at<'a>(ptr: *mut W) -> &'a Self {
        // SAFETY: `Member` is laid out as the atomic type, and that as the word, on machines with 64 bits.
        unsafe { &*ptr.cast() }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> W {
        W::load(&self.0)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: W) {
        W::store(&self.0, value);
    }

    /// Sets the member and returns what it was.
    pub(crate) fn replace(&self, value: W) -> W {
        W::swap(&self.0, value)
    }

    /// The atomic itself, for counters.
    pub(crate) fn atomic(&self) -> &W::Atomic {
        &self.0
    }
}

/// Gives a kind of objects a method for each listed member of its public part: `name: path as type` returns
/// the [`Member`], `name: path => Object` the object that the member points to.
macro_rules! members {
    ($object:ty { $($name:ident: $($member:ident).+ $(as $word:ty)? $(=> $target:ty)?;)* }) => {
        impl $object { $(
            $crate::handle::members!(@one $name [$($member).+] $($word)? $(=> $target)?);
        )* }
    };
    (@one $name:ident [$($member:ident).+] $word:ty) => {
        #[inline(always)]
        pub(crate) fn $name(&self) -> &$crate::handle::Member<$word> {
            // SAFETY: a member of the public part of a live object, initialised when it was exported.
            unsafe { $crate::handle::Member::at(&raw mut (*self.public()).$($member).+) }
        }
    };
    (@one $name:ident [$($member:ident).+] => $target:ty) => {
        #[inline(always)]
        pub(crate) fn $name(&self) -> Option<&$target> {
            // SAFETY: a member of the public part of a live object. This library sets it, the manual pages
            // let applications write only objects of this library there, and forbid destroying those before
            // this one.
            unsafe {
                let member = $crate::handle::Member::at(&raw mut (*self.public()).$($member).+);
                $crate::observer::quietly(|| $crate::handle::typed(member.get()))
            }
        }
    };
}
pub(crate) use members;
