//! The numbers in the member `handle` of objects, which applications pass to `ibv_import_*`.
//!
//! As with the kernel's handles, no two live objects have the same number, and a number counts only in a
//! context that shares the command descriptor of the object's own context.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use roxie::verbs::{Dm, Mr, Pd};
use sys::lock_until;

/// What an import shares with the object.
#[derive(Clone)]
pub(crate) enum Shared {
    Pd(Arc<Pd>),
    Dm(Arc<Dm>),
    /// `None` once the region is deregistered.
    Mr(Arc<Mutex<Option<Mr>>>),
}

/// What identifies a command descriptor and its duplicates: device and inode number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct CommandFile(u64, u64);

#[derive(Default)]
struct Tables {
    /// The live objects that can be imported, by handle.
    objects: HashMap<u32, (CommandFile, Shared)>,
    /// How many open contexts have a command descriptor, and the index of their device.
    contexts: HashMap<CommandFile, (u32, c_int)>,
}

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

fn tables() -> MutexGuard<'static, Tables> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the tables until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&TABLES, until_ns))
}

/// Returns a number that no object of this process has had before.
pub(crate) fn new_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CommandFile {
    /// Returns the identity of a descriptor.
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self(metadata.dev(), metadata.ino()))
    }

    /// Adds an object and returns its new handle.
    pub(crate) fn add(self, shared: Shared) -> u32 {
        let handle = new_handle();
        tables().objects.insert(handle, (self, shared));
        handle
    }

    /// Returns the object that has this handle in contexts with this descriptor.
    pub(crate) fn find(self, handle: u32) -> Option<Shared> {
        tables().objects.get(&handle).filter(|(file, _)| *file == self).map(|(_, shared)| shared.clone())
    }
}

/// Removes an object; returns what imports shared.
pub(crate) fn remove(handle: u32) -> Option<Shared> {
    tables().objects.remove(&handle).map(|(_, shared)| shared)
}

/// The command descriptor of an open context.
pub(crate) struct Command {
    _file: File,
    identity: CommandFile,
}

impl Command {
    pub(crate) fn new(file: File, device: c_int) -> io::Result<Self> {
        let identity = CommandFile::of(&file)?;
        tables().contexts.entry(identity).or_insert((0, device)).0 += 1;
        Ok(Self { _file: file, identity })
    }

    pub(crate) fn identity(&self) -> CommandFile {
        self.identity
    }

    /// Returns the index of the device of the open contexts that have this descriptor or a duplicate of it.
    pub(crate) fn device_of(file: &File) -> Option<c_int> {
        let identity = CommandFile::of(file).ok()?;
        tables().contexts.get(&identity).map(|(_, device)| *device)
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let mut tables = tables();
        if let Some(contexts) = tables.contexts.get_mut(&self.identity) {
            contexts.0 -= 1;
            if contexts.0 == 0 {
                tables.contexts.remove(&self.identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_found_only_with_its_descriptor_and_while_its_object_lives() {
        let region = || Shared::Mr(Arc::default());
        let (file, other) = (CommandFile(1, 1), CommandFile(1, 2));
        let (first, second) = (file.add(region()), file.add(region()));
        assert_ne!(first, second);
        assert!(file.find(second).is_some());
        assert!(other.find(second).is_none());
        assert!(file.find(u32::MAX).is_none());
        assert!(remove(second).is_some());
        assert!(file.find(second).is_none());
        assert_ne!(file.add(region()), second);
    }

    #[test]
    fn a_duplicate_of_a_command_descriptor_is_known_until_its_contexts_are_closed() {
        let file = sys::memory_file(c"command").expect("memory");
        let copy = file.try_clone().expect("a descriptor");
        assert!(Command::device_of(&copy).is_none());
        let (first, second) =
            (Command::new(file, 3), Command::new(copy.try_clone().expect("a descriptor"), 3));
        assert!(Command::device_of(&copy) == Some(3));
        drop(first);
        assert!(Command::device_of(&copy) == Some(3));
        drop(second);
        assert!(Command::device_of(&copy).is_none());
    }
}
