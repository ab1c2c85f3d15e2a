//! Names of shared objects, and values of the environment.

/// A library that roxie replaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Library {
    Ibverbs,
    Rdmacm,
}

/// Libraries that a program with RDMA loads; `roxie run` names them if the device was not opened.
const RDMA: [&[u8]; 7] =
    [b"libibverbs", b"librdmacm", b"libucs", b"libuct", b"libfabric", b"libnccl", b"libmpi"];

impl Library {
    /// The library that `name`, a name or a path, refers to: `libibverbs.so`, `libibverbs.so.1`,
    /// `libibverbs-1de1263b.so.1.14.48.0` as auditwheel renames it.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let base = base_name(name);
        [(&b"libibverbs"[..], Self::Ibverbs), (b"librdmacm", Self::Rdmacm)]
            .into_iter()
            .find(|(stem, _)| base.strip_prefix(*stem).is_some_and(|rest| is_suffix(unhashed(rest))))
            .map(|(_, library)| library)
    }

    /// True for a SONAME without a path, which is found through `LD_LIBRARY_PATH`.
    pub(crate) fn is_plain(name: &[u8]) -> bool {
        let stem = [&b"libibverbs"[..], b"librdmacm"].into_iter().find_map(|stem| name.strip_prefix(stem));
        stem.is_some_and(is_suffix)
    }
}

/// True for `.so` and `.so.VERSION`.
fn is_suffix(text: &[u8]) -> bool {
    text.strip_prefix(b".so").is_some_and(|version| matches!(version, [] | [b'.', b'0'..=b'9', ..]))
}

/// The text behind `-` and hexadecimal digits, if it starts with them.
fn unhashed(text: &[u8]) -> &[u8] {
    match text {
        [b'-', rest @ ..] => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            if digits == 0 { text } else { rest.get(digits..).unwrap_or_default() }
        }
        _ => text,
    }
}

/// True for a library that a program with RDMA loads.
pub(crate) fn is_of_rdma(base: &[u8]) -> bool {
    RDMA.iter().any(|stem| matches!(base.strip_prefix(*stem), Some([b'.' | b'-', ..])))
}

/// The part before the last slash; empty without one.
pub(crate) fn dir(path: &[u8]) -> &[u8] {
    let len = path.len() - base_name(path).len();
    path.get(..len.saturating_sub(1)).unwrap_or_default()
}

/// The part behind the last slash.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The value of `NAME=value`, if `name` is `NAME=`.
pub(crate) fn value<'a>(variable: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    variable.strip_prefix(name)
}

/// The directory of this library in the list that `LD_AUDIT` is.
pub(crate) fn own_dir(list: &[u8]) -> Option<&[u8]> {
    list.split(|byte| *byte == b':').find_map(|path| path.strip_suffix(b"/libroxie_audit.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_names_paths_and_plain_names_are_recognised() {
        for name in [
            "libibverbs.so",
            "libibverbs.so.1",
            "libibverbs-1de1263b.so.1.14.48.0",
            "/opt/venv/nixl.libs/libibverbs-1de1263b.so.1",
            "./libibverbs.so.1",
        ] {
            assert_eq!(Library::of(name.as_bytes()), Some(Library::Ibverbs), "{name}");
        }
        assert_eq!(Library::of(b"librdmacm-9f1de04a.so.1.3.48.0"), Some(Library::Rdmacm));
        for name in ["libibverbs", "libibverbs-x.so.1", "libibverbsx.so.1", "libibverbs.so.x", "libc.so.6"] {
            assert_eq!(Library::of(name.as_bytes()), None, "{name}");
        }
        assert!(Library::is_plain(b"librdmacm.so.1") && !Library::is_plain(b"/lib/librdmacm.so.1"));
        assert!(!Library::is_plain(b"libibverbs-1de1263b.so.1"));
    }

    #[test]
    fn a_path_has_a_directory() {
        assert_eq!([dir(b"/a/b.so"), dir(b"b.so"), dir(b"/b.so")], [&b"/a"[..], b"", b""]);
    }

    #[test]
    fn the_own_directory_is_that_of_the_audit_library() {
        assert_eq!(
            own_dir(b"/x/other.so:/run/roxie/lib-1/libroxie_audit.so"),
            Some(&b"/run/roxie/lib-1"[..])
        );
        assert_eq!(own_dir(b"/x/other.so"), None);
    }

    #[test]
    fn libraries_of_rdma_programs_have_known_stems() {
        for name in ["libucs-2c1a.so.0", "libmpi.so.40", "libibverbs.so.1"] {
            assert!(is_of_rdma(name.as_bytes()), "{name}");
        }
        for name in ["libuct_ib.so", "libmpir.so.1", "libc.so.6"] {
            assert!(!is_of_rdma(name.as_bytes()), "{name}");
        }
    }
}
