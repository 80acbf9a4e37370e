//! Free ports for servers.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use super::random;
use crate::{Error, packages};

const PORT_ATTEMPTS: usize = 3;

/// A port without a listener. No other process with this code gets it while this process lives, so a server that is
/// down for a while can use the same port again.
///
/// It is never an ephemeral port of the kernel. Otherwise a client that retries while its server is down could get that
/// port, or even connect to itself.
pub(crate) fn free_port() -> Result<u16, Error> {
    const FIRST: u16 = 20_000;
    const COUNT: u64 = 12_000;
    (0..200)
        .filter_map(|_| u16::try_from(random() % COUNT).ok())
        .map(|offset| FIRST + offset)
        .find(|port| reserve(*port))
        .ok_or_else(|| Error::new("no free port on 127.0.0.1 after 200 attempts"))
}

/// Like `free_port`, as an address for a program that will listen there.
///
/// # Panics
///
/// Panics if there is none.
pub fn free_address() -> String {
    match free_port() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(error) => panic!("{error}"),
    }
}

/// Reserves the port if it has no listener and no other process with this code has reserved it. The reservation is a
/// file lock, which ends with this process.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    // Not in the temporary folder, because runs may have different ones. Other users have another folder, so they may
    // reserve the same port.
    let Ok(cache) = packages::cache() else { return false };
    let folder = cache.join("ports");
    let _ = fs::create_dir_all(&folder);
    let Ok(file) = File::create(folder.join(port.to_string())) else { return false };
    // The lock comes first, because the bind blocks the port for a moment, and a stopped server of another process may
    // be starting on it.
    let is_free = file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if is_free {
        RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
    is_free
}

/// Chooses ports and starts a server on them. Repeats this if another program took a port in between: the error then
/// contains one of the texts.
pub(crate) fn on_free_ports<S>(
    texts: &[&str],
    mut choose_and_start: impl FnMut() -> Result<S, Error>,
) -> Result<S, Error> {
    let mut attempts = 1;
    loop {
        match choose_and_start() {
            Err(error) if attempts < PORT_ATTEMPTS && contains_any(&error, texts) => attempts += 1,
            outcome => return outcome,
        }
    }
}

fn contains_any(error: &Error, texts: &[&str]) -> bool {
    let error = error.to_string();
    texts.iter().any(|text| error.contains(text))
}

#[cfg(test)]
mod tests {
    use super::{PORT_ATTEMPTS, free_port, on_free_ports, reserve};
    use crate::Error;

    #[test]
    fn only_a_taken_port_is_retried_and_only_a_few_times() {
        for (message, expected) in [("bind: in use, it says", PORT_ATTEMPTS), ("no memory", 1)] {
            let mut tries = 0;
            let outcome = on_free_ports(&["EADDRINUSE", "in use"], || {
                tries += 1;
                Err::<(), _>(Error::new(message))
            });
            assert!(outcome.is_err_and(|error| error.to_string() == message));
            assert_eq!(tries, expected, "{message}");
        }
    }

    #[test]
    fn the_first_server_that_starts_is_returned() {
        let mut tries = 0;
        let outcome = on_free_ports(&["in use"], || {
            tries += 1;
            if tries == 1 { Err(Error::new("in use")) } else { Ok(tries) }
        });
        assert_eq!(outcome.expect("the second"), 2);
    }

    #[test]
    fn a_port_without_a_listener_is_reserved_once() {
        let port = free_port().expect("a port");
        assert!(!reserve(port));
    }
}
