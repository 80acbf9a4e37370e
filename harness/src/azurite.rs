//! Azurite, Microsoft's emulator of Azure Blob Storage, for tests. A test that makes its server fail starts a separate
//! one. The others share one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::http::{self, Answer, Signer};
use crate::server::{Server, free_port};
use crate::store_address::StoreAddress;
use crate::store_server::{Kind, Prepared, Started, StoreServer, create_unique};
use crate::{Error, node_packages};

/// The variable with the URL of a running server: `http://account:key@host:port`, percent-encoded. [`shared`] uses that
/// server instead of starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_AZURE";

const VERSION: &str = "3";

/// The account of every Azurite. Its key is in the public documentation, so it is not a secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A blob service. After a kill it has lost the writes of the last five seconds, because it saves its index at that
/// interval. The real service does not.
pub type Azurite = StoreServer<Emulator>;

/// The script that node runs.
pub struct Emulator {
    program: PathBuf,
}

/// The server that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process.
///
/// # Panics
///
/// Panics if there is no server. A test without its server must fail.
pub fn shared() -> &'static Azurite {
    static SHARED: OnceLock<Result<Azurite, Error>> = OnceLock::new();
    Azurite::once(&SHARED)
}

impl Kind for Emulator {
    const NAME: &'static str = "Azurite";
    const ADDRESS_VARIABLE: &'static str = ADDRESS_VARIABLE;
    const PORT_WAS_TAKEN: &'static [&'static str] = &["EADDRINUSE"];
    type Options = ();

    /// The data is in a temporary folder.
    fn prepare((): ()) -> Result<Prepared<Self>, Error> {
        let program = node_packages::install("azurite", VERSION)?.join("dist/src/blob/main.js");
        // SIGKILL: a normal shutdown would save data that is deleted right after.
        let server = Server::prepare("azurite", None, "KILL")?;
        let address = StoreAddress::local(free_port()?, ACCOUNT, KEY);
        Ok(Prepared { address, started: Started { server, kind: Self { program } } })
    }

    fn command(&self, folder: &Path, address: &StoreAddress) -> Command {
        let mut node = Command::new("node");
        // A developer may have set accounts for another Azurite.
        node.env_remove("AZURITE_ACCOUNTS")
            .arg(&self.program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", &address.port().to_string()])
            .arg("--location")
            .arg(folder.join("data"))
            // Clients are newer than Azurite, and it refuses versions that it does not know.
            .arg("--skipApiVersionCheck")
            .args(["--silent", "--disableTelemetry"]);
        node
    }
}

impl Azurite {
    /// The URL of the account: `http://127.0.0.1:port/account`.
    pub fn endpoint(&self) -> String {
        format!("{}/{}", self.address.endpoint(), self.account())
    }

    pub fn account(&self) -> &str {
        &self.address.name
    }

    /// The account's key in base64, as clients expect it.
    pub fn key(&self) -> &str {
        &self.address.secret
    }

    /// Creates an empty container with a unique name, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics if the server refuses.
    pub fn create_container(&self) -> String {
        create_unique("container", |name| self.request("PUT", &format!("/{name}?restype=container"), b""))
    }

    /// Sends a request signed with the account's key, without a client library. The path starts after the account. The
    /// path and its query are already percent-encoded.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Error> {
        let signer = Signer { scheme: "azure", name: self.account(), secret: self.key(), region: "" };
        http::signed(&signer, method, &format!("{}{path}", self.endpoint()), body)
    }
}
