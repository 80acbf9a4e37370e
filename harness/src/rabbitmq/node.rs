//! The address of a node, for clients and for its tools: ports, a name, and a home folder with the cookie that
//! authenticates the tools. One URL passes all of this to other processes.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::binaries::Binaries;
use crate::Error;
use crate::packages::at;
use crate::percent::{decoded, encoded};
use crate::server::{free_port, random};

/// The ports on which the tools listen while they talk to a node. They are between the ports of our servers and the
/// kernel's ephemeral ports.
const TOOL_PORTS: (&str, &str) = ("32000", "32767");

/// A replacement for `erl` that finds Erlang by the variable, because Erlang may be unpacked in any folder.
const ERL: &str = "#!/bin/sh\nexec \"$BINDIR/erlexec\" \"$@\"\n";

/// The harness starts epmd itself. An epmd that a node starts would outlive the node.
const ERL_FLAGS: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";

pub(crate) struct Node {
    pub(crate) port: u16,
    pub(crate) epmd_port: u16,
    name: String,
    home: PathBuf,
}

impl Node {
    /// A new node on free ports, with its files in its home folder.
    pub(crate) fn prepare(home: &Path) -> Result<Self, Error> {
        let programs = home.join("programs");
        DirBuilder::new().mode(0o755).create(&programs).map_err(at("creating", &programs))?;
        write(&programs.join("erl"), ERL, 0o755)?;
        // Erlang refuses a cookie that other users can read.
        write(&home.join(".erlang.cookie"), &format!("{:016x}{:016x}", random(), random()), 0o400)?;
        write(&home.join("rabbitmq.conf"), "", 0o644)?;
        write(&home.join("plugins"), "[].\n", 0o644)?;
        let name = format!("rabbit-{}-{:08x}@localhost", std::process::id(), random() >> 32);
        Ok(Self { port: free_port()?, epmd_port: free_port()?, name, home: home.to_owned() })
    }

    /// Parses a [`Self::sharing_url`] from another process.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let invalid = || Error::new(format!("`{url}` is not a URL that the process with the server printed"));
        let (address, parameters) = url.split_once('?').ok_or_else(invalid)?;
        let port = address
            .strip_prefix("amqp://guest:guest@127.0.0.1:")
            .and_then(|rest| rest.split('/').next()?.parse().ok())
            .ok_or_else(invalid)?;
        let parameter = |name: &str| {
            let values = parameters.split('&').filter_map(|pair| pair.split_once('='));
            values.clone().find(|(found, _)| *found == name).and_then(|(_, value)| decoded(value))
        };
        Ok(Self {
            port,
            epmd_port: parameter("epmd").and_then(|port| port.parse().ok()).ok_or_else(invalid)?,
            name: parameter("node").ok_or_else(invalid)?,
            home: parameter("home").ok_or_else(invalid)?.into(),
        })
    }

    pub(crate) fn sharing_url(&self) -> String {
        let (name, home) = (encoded(&self.name), encoded(&self.home.to_string_lossy()));
        format!("{}?node={name}&epmd={}&home={home}", self.url("%2f"), self.epmd_port)
    }

    /// The URL for clients. The virtual host must be percent-encoded.
    pub(crate) fn url(&self, encoded_vhost: &str) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/{encoded_vhost}", self.port)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The command that runs epmd in the foreground.
    pub(crate) fn epmd(&self, binaries: &Binaries) -> Command {
        let mut epmd = binaries.epmd();
        epmd.args(["-address", "127.0.0.1", "-port", &self.epmd_port.to_string()]);
        epmd
    }

    /// The command that runs the node in the foreground.
    pub(crate) fn server(&self, binaries: &Binaries) -> Result<Command, Error> {
        let mut server = self.script(binaries, "rabbitmq-server");
        server
            // Otherwise the script remains the parent of the node and forwards only some signals.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            // Only the tools use this port, so it may differ at each start.
            .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
            .env("RABBITMQ_MNESIA_BASE", self.data())
            .env("RABBITMQ_LOG_BASE", self.home.join("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", self.home.join("rabbitmq"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.home.join("plugins"))
            // Few threads, not bound to processors, because many servers run on this machine.
            .env("RABBITMQ_SCHEDULER_BIND_TYPE", "u")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 +A 4");
        Ok(server)
    }

    /// One of RabbitMQ's scripts, configured for this node.
    pub(crate) fn script(&self, binaries: &Binaries, name: &str) -> Command {
        let mut path = self.home.join("programs").into_os_string();
        if let Some(present) = std::env::var_os("PATH") {
            path.push(":");
            path.push(present);
        }
        let mut script = binaries.script(name);
        script
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_AFLAGS", ERL_FLAGS)
            .env("RABBITMQ_NODENAME", &self.name)
            // Not the file of the system's server.
            .env("RABBITMQ_CONF_ENV_FILE", self.home.join("none"))
            .env("RABBITMQ_CTL_DIST_PORT_MIN", TOOL_PORTS.0)
            .env("RABBITMQ_CTL_DIST_PORT_MAX", TOOL_PORTS.1);
        script
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(at("writing", path))?;
    // The umask may have removed bits.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        .map_err(at("setting the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::Node;

    #[test]
    fn a_sharing_url_is_parsed_to_the_same_node() {
        let node =
            Node { port: 1, epmd_port: 2, name: "rabbit@localhost".to_owned(), home: "/tmp/a&b".into() };
        let url = node.sharing_url();
        assert_eq!(
            url,
            "amqp://guest:guest@127.0.0.1:1/%2f?node=rabbit%40localhost&epmd=2&home=%2Ftmp%2Fa%26b"
        );
        let read = Node::parse(&url).expect("a valid URL");
        assert_eq!((read.port, read.epmd_port, read.name, read.home), (1, 2, node.name, node.home));
        for other in ["", "amqp://guest:guest@127.0.0.1:1/%2f", &url.replace("epmd", "else")] {
            assert!(Node::parse(other).is_err(), "{other}");
        }
    }
}
