//! Maps: tables that programs and processes share.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ::bpf::{MapDef, MapKind};

use super::object::{self, MapInfo, info};
use super::program::PINS;
use super::{Attr, Command, call, call_fd, name, pointer, pointer_mut, text};

/// A map. Dropping it drops this process's hold on it; programs that use it keep it alive.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
    key_len: usize,
    value_len: usize,
}

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    kind: u32,
    key_len: u32,
    value_len: u32,
    max_entries: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
    ifindex: u32,
    btf_fd: u32,
    key_type: u32,
    value_type: u32,
    kernel_value_type: u32,
    extra: u64,
}

#[repr(C)]
struct ElementAttr {
    fd: u32,
    reserved: u32,
    key: u64,
    /// Value, or next key.
    value: u64,
    flags: u64,
}

// SAFETY: no pointers.
unsafe impl Attr for CreateAttr {}
// SAFETY: `Map::element` checks both lengths against the map's.
unsafe impl Attr for ElementAttr {}

#[repr(C)]
struct FreezeAttr {
    fd: u32,
}

// SAFETY: no pointers.
unsafe impl Attr for FreezeAttr {}

impl Map {
    /// Creates a map with its first value in place. A perf event array or CPUMAP without a size gets an entry
    /// for each possible CPU.
    ///
    /// # Errors
    /// `EPERM` without CAP_BPF; `EINVAL` for sizes the kind does not allow; `ENOMEM`.
    pub fn create(def: &MapDef) -> io::Result<Map> {
        Map::create_with(def, None)
    }

    /// As [`Map::create`], with `types` for the keys and values of the definition. A kernel that refuses the
    /// types of this map gets it without them.
    pub(super) fn create_with(def: &MapDef, types: Option<BorrowedFd<'_>>) -> io::Result<Map> {
        let typed = types.filter(|_| def.types != [0, 0] && def.kind.has_types());
        let inner = def.inner.as_deref().map(|inner| Map::create_with(inner, types)).transpose()?;
        match Map::create_typed(def, typed, inner.as_ref()) {
            Err(error) if typed.is_some() && error.raw_os_error() != Some(libc::EPERM) => {
                Map::create_typed(def, None, inner.as_ref())
            }
            done => done,
        }
    }

    fn create_typed(def: &MapDef, types: Option<BorrowedFd<'_>>, inner: Option<&Map>) -> io::Result<Map> {
        let max_entries = def.entries_for(possible_cpus() as u32);
        let mut attr = CreateAttr {
            kind: def.kind.number(),
            key_len: def.key_size,
            value_len: def.value_size,
            max_entries,
            flags: def.flags,
            name: name(&def.name),
            inner_map_fd: inner.map_or(0, |map| map.fd.as_raw_fd() as u32),
            extra: def.extra,
            ..CreateAttr::default()
        };
        if let Some(types) = types {
            (attr.btf_fd, [attr.key_type, attr.value_type]) = (types.as_raw_fd() as u32, def.types);
        }
        let fd = call_fd(Command::MapCreate, &mut attr)?;
        let map =
            Map { fd, kind: def.kind, key_len: def.key_size as usize, value_len: def.value_size as usize };
        if !def.initial.is_empty() {
            map.update(&vec![0; map.key_len], &def.initial)?;
        }
        if def.frozen {
            call(Command::MapFreeze, &mut FreezeAttr { fd: map.fd.as_raw_fd() as u32 })?;
        }
        Ok(map)
    }

    /// Wraps the descriptor of an existing map.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no map; `EOPNOTSUPP` for a kind not listed in [`MapKind`].
    pub fn from_fd(fd: OwnedFd) -> io::Result<Map> {
        let about: MapInfo = info(fd.as_fd())?;
        let kind =
            MapKind::from_number(about.kind).ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        Ok(Map { fd, kind, key_len: about.key_len as usize, value_len: about.value_len as usize })
    }

    /// Opens the map with that id.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` without CAP_SYS_ADMIN; as [`Map::from_fd`].
    pub fn by_id(id: u32) -> io::Result<Map> {
        object::map_by_id(id).and_then(Map::from_fd)
    }

