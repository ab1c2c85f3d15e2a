//! Programs: loading with the verifier's log, test runs, descriptions.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ::bpf::MapDef;

use super::object::{self, ProgramRaw};
use super::{Attr, Command, Map, call, call_fd, name, pointer, pointer_mut, text};

/// A loaded program. Dropping it closes the descriptor; a program that is attached stays loaded.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// Why a program was not loaded.
#[derive(Debug)]
pub struct LoadError {
    /// The map that the kernel did not create, with its attributes; `None` if it refused the program itself.
    pub map: Option<String>,
    /// The kernel's error.
    pub error: io::Error,
    /// The verifier's log, complete; empty if it wrote none.
    pub log: String,
}

/// What the kernel knows about a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramInfo {
    /// Its id.
    pub id: u32,
    /// Its name, at most 15 characters.
    pub name: String,
    /// Hash of its instructions.
    pub tag: u64,
    /// User id of the process that loaded it.
    pub uid: u32,
    /// Number of runs and the nanoseconds they took, counted while `kernel.bpf_stats_enabled` is set.
    pub runs: (u64, u64),
}

/// A test run (BPF_PROG_TEST_RUN).
#[derive(Clone, Copy, Debug, Default)]
pub struct TestRun<'a> {
    /// The packet.
    pub packet: &'a [u8],
    /// `struct xdp_md`: none, or its first bytes.
    pub context: &'a [u8],
    /// How often to run.
    pub repeat: u32,
    /// BPF_F_TEST_XDP_LIVE_FRAMES and the like.
    pub flags: u32,
    /// Frames per batch for live frames, else 0.
    pub batch: u32,
}

