//! Azurite, the emulator that Azure's own tools are tested with, as the blob service of the tests.
//! A test that breaks its server starts one of its own; the others share one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::http::{self, Answer, Signer};
use crate::server::{Server, free_port};
use crate::store_address::StoreAddress;
use crate::store_server::{Kind, Ours, Prepared, StoreServer, made};
use crate::{Error, node_packages};

/// Names a running server as `http://account:key@host:port`, percent-encoded, that [`shared`]
/// attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_AZURE";

const VERSION: &str = "3";

/// The account that every Azurite has; its key is published in the documentation, and no secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A blob service. When it is killed it loses, unlike the real one, what it acknowledged in the
/// last few seconds: it saves its catalogue of containers and blobs every five.
pub type Azurite = StoreServer<Emulator>;

/// The program that node runs.
pub struct Emulator {
    program: PathBuf,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Azurite {
    static SHARED: OnceLock<Result<Azurite, Error>> = OnceLock::new();
    Azurite::once(&SHARED)
}

impl Kind for Emulator {
    const NAME: &'static str = "Azurite";
    const ADDRESS_VARIABLE: &'static str = ADDRESS_VARIABLE;
    const PORT_WAS_TAKEN: &'static [&'static str] = &["EADDRINUSE"];
    type Options = ();

    /// Its data lie in a temporary folder.
    fn prepare((): ()) -> Result<Prepared<Self>, Error> {
        let program = node_packages::install("azurite", VERSION)?.join("dist/src/blob/main.js");
        // SIGKILL: an orderly end would save what is about to be deleted.
        let server = Server::prepare("azurite", None, "KILL")?;
        let address = StoreAddress::local(free_port()?, ACCOUNT, KEY);
        Ok(Prepared { address, ours: Ours { server, kind: Self { program } } })
    }

    fn command(&self, folder: &Path, address: &StoreAddress) -> Command {
        let mut node = Command::new("node");
        // Accounts that a developer has set for another Azurite are not ours.
        node.env_remove("AZURITE_ACCOUNTS")
            .arg(&self.program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", &address.port().to_string()])
            .arg("--location")
            .arg(folder.join("data"))
            // Clients are ahead of it, and it would refuse whatever version it does not know.
            .arg("--skipApiVersionCheck")
            .args(["--silent", "--disableTelemetry"]);
        node
    }
}

impl Azurite {
    /// Where clients find the account, as `http://127.0.0.1:port/account`.
    pub fn endpoint(&self) -> String {
        format!("{}/{}", self.address.endpoint(), self.account())
    }

    pub fn account(&self) -> &str {
        &self.address.name
    }

    /// The account's key, in base64 as clients take it.
    pub fn key(&self) -> &str {
        &self.address.secret
    }

    /// Makes an empty container under a name nobody else uses, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_container(&self) -> String {
        made("container", |name| self.request("PUT", &format!("/{name}?restype=container"), b""))
    }

    /// Sends a request signed with the account's key, without a client library's opinions. The
    /// path begins after the account and is, with its query, percent-encoded already.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Error> {
        let signer = Signer { scheme: "azure", name: self.account(), secret: self.key(), region: "" };
        http::signed(&signer, method, &format!("{}{path}", self.endpoint()), body)
    }
}
