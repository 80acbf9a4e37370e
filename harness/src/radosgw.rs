//! A real Ceph gateway with a small cluster, as the S3 server of the tests. A test that makes its gateway fail starts a
//! separate one. The others share one.

mod binaries;
mod cluster;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use self::binaries::Binaries;
use self::cluster::Cluster;
use crate::http::{self, Answer, Signer};
use crate::server::{Server, free_port, random};
use crate::store_address::StoreAddress;
use crate::store_server::{Kind, Prepared, Started, StoreServer, create_unique};
use crate::{Error, command};

/// The variable with the URL of a running server: `http://access-key:secret-key@host:port`, percent-encoded. [`shared`]
/// uses that server instead of starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_S3";

/// The variable with the path of that cluster's configuration. It is needed to add keys.
pub const CONFIGURATION_VARIABLE: &str = "WHARFINGER_TEST_S3_CONFIGURATION";

/// The gateway accepts any region. This one is the default of clients.
const REGION: &str = "us-east-1";
const OWNER: &str = "owner";

/// Options of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether objects are in a file of the temporary folder instead of in memory. For large objects. It is slower for
    /// many small ones, because each waits for the disk.
    pub on_disk: bool,
}

/// An S3 server. Acknowledged writes survive a kill of the gateway, because the cluster has them.
pub type Radosgw = StoreServer<Gateway>;

/// The gateway's cluster and the programs of both.
pub struct Gateway {
    cluster: Cluster,
    binaries: Binaries,
}

/// A pair of S3 keys.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
}

/// The rights of keys that are not the owner's.
#[derive(Clone, Copy, Debug)]
pub enum Rights {
    /// May list and read the owner's buckets.
    ReadOnly,
    /// May write and delete in the owner's buckets.
    WriteOnly,
    /// May do everything except delete, but only in its own buckets, not in the owner's.
    WithoutDelete,
}

/// The server that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process.
///
/// # Panics
///
/// Panics if there is no server. A test without its server must fail.
pub fn shared() -> &'static Radosgw {
    static SHARED: OnceLock<Result<Radosgw, Error>> = OnceLock::new();
    Radosgw::once(&SHARED)
}

impl Kind for Gateway {
    const NAME: &'static str = "radosgw";
    const ADDRESS_VARIABLE: &'static str = ADDRESS_VARIABLE;
    /// The monitor logs this text. The gateway only exits with the error number of EADDRINUSE.
    const PORT_WAS_TAKEN: &'static [&'static str] = &["Address already in use", "exit status: 98"];
    type Options = Options;

    /// Starts a cluster and creates one user.
    fn prepare(options: Options) -> Result<Prepared<Self>, Error> {
        let binaries = Binaries::find_or_unpack()?;
        let cluster = Cluster::start(&binaries, options)?;
        // SIGKILL: the cluster has all acknowledged writes, and a normal shutdown takes seconds.
        let server = Server::prepare("radosgw", None, "KILL")?;
        let keys = Credentials::random();
        let address = StoreAddress::local(free_port()?, &keys.access_key, &keys.secret_key);
        let kind = Self { cluster, binaries };
        let create = ["user", "create", "--uid", OWNER, "--display-name", OWNER];
        admin(&kind.binaries, &kind.cluster.configuration(), &create, &keys)?;
        Ok(Prepared { address, started: Started { server, kind } })
    }

    fn command(&self, folder: &Path, address: &StoreAddress) -> Command {
        let mut run = self.cluster.command(&self.binaries, "radosgw");
        run.args(["--name", "client.rgw", "-f"])
            // The gateway writes the head and the body of an answer separately. Without tcp_nodelay, the kernel delays
            // the body until the client's TCP acknowledgement, 40 ms later.
            .arg(format!("--rgw_frontends=beast endpoint={} tcp_nodelay=1", address.host_and_port))
            .arg(format!("--rgw_data={}", folder.display()));
        run
    }
}