/// Result of a test run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TestOutcome {
    /// What the program returned.
    pub verdict: u32,
    /// The packet afterwards; empty for live frames.
    pub packet: Vec<u8>,
    /// Average duration of one run.
    pub duration_ns: u32,
}

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
    btf_fd: u32,
    func_info_len: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_len: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct BtfAttr {
    btf: u64,
    log: u64,
    len: u32,
    log_len: u32,
    log_level: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestAttr {
    fd: u32,
    verdict: u32,
    len_in: u32,
    len_out: u32,
    packet_in: u64,
    packet_out: u64,
    repeat: u32,
    duration_ns: u32,
    context_len_in: u32,
    context_len_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

// SAFETY: instructions, log, types and licence outlive the call, with their lengths beside them.
unsafe impl Attr for LoadAttr {}
// SAFETY: as above.
unsafe impl Attr for BtfAttr {}
// SAFETY: as above.
unsafe impl Attr for TestAttr {}

/// Size of the first buffer for the verifier's log; doubled as often as needed.
const LOG_LEN: usize = 64 * 1024;
const LOG_LEN_MAX: usize = 64 << 20;
/// Space for what a program may put before a packet.
const TEST_HEADROOM: usize = 4096;

impl Program {
    /// Flag for test runs: frames really move (BPF_F_TEST_XDP_LIVE_FRAMES).
    pub const LIVE_FRAMES: u32 = 1 << 1;

    /// Loads `program` with its maps, in order.
    ///
    /// # Errors
    /// The kernel's error, and its verifier's log.
    pub fn load(program: &::bpf::Program, maps: &[Map]) -> Result<Program, LoadError> {
        let btf = program.btf.as_ref().map(|btf| load_btf(&btf.blob)).transpose()?;
        Job::new(program, maps, btf.as_ref(), None)?.load(attach_types(program)).map(|(program, _)| program)
    }

    /// Creates the maps of `program`, then loads it; returns the maps in order.
    ///
    /// # Errors
    /// As [`Program::load`]; those of [`Map::create`].
    pub fn load_with_maps(program: &::bpf::Program) -> Result<(Program, Vec<Map>), LoadError> {
        Program::load_for(program, None)
    }

    /// As [`Program::load_with_maps`], for this interface: a program that reads metadata of the receiving
    /// device is bound to it (`BPF_F_XDP_DEV_BOUND_ONLY`). Initial values of program arrays are loaded and
    /// entered too. They are lost when no descriptor of their array is open and no pin exists.
    ///
    /// # Errors
    /// As [`Program::load_with_maps`].
    pub fn load_for(
        program: &::bpf::Program,
        ifindex: Option<u32>,
    ) -> Result<(Program, Vec<Map>), LoadError> {
        let btf = program.btf.as_ref().map(|btf| load_btf(&btf.blob)).transpose()?;
        let types = btf.as_ref().map(AsFd::as_fd);
        let mut maps = Vec::new();
        for def in &program.maps {
            maps.push(create(def, types)?);
        }
        enter_maps(program, &maps)?;
        let job = |program| Job::new(program, &maps, btf.as_ref(), ifindex);
        let (loaded, attach_type) = job(program)?.load(attach_types(program))?;
        for tail in &program.tails {
            let (program_of_entry, _) = job(tail)?.load([attach_type, tail.kind.attach_type()])?;
            enter_program(&tail.name, &program_of_entry, program, &maps)?;
        }
        enter_program(&program.name, &loaded, program, &maps)?;
        Ok((loaded, maps))
    }

    /// Opens the program with that id.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` without CAP_SYS_ADMIN.
    pub fn by_id(id: u32) -> io::Result<Program> {
        object::program_by_id(id).map(Program)
    }

    /// Wraps the descriptor of a loaded program.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Program {
        Program(fd)
    }

    /// Returns what the kernel reports about it.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no program.
    pub fn info(&self) -> io::Result<ProgramInfo> {
        let raw: ProgramRaw = object::info(self.0.as_fd())?;
        Ok(ProgramInfo {
            id: raw.id,
            name: text(&raw.name),
            tag: u64::from_be_bytes(raw.tag),
            uid: raw.uid,
            runs: (raw.run_count, raw.run_time_ns),
        })
    }

    /// Ids of the maps it uses.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no program.
    pub fn map_ids(&self) -> io::Result<Vec<u32>> {
        object::map_ids_of(self.0.as_fd())
    }

    /// Runs it on a given packet.
    ///
    /// # Errors
    /// `EINVAL` for a packet shorter than an Ethernet header or a context the kernel does not accept,
    /// `EFAULT` for one longer than a page.
    pub fn test_run(&self, run: &TestRun<'_>) -> io::Result<TestOutcome> {
        let live = run.flags & Self::LIVE_FRAMES != 0;
        let mut out = vec![0; if live { 0 } else { run.packet.len() + TEST_HEADROOM }];
        let mut attr = TestAttr {
            fd: self.0.as_raw_fd() as u32,
            len_in: run.packet.len() as u32,
            len_out: out.len() as u32,
            packet_in: pointer(run.packet),
            packet_out: pointer_mut(&mut out),
            repeat: run.repeat,
            context_len_in: run.context.len() as u32,
            context_in: pointer(run.context),
            flags: run.flags,
            batch: run.batch,
            ..TestAttr::default()
        };
        call(Command::ProgTestRun, &mut attr)?;
        out.truncate(attr.len_out as usize);
        Ok(TestOutcome { verdict: attr.verdict, packet: out, duration_ns: attr.duration_ns })
    }
}

/// The arguments of one load.
pub(super) struct Job<'a> {
    program: &'a ::bpf::Program,
    code: Vec<u8>,
    btf: Option<&'a OwnedFd>,
    functions: Vec<u8>,
    /// The interface that the program is bound to.
    bound: Option<u32>,
}

/// Load flag `BPF_F_XDP_DEV_BOUND_ONLY`.
const DEVICE_BOUND: u32 = 1 << 6;
/// Directory of maps that programs share by name (`LIBBPF_PIN_BY_NAME`).
pub(super) const PINS: &str = "/sys/fs/bpf";

