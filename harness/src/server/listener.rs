//! Which process listens on a port. While several servers start, an answer alone does not show which one sent it.

use std::fs;
use std::net::Ipv4Addr;

/// Whether the process listens on the port of 127.0.0.1.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let Ok(sockets) = fs::read_to_string("/proc/net/tcp") else {
        return false;
    };
    let Some(inode) = listening_inode(&sockets, port) else {
        return false;
    };
    let socket = format!("socket:[{inode}]");
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|files| {
        files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|to| to.as_os_str() == &*socket)
    })
}

fn listening_inode(sockets: &str, port: u16) -> Option<&str> {
    const LISTENING: &str = "0A";
    // The kernel prints the address as a number in the machine's byte order.
    let address = u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets());
    let local = format!("{address:08X}:{port:04X}");
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let found = fields.get(1) == Some(&&*local) && fields.get(3) == Some(&LISTENING);
        fields.get(9).copied().filter(|_| found)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::listens;

    #[test]
    fn only_the_process_that_listens_on_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(1, port) || std::process::id() == 1);
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
