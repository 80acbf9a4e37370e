//! Azurite, the emulator that Azure's own tools are tested with, as the blob service of the tests.
//! A test that breaks its server starts one of its own; the others share one.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::http::{self, Answer, Signer};
use crate::server::{Server, free_port, listens, random};
use crate::store_address::StoreAddress;
use crate::{Error, node_packages};

/// Names a running server as `http://account:key@host:port`, percent-encoded, that [`shared`]
/// attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_AZURE";

const VERSION: &str = "3";

/// The account that every Azurite has; its key is published in the documentation, and no secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);
const TRIES_FOR_A_PORT: usize = 3;

/// A blob service: one that we started and end on drop, or one that runs already.
pub struct Azurite {
    address: StoreAddress,
    ours: Option<Ours>,
}

/// What only the process that started a server has: the means to break and to end it.
struct Ours {
    server: Server,
    program: PathBuf,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Azurite {
    // The failure is kept too, so that each test reports it at once rather than trying again.
    static SHARED: OnceLock<Result<Azurite, Error>> = OnceLock::new();
    match SHARED.get_or_init(Azurite::from_environment) {
        Ok(azurite) => azurite,
        Err(error) => panic!("the tests need Azurite, and it could not be had: {error}"),
    }
}

impl Azurite {
    /// Starts a server of the caller's own, on a free port, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        let program = node_packages::install("azurite", VERSION)?.join("dist/src/blob/main.js");
        // SIGKILL: an orderly end would save what is about to be deleted.
        let server = Server::prepare("azurite", None, "KILL")?;
        let address = StoreAddress::local(free_port()?, ACCOUNT, KEY);
        let mut azurite = Self { address, ours: Some(Ours { server, program }) };
        let mut tries = 1;
        while let Err(error) = azurite.launch() {
            let port_was_taken = error.to_string().contains("EADDRINUSE");
            if !port_was_taken || tries == TRIES_FOR_A_PORT {
                return Err(error);
            }
            tries += 1;
            azurite.address = StoreAddress::local(free_port()?, ACCOUNT, KEY);
        }
        Ok(azurite)
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Ok(url) = std::env::var(ADDRESS_VARIABLE) else {
            return Self::start();
        };
        let address = StoreAddress::named_by(ADDRESS_VARIABLE, &url)?;
        Ok(Self { address, ours: None })
    }

    /// Where clients find the account, as `http://127.0.0.1:port/account`.
    pub fn endpoint(&self) -> String {
        format!("{}/{}", self.address.endpoint(), self.account())
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn account(&self) -> &str {
        &self.address.name
    }

    /// The account's key, in base64 as clients take it.
    pub fn key(&self) -> &str {
        &self.address.secret
    }

    /// The value of [`ADDRESS_VARIABLE`] with which other processes share this server.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// The process, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with data and log, where the server is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// Makes an empty container under a name nobody else uses, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_container(&self) -> String {
        let name = format!("test-{}-{:016x}", std::process::id(), random());
        let path = format!("/{name}?restype=container");
        let doing = format!("creating container {name}");
        match self.request("PUT", &path, b"").and_then(|answer| answer.successful(&doing)) {
            Ok(_) => name,
            Err(error) => panic!("no container could be made: {error}"),
        }
    }

    /// Sends a request signed with the account's key, without a client library's opinions. The
    /// path begins after the account and is, with its query, percent-encoded already.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Error> {
        let signer = Signer { scheme: "azure", name: self.account(), secret: self.key(), region: "" };
        http::signed(&signer, method, &format!("{}{path}", self.endpoint()), body)
    }

    /// Kills the server at once. Unlike the real service it loses what it acknowledged in the last
    /// few seconds: it saves its catalogue of containers and blobs every five.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.server.kill()
    }

    /// Ends the server in order, with everything saved.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped server again, on the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Stops the server where it stands: connections stay open, answers stay out.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.server.resume()
    }

    fn ours(&mut self) -> Result<&mut Ours, Error> {
        self.ours.as_mut().ok_or_else(Error::not_ours)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let authority = self.address.host_and_port.clone();
        let port = self.port();
        let ours = self.ours()?;
        let mut node = Command::new("node");
        // Accounts that a developer has set for another Azurite are not ours.
        node.env_remove("AZURITE_ACCOUNTS")
            .arg(&ours.program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .arg("--location")
            .arg(ours.server.folder().join("data"))
            // Clients are ahead of it, and it would refuse whatever version it does not know.
            .arg("--skipApiVersionCheck")
            .args(["--silent", "--disableTelemetry"]);
        ours.server.spawn(node)?;
        ours.server.wait_until("Azurite", PATIENCE_WITH_START, |pid| {
            listens(pid, port) && http::status(&authority).is_some_and(|status| status < 500)
        })
    }
}
