//! A node as clients and its own tools find it: ports, a name, and a home with the cookie that
//! lets the tools in. One URL tells other processes of all that.

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

/// Where tools listen while they talk to a node: between the ports of our servers and those that
/// the kernel hands out.
const PORTS_OF_TOOLS: (&str, &str) = ("32000", "32767");

/// Erlang itself is found by the variables, wherever it was unpacked.
const ERL: &str = "#!/bin/sh\nexec \"$BINDIR/erlexec\" \"$@\"\n";

/// Registries are ours to start and to end. One that a node started would outlive it.
const ERL_FLAGS: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";

pub(crate) struct Node {
    pub(crate) port: u16,
    pub(crate) epmd_port: u16,
    name: String,
    home: PathBuf,
}

impl Node {
    /// A new node on free ports, with all that it needs in its home.
    pub(crate) fn prepare(home: &Path) -> Result<Self, Error> {
        let programs = home.join("programs");
        DirBuilder::new().mode(0o755).create(&programs).map_err(at("creating", &programs))?;
        write(&programs.join("erl"), ERL, 0o755)?;
        // Erlang refuses a cookie that others might read.
        write(&home.join(".erlang.cookie"), &format!("{:016x}{:016x}", random(), random()), 0o400)?;
        write(&home.join("rabbitmq.conf"), "", 0o644)?;
        write(&home.join("plugins"), "[].\n", 0o644)?;
        let name = format!("rabbit-{}-{:08x}@localhost", std::process::id(), random() >> 32);
        Ok(Self { port: free_port()?, epmd_port: free_port()?, name, home: home.to_owned() })
    }

    /// What [`Self::sharing_url`] gave to another process.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let complaint = || Error::new(format!("`{url}` is not what the process with the server printed"));
        let (address, parameters) = url.split_once('?').ok_or_else(complaint)?;
        let port = address
            .strip_prefix("amqp://guest:guest@127.0.0.1:")
            .and_then(|rest| rest.split('/').next()?.parse().ok())
            .ok_or_else(complaint)?;
        let parameter = |name: &str| {
            let values = parameters.split('&').filter_map(|pair| pair.split_once('='));
            values.clone().find(|(found, _)| *found == name).and_then(|(_, value)| decoded(value))
        };
        Ok(Self {
            port,
            epmd_port: parameter("epmd").and_then(|port| port.parse().ok()).ok_or_else(complaint)?,
            name: parameter("node").ok_or_else(complaint)?,
            home: parameter("home").ok_or_else(complaint)?.into(),
        })
    }

    pub(crate) fn sharing_url(&self) -> String {
        let (name, home) = (encoded(&self.name), encoded(&self.home.to_string_lossy()));
        format!("{}?node={name}&epmd={}&home={home}", self.url("%2f"), self.epmd_port)
    }

    /// For clients, with the virtual host as it stands in URLs.
    pub(crate) fn url(&self, encoded_vhost: &str) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/{encoded_vhost}", self.port)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// What starts the registry, in the foreground.
    pub(crate) fn epmd(&self, binaries: &Binaries) -> Command {
        let mut epmd = binaries.epmd();
        epmd.args(["-address", "127.0.0.1", "-port", &self.epmd_port.to_string()]);
        epmd
    }

    /// What starts the node, in the foreground.
    pub(crate) fn server(&self, binaries: &Binaries) -> Result<Command, Error> {
        let mut server = self.script(binaries, "rabbitmq-server");
        server
            // Else the script stays between us and the node, and passes on some signals only.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            // Nobody but the tools asks for it, so that it may be another at each start.
            .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
            .env("RABBITMQ_MNESIA_BASE", self.data())
            .env("RABBITMQ_LOG_BASE", self.home.join("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", self.home.join("rabbitmq"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.home.join("plugins"))
            // Few threads, bound to no processor: it is one of many servers on the machine.
            .env("RABBITMQ_SCHEDULER_BIND_TYPE", "u")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 +A 4");
        Ok(server)
    }

    /// One of RabbitMQ's tools, told of this node.
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
            // Not the one of the system's server.
            .env("RABBITMQ_CONF_ENV_FILE", self.home.join("none"))
            .env("RABBITMQ_CTL_DIST_PORT_MIN", PORTS_OF_TOOLS.0)
            .env("RABBITMQ_CTL_DIST_PORT_MAX", PORTS_OF_TOOLS.1);
        script
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(at("writing", path))?;
    // Whatever our umask has taken away.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        .map_err(at("opening to others", path))
}

#[cfg(test)]
mod tests {
    use super::Node;

    #[test]
    fn a_node_is_read_as_it_was_told() {
        let node =
            Node { port: 1, epmd_port: 2, name: "rabbit@localhost".to_owned(), home: "/tmp/a&b".into() };
        let url = node.sharing_url();
        assert_eq!(
            url,
            "amqp://guest:guest@127.0.0.1:1/%2f?node=rabbit%40localhost&epmd=2&home=%2Ftmp%2Fa%26b"
        );
        let read = Node::parse(&url).expect("a proper URL");
        assert_eq!((read.port, read.epmd_port, read.name, read.home), (1, 2, node.name, node.home));
        for other in ["", "amqp://guest:guest@127.0.0.1:1/%2f", &url.replace("epmd", "else")] {
            assert!(Node::parse(other).is_err(), "{other}");
        }
    }
}
