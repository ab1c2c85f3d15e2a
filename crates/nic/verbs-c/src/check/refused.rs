//! Why this process refused a request or a datagram of a peer: what it knows about its regions and queue
//! pairs.

use roxie::finding::{DOMAIN_GIVEN, FLAGS_SET};
use roxie::transport::{Access, Cause, GRH_LEN, PdId, QpType, Refused};
use roxie::wire::{Operation, Reth};

use crate::ibv::qp::QpObject;
use crate::observer::Kind;

use super::memory::{REGIONS, Region};
use super::objects::created;
use super::options::lock;
use super::report::FindingKind;
use super::stack::Site;
use super::suspicion::has_created;
use super::work::Queue;

type Sites = Vec<(&'static str, Site)>;

/// A request or datagram that was refused.
pub(super) struct Refusal {
    pub(super) kind: FindingKind,
    pub(super) text: String,
    pub(super) sites: Sites,
    /// The number of the queue pair that sent it.
    pub(super) sender: u32,
    /// The completion queue in which a completion is missing, if a program may count on that loss; else it is
    /// a mistake in any case.
    pub(super) missing_in: Option<usize>,
}

/// Explains the last refusal of a queue pair, once.
pub(super) fn explain(object: &QpObject, queue: &mut Queue) -> Option<Refusal> {
    let qp = object.tail.qp.transport().ok()?;
    let refused = qp.refused().filter(|refused| queue.told != Some(*refused))?;
    let status = qp.status()?;
    let set = queue.initialized.or_else(|| created(object.public().addr()))?;
    let number = queue.number;
    let [_, recv_cq] = queue.cqs();
    let missing_in = matches!(refused, Refused::NoReceive(_)).then_some(recv_cq);
    queue.told = missing_in.is_none().then_some(refused);
    let found =
        |kind, text, site, sender| Some(Refusal { kind, text, sites: vec![site], sender, missing_in });
    match refused {
        Refused::QKey(theirs, sender) => {
            let (sender, ours) = (sender.value(), qp.query().ok()?.q_key.0);
            let text = format!(
                "a datagram of queue pair {sender:#08x} was dropped: its Q_Key is {:#x}, that of its \
                 receiver, queue pair {number:#08x}, is {ours:#x}; the sender needs the Q_Key of the \
                 receiver (wr.ud.remote_qkey)",
                theirs.0
            );
            found(FindingKind::WrongQkey, text, ("Q_Key set", set), sender)
        }
        Refused::TooLong { needs: needed, room, sender } => {
            let (sender, payload) = (sender.value(), needed - GRH_LEN);
            let text = format!(
                "a datagram of {payload} bytes of queue pair {sender:#08x} was dropped: the receive of queue \
                 pair {number:#08x} has {room} bytes, and the datagram needs {needed}, {GRH_LEN} of them for \
                 the GRH area"
            );
            let site =
                queue.receives.front().map_or(("created", set), |next| ("receive posted", next.posted));
            found(FindingKind::DatagramDropped, text, site, sender)
        }
        Refused::NoReceive(sender) => {
            let (sender, count) = (sender.value(), status.counters.rcvd_no_wqe);
            // The counter has those that were longer than their receive, too.
            let text = format!(
                "{count} datagram(s) were dropped because queue pair {number:#08x} had no receive posted \
                 with room for them, one of them of queue pair {sender:#08x}; no side is told. Post a \
                 receive for each datagram that can come before the next one is posted"
            );
            let site = queue.last_receive.map_or(("created", set), |posted| ("last receive posted", posted));
            found(FindingKind::DatagramDropped, text, site, sender)
        }
        Refused::Request(operation, asked, cause) => {
            let (what, needs) = needs(operation);
            let Reth { va, r_key, dma_len } = asked;
            let (why, sites) = if cause == Cause::PeerPermission {
                let ours = flags(qp.query().ok()?.access);
                let why = format!(
                    "qp_access_flags of the queue pair are {ours}, and the request needs {}; set them with \
                     ibv_modify_qp (IBV_QP_ACCESS_FLAGS)",
                    flags(needs)
                );
                (why, vec![(FLAGS_SET, set)])
            } else {
                let has_domain = queue.service != QpType::XrcTgt;
                region(&asked, needs, has_domain.then(|| qp.pd().id()))
            };
            let sender = status.dest_qpn?.value();
            let text = format!(
                "queue pair {number:#08x} refused {what} of {dma_len} bytes at {va:#x} with rkey {:#x} of \
                 queue pair {sender:#08x}: {why}",
                r_key.0
            );
            // A sender over UC does not know when the peer needs nothing more.
            let is_late = matches!(sites.first(), Some(("deregistered", _))) && queue.service == QpType::Uc;
            let sites = if sites.is_empty() { vec![("attributes set", set)] } else { sites };
            let missing_in = is_late.then_some(recv_cq);
            Some(Refusal { kind: FindingKind::RefusedRequest, text, sites, sender, missing_in })
        }
    }
}

/// What people call an operation, and the right that it needs.
const fn needs(operation: Operation) -> (&'static str, Access) {
    match operation {
        Operation::ReadRequest => ("a READ", Access::REMOTE_READ),
        Operation::CompareSwap | Operation::FetchAdd => ("an atomic", Access::REMOTE_ATOMIC),
        Operation::Flush => ("a FLUSH", Access::FLUSH_GLOBAL),
        _ => ("a WRITE", Access::REMOTE_WRITE),
    }
}

/// Access flags as a program names them.
fn flags(access: Access) -> String {
    let names: Vec<String> = access.iter_names().map(|(name, _)| format!("IBV_ACCESS_{name}")).collect();
    if names.is_empty() { "0".to_owned() } else { names.join(" | ") }
}

/// Why the memory of a request was refused, and the call stacks that tell of the region. `pd` is the domain
/// of the queue pair: an XRC target has that of the shared receive queue which the request names.
fn region(asked: &Reth, needs: Access, pd: Option<PdId>) -> (String, Sites) {
    let &Reth { va, r_key, dma_len } = asked;
    let regions = lock(&REGIONS);
    let with_key = |key: u32| regions.all().find(|region| region.rkey == key);
    let live = |key: u32| with_key(key).filter(|region| region.deregistered.is_none());
    let holder = || regions.all().find(|region| region.holds(va, dma_len));
    let low = va as u32;
    let is_foreign = |region: &Region| pd.is_some_and(|pd| pd != region.pd);
    // Windows are no regions.
    let window = match has_created(Kind::Window) {
        true => "; if it is that of a memory window, this is not bound now, or not with this range or right",
        false => "",
    };
    let (why, region) = match with_key(r_key.0) {
        Some(named) if named.deregistered.is_some() => {
            let again =
                holder().filter(|region| region.deregistered.is_none()).map_or_else(String::new, |now| {
                    format!(
                        "; the memory is registered again with rkey {:#x}, which the peer needs",
                        now.rkey
                    )
                });
            (format!("the region of the key{} was deregistered{again}", place(named)), Some(named))
        }
        Some(named) if named.holds(va, dma_len) => {
            let why = if !named.access.contains(needs) {
                let (ours, needs) = (flags(named.access), flags(needs));
                format!(
                    "the region{} was registered with {ours}, and the request needs {needs}",
                    place(named)
                )
            } else if is_foreign(named) {
                format!("the region{} has another protection domain than the queue pair", place(named))
            } else {
                let or = match pd {
                    Some(_) => "",
                    None => ", or the region has another protection domain than the shared receive queue",
                };
                format!("the memory of the region{} is not mapped any more{or}", place(named))
            };
            (why, Some(named))
        }
        Some(named) => (outside(named, va, dma_len, holder()), Some(named)),
        None if live(r_key.0.swap_bytes()).is_some() => {
            let why = "the key is in the other byte order (htonl, ntohl)".to_owned();
            (why, live(r_key.0.swap_bytes()))
        }
        None if va == low.into() && live(low).is_some_and(|region| region.iova as u32 == r_key.0) => {
            ("the key and the address are exchanged".to_owned(), live(low))
        }
        None => match holder() {
            Some(holder) => {
                let is = if holder.deregistered.is_some() { "was" } else { "is" };
                let why = format!(
                    "no region has this key; the address {is} in the region{} with rkey {:#x}{window}",
                    place(holder),
                    holder.rkey
                );
                (why, Some(holder))
            }
            None => (format!("no region of the process has or had this key{window}"), None),
        },
    };
    let mut sites = Sites::new();
    if let Some(region) = region {
        sites.extend(region.deregistered.map(|site| ("deregistered", site)));
        let is_hit = region.rkey == r_key.0 && region.holds(va, dma_len);
        let registered = match is_hit {
            true if !region.access.contains(needs) => FLAGS_SET,
            true if is_foreign(region) => DOMAIN_GIVEN,
            _ => "registered",
        };
        sites.push((registered, region.registered));
    }
    (why, sites)
}

fn place(region: &Region) -> String {
    format!(" of {} bytes at {:#x}", region.length, region.iova)
}

/// What is wrong with an address that is not in the region of its key.
fn outside(named: &Region, va: u64, bytes: u32, holder: Option<&Region>) -> String {
    let hits = |at: u64| named.holds(at, bytes);
    let swapped = va.swap_bytes();
    let (low, high) = (u64::from(va as u32), va >> 32);
    let end = named.iova.saturating_add(named.length);
    let last = va.saturating_add(bytes.into());
    let what = if (high == 0 || high == 0xffff_ffff) && hits(named.iova >> 32 << 32 | low) {
        "the address has lost its upper 32 bits; keep it in a uint64_t".to_owned()
    } else if [swapped, va.rotate_left(32), swapped.rotate_left(32)].into_iter().any(hits) {
        "the address is in the other byte order (htobe64, be64toh)".to_owned()
    } else if named.iova.checked_add(va).is_some_and(hits) {
        "the address is an offset; add the address of the region".to_owned()
    } else if va <= end && va >= named.iova {
        format!("the request ends {} bytes beyond the region", last - end)
    } else if let Some(holder) = holder {
        let was = if holder.deregistered.is_some() { ", which was deregistered" } else { "" };
        format!("the address is in another region{}, with rkey {:#x}{was}", place(holder), holder.rkey)
    } else if va < named.iova {
        format!("the request begins {} bytes before the region", named.iova - va)
    } else {
        format!("the request begins {} bytes beyond the region", va - end)
    };
    format!("{what}. The key is that of the region{}", place(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_outside_of_the_region_of_its_key_is_recognised() {
        let registered = Site::of(1).expect("not 0");
        let at = |iova| Region {
            rkey: 7,
            first: iova,
            length: 4096,
            is_plain: false,
            pd: PdId(1),
            iova,
            access: Access::REMOTE_WRITE,
            registered,
            deregistered: None,
        };
        let (named, other) = (at(0x7f12_3456_7000), at(0x7f12_3456_9000));
        for (va, text) in [
            (0x3456_7010, "lost its upper 32 bits"),
            (0xffff_ffff_3456_7010, "lost its upper 32 bits"),
            (0x7f12_3456_7010_u64.swap_bytes(), "other byte order"),
            (16, "is an offset"),
            (0x7f12_3456_7ff0, "ends 48 bytes beyond the region"),
            (0x7f12_3456_6ff0, "begins 16 bytes before the region"),
            (0x7f12_3456_a000, "begins 8192 bytes beyond the region"),
        ] {
            let why = outside(&named, va, 64, None);
            assert!(why.contains(text), "{va:#x}: {why}");
        }
        assert!(outside(&named, 0x7f12_3456_9010, 64, Some(&other)).contains("in another region"));
    }
}
