//! Map definitions: the attributes of `BPF_MAP_CREATE`.

use std::fmt;

use super::PERF_RING_BYTES;
use crate::numbered::numbered;

numbered! {
    /// Type of a map (`enum bpf_map_type`).
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    pub enum MapKind {
        /// Hash table with any key and any value.
        Hash = 1 "hash",
        /// Array with keys 0..max_entries; every entry exists.
        Array = 2 "array",
        /// Array of programs for tail calls.
        ProgArray = 3 "prog_array",
        /// Perf event rings, one per CPU.
        PerfEventArray = 4 "perf_event_array",
        /// Hash table with one value per CPU.
        PercpuHash = 5 "percpu_hash",
        /// Array with one value per CPU.
        PercpuArray = 6 "percpu_array",
        /// Hash table that evicts the least recently used entry when it is full.
        LruHash = 9 "lru_hash",
        /// LRU hash table with one value per CPU.
        LruPercpuHash = 10 "lru_percpu_hash",
        /// Call stacks of the kernel.
        StackTrace = 7 "stack_trace",
        /// Trie that finds the longest matching prefix.
        LpmTrie = 11 "lpm_trie",
        /// Array of maps.
        ArrayOfMaps = 12 "array_of_maps",
        /// Hash table of maps.
        HashOfMaps = 13 "hash_of_maps",
        /// Array of devices for redirects.
        Devmap = 14 "devmap",
        /// Array of CPUs for redirects.
        Cpumap = 16 "cpumap",
        /// Array of AF_XDP sockets for redirects.
        Xskmap = 17 "xskmap",
        /// Queue, first in, first out.
        Queue = 22 "queue",
        /// Stack, last in, first out.
        Stack = 23 "stack",
        /// Hash table of devices for redirects.
        DevmapHash = 25 "devmap_hash",
        /// Ring buffer with records for user space.
        Ringbuf = 27 "ringbuf",
        /// Bloom filter: tells whether a value was not pushed.
        BloomFilter = 30 "bloom_filter",
        /// Ring buffer with records from user space.
        UserRingbuf = 31 "user_ringbuf",
    }
    number: u32, from_number;
    /// Returns the name that bpftool uses.
    name
}

impl MapKind {
    /// Returns whether the kernel accepts types of keys and values for maps of this type.
    #[must_use]
    pub const fn has_types(self) -> bool {
        matches!(
            self,
            MapKind::Hash
                | MapKind::Array
                | MapKind::PercpuHash
                | MapKind::PercpuArray
                | MapKind::LruHash
                | MapKind::LruPercpuHash
                | MapKind::LpmTrie
        )
    }

    /// Returns whether the map is an array with entries that do not exist until they are written.
    #[must_use]
    pub const fn is_sparse(self) -> bool {
        matches!(
            self,
            MapKind::Devmap | MapKind::Cpumap | MapKind::Xskmap | MapKind::ProgArray | MapKind::ArrayOfMaps
        )
    }

    /// Returns whether the values are maps.
    #[must_use]
    pub const fn holds_maps(self) -> bool {
        matches!(self, MapKind::ArrayOfMaps | MapKind::HashOfMaps)
    }

    /// Returns whether every CPU has its own value. User space reads these maps as an array of values, each
    /// padded to 8 bytes.
    #[must_use]
    pub const fn is_percpu(self) -> bool {
        matches!(self, MapKind::PercpuHash | MapKind::PercpuArray | MapKind::LruPercpuHash)
    }
}

impl fmt::Display for MapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reference to a map of a program: its index in [`Program::maps`](crate::Program::maps).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MapRef(pub(crate) u32);

impl MapRef {
    /// Returns the index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Initial value of an entry that is not bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Initial {
    /// A program of the same object file, by name.
    Program(String),
    /// A map, by its index in [`Program::maps`](crate::Program::maps).
    Map(u32),
}