/// Runs radosgw-admin, which talks to the cluster directly.
fn admin(
    binaries: &Binaries,
    configuration: &Path,
    arguments: &[&str],
    keys: &Credentials,
) -> Result<(), Error> {
    let mut admin = binaries.command("radosgw-admin");
    // Without timeouts it waits for ever for an OSD that failed to start.
    admin
        .arg("--conf")
        .arg(configuration)
        .args(["--name", "client.rgw", "--rados_mon_op_timeout=30", "--rados_osd_op_timeout=30"])
        .args(arguments)
        .args(["--access-key", &keys.access_key, "--secret-key", &keys.secret_key]);
    command::run(&mut admin).map(drop)
}

impl Radosgw {
    /// The URL of the server: `http://127.0.0.1:port`, with buckets in the path. With `localhost` as the host, buckets
    /// may also be part of the host name.
    pub fn endpoint(&self) -> String {
        self.address.endpoint()
    }

    /// The owner's key, with all rights.
    pub fn access_key(&self) -> &str {
        &self.address.name
    }

    pub fn secret_key(&self) -> &str {
        &self.address.secret
    }

    pub fn region(&self) -> &str {
        REGION
    }

    /// Creates an empty bucket with a unique name, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics if the server refuses.
    pub fn create_bucket(&self) -> String {
        create_unique("bucket", |name| self.request("PUT", &format!("/{name}"), b""))
    }

    /// Sends a request signed with the owner's keys, without a client library. The path and its query are already
    /// percent-encoded.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Error> {
        let keys = Credentials {
            access_key: self.access_key().to_owned(),
            secret_key: self.secret_key().to_owned(),
        };
        self.request_as(&keys, method, path, body)
    }

    /// Puts an object with additional headers, each as `name: value`.
    pub fn put_object(&self, path: &str, headers: &[&str], body: &[u8]) -> Result<Answer, Error> {
        let (name, secret) = (self.access_key(), self.secret_key());
        let signer = Signer { scheme: "s3", name, secret, region: REGION };
        http::signed_with(&signer, "PUT", &format!("{}{path}", self.endpoint()), headers, body)
    }

    /// Like [`Self::request`], with other keys.
    pub fn request_as(
        &self,
        keys: &Credentials,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Answer, Error> {
        let signer =
            Signer { scheme: "s3", name: &keys.access_key, secret: &keys.secret_key, region: REGION };
        http::signed(&signer, method, &format!("{}{path}", self.endpoint()), body)
    }

    /// The value of [`CONFIGURATION_VARIABLE`] for other processes that add keys. None: the server was not started
    /// here.
    pub fn configuration(&self) -> Option<String> {
        Some(self.started.as_ref()?.kind.cluster.configuration().display().to_string())
    }

    /// Creates keys with fewer rights than the owner's.
    pub fn add_keys(&self, rights: Rights) -> Result<Credentials, Error> {
        let binaries = Binaries::find_or_unpack()?;
        let configuration = self
            .configuration()
            .or_else(|| std::env::var(CONFIGURATION_VARIABLE).ok())
            .ok_or_else(Error::not_started_here)?;
        let admin = |arguments: &[&str], keys: &Credentials| {
            admin(&binaries, Path::new(&configuration), arguments, keys)
        };
        let keys = Credentials::random();
        let name = keys.access_key.to_lowercase();
        let second = format!("{OWNER}:{name}");
        let subuser =
            ["subuser", "create", "--uid", OWNER, "--subuser", &second, "--key-type", "s3", "--access"];
        match rights {
            Rights::ReadOnly => admin(&[&subuser[..], &["read"]].concat(), &keys)?,
            Rights::WriteOnly => admin(&[&subuser[..], &["write"]].concat(), &keys)?,
            Rights::WithoutDelete => admin(
                &["user", "create", "--uid", &name, "--display-name", &name, "--op-mask", "read, write"],
                &keys,
            )?,
        }
        Ok(keys)
    }
}

impl Credentials {
    /// In the format of AWS keys, which clients expect.
    fn random() -> Self {
        Self {
            access_key: format!("TEST{:016X}", random()),
            secret_key: format!("{:016x}{:016x}{:08x}", random(), random(), random() >> 32),
        }
    }
}
