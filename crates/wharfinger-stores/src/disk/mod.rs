//! Objects on local disk. The program itself serves uploads and downloads, under URLs that it signed. A key is a path
//! below the root; its percent-encoding makes it safe.

mod incoming;
mod parts;
mod signing;
mod upload_folder;
mod upload_folders;
mod walk;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use super::{
    BlobError, BlobStore, Capabilities, Chunks, GetGrant, ListedObject, MultipartStore, ObjectMeta, PutGrant,
    SignedRequest, WriteMode,
};
pub use incoming::{Incoming, IncomingError, LeftoverUpload, Received};
use parts::Turns;
pub use parts::{IncomingPart, PartPlace};
pub use signing::{SignedQuery, SigningKey};
use wharfinger_calls::faults::Faults;

/// The route under which the program serves this store.
pub const ROUTE: &str = "/blobs/";

/// Where uploads are received. Existing stores have this folder on disk.
const INCOMING_FOLDER: &str = ".incoming";
/// The folders of multipart uploads.
const MULTIPART_FOLDER: &str = ".multipart";
/// The marker: the id of the catalog that the objects belong to.
pub const MARK: &str = ".wharfinger/store";
const OWN_FOLDER: &str = ".wharfinger";
/// The start of a marker's temporary name, which is renamed to the final one.
const MARK_TEMP: &str = "store.";
/// The start of temporary names of small objects and of checks, in the folder of incoming uploads.
const PUT_TEMP: &str = "put.";
const CHECK_TEMP: &str = "check.";
const READ_BUFFER_BYTES: usize = 256 * 1024;

pub struct DiskStore {
    root: PathBuf,
    /// A folder that exists while the disk is mounted. In a store of ours we created it below the root; in a foreign
    /// folder, where we create nothing, it is the root itself.
    mounted: PathBuf,
    public_url: String,
    signing_key: SigningKey,
    turns: Turns,
    faults: Faults,
}

impl DiskStore {
    /// `public_url`: the program's address in URLs for clients, without a slash at its end.
    pub fn open(
        root: &Path,
        public_url: &str,
        signing_key: SigningKey,
        faults: Faults,
    ) -> io::Result<DiskStore> {
        fs::create_dir_all(root.join(INCOMING_FOLDER))?;
        fs::create_dir_all(root.join(MULTIPART_FOLDER))?;
        let root = root.canonicalize()?;
        let mounted = root.join(INCOMING_FOLDER);
        let (public_url, turns) = (public_url.to_owned(), Turns::default());
        Ok(DiskStore { root, mounted, public_url, signing_key, turns, faults })
    }

    /// Opens a folder that belongs to another application, for lists and deletes. The program creates nothing in it.
    pub fn open_foreign(root: &Path) -> io::Result<DiskStore> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let signing_key = SigningKey::new(uuid::Uuid::new_v4().as_bytes());
        let (mounted, public_url, turns) = (root.clone(), String::new(), Turns::default());
        Ok(DiskStore { root, mounted, public_url, signing_key, turns, faults: Faults::none() })
    }

    /// The marker of a folder, and when it was written. None: the folder has no marker, or its disk is not mounted.
    pub fn mark(root: &Path) -> Result<Option<(String, UnixMs)>, BlobError> {
        match read_mark(&root.join(MARK)) {
            Ok(mark) => Ok(Some(mark)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BlobError::Unavailable(format!("{}: {error}", root.display()))),
        }
    }

    /// Writes the marker atomically: a reader sees the old one or the new one. `Changed`: it exists and the mode is
    /// `CreateOnly`.
    pub fn set_mark(root: &Path, mark: &str, mode: WriteMode) -> Result<(), BlobError> {
        let temp = root.join(OWN_FOLDER).join(format!("{MARK_TEMP}{}", uuid::Uuid::new_v4()));
        let set = fs::create_dir_all(root.join(OWN_FOLDER))
            .map_err(from_io)
            .and_then(|()| write_small(root, &temp, &root.join(MARK), mark.as_bytes(), mode));
        // After a rename it does not exist any more.
        let _ = fs::remove_file(&temp);
        set.map_err(|error| match error {
            BlobError::Changed => BlobError::Changed,
            other => BlobError::Unavailable(format!("{}: {other}", root.display())),
        })
    }

    pub fn remove_mark(root: &Path) -> Result<(), BlobError> {
        fs::remove_file(root.join(MARK)).map_err(from_io)
    }

    pub fn signing_key(&self) -> &SigningKey {
        &self.signing_key
    }

    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn url(&self, key: &ObjectKey, query: &SignedQuery) -> String {
        // The percent signs of a key are data, so they are encoded in a URL.
        let path = key.as_str().replace('%', "%25");
        format!("{}{ROUTE}{path}?{}", self.public_url, query.to_query_string())
    }
}

