//! uDAPL: its tests `dtest` and `dapltest` over the provider that uses rdma_cm. Both compare the data.
//!
//! | uDAPL 2.1.10 (libdapl2) | `dtest`, `dapltest` |

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, beside, carried, good, says};

/// `dtest` tells its client over TCP where it listens.
const DTEST: Ready = Ready::Tcp(15_828);
/// The provider makes it of the service of `dapltest`.
const DAPLTEST: Ready = Ready::Cm(62_000);
/// Names of the interface adapter and its provider; the interface and the port follow.
const ADAPTER: &str = "ofa-v2-roxie u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0";
/// Messages, WRITEs and READs by two threads with two endpoints each.
const TRANSACTIONS: &str = "-D ofa-v2-roxie -t 2 -w 2 -i 20 -V client SR 1024 server SR 1024 \
                            client RW 4096 server RR 4096";

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    vec![
        Case::new(place, "uDAPL, dtest", "dtest", move |lab, name| messages(lab, &place, name)),
        Case::new(place, "uDAPL, dapltest", "dapltest", move |lab, name| transactions(lab, &place, name)),
    ]
}

/// Words that start a program of uDAPL with a registry that has the adapter of this place.
fn environment(lab: &Lab, place: &Place) -> Result<[String; 3], String> {
    let registry = beside(lab, "dat.conf");
    let line = format!("{ADAPTER} \"{} 0\" \"\"\n", lab.netdev(place));
    std::fs::write(&registry, line).map_err(|error| error.to_string())?;
    Ok(["env", "ROXIE_STATS=1", &format!("DAT_OVERRIDE={}", registry.display())].map(str::to_owned))
}

fn messages(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let environment = environment(lab, place)?;
    let environment = environment.each_ref().map(String::as_str);
    let common = [&environment[..], &["dtest", "-P", "ofa-v2-roxie", "-b", "65536", "-B", "10"]].concat();
    let client = [&common[..], &["-h", lab.address(place)]].concat();
    let pair = Pair { name, server: common, client, ready: DTEST, limit: LIMIT };
    let both = pair.run(lab, place)?;
    for ended in [both.client, both.server] {
        says(&ended, "DAPL Test Complete. PASSED")?;
        carried(&good(ended)?, 1 << 20)?;
    }
    Ok(())
}

fn transactions(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let environment = environment(lab, place)?;
    let environment = environment.each_ref().map(String::as_str);
    let server = [&environment[..], &["dapltest", "-T", "S", "-D", "ofa-v2-roxie"]].concat();
    // The second run ends the server.
    let script = format!("dapltest -T T -s $0 {TRANSACTIONS}; dapltest -T Q -D ofa-v2-roxie -s $0");
    let client = [&environment[..], &["sh", "-ec", &script, lab.address(place)]].concat();
    let pair = Pair { name, server, client, ready: DAPLTEST, limit: LIMIT };
    let both = pair.run(lab, place)?;
    says(&both.client, "End of Work -- Client Exiting")?;
    carried(&both.client, 1 << 19)?;
    carried(&good(both.server)?, 1 << 19)
}
