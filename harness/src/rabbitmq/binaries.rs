//! Finds RabbitMQ's scripts and Erlang: installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, installation};

/// RabbitMQ with its dependencies. Those are named too, because apt skips installed packages.
const PACKAGES: [&str; 18] = [
    "rabbitmq-server",
    "erlang-base",
    "erlang-asn1",
    "erlang-crypto",
    "erlang-eldap",
    "erlang-ftp",
    "erlang-inets",
    "erlang-mnesia",
    "erlang-os-mon",
    "erlang-parsetools",
    "erlang-public-key",
    "erlang-runtime-tools",
    "erlang-snmp",
    "erlang-ssl",
    "erlang-syntax-tools",
    "erlang-tftp",
    "erlang-tools",
    "erlang-xmerl",
];

/// The folders of RabbitMQ and Erlang below one root.
pub(crate) struct Binaries {
    /// Not the scripts with the same names in `/usr/sbin`, because these work only with the system's server.
    scripts: PathBuf,
    erlang: PathBuf,
    runtime: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn find_or_unpack() -> Result<Self, Error> {
        installation::find_or_unpack("RabbitMQ", &PACKAGES, Self::under)
    }

    fn under(root: &Path) -> Option<Self> {
        let scripts = root.join("usr/lib/rabbitmq/bin");
        let erlang = root.join("usr/lib/erlang");
        let is_complete = ["rabbitmq-server", "rabbitmqctl"].iter().all(|name| scripts.join(name).is_file());
        // <erlang>/erts-<version>/bin
        let runtime = erlang
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .find(|folder| folder.join("erlexec").is_file() && folder.join("epmd").is_file())?;
        let library_path = installation::library_path(root);
        is_complete.then_some(Self { scripts, erlang, runtime, library_path })
    }

    /// One of RabbitMQ's scripts.
    pub(crate) fn script(&self, name: &str) -> Command {
        self.command(&self.scripts.join(name))
    }

    /// epmd, the registry of the Erlang nodes of a machine.
    pub(crate) fn epmd(&self) -> Command {
        self.command(&self.runtime.join("epmd"))
    }

    /// The program without the variables that developers set for their own nodes, and with the variables that `erl`
    /// sets. `erl` itself works only in its installed folder.
    fn command(&self, program: &Path) -> Command {
        let foreign = ["RABBITMQ_", "ERL_"];
        let mut command = installation::command(program, self.library_path.as_deref(), &foreign);
        command
            .env("ROOTDIR", &self.erlang)
            .env("BINDIR", &self.runtime)
            .env("EMU", "beam")
            .env("PROGNAME", "erl");
        command
    }
}