/// The text and the time come from one open file, so that a rename in between cannot mix two markers.
fn read_mark(path: &Path) -> io::Result<(String, UnixMs)> {
    let mut file = fs::File::open(path)?;
    let mut text = String::new();
    io::Read::read_to_string(&mut file, &mut text)?;
    Ok((text, to_meta(&file.metadata()?).modified_at.unwrap_or(0)))
}

/// From the modification time and the size, so that it survives a copy that preserves modification times.
fn etag(meta: &fs::Metadata) -> String {
    let modified =
        meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos());
    format!("{modified:x}-{:x}", meta.len())
}

fn to_meta(meta: &fs::Metadata) -> ObjectMeta {
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let modified_at = modified.and_then(|at| i64::try_from(at.as_millis()).ok());
    ObjectMeta { size: meta.len(), etag: etag(meta), version_id: None, modified_at, content_encoding: None }
}

fn from_io(error: io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => BlobError::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
            BlobError::Refused(error.to_string())
        }
        _ => BlobError::Unavailable(error.to_string()),
    }
}

/// A missing file means an absent object only while the disk is mounted.
fn is_mounted(mounted: &Path) -> bool {
    mounted.is_dir()
}

/// Like [`from_io`], but an object is absent only if the disk is mounted.
fn from_io_at(mounted: &Path, error: io::Error) -> BlobError {
    match from_io(error) {
        BlobError::NotFound if !is_mounted(mounted) => BlobError::Unavailable(DISK_GONE.into()),
        other => other,
    }
}

const DISK_GONE: &str = "the folder of the store is empty or missing: is its disk mounted?";

/// Makes added and removed names in a folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(BlobError::Unavailable(error.to_string())))
}

#[async_trait]
impl BlobStore for DiskStore {
    fn kind(&self) -> &'static str {
        "disk"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            enforces_size: true,
            enforces_content_type: true,
            enforces_checksum: true,
            create_only: true,
            rejects_ended_files: true,
            versioned: false,
            delete_batch_max: 500,
        }
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let query = self.signing_key.sign_put(grant);
        let headers = grant.content_type.iter().map(|t| ("content-type".to_owned(), t.clone())).collect();
        Ok(SignedRequest { method: "PUT", url: self.url(&grant.key, &query), headers })
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let query = self.signing_key.sign_get(grant);
        Ok(SignedRequest { method: "GET", url: self.url(&grant.key, &query), headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, _version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let (path, mounted) = (self.path(key), self.mounted.clone());
        blocking(move || {
            let meta = fs::metadata(path).map_err(|error| from_io_at(&mounted, error))?;
            if !meta.is_file() {
                return Err(BlobError::NotFound);
            }
            Ok(to_meta(&meta))
        })
        .await
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError> {
        let opened = tokio::fs::File::open(self.path(key)).await;
        let mut file = opened.map_err(|error| from_io_at(&self.mounted, error))?;
        // From the open file, so that the bytes below belong to the ETag that is compared.
        let meta = file.metadata().await.map_err(from_io)?;
        if !meta.is_file() {
            return Err(BlobError::NotFound);
        }
        if etag(&meta) != pin.etag {
            return Err(BlobError::Changed);
        }
        file.seek(io::SeekFrom::Start(start)).await.map_err(from_io)?;
        let reader = file.take(length.unwrap_or(u64::MAX));
        Ok(ReaderStream::with_capacity(reader, READ_BUFFER_BYTES).map(|chunk| chunk.map_err(from_io)).boxed())
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        let (root, path) = (self.root.clone(), self.path(key));
        let temp = root.join(INCOMING_FOLDER).join(format!("{PUT_TEMP}{}", uuid::Uuid::new_v4()));
        blocking(move || {
            let written = write_small(&root, &temp, &path, &bytes, mode);
            // After a rename it does not exist any more.
            let _ = fs::remove_file(&temp);
            written
        })
        .await
    }

    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let paths: Vec<PathBuf> = keys.iter().map(|key| self.path(key)).collect();
        let count = paths.len();
        let (root, mounted) = (self.root.clone(), self.mounted.clone());
        let deleted = tokio::task::spawn_blocking(move || delete_paths(&root, &mounted, &paths)).await;
        deleted.unwrap_or_else(|error| vec![Err(BlobError::Unavailable(error.to_string())); count])
    }

    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        _with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        let keys: Vec<ObjectKey> = seen.iter().map(|(key, _)| key.clone()).collect();
        self.delete_many(&keys).await
    }

    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>> {
        let listing = walk::start(
            self.root.clone(),
            self.mounted.clone(),
            prefix.to_owned(),
            start_after.map(str::to_owned),
        );
        stream::unfold(listing, |mut listing| async move {
            let chunk = listing.recv().await?;
            Some((chunk, listing))
        })
        .flat_map(|chunk| match chunk {
            Ok(listed) => stream::iter(listed.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(error) => stream::iter(vec![Err(error)]),
        })
        .boxed()
    }

    async fn make_durable(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let (root, path) = (self.root.clone(), self.path(key));
        blocking(move || incoming::sync_folders_up(&root, path.parent().unwrap_or(&root)).map_err(from_io))
            .await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        if self.mounted == self.root {
            return fs::read_dir(&self.root).map(drop).map_err(from_io);
        }
        let probe = self.root.join(INCOMING_FOLDER).join(format!("{CHECK_TEMP}{}", uuid::Uuid::new_v4()));
        blocking(move || {
            let written = fs::write(&probe, b"wharfinger");
            // On a full disk the file exists although the write failed, so it is removed in every case.
            let removed = fs::remove_file(&probe);
            written.and(removed).map_err(|error| {
                BlobError::Unavailable(format!("cannot write to {}: {error}", probe.display()))
            })
        })
        .await
    }

    async fn is_ready(&self) -> Result<(), BlobError> {
        let folder =
            if self.mounted == self.root { self.root.clone() } else { self.root.join(INCOMING_FOLDER) };
        blocking(move || {
            let cannot =
                |why: String| BlobError::Unavailable(format!("cannot write to {}: {why}", folder.display()));
            let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            access(&folder, wanted).map_err(|error| cannot(error.to_string()))?;
            let disk = statvfs(&folder).map_err(|error| cannot(error.to_string()))?;
            match disk.f_bavail {
                0 => Err(cannot("the disk is full".into())),
                _ if disk.f_flag.contains(StatVfsMountFlags::RDONLY) => {
                    Err(cannot("it is mounted read-only".into()))
                }
                _ => Ok(()),
            }
        })
        .await
    }
}

