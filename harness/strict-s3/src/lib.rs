//! An S3 server inside the test process. `s3s` reads the requests and verifies their signatures like AWS. The data is
//! in memory. Pages are small, so that every listing has several.

mod bucket;
mod objects;
mod routes;
mod server;
mod uploads;

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use objects::KEYS_PER_PAGE;

/// Requests must be signed for this region.
pub const REGION: &str = "eu-north-1";
pub const ACCESS_KEY: &str = "STRICTKEY";
pub const SECRET_KEY: &str = "a secret of the strict server";

/// Runs until the process ends.
pub struct StrictS3 {
    address: SocketAddr,
    buckets: bucket::Buckets,
}

/// The server that all tests of this process share.
///
/// # Panics
///
/// Panics if it cannot be started. A test without its server must fail.
pub fn shared() -> &'static StrictS3 {
    static SHARED: OnceLock<StrictS3> = OnceLock::new();
    SHARED.get_or_init(|| {
        let buckets = bucket::Buckets::default();
        let address = server::start(buckets.clone()).expect("the strict S3 server of the tests starts");
        StrictS3 { address, buckets }
    })
}

impl StrictS3 {
    /// The URL of the server, with buckets in the path.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates an empty bucket with a unique name, and returns the name.
    pub fn create_bucket(&self) -> String {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("strict-{}", CREATED.fetch_add(1, Ordering::Relaxed));
        self.buckets.create(&name);
        name
    }

    /// Inserts an object that no client uploaded, under any key.
    pub fn insert_object(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let object = bucket::Object::new(bytes.to_vec().into(), None);
        self.buckets.with(bucket, |bucket| bucket.objects.insert(key.to_owned(), object)).expect("a bucket");
    }
}
