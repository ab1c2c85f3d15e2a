//! A minimal HTTP server for scrapes: one request per connection. One thread serves all clients without
//! waiting for any of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::POLLIN;
use sys::{PollFd, poll};

use super::client::{Client, Limits, Next, Service};
use super::hosts::Hosts;
use super::listener::{Address, Listener};
use super::request::Host;
use super::scraper::{Scrape, Scraper};
use super::shares::{Parties, Party, Places};
use crate::ending::Ending;
use crate::failure::{During, Outcome};

const LIMITS: Limits =
    Limits { request: Duration::from_secs(2), scrape: Duration::from_secs(5), reply: Duration::from_secs(5) };
/// Age up to which counters serve further clients: the engines answer at most ten times a second. Double is
/// visible in rates over a second, half is twice the work for a client that does not stop asking.
const FRESH: Duration = Duration::from_millis(100);
/// Most connections that are accepted before the clients are served; 64 take some 2 ms.
const ACCEPTS_MAX: usize = 64;
/// Time without accepting connections if there is neither a descriptor nor a client to end. With half, two
/// wake-ups more in a second; double is a visible delay.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until a signal arrives. `given` are more names of this host.
pub(super) fn serve(address: &Address, given: &[Host], scrape: Scrape, ending: &Ending) -> Outcome {
    let listener = Listener::new(address)?;
    let mut parties = Parties::new().during("netlink socket")?;
    let places = Places::for_descriptors(sys::descriptor_limit());
    let hosts = match &listener.address {
        Address::Tcp(address) => {
            if !parties.knows_users(*address) {
                say!(
                    "roxie: this kernel does not name the users of TCP connections (CONFIG_INET_DIAG): all \
                     clients on this host share {} connections",
                    places.share
                );
            }
            Some(Hosts::new(address.ip(), given))
        }
        Address::Unix(_) => None,
    };
    let scraper = Scraper::start(scrape, FRESH).during("starting a thread")?;
    say!("roxie: {}", listener.address);
    let service = Service { hosts, scraper, limits: LIMITS };
    let party_of = Box::new(move |connection: &OwnedFd| parties.of(connection));
    Server { listener, service, party_of, places, clients: Vec::new(), paused_until: None }
        .run(ending.as_fd())
}

/// A server with its clients.
struct Server {
    listener: Listener,
    service: Service,
    party_of: Box<dyn FnMut(&OwnedFd) -> Party + Send>,
    places: Places,
    /// The oldest connection first.
    clients: Vec<Client>,
    paused_until: Option<Instant>,
}

impl Server {
    /// Serves until `stop` is readable.
    fn run(&mut self, stop: BorrowedFd<'_>) -> Outcome {
        loop {
            let now = Instant::now();
            self.paused_until = self.paused_until.filter(|until| *until > now);
            let listening = if self.paused_until.is_none() { POLLIN } else { 0 };
            let mut fds = vec![
                PollFd::new(stop.as_raw_fd(), POLLIN),
                PollFd::new(self.service.scraper.as_fd().as_raw_fd(), POLLIN),
                PollFd::new(self.listener.as_fd().as_raw_fd(), listening),
            ];
            fds.extend(self.clients.iter().map(Client::poll_fd));
            let deadlines = self.clients.iter().map(|client| client.deadline).chain(self.paused_until);
            let timeout = deadlines.min().map(|first| first.saturating_duration_since(now).as_nanos() as u64);
            poll(&mut fds, timeout).during("waiting for clients")?;
            if fds[0].is_ready() {
                return Ok(());
            }
            let Server { clients, service, .. } = self;
            let mut ready = fds[3..].iter().map(PollFd::is_ready);
            clients.retain_mut(|client| ready.next() != Some(true) || client.step(service) == Next::Keep);
            if fds[1].is_ready()
                && let Some(reply) = service.scraper.take()
            {
                clients.retain_mut(|client| client.reply(&reply, &service.limits) == Next::Keep);
            }
            let now = Instant::now();
            for client in clients.extract_if(.., |client| client.deadline <= now) {
                client.end(true);
            }
            if fds[2].is_ready() {
                self.accept();
            }
        }
    }

    /// Accepts waiting connections, and serves those of which the request has arrived.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok(connection) => self.admit(connection),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return,
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        // The kernel says so before it looks whether there is a connection.
                        if !self.listener.has_waiting() {
                            return;
                        }
                        // The connection stays in the queue, and would be reported at once.
                        if !self.end_surplus() {
                            self.paused_until = Some(Instant::now() + PAUSE);
                            return;
                        }
                    }
                    // The client has disconnected.
                    _ => {}
                },
            }
        }
    }

    fn admit(&mut self, connection: OwnedFd) {
        let party = (self.party_of)(&connection);
        let clients: Vec<_> = self.clients.iter().map(|client| (client.party, client.stage())).collect();
        if let Some(index) = self.places.taken_by(&clients, party) {
            self.end(index);
        }
        let mut client = Client::new(connection, party, &self.service.limits);
        if client.step(&mut self.service) == Next::Keep {
            self.clients.push(client);
        }
    }

    /// Ends a client so that its descriptor becomes free; false if there is none.
    fn end_surplus(&mut self) -> bool {
        let clients: Vec<_> = self.clients.iter().map(|client| (client.party, client.stage())).collect();
        let index = self.places.surplus(&clients, Party::Unknown);
        index.map(|index| self.end(index)).is_some()
    }

    fn end(&mut self, index: usize) {
        self.clients.remove(index).end(false);
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
