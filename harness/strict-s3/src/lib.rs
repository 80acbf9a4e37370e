//! An S3 server in the process of the tests: `s3s` reads the requests and checks their signatures as AWS does,
//! and what it lets through is kept in memory. Its pages are small, so that no listing fits on one.

mod bucket;
mod objects;
mod routes;
mod server;
mod uploads;

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use objects::KEYS_PER_PAGE;

/// The region that requests must be signed for.
pub const REGION: &str = "eu-north-1";
pub const ACCESS_KEY: &str = "STRICTKEY";
pub const SECRET_KEY: &str = "a secret of the strict server";

/// As long as the process.
pub struct StrictS3 {
    address: SocketAddr,
    buckets: bucket::Buckets,
}

/// The server that all tests of this process share.
///
/// # Panics
///
/// Panics where it cannot be started: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static StrictS3 {
    static SHARED: OnceLock<StrictS3> = OnceLock::new();
    SHARED.get_or_init(|| {
        let buckets = bucket::Buckets::default();
        let address = server::start(buckets.clone()).expect("the strict S3 server of the tests starts");
        StrictS3 { address, buckets }
    })
}

impl StrictS3 {
    /// Where clients find the server: buckets in the path.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes an empty bucket under a name nobody else uses, and returns the name.
    pub fn create_bucket(&self) -> String {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("strict-{}", MADE.fetch_add(1, Ordering::Relaxed));
        self.buckets.make(&name);
        name
    }

    /// Puts an object of somebody else, under any key whatever.
    pub fn insert_object(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let object = bucket::Object::of(bytes.to_vec().into(), None);
        self.buckets.with(bucket, |bucket| bucket.objects.insert(key.to_owned(), object)).expect("a bucket");
    }
}
