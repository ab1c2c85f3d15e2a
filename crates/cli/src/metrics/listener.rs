//! The listening socket: a TCP port, or a file that only its user can connect to.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};
use sys::{Dir, PollFd, Walk, poll};

use crate::failure::{During, Failure, Outcome};
use crate::user_dir::not_trusted;

/// Connections that wait for `accept`; the kernel lowers it to the sysctl net.core.somaxconn. With the 128 of
/// the standard library, one program that connects in a loop fills the queue before the server empties it,
/// and other clients connect a second later. 4096 connections are accepted within 0.2 s.
const BACKLOG: i32 = 4096;
/// Longest path of a Unix address in bytes: `sun_path` without its final zero (unix(7)).
const PATH_MAX: usize = 107;

/// Where a server listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Address {
    /// Address and port.
    Tcp(SocketAddr),
    /// A file.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            let error = "ADDRESS:PORT (127.0.0.1:9791, [::1]:9791), or unix:PATH".to_owned();
            return text.parse().map(Address::Tcp).map_err(|_| error);
        };
        match path.len() {
            0 => Err("unix:PATH needs a path".to_owned()),
            1..=PATH_MAX => Ok(Address::Unix(path.into())),
            len => Err(format!("the path has {len} bytes; that of a Unix socket has at most {PATH_MAX}")),
        }
    }
}

/// As a client writes it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}/metrics"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    pub(super) address: Address,
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on this address.
    ///
    /// # Errors
    /// If the address is in use, or the file is not a socket of a server that has ended.
    pub(super) fn new(address: &Address) -> Outcome<Listener> {
        let listener = match address {
            Address::Tcp(address) => tcp(*address),
            Address::Unix(path) => unix(path),
        }?;
        // Also for a socket that listens already: this changes the length of its queue.
        sys::listen(listener.fd.as_fd(), BACKLOG).during("listening")?;
        Ok(listener)
    }

    /// Whether a connection waits.
    pub(super) fn has_waiting(&self) -> bool {
        let mut fds = [PollFd::readable(self.fd.as_raw_fd())];
        poll(&mut fds, Some(0)).is_ok_and(|ready| ready > 0)
    }

    /// Returns the next waiting connection, non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; `EMFILE`, and errors of a client that has disconnected.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        sys::accept(self.fd.as_fd())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn tcp(address: SocketAddr) -> Outcome<Listener> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let is_used = error.kind() == ErrorKind::AddrInUse;
        Failure::new(format!("listening on {address}: {error}"))
            .hint_if(is_used.then_some("choose another address: --listen 127.0.0.1:PORT"))
    })?;
    // A client may disconnect between poll and accept, which must not block then.
    listener.set_nonblocking(true).during("listening")?;
    let address = Address::Tcp(listener.local_addr().during("listening")?);
    Ok(Listener { fd: listener.into(), address, file: None })
}

fn unix(path: &Path) -> Outcome<Listener> {
    // Another user that can replace the directory could answer in place of this process.
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Dir::prove(parent, Walk::default()).map_err(|why| not_trusted(&why))?;
    let path = &dir.path().join(path.file_name().unwrap_or_default());
    let fail = |error: String| Failure::new(format!("listening on {}: {error}", path.display()));
    let fd = match bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            remove_abandoned(path).map_err(fail)?;
            bind(path)
        }
        bound => bound,
    };
    let fd = fd.map_err(|error| fail(error.to_string()))?;
    let file = SocketFile::find(path).map_err(|error| fail(error.to_string()))?;
    Ok(Listener { fd, address: Address::Unix(path.to_owned()), file })
}

/// Creates a socket with a new file of mode 0600.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let fd = stream_socket()?;
    // The file gets the mode of the socket, so it never has another one.
    fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Removes the socket file of a server that was killed; an error is the reason not to.
fn remove_abandoned(path: &Path) -> Result<(), String> {
    let found = SocketFile::find(path).map_err(|error| error.to_string())?;
    let connected = stream_socket().and_then(|fd| socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?));
    match (found, connected) {
        (None, _) => Err("the file exists and is not a socket".to_owned()),
        (Some(file), Err(Errno::ECONNREFUSED)) => file.remove().map_err(|error| error.to_string()),
        (Some(_), Err(Errno::EACCES)) => Err("a socket of another user exists there".to_owned()),
        (Some(_), _) => Err("another process listens there".to_owned()),
    }
}

/// The file of a socket, by device and inode.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    /// `None` if the file is not a socket.
    fn find(path: &Path) -> io::Result<Option<SocketFile>> {
        let file = fs::symlink_metadata(path)?;
        let found = SocketFile { path: path.to_owned(), id: (file.dev(), file.ino()) };
        Ok(file.file_type().is_socket().then_some(found))
    }

    /// Removes the file, unless another one has replaced it.
    fn remove(&self) -> io::Result<()> {
        match SocketFile::find(&self.path)? {
            Some(there) if there.id == self.id => fs::remove_file(&self.path),
            _ => Ok(()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The user may have removed the file already, or made its directory read-only.
        let _kept = self.file.as_ref().map(SocketFile::remove);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn error(address: &Address) -> String {
        Listener::new(address).map(drop).expect_err("it must not listen").to_string()
    }

    #[test]
    fn an_address_is_a_port_or_a_file() {
        assert_eq!("[::1]:9791".parse(), Ok(Address::Tcp("[::1]:9791".parse().unwrap())));
        assert_eq!("unix:a/b".parse(), Ok(Address::Unix("a/b".into())));
        let longest = format!("unix:{}", "p".repeat(PATH_MAX));
        assert!(longest.parse::<Address>().is_ok());
        for (text, part) in
            [("9791", "ADDRESS:PORT"), ("unix:", "a path"), (&format!("{longest}p"), "has 108 bytes")]
        {
            assert!(text.parse::<Address>().unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn a_socket_file_belongs_to_its_user_and_one_server() {
        let dir = std::env::temp_dir().join(format!("roxie-metrics-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("socket");
        let address = Address::Unix(path.clone());

        // One that was killed has left its file.
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::new(&address).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(error(&address).contains("another process listens there"), "{}", error(&address));
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());

        let listener = Listener::new(&address).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "of the user").unwrap();
        drop(listener);
        assert!(error(&address).contains("is not a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "of the user");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.join("absent"), &path).unwrap();
        assert!(error(&address).contains("is not a socket"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
