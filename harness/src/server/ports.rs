//! Ports of this machine for servers to listen on.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use super::random;
use crate::{Error, packages};

const TRIES_FOR_A_PORT: usize = 3;

/// A port of this machine that nobody listens on, and that nobody else is given as long as this process lives: a
/// server that is down for a while finds it free again.
///
/// Never one the kernel hands out to outgoing connections: while a killed server is down, a
/// client that keeps on trying could be given its port, or even be connected to itself.
pub(crate) fn free_port() -> Result<u16, Error> {
    const FIRST: u16 = 20_000;
    const COUNT: u64 = 12_000;
    (0..200)
        .filter_map(|_| u16::try_from(random() % COUNT).ok())
        .map(|offset| FIRST + offset)
        .find(|port| claim(*port))
        .ok_or_else(|| Error::new("no free port on 127.0.0.1 in 200 tries"))
}

/// The same as an address, for a program that is to listen there.
///
/// # Panics
///
/// Panics where there is none.
pub fn free_address() -> String {
    match free_port() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(error) => panic!("{error}"),
    }
}

/// Takes the port if nobody listens there, and nobody else who starts servers by this code has it: a lock on a file of
/// its name, which ends with us.
fn claim(port: u16) -> bool {
    static OURS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    // A folder for each user: two who meet have the same chance of it as with anybody else's program. Not among the
    // temporary files, which each run may have elsewhere.
    let Ok(cache) = packages::cache() else { return false };
    let folder = cache.join("ports");
    let _ = fs::create_dir_all(&folder);
    let Ok(file) = File::create(folder.join(port.to_string())) else { return false };
    // Locked before it is tried, for trying takes it for a moment from a server that is down.
    let is_ours = file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if is_ours {
        OURS.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
    is_ours
}

/// Chooses ports and starts a server on them, over again where somebody else took one in between: the
/// error then has one of the signs in it.
pub(crate) fn on_free_ports<S>(
    signs: &[&str],
    mut choose_and_start: impl FnMut() -> Result<S, Error>,
) -> Result<S, Error> {
    let mut tries = 1;
    loop {
        match choose_and_start() {
            Err(error) if tries < TRIES_FOR_A_PORT && tells(&error, signs) => tries += 1,
            outcome => return outcome,
        }
    }
}

fn tells(error: &Error, signs: &[&str]) -> bool {
    let error = error.to_string();
    signs.iter().any(|sign| error.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::{TRIES_FOR_A_PORT, claim, free_port, on_free_ports};
    use crate::Error;

    #[test]
    fn only_a_taken_port_is_a_reason_to_try_again_and_not_for_ever() {
        for (complaint, expected) in [("bind: in use, it says", TRIES_FOR_A_PORT), ("no memory", 1)] {
            let mut tries = 0;
            let outcome = on_free_ports(&["EADDRINUSE", "in use"], || {
                tries += 1;
                Err::<(), _>(Error::new(complaint))
            });
            assert!(outcome.is_err_and(|error| error.to_string() == complaint));
            assert_eq!(tries, expected, "{complaint}");
        }
    }

    #[test]
    fn the_first_server_that_starts_is_the_one() {
        let mut tries = 0;
        let outcome = on_free_ports(&["in use"], || {
            tries += 1;
            if tries == 1 { Err(Error::new("in use")) } else { Ok(tries) }
        });
        assert_eq!(outcome.expect("the second"), 2);
    }

    #[test]
    fn a_port_is_given_once_even_while_nobody_listens() {
        let port = free_port().expect("a port");
        assert!(!claim(port));
    }
}
