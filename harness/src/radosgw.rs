//! A real Ceph gateway as the S3 server of the tests, before a small cluster of its own. A test
//! that breaks its gateway starts one of its own; the others share one.

mod binaries;
mod cluster;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use self::binaries::Binaries;
use self::cluster::Cluster;
use crate::http::{self, Answer, Signer};
use crate::server::{Server, free_port, listens, random};
use crate::store_address::StoreAddress;
use crate::{Error, command};

/// Names a running server as `http://access-key:secret-key@host:port`, percent-encoded, that
/// [`shared`] attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_S3";

/// The gateway takes any region for its own; this is the one that clients need not be told.
const REGION: &str = "us-east-1";
const OWNER: &str = "owner";

const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);
const TRIES_FOR_A_PORT: usize = 3;

/// What a test may want otherwise than usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether objects are kept in a file of the temporary folder rather than in memory: for large
    /// ones, and slower for many small ones, each of which then waits for the disk.
    pub on_disk: bool,
}

/// An S3 server: one that we started and end on drop, or one that runs already.
pub struct Radosgw {
    address: StoreAddress,
    ours: Option<Ours>,
}

/// What only the process that started a server has: the means to break and to end it. The gateway
/// goes before the cluster that it keeps its data in.
struct Ours {
    gateway: Server,
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
    // The failure is kept too, so that each test reports it at once rather than trying again.
    static SHARED: OnceLock<Result<Radosgw, Error>> = OnceLock::new();
    match SHARED.get_or_init(Radosgw::from_environment) {
        Ok(radosgw) => radosgw,
        Err(error) => panic!("the tests need an S3 server, and it could not be had: {error}"),
    }
}

impl Radosgw {
    /// Starts a gateway and a cluster of the caller's own, on free ports, with one user.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self, Error> {
        let mut tries = 1;
        loop {
            match Self::try_to_start(options) {
                Err(error) if port_was_taken(&error) && tries < TRIES_FOR_A_PORT => tries += 1,
                outcome => return outcome,
            }
        }
    }

    fn try_to_start(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        let cluster = Cluster::start(&binaries, options)?;
        // SIGKILL: what was acknowledged is with the cluster, and an orderly end takes seconds.
        let gateway = Server::prepare("radosgw", None, "KILL")?;
        let keys = Credentials::random();
        let address = StoreAddress::local(free_port()?, &keys.access_key, &keys.secret_key);
        let mut radosgw = Self { address, ours: Some(Ours { gateway, cluster, binaries }) };
        radosgw.admin(&["user", "create", "--uid", OWNER, "--display-name", OWNER], &keys)?;
        radosgw.launch()?;
        Ok(radosgw)
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Ok(url) = std::env::var(ADDRESS_VARIABLE) else {
            return Self::start();
        };
        let address = StoreAddress::named_by(ADDRESS_VARIABLE, &url)?;
        Ok(Self { address, ours: None })
    }

    /// Where clients find the server, as `http://127.0.0.1:port`: buckets in the path. With
    /// `localhost` for the address, buckets in the host name are understood as well.
    pub fn endpoint(&self) -> String {
        self.address.endpoint()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
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

    /// The value of [`ADDRESS_VARIABLE`] with which other processes share this server.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// The gateway, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.gateway.pid())
    }

    /// The folder with the gateway's log, where it is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.gateway.folder().to_owned())
    }

    /// Makes an empty bucket under a name nobody else uses, and returns the name.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_bucket(&self) -> String {
        let name = format!("test-{}-{:016x}", std::process::id(), random());
        let doing = format!("creating bucket {name}");
        match self.request("PUT", &format!("/{name}"), b"").and_then(|answer| answer.successful(&doing)) {
            Ok(_) => name,
            Err(error) => panic!("no bucket could be made: {error}"),
        }
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

    /// The same with other keys.
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

    /// Makes keys that may do less than the owner's. Only on a server of the caller's process.
    pub fn add_keys(&self, rights: Rights) -> Result<Credentials, Error> {
        let keys = Credentials::random();
        let name = keys.access_key.to_lowercase();
        let second = format!("{OWNER}:{name}");
        let subuser =
            ["subuser", "create", "--uid", OWNER, "--subuser", &second, "--key-type", "s3", "--access"];
        match rights {
            Rights::ReadOnly => self.admin(&[&subuser[..], &["read"]].concat(), &keys)?,
            Rights::WriteOnly => self.admin(&[&subuser[..], &["write"]].concat(), &keys)?,
            Rights::WithoutDelete => self.admin(
                &["user", "create", "--uid", &name, "--display-name", &name, "--op-mask", "read, write"],
                &keys,
            )?,
        }
        Ok(keys)
    }

    /// Kills the gateway at once. What it had acknowledged is safe with the cluster.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.gateway.kill()
    }

    /// Ends the gateway in order.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.gateway.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped gateway again, on the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Stops the gateway where it stands: connections stay open, answers stay out.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.gateway.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.gateway.resume()
    }

    fn ours(&mut self) -> Result<&mut Ours, Error> {
        self.ours.as_mut().ok_or_else(Error::not_ours)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let authority = self.address.host_and_port.clone();
        let port = self.port();
        let ours = self.ours()?;
        let mut run = ours.cluster.command(&ours.binaries, "radosgw");
        run.args(["--name", "client.rgw", "-f"])
            // It writes head and body of an answer apart, and would hold the body back until the
            // client's acknowledgement, which comes 40 ms later: every listing would take that long.
            .arg(format!("--rgw_frontends=beast endpoint={authority} tcp_nodelay=1"))
            .arg(format!("--rgw_data={}", ours.gateway.folder().display()));
        ours.gateway.spawn(run)?;
        ours.gateway.wait_until("radosgw", PATIENCE_WITH_START, |pid| {
            listens(pid, port) && http::status(&authority).is_some_and(|status| status < 500)
        })
    }

    /// Runs radosgw-admin, which reaches past the gateway into the cluster.
    fn admin(&self, arguments: &[&str], keys: &Credentials) -> Result<(), Error> {
        let ours = self.ours.as_ref().ok_or_else(Error::not_ours)?;
        let mut admin = ours.cluster.command(&ours.binaries, "radosgw-admin");
        // Without limits it would wait for ever for an OSD that has failed to start.
        admin
            .args(["--name", "client.rgw", "--rados_mon_op_timeout=30", "--rados_osd_op_timeout=30"])
            .args(arguments)
            .args(["--access-key", &keys.access_key, "--secret-key", &keys.secret_key]);
        command::run(&mut admin).map(drop)
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

/// The monitor says so in its log; the gateway only ends with the error's number (EADDRINUSE).
fn port_was_taken(error: &Error) -> bool {
    let error = error.to_string();
    error.contains("Address already in use") || error.contains("exit status: 98")
}
