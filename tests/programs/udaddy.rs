//! udaddy: datagrams between queue pairs that found each other through the connection manager (SIDR).

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LONG, Scale, Spread, places, says};

/// The fixed port of the program.
const PORT: u16 = 7174;

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let udaddy = places(scale, Spread::Third(1));
    let mut cases: Vec<_> = udaddy.into_iter().map(|place| case(place, &[])).collect();
    for place in places(scale, Spread::Two) {
        // The client sends all messages at once without acknowledgements: no more than the socket buffer of
        // an unprivileged user holds.
        cases.push(case(place, &["-c", "5", "-C", "10", "-S", "900"]));
        cases.push(case(place, &["-t", "32"]));
    }
    cases
}

fn case(place: Place, words: &[&'static str]) -> Case {
    let words = words.to_vec();
    let title = format!("udaddy {}", words.join(" "));
    Case::new(place, title.trim_end(), "udaddy", move |lab, name| run(lab, &place, name, &words))
}

/// Each message is sent to the server and back.
fn run(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<(), String> {
    let address = lab.address(place);
    let common = [&["udaddy"], words].concat();
    let pair = Pair {
        name,
        server: [&common[..], &["-b", address]].concat(),
        client: [&common[..], &["-s", address]].concat(),
        ready: Ready::Cm(PORT),
        limit: LONG,
    };
    let both = pair.run(lab, place)?;
    for ended in [&both.client, &both.server] {
        says(ended, "data transfers complete")?;
        says(ended, "return status 0")?;
    }
    Ok(())
}