fn write_small(
    root: &Path,
    temp: &Path,
    path: &Path,
    bytes: &[u8],
    mode: WriteMode,
) -> Result<(), BlobError> {
    let folder = path.parent().unwrap_or(root);
    fs::write(temp, bytes).map_err(|error| from_io_at(&root.join(INCOMING_FOLDER), error))?;
    fs::File::open(temp).and_then(|file| file.sync_all()).map_err(from_io)?;
    fs::create_dir_all(folder).map_err(from_io)?;
    match mode {
        WriteMode::Overwrite => fs::rename(temp, path).map_err(from_io)?,
        WriteMode::CreateOnly => fs::hard_link(temp, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BlobError::Changed,
            _ => from_io(error),
        })?,
    }
    incoming::sync_folders_up(root, folder).map_err(from_io)
}

fn delete_paths(root: &Path, mounted: &Path, paths: &[PathBuf]) -> Vec<Result<(), BlobError>> {
    let mut outcomes: Vec<Result<(), BlobError>> = paths
        .iter()
        .map(|path| match fs::remove_file(path).map_err(|error| from_io_at(mounted, error)) {
            Ok(()) | Err(BlobError::NotFound) => Ok(()),
            Err(other) => Err(other),
        })
        .collect();
    let folders: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    // A delete must be durable before it is reported, because the caller then forgets the cleanup. This also holds for
    // a missing file: an earlier delete may have crashed before its sync.
    for folder in folders {
        match sync_folder(folder).map_err(|error| from_io_at(mounted, error)) {
            // Empty folders of another application stay.
            Ok(()) if mounted == root => {}
            Ok(()) => prune_empty(root, folder),
            Err(BlobError::NotFound) => {}
            Err(error) => {
                for (path, outcome) in paths.iter().zip(&mut outcomes) {
                    if path.parent() == Some(folder) && outcome.is_ok() {
                        *outcome = Err(error.clone());
                    }
                }
            }
        }
    }
    outcomes
}

/// Removes empty folders. An upload that runs at the same time creates its folder again.
fn prune_empty(root: &Path, folder: &Path) {
    let mut folder = folder;
    while folder != root && fs::remove_dir(folder).is_ok() {
        let Some(parent) = folder.parent() else { return };
        folder = parent;
    }
}