    /// Returns another descriptor of the same map.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn again(&self) -> io::Result<Map> {
        let fd = self.fd.try_clone()?;
        Ok(Map { fd, kind: self.kind, key_len: self.key_len, value_len: self.value_len })
    }

    /// Its id.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn id(&self) -> io::Result<u32> {
        let about: MapInfo = info(self.fd.as_fd())?;
        Ok(about.id)
    }

    /// Its name, at most 15 characters.
    ///
    /// # Errors
    /// None at present.
    pub fn name(&self) -> io::Result<String> {
        let about: MapInfo = info(self.fd.as_fd())?;
        Ok(text(&about.name))
    }

    /// Opens the map of this definition that is pinned at `path`, or creates it and pins it there
    /// (`LIBBPF_PIN_BY_NAME`).
    ///
    /// # Errors
    /// `EEXIST` if the pin is of a map with another definition; those of [`Map::create`] and
    /// [`pin`](super::pin).
    pub(super) fn shared(def: &MapDef, types: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<Map> {
        match object::get_pinned(path) {
            Ok(fd) => {
                let about: MapInfo = info(fd.as_fd())?;
                // The kernel adds this flag to maps of devices.
                let is_device = matches!(def.kind, MapKind::Devmap | MapKind::DevmapHash);
                let added = if is_device { MapDef::RDONLY_PROG & !def.flags } else { 0 };
                let flags = about.flags & !added;
                let there = [about.kind, about.key_len, about.value_len, about.max_entries, flags];
                let entries = def.entries_for(possible_cpus() as u32);
                let wanted = [def.kind.number(), def.key_size, def.value_size, entries, def.flags];
                if there != wanted {
                    return Err(io::Error::from_raw_os_error(libc::EEXIST));
                }
                Map::from_fd(fd)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                let map = Map::create_with(def, types)?;
                object::pin(map.fd.as_fd(), path).map_err(|error| {
                    let why = format!("{error}: pinning needs a bpf file system at {PINS}");
                    io::Error::new(error.kind(), why)
                })?;
                Ok(map)
            }
            Err(error) => Err(error),
        }
    }

    /// Maximum number of entries.
    ///
    /// # Errors
    /// None at present.
    pub fn max_entries(&self) -> io::Result<u32> {
        let about: MapInfo = info(self.fd.as_fd())?;
        Ok(about.max_entries)
    }

    /// The kind of map.
    #[must_use]
    pub fn kind(&self) -> MapKind {
        self.kind
    }

    /// Reads the value of `key` into `value`; false if there is none.
    ///
    /// # Errors
    /// `EINVAL` for wrong lengths; `EOPNOTSUPP` if this kind cannot be read.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        let value = pointer_mut(self.sized(value)?);
        match self.element(Command::MapLookup, key, value, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// `EINVAL` for wrong lengths, `E2BIG` beyond the last index or if the map is full.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if value.len() != self.value_size() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.element(Command::MapUpdate, key, pointer(value), 0)
    }

    /// Removes the entry of `key`; not an error if there is none.
    ///
    /// # Errors
    /// `EINVAL` for a wrong length, or a kind without removable entries (arrays).
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        match self.element(Command::MapDelete, key, 0, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    /// Writes the key after `key` into `next`, or the first one without `key`; false at the end.
    ///
    /// # Errors
    /// `EINVAL` for wrong lengths.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
        if next.len() != self.key_len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match self.element(Command::MapNextKey, key.unwrap_or_default(), pointer_mut(next), 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Bytes of a key.
    #[must_use]
    pub fn key_size(&self) -> usize {
        self.key_len
    }

    /// Bytes of one value in the view of programs.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Bytes of one value in system calls: per-CPU maps have one for each possible CPU, padded to eight.
    #[must_use]
    pub fn value_size(&self) -> usize {
        if self.kind.is_percpu() {
            self.value_len.next_multiple_of(8) * possible_cpus()
        } else {
            self.value_len
        }
    }

    fn sized<'a>(&self, value: &'a mut [u8]) -> io::Result<&'a mut [u8]> {
        if value.len() == self.value_size() {
            Ok(value)
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }

    /// The caller has checked that `value` is valid for what the command reads or writes there.
    fn element(&self, command: Command, key: &[u8], value: u64, flags: u64) -> io::Result<()> {
        let first = matches!(command, Command::MapNextKey) && key.is_empty();
        if key.len() != self.key_len && !first {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fd = self.fd.as_raw_fd() as u32;
        let mut attr = ElementAttr { fd, reserved: 0, key: pointer(key), value, flags };
        call(command, &mut attr).map(drop)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of possible CPUs, from `0-N` or `0` (the kernel's upper bound if the file is missing:
/// too many is safe).
#[must_use]
pub fn possible_cpus() -> usize {
    /// NR_CPUS_MAXSMP of the kernel.
    const CPUS_MAX: usize = 8192;
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    last.map_or(CPUS_MAX, |last| last + 1)
}
