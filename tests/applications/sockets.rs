//! Programs for plain sockets over rsockets, through rdma-core's librspreload: curl gets a file from socat.
//!
//! Both use what librspreload 44 redirects: `accept`, `select`, `poll`. Servers with `accept4` or epoll
//! cannot run: Redis, nginx, Python's `http.server`.
//!
//! | curl 7.88, socat 1.7 over rsockets (librspreload 44) | curl gets a file from socat |

use std::fs;
use std::os::unix::fs::PermissionsExt;

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, two_places};

/// Debian's path of it.
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
/// Size of the file, more than the buffers of a stream.
const BYTES: usize = 3_000_001;

pub(crate) fn cases() -> Vec<Case> {
    let shm = Place::shm(Topology::SameHost, Family::V4, User::Root);
    let case = |place: Place| {
        Case::new(place, "curl and socat by librspreload", "curl", move |lab, name| run(lab, &place, name))
            .with(Need::Program("socat"), "socat")
            .with(Need::File(PRELOAD), "librdmacm1")
    };
    two_places().into_iter().chain([shm]).map(case).collect()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let dir = beside(lab, &format!("sockets-{port}"));
    let (reply, got) = (dir.join("reply"), dir.join("got"));
    let file: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    let header = format!("HTTP/1.0 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
    let made = fs::create_dir(&dir)
        .and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)))
        .and_then(|()| fs::write(&reply, [header.as_bytes(), &file].concat()));
    made.map_err(|error| format!("{}: {error}", dir.display()))?;
    let preload = format!("LD_PRELOAD={PRELOAD}");
    let listen = format!("TCP4-LISTEN:{port},bind={address}");
    // What socat receives, the request, is not kept.
    let serve = format!("OPEN:{},rdonly!!OPEN:/dev/null,wronly", reply.display());
    let (url, got_word) = (format!("http://{address}:{port}/file"), got.display().to_string());
    let common = ["env", "ROXIE_STATS=1", &preload];
    let both = Pair {
        name,
        server: [&common[..], &["socat", &listen, &serve]].concat(),
        client: [&common[..], &["curl", "-sS", "-o", &got_word, &url]].concat(),
        ready: Ready::Cm(port),
        limit: LIMIT,
    }
    .run(lab, place)?;
    let arrived = fs::read(&got).map_err(|error| format!("{got_word}: {error}"))?;
    if arrived != file {
        return Err(format!("{} bytes arrived, or others\n{}", arrived.len(), both.client.describe()));
    }
    carried(&both.client, BYTES as u64)?;
    carried(&both.server, BYTES as u64)
}