/// Definition of a map: all that is needed to create it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MapDef {
    /// Name; the kernel takes up to 15 letters, digits, `_` and `.`.
    pub name: String,
    /// Type of the map.
    pub kind: MapKind,
    /// Length of a key in bytes; 0 for queues, stacks and ring buffers.
    pub key_size: u32,
    /// Length of a value in bytes; 0 for ring buffers.
    pub value_size: u32,
    /// Maximum number of entries; for a ring buffer its size in bytes (a power of two and a multiple of the
    /// page size).
    pub max_entries: u32,
    /// `BPF_F_*` flags of map creation.
    pub flags: u32,
    /// Initial value of entry 0, for data sections of object files. Empty means zeros.
    pub initial: Vec<u8>,
    /// The contents are constant once `initial` is in place (`BPF_MAP_FREEZE`).
    pub frozen: bool,
    /// Initial entries of maps of programs and maps of maps, by index.
    pub entries: Vec<(u32, Initial)>,
    /// Definition of the maps in a map of maps.
    pub inner: Option<Box<MapDef>>,
    /// The map is shared by name in a bpf file system (`LIBBPF_PIN_BY_NAME`).
    pub pinned: bool,
    /// Attribute of the type of map: the number of hash functions of a Bloom filter.
    pub extra: u64,
    /// Types of keys and values in [`Program::btf`](crate::Program::btf); 0 if there are none.
    pub types: [u32; 2],
}

impl MapDef {
    /// Flag: entries are not allocated in advance; required for [`MapKind::LpmTrie`].
    pub const NO_PREALLOC: u32 = 1;
    /// Flag: programs may only read (`BPF_F_RDONLY_PROG`).
    pub const RDONLY_PROG: u32 = 1 << 7;

    /// Returns a definition without flags, with zeros as initial values.
    #[must_use]
    pub fn new(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
        let flags = if kind == MapKind::LpmTrie { Self::NO_PREALLOC } else { 0 };
        MapDef {
            name: name.to_owned(),
            kind,
            key_size,
            value_size,
            max_entries,
            flags,
            initial: Vec::new(),
            frozen: false,
            entries: Vec::new(),
            inner: None,
            pinned: false,
            extra: 0,
            types: [0; 2],
        }
    }

    /// Returns the number of entries on a host with this many CPUs: maps with an entry for each CPU may leave
    /// it out.
    #[must_use]
    pub fn entries_for(&self, cpus: u32) -> u32 {
        match (self.kind, self.max_entries) {
            (MapKind::PerfEventArray | MapKind::Cpumap, 0) => cpus,
            (_, entries) => entries,
        }
    }

    /// Returns the memory that the map needs for programs on `cpus` threads, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, cpus: u32) -> u64 {
        let copies = if self.kind.is_percpu() { u64::from(cpus.max(1)) } else { 1 };
        let entries = u64::from(self.max_entries);
        let of_keys = match self.kind {
            MapKind::Ringbuf => return entries,
            MapKind::PerfEventArray => return u64::from(PERF_RING_BYTES),
            MapKind::StackTrace | MapKind::UserRingbuf => return 0,
            MapKind::Array | MapKind::PercpuArray => 0,
            kind if kind.is_sparse() => 0,
            // The key, its links, and up to two buckets.
            _ => u64::from(self.key_size) + 24,
        };
        let of_values = u64::from(self.value_size).div_ceil(8).saturating_mul(8).saturating_mul(copies);
        of_values.saturating_add(of_keys).saturating_mul(entries)
    }

    /// Returns an array with keys 0..`max_entries` and values of `value_size` bytes.
    #[must_use]
    pub fn array(name: &str, value_size: u32, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Array, 4, value_size, max_entries)
    }

    /// Returns an array as [`MapDef::array`], with one value per CPU.
    #[must_use]
    pub fn percpu_array(name: &str, value_size: u32, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::PercpuArray, 4, value_size, max_entries)
    }

    /// Returns an array of AF_XDP sockets.
    #[must_use]
    pub fn xskmap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Xskmap, 4, 4, max_entries)
    }

    /// Returns an array of CPUs. A value is the queue length and, if not 0, the descriptor of the entry's
    /// program.
    #[must_use]
    pub fn cpumap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Cpumap, 4, 8, max_entries)
    }

    /// Returns an array of devices. A value is the interface index and, if not 0, the descriptor of the
    /// entry's program.
    #[must_use]
    pub fn devmap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Devmap, 4, 8, max_entries)
    }

    /// Returns a ring buffer. `bytes` is a power of two and a multiple of the page size.
    #[must_use]
    pub fn ringbuf(name: &str, bytes: u32) -> MapDef {
        MapDef::new(name, MapKind::Ringbuf, 0, 0, bytes)
    }
}
