//! What a map is like, as its creator is told (`BPF_MAP_CREATE`).

use std::fmt;

macro_rules! map_kinds {
    ($($(#[doc = $doc:literal])* $variant:ident = $number:literal $name:literal,)*) => {
        /// Type of a map (`enum bpf_map_type`).
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum MapKind {
            $($(#[doc = $doc])* $variant = $number,)*
        }

        impl MapKind {
            /// All of them.
            pub const ALL: &[MapKind] = &[$(MapKind::$variant,)*];

            /// Name as bpftool has it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(MapKind::$variant => $name,)*
                }
            }
        }
    };
}

map_kinds! {
    /// Any key, any value.
    Hash = 1 "hash",
    /// Keys 0..max_entries; every entry exists.
    Array = 2 "array",
    /// Programs to tail-call.
    ProgArray = 3 "prog_array",
    /// Perf event rings, one per CPU.
    PerfEventArray = 4 "perf_event_array",
    /// Hash with a value per CPU.
    PercpuHash = 5 "percpu_hash",
    /// Array with a value per CPU.
    PercpuArray = 6 "percpu_array",
    /// Hash that forgets what was not used for long when it is full.
    LruHash = 9 "lru_hash",
    /// The same with a value per CPU.
    LruPercpuHash = 10 "lru_percpu_hash",
    /// Longest matching prefix.
    LpmTrie = 11 "lpm_trie",
    /// Devices to redirect to, by position.
    Devmap = 14 "devmap",
    /// CPUs to redirect to.
    Cpumap = 16 "cpumap",
    /// AF_XDP sockets to redirect to.
    Xskmap = 17 "xskmap",
    /// First in, first out.
    Queue = 22 "queue",
    /// Last in, first out.
    Stack = 23 "stack",
    /// Devices to redirect to, by any number.
    DevmapHash = 25 "devmap_hash",
    /// Records to user space.
    Ringbuf = 27 "ringbuf",
}

impl MapKind {
    /// Number in `enum bpf_map_type`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The type with this number, if we know it.
    #[must_use]
    pub fn from_number(number: u32) -> Option<MapKind> {
        Self::ALL.iter().copied().find(|kind| kind.number() == number)
    }

    /// Whether every CPU has a value of its own: user space then sees an array of values, each padded to 8 bytes.
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

/// A map a program refers to: its index in [`Program::maps`](crate::Program::maps).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MapRef(pub(crate) u32);

impl MapRef {
    /// The index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Everything needed to create a map.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MapDef {
    /// At most 15 of letters, digits, `_` and `.` reach the kernel.
    pub name: String,
    /// Type.
    pub kind: MapKind,
    /// Bytes of a key; 0 for queues, stacks and ring buffers.
    pub key_size: u32,
    /// Bytes of a value; 0 for ring buffers.
    pub value_size: u32,
    /// Most entries; bytes of a ring buffer (a power of two and a multiple of the page size).
    pub max_entries: u32,
    /// `BPF_F_*` of map creation.
    pub flags: u32,
    /// Value of entry 0 to begin with, for the data sections of object files; empty: zeros.
    pub initial: Vec<u8>,
    /// Nobody may write after `initial` is in place (`BPF_MAP_FREEZE`).
    pub frozen: bool,
}

impl MapDef {
    /// Entries are not allocated before they are used; required for [`MapKind::LpmTrie`].
    pub const NO_PREALLOC: u32 = 1;
    /// Programs may only read (`BPF_F_RDONLY_PROG`).
    pub const RDONLY_PROG: u32 = 1 << 7;

    /// A map with no flags, whose values begin as zeros.
    #[must_use]
    pub fn new(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
        let flags = if kind == MapKind::LpmTrie { Self::NO_PREALLOC } else { 0 };
        let initial = Vec::new();
        MapDef {
            name: name.to_owned(),
            kind,
            key_size,
            value_size,
            max_entries,
            flags,
            initial,
            frozen: false,
        }
    }

    /// Keys 0..`max_entries`, values of `value_size` bytes.
    #[must_use]
    pub fn array(name: &str, value_size: u32, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Array, 4, value_size, max_entries)
    }

    /// As [`MapDef::array`], with a value per CPU.
    #[must_use]
    pub fn percpu_array(name: &str, value_size: u32, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::PercpuArray, 4, value_size, max_entries)
    }

    /// AF_XDP sockets by index.
    #[must_use]
    pub fn xskmap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Xskmap, 4, 4, max_entries)
    }

    /// CPUs by number. A value is the queue length and, if not 0, the descriptor of the entry's program.
    #[must_use]
    pub fn cpumap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Cpumap, 4, 8, max_entries)
    }

    /// Devices by position. A value is the interface index and, if not 0, the descriptor of the entry's program.
    #[must_use]
    pub fn devmap(name: &str, max_entries: u32) -> MapDef {
        MapDef::new(name, MapKind::Devmap, 4, 8, max_entries)
    }

    /// Records to user space; `bytes` is a power of two and a multiple of the page size.
    #[must_use]
    pub fn ringbuf(name: &str, bytes: u32) -> MapDef {
        MapDef::new(name, MapKind::Ringbuf, 0, 0, bytes)
    }
}
