//! An empty store for each case, and a function to upload bytes to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use harness::{azurite, radosgw};
use tempfile::TempDir;
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::azure::{AzureCredentials, AzureOptions, AzureStore};
use wharfinger_stores::disk::{DiskStore, IncomingError, Received, SigningKey};
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};
use wharfinger_stores::{BlobStore, PutGrant, UrlLifetime, WriteMode};

use super::sending::Client;

type Put = Box<dyn Fn(ObjectKey, Vec<u8>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Any store under test.
pub(super) struct StoreFixture {
    pub(super) store: Arc<dyn BlobStore>,
    /// The number of keys on one page of a listing.
    pub(super) keys_per_page: usize,
    put: Put,
    /// Keeps the folder until the end of the case.
    disk: Option<DiskFixture>,
}

impl StoreFixture {
    pub(super) async fn disk() -> StoreFixture {
        let disk = DiskFixture::new();
        let store = disk.store.clone();
        let put: Put = Box::new(move |key, bytes| {
            let store = store.clone();
            Box::pin(async move { receive(&store, &key, &bytes).await.expect("stored").keep() })
        });
        StoreFixture { store: disk.store.clone(), keys_per_page: 1, put, disk: Some(disk) }
    }

    /// A new bucket of a Ceph gateway.
    pub(super) async fn ceph() -> StoreFixture {
        StoreFixture::s3(ceph_options()).await
    }

    /// The same with a prefix, next to foreign objects.
    pub(super) async fn ceph_prefix() -> StoreFixture {
        let mut options = ceph_options();
        let unprefixed = S3Store::connect(&options).await.expect("connected");
        options.prefix = "wharf/".into();
        for theirs in ["a", "uploads/t/u/f", "wharf", "wharf-2/uploads/t/u/f", "wharfuploads/t/u/f", "z"] {
            let put = unprefixed.put(&key(theirs), Bytes::from_static(b"theirs"), WriteMode::Overwrite).await;
            put.expect("put");
        }
        StoreFixture::s3(options).await
    }

    /// A new bucket with versioning.
    pub(super) async fn ceph_versions() -> StoreFixture {
        let options = ceph_options();
        keep_versions(&options.bucket);
        StoreFixture::s3(options).await
    }

    /// A new bucket of a strict server with small pages.
    pub(super) async fn strict() -> StoreFixture {
        StoreFixture { keys_per_page: strict_s3::KEYS_PER_PAGE, ..StoreFixture::s3(strict_options()).await }
    }

    async fn s3(options: S3Options) -> StoreFixture {
        let store = S3Store::connect(&options).await.expect("connected");
        store.probe().await.expect("a usable store");
        StoreFixture::by_signed_put(Arc::new(store))
    }

    /// A new container of Azurite.
    pub(super) async fn azure() -> StoreFixture {
        StoreFixture::in_azure(azure_options()).await
    }

    /// The same with a prefix, next to foreign objects.
    pub(super) async fn azure_prefix() -> StoreFixture {
        let mut options = azure_options();
        let unprefixed = AzureStore::connect(&options).expect("connected");
        options.prefix = "wharf/".into();
        for theirs in ["a", "uploads/t/u/f", "wharf", "wharf-2/uploads/t/u/f", "wharfuploads/t/u/f", "z"] {
            let put = unprefixed.put(&key(theirs), Bytes::from_static(b"theirs"), WriteMode::Overwrite).await;
            put.expect("put");
        }
        StoreFixture::in_azure(options).await
    }

    async fn in_azure(options: AzureOptions) -> StoreFixture {
        let store = AzureStore::connect(&options).expect("connected");
        store.probe().await.expect("a usable store");
        StoreFixture::by_signed_put(Arc::new(store))
    }

    /// Uploads through signed URLs, like clients.
    fn by_signed_put(store: Arc<dyn BlobStore>) -> StoreFixture {
        let (uploading, client) = (store.clone(), Client::new());
        let put: Put = Box::new(move |key, bytes| {
            let (store, client) = (uploading.clone(), client.clone());
            Box::pin(async move {
                let status = put_signed(&client, &*store, &key, &bytes).await;
                assert!((200..300).contains(&status), "{key}: {status}");
            })
        });
        StoreFixture { store, keys_per_page: 1_000, put, disk: None }
    }

    /// Sends signed requests to this store.
    pub(super) fn client(&self) -> Client {
        self.disk.as_ref().map_or_else(Client::new, |disk| Client::Disk(disk.store.clone()))
    }

    /// Whether the signature covers every parameter, so that an additional one is refused.
    pub(super) fn signs_every_parameter(&self) -> bool {
        self.store.kind() == "s3" || self.store.kind() == "disk"
    }

    pub(super) async fn put(&self, text: &str, bytes: &[u8]) -> ObjectKey {
        let key = key(text);
        (self.put)(key.clone(), bytes.to_vec()).await;
        key
    }
}

pub(super) fn key(text: &str) -> ObjectKey {
    ObjectKey::parse(text).expect("a key")
}

pub(super) fn pin(etag: &str) -> Pin {
    Pin { etag: etag.to_owned(), version_id: None }
}

pub(super) fn ceph_options() -> S3Options {
    let server = radosgw::shared();
    S3Options {
        bucket: server.create_bucket(),
        region: Some(server.region().to_owned()),
        endpoint: Some(server.endpoint()),
        credentials: Some(S3Credentials {
            access_key: server.access_key().to_owned(),
            secret_key: server.secret_key().to_owned(),
            session_token: None,
        }),
        ..S3Options::default()
    }
}

pub(super) fn azure_options() -> AzureOptions {
    let server = azurite::shared();
    AzureOptions {
        account: server.account().to_owned(),
        container: server.create_container(),
        endpoint: Some(server.endpoint()),
        credentials: Some(AzureCredentials::AccountKey(server.key().to_owned())),
        ..AzureOptions::default()
    }
}

pub(super) fn strict_options() -> S3Options {
    let server = strict_s3::shared();
    S3Options {
        bucket: server.create_bucket(),
        region: Some(strict_s3::REGION.to_owned()),
        endpoint: Some(server.endpoint()),
        credentials: Some(S3Credentials {
            access_key: strict_s3::ACCESS_KEY.to_owned(),
            secret_key: strict_s3::SECRET_KEY.to_owned(),
            session_token: None,
        }),
        ..S3Options::default()
    }
}

pub(super) fn keep_versions(bucket: &str) {
    let body = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                <Status>Enabled</Status></VersioningConfiguration>";
    let answer = radosgw::shared().request("PUT", &format!("/{bucket}?versioning"), body.as_bytes());
    assert_eq!(answer.expect("answered").status, 200);
}

pub(super) const LIFETIME: UrlLifetime = UrlLifetime { signed_at: 0, expires_at: 3_600_000 };

/// Uploads bytes through a signed URL. Returns the status.
pub(super) async fn put_signed(client: &Client, store: &dyn BlobStore, key: &ObjectKey, bytes: &[u8]) -> u16 {
    let size = bytes.len() as u64;
    let grant =
        PutGrant { key: key.clone(), size, content_type: None, checksum_sha256: None, lifetime: LIFETIME };
    let signed = store.sign_put(&grant).await.expect("signed");
    client.send(&signed, bytes).await.status
}

pub(super) fn file_id() -> FileId {
    FileId(Uuid::now_v7())
}

/// Receives bytes and places them.
pub(super) async fn receive(
    store: &DiskStore,
    key: &ObjectKey,
    bytes: &[u8],
) -> Result<Received, IncomingError> {
    let mut incoming = store.receive(file_id(), key, bytes.len() as u64, None).await?;
    incoming.write(bytes).await?;
    store.place(incoming).await
}

/// A local store and its folder.
pub(super) struct DiskFixture {
    pub(super) store: Arc<DiskStore>,
    folder: TempDir,
}

pub(super) const SECRET: &[u8] = b"a secret of the tests";
pub(super) const PUBLIC_URL: &str = "https://files.example";

impl DiskFixture {
    pub(super) fn new() -> DiskFixture {
        let folder = TempDir::new().expect("a temporary folder");
        DiskFixture { store: Arc::new(DiskFixture::open(folder.path(), Faults::none())), folder }
    }

    /// A store in memory, if the system supports that, for cases with many operations.
    pub(super) fn in_memory() -> DiskFixture {
        let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a temporary folder");
        DiskFixture { store: Arc::new(DiskFixture::open(folder.path(), Faults::none())), folder }
    }

    fn open(root: &Path, faults: Faults) -> DiskStore {
        DiskStore::open(root, PUBLIC_URL, SigningKey::new(SECRET), faults).expect("the store opens")
    }

    /// The same folder with injected faults.
    pub(super) fn faulty(&self, faults: Faults) -> DiskStore {
        DiskFixture::open(self.folder.path(), faults)
    }

    pub(super) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn path(&self, key: &ObjectKey) -> PathBuf {
        self.folder.path().join(key.as_str())
    }

    pub(super) async fn put(&self, text: &str, bytes: &[u8]) -> ObjectKey {
        let key = key(text);
        receive(&self.store, &key, bytes).await.expect("stored").keep();
        key
    }

    /// The names in the folder of incoming uploads.
    pub(super) fn incoming_names(&self) -> Vec<String> {
        names_in(&self.folder.path().join(".incoming"))
    }

    /// The names in the folder of multipart uploads.
    pub(super) fn multipart_names(&self) -> Vec<String> {
        names_in(&self.folder.path().join(".multipart"))
    }

    /// All files and folders of the store, except its own folders for uploads, as paths below the root.
    pub(super) fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for name in names_in(&self.folder.path().join(&folder)) {
                let path = format!("{folder}{name}");
                if path == ".incoming" || path == ".multipart" {
                    continue;
                }
                if self.folder.path().join(&path).is_dir() {
                    folders.push(format!("{path}/"));
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }
}

pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("a readable folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    names.sort();
    names
}
