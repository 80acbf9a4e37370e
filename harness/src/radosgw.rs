//! A real Ceph gateway as the S3 server of the tests, before a small cluster of its own. A test
//! that breaks its gateway starts one of its own; the others share one.

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
use crate::store_server::{Kind, Ours, Prepared, StoreServer, made};
use crate::{Error, command};

/// Names a running server as `http://access-key:secret-key@host:port`, percent-encoded, that
/// [`shared`] attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_S3";

/// Names the configuration of that server's cluster, for those who need more keys.
pub const CONFIGURATION_VARIABLE: &str = "WHARFINGER_TEST_S3_CONFIGURATION";

/// The gateway takes any region for its own; this is the one that clients need not be told.
const REGION: &str = "us-east-1";
const OWNER: &str = "owner";

/// What a test may want otherwise than usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether objects are kept in a file of the temporary folder rather than in memory: for large
    /// ones, and slower for many small ones, each of which then waits for the disk.
    pub on_disk: bool,
}

/// An S3 server. When the gateway is killed, what it had acknowledged is safe with the cluster.
pub type Radosgw = StoreServer<Gateway>;

/// What the gateway keeps its data in, and all their programs.
pub struct Gateway {
    cluster: Cluster,
    binaries: Binaries,
}

/// A pair of keys for S3.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
}

/// What keys other than the owner's may do.
#[derive(Clone, Copy, Debug)]
pub enum Rights {
    /// List and read the owner's buckets, but not change them.
    ReadOnly,
    /// Write and delete in the owner's buckets, but neither read nor list.
    WriteOnly,
    /// All but delete, in buckets of their own: the owner's they cannot reach.
    WithoutDelete,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Radosgw {
    static SHARED: OnceLock<Result<Radosgw, Error>> = OnceLock::new();
    Radosgw::once(&SHARED)
}

impl Kind for Gateway {
    const NAME: &'static str = "radosgw";
    const ADDRESS_VARIABLE: &'static str = ADDRESS_VARIABLE;
    /// The monitor says so in its log; the gateway only ends with the error's number (EADDRINUSE).
    const PORT_WAS_TAKEN: &'static [&'static str] = &["Address already in use", "exit status: 98"];
    type Options = Options;

    /// With a cluster of its own, and one user.
    fn prepare(options: Options) -> Result<Prepared<Self>, Error> {
        let binaries = Binaries::find_or_unpack()?;
        let cluster = Cluster::start(&binaries, options)?;
        // SIGKILL: what was acknowledged is with the cluster, and an orderly end takes seconds.
        let server = Server::prepare("radosgw", None, "KILL")?;
        let keys = Credentials::random();
        let address = StoreAddress::local(free_port()?, &keys.access_key, &keys.secret_key);
        let kind = Self { cluster, binaries };
        let create = ["user", "create", "--uid", OWNER, "--display-name", OWNER];
        admin(&kind.binaries, &kind.cluster.configuration(), &create, &keys)?;
        Ok(Prepared { address, ours: Ours { server, kind } })
    }

    fn command(&self, folder: &Path, address: &StoreAddress) -> Command {
        let mut run = self.cluster.command(&self.binaries, "radosgw");
        run.args(["--name", "client.rgw", "-f"])
            // It writes head and body of an answer apart, and would hold the body back until the
            // client's acknowledgement, which comes 40 ms later: every listing would take that long.
            .arg(format!("--rgw_frontends=beast endpoint={} tcp_nodelay=1", address.host_and_port))
            .arg(format!("--rgw_data={}", folder.display()));
        run
    }
}

/// Runs radosgw-admin, which reaches past the gateway into the cluster.
fn admin(
    binaries: &Binaries,
    configuration: &Path,
    arguments: &[&str],
    keys: &Credentials,
) -> Result<(), Error> {
    let mut admin = binaries.command("radosgw-admin");
    // Without limits it would wait for ever for an OSD that has failed to start.
    admin
        .arg("--conf")
        .arg(configuration)
        .args(["--name", "client.rgw", "--rados_mon_op_timeout=30", "--rados_osd_op_timeout=30"])
        .args(arguments)
        .args(["--access-key", &keys.access_key, "--secret-key", &keys.secret_key]);
    command::run(&mut admin).map(drop)
}

impl Radosgw {
    /// Where clients find the server, as `http://127.0.0.1:port`: buckets in the path. With
    /// `localhost` for the address, buckets in the host name are understood as well.
    pub fn endpoint(&self) -> String {
        self.address.endpoint()
    }

    /// The key of the owner, who may do anything.
    pub fn access_key(&self) -> &str {
        &self.address.name
    }

    pub fn secret_key(&self) -> &str {
        &self.address.secret
    }

    pub fn region(&self) -> &str {
        REGION
    }

    /// Makes an empty bucket under a name nobody else uses, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_bucket(&self) -> String {
        made("bucket", |name| self.request("PUT", &format!("/{name}"), b""))
    }

    /// Sends a request signed with the owner's keys, without a client library's opinions. The
    /// path, with its query, is percent-encoded already.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Error> {
        let keys = Credentials {
            access_key: self.access_key().to_owned(),
            secret_key: self.secret_key().to_owned(),
        };
        self.request_as(&keys, method, path, body)
    }

    /// An object with headers of its own, each as `name: value`.
    pub fn put_object(&self, path: &str, headers: &[&str], body: &[u8]) -> Result<Answer, Error> {
        let (name, secret) = (self.access_key(), self.secret_key());
        let signer = Signer { scheme: "s3", name, secret, region: REGION };
        http::signed_with(&signer, "PUT", &format!("{}{path}", self.endpoint()), headers, body)
    }

    /// The same as `request` with other keys.
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

    /// The value of [`CONFIGURATION_VARIABLE`] with which other processes can add keys; none where the server is not
    /// ours.
    pub fn configuration(&self) -> Option<String> {
        Some(self.ours.as_ref()?.kind.cluster.configuration().display().to_string())
    }

    /// Makes keys that may do less than the owner's.
    pub fn add_keys(&self, rights: Rights) -> Result<Credentials, Error> {
        let binaries = Binaries::find_or_unpack()?;
        let configuration = self
            .configuration()
            .or_else(|| std::env::var(CONFIGURATION_VARIABLE).ok())
            .ok_or_else(Error::not_ours)?;
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
    /// Of the shape that clients expect of AWS.
    fn random() -> Self {
        Self {
            access_key: format!("TEST{:016X}", random()),
            secret_key: format!("{:016x}{:016x}{:08x}", random(), random(), random() >> 32),
        }
    }
}