/// Creates a map, or opens the one that is pinned by name.
fn create(def: &MapDef, types: Option<BorrowedFd<'_>>) -> Result<Map, LoadError> {
    let path = Path::new(PINS).join(def.name.replace('/', "_"));
    let made = if def.pinned { Map::shared(def, types, &path) } else { Map::create_with(def, types) };
    made.map_err(|error| {
        let (key, value, entries) = (def.key_size, def.value_size, def.max_entries);
        let sizes = format!("key {key} bytes, value {value} bytes, {entries} entries");
        let pin = match error.raw_os_error() {
            _ if !def.pinned => String::new(),
            Some(libc::EEXIST) => format!(", a map of another form is pinned at {}", path.display()),
            _ => format!(", pinned at {}", path.display()),
        };
        let map = Some(format!("{} ({}, {sizes}{pin})", def.name, def.kind));
        LoadError { map, error, log: String::new() }
    })
}

/// Enters the initial values of maps of maps.
fn enter_maps(program: &::bpf::Program, maps: &[Map]) -> Result<(), LoadError> {
    for (def, map) in program.maps.iter().zip(maps) {
        for (key, initial) in &def.entries {
            let ::bpf::Initial::Map(inner) = initial else { continue };
            let Some(inner) = maps.get(*inner as usize) else { continue };
            enter(def, map, *key, inner.as_fd())?;
        }
    }
    Ok(())
}

/// Enters a program where initial values of program arrays name it.
fn enter_program(
    name: &str,
    entered: &Program,
    program: &::bpf::Program,
    maps: &[Map],
) -> Result<(), LoadError> {
    for (def, map) in program.maps.iter().zip(maps) {
        for (key, initial) in &def.entries {
            if *initial == ::bpf::Initial::Program(name.to_owned()) {
                enter(def, map, *key, entered.as_fd())?;
            }
        }
    }
    Ok(())
}

fn enter(def: &MapDef, map: &Map, key: u32, fd: BorrowedFd<'_>) -> Result<(), LoadError> {
    let value = fd.as_raw_fd().to_ne_bytes();
    map.update(&key.to_ne_bytes(), &value).map_err(|error| LoadError {
        map: Some(format!("{}, entry {key}", def.name)),
        error,
        log: String::new(),
    })
}

/// Adds what the verifier's log does not tell: which record or kernel function is meant by a number.
fn explained(program: &::bpf::Program, mut log: String) -> String {
    if log.contains("#195896080") {
        log.push_str("\nnote: helper 195896080 stands for a field or type that this kernel does not have");
    }
    if log.contains("#2002000000") {
        log.push_str(
            "\nnote: helper 2002000000 stands for a weak kernel function that this kernel does not have",
        );
    }
    if !program.kfuncs.is_empty() {
        let names: Vec<&str> = program.kfuncs.iter().map(|kfunc| kfunc.name.as_str()).collect();
        log.push_str(&format!("\nnote: the program calls these kernel functions: {}", names.join(", ")));
    }
    log
}

/// The values of `expected_attach_type` to try. The kernel compares it between the programs of a program
/// array, and between those of a bpf_link, so the first one is that of libbpf and aya. Kernels before 5.9
/// require 0 for programs on interfaces, and some loaders set it.
fn attach_types(program: &::bpf::Program) -> [u32; 2] {
    let own = program.kind.attach_type();
    [own, if program.kind == ::bpf::ProgramKind::Xdp { 0 } else { own }]
}

