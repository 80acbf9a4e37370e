//! Who listens on a port: while two servers start at once, an answer alone does not tell whose.

use std::fs;
use std::net::Ipv4Addr;

/// Whether the process holds the port of 127.0.0.1 open for connections.
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
    // The kernel prints the address as a number of the machine's own byte order.
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
    fn a_port_belongs_to_whoever_listens_on_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(1, port) || std::process::id() == 1);
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