impl<'a> Job<'a> {
    pub(super) fn new(
        program: &'a ::bpf::Program,
        maps: &[Map],
        btf: Option<&'a OwnedFd>,
        ifindex: Option<u32>,
    ) -> Result<Job<'a>, LoadError> {
        let fds: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = program.link(&fds).map_err(|error| LoadError {
            map: None,
            error: io::ErrorKind::InvalidInput.into(),
            log: error.to_string(),
        })?;
        let bound = ifindex.filter(|_| program.is_device_bound());
        Ok(Job { program, code, btf, functions: functions(program), bound })
    }

    /// Loads it with the first attach type, or with the other one if the kernel refuses that. Returns the
    /// type too.
    pub(super) fn load(&self, [first, other]: [u32; 2]) -> Result<(Program, u32), LoadError> {
        let error = match self.try_load(first, &mut []) {
            Ok(program) => return Ok((program, first)),
            Err(error) => error,
        };
        if other != first
            && error.raw_os_error() == Some(libc::EINVAL)
            && let Ok(program) = self.try_load(other, &mut [])
        {
            return Ok((program, other));
        }
        // The kernel refused it: load it again with a log buffer.
        let mut log = vec![0; LOG_LEN];
        loop {
            match self.try_load(first, &mut log) {
                Ok(program) => return Ok((program, first)),
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && log.len() < LOG_LEN_MAX => {
                    log = vec![0; log.len() * 2];
                }
                Err(_) => break,
            }
        }
        Err(LoadError { map: None, error, log: explained(self.program, text(&log)) })
    }

    fn try_load(&self, attach_type: u32, log: &mut [u8]) -> io::Result<Program> {
        let license = CString::new(self.program.license.as_str()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut attr = LoadAttr {
            kind: self.program.kind.program_type(),
            insn_count: (self.code.len() / ::bpf::Slot::LEN) as u32,
            insns: pointer(&self.code),
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_len: log.len() as u32,
            log: pointer_mut(log),
            flags: self.program.flags() | if self.bound.is_some() { DEVICE_BOUND } else { 0 },
            ifindex: self.bound.unwrap_or(0),
            name: name(&self.program.name),
            expected_attach_type: attach_type,
            ..LoadAttr::default()
        };
        if let (Some(fd), Some(btf)) = (self.btf, &self.program.btf) {
            attr.btf_fd = fd.as_raw_fd() as u32;
            attr.func_info_len = ::bpf::Btf::FUNC_INFO_LEN;
            attr.func_info = pointer(&self.functions);
            attr.func_info_count = btf.func_info.len() as u32;
            attr.line_info_len = ::bpf::Btf::LINE_INFO_LEN;
            attr.line_info = pointer(&btf.line_info);
            attr.line_info_count = btf.line_info.len() as u32 / ::bpf::Btf::LINE_INFO_LEN;
        }
        call_fd(Command::ProgLoad, &mut attr).map(Program)
    }
}

fn functions(program: &::bpf::Program) -> Vec<u8> {
    program.btf.as_ref().map(::bpf::Btf::func_info_bytes).unwrap_or_default()
}

/// Loads types in the format of linux/btf.h.
fn load_btf(bytes: &[u8]) -> Result<OwnedFd, LoadError> {
    let attr = |log: &mut [u8]| BtfAttr {
        btf: pointer(bytes),
        log: pointer_mut(log),
        len: bytes.len() as u32,
        log_len: log.len() as u32,
        log_level: u32::from(!log.is_empty()),
        padding: 0,
    };
    let error = match call_fd(Command::BtfLoad, &mut attr(&mut [])) {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_LEN];
    call_fd(Command::BtfLoad, &mut attr(&mut log)).map_err(|_| LoadError {
        map: None,
        error,
        log: text(&log),
    })
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.map {
            Some(map) => write!(f, "the kernel refuses the map {map}: {}", self.error)?,
            None => write!(f, "the kernel refuses the program: {}", self.error)?,
        }
        if self.error.raw_os_error() == Some(libc::EPERM) && self.log.is_empty() {
            f.write_str(" (needs CAP_BPF and CAP_NET_ADMIN, or root)")?;
        }
        if self.log.is_empty() || f.alternate() { Ok(()) } else { write!(f, "\n{}", self.log.trim_end()) }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
