//! Registering files: one, or all of a batch, with everything that hangs on them, in one transaction or not at all.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, Refusal};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{BatchId, JobId, TenantId, UserId};
use wharfinger_lifecycle::quota::percent_of;

use crate::Catalog;
use crate::Tells;
use crate::database::sql::{Tx, args, tuples};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::batches;
use crate::files::changes::signed;
use crate::files::idempotency::{self, KeyUse};
use crate::jobs::delayed::{self, NewJob};
use crate::outbox::archive;
use crate::outbox::lines;
use crate::quota::charges;
use crate::quota::gate::{self, Gate, GateKeeper};

/// What is registered together, with all that its transaction holds.
#[derive(Clone, Debug)]
pub struct Registration {
    pub tenant: TenantId,
    pub user: UserId,
    pub files: Vec<NewFile>,
    pub batch: BatchUse,
    pub now: UnixMs,
    pub actor: String,
    pub default_limit_bytes: u64,
    pub unconfirmed_limit_percent: u8,
    pub key_use: Option<KeyUse>,
    pub admission: Admission,
    /// The broker brings the checks back when they are due.
    pub by_broker: bool,
}

#[derive(Clone, Debug)]
pub struct NewFile {
    pub file: File,
    /// The delayed check that looks at the file when its time is over.
    pub check: NewJob,
    pub check_id: JobId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchUse {
    None,
    /// The batch comes to be with its files.
    Opens(Batch),
    /// The files become part of one that is active.
    Joins(BatchId),
}

/// Who has let a registration in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nobody yet: the tenant's row does.
    Database,
    /// Redis has, and has counted it.
    Redis { epoch: i64, limit_bytes: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    Made,
    /// Whoever let it in, or was asked to, is not the one who does; nothing happened.
    GateMoved(Gate),
    /// The key was used before with the same body, and made this file or batch.
    Repeated(Uuid),
    /// The key was used before with another body.
    KeyMismatch,
    /// The owner has no such batch.
    NoBatch,
    /// The batch takes no files any more.
    BatchClosed(Refusal),
    QuotaExceeded {
        used_bytes: u64,
        limit_bytes: u64,
    },
    UnconfirmedLimit {
        held_bytes: u64,
        limit_bytes: u64,
    },
}

struct Register {
    wanted: Registration,
    beside_redis: bool,
    tells: Tells,
}

impl Write for Register {
    type Answer = Registered;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Registered>, CatalogError> {
        if self.beside_redis && self.wanted.needs_room() {
            let gate = gate::hold(tx, &self.wanted.tenant).await?;
            if !self.wanted.admission.holds_at(&gate) {
                return Ok(Verdict::Rollback(Registered::GateMoved(gate)));
            }
        }
        self.wanted.write(tx, self.tells).await
    }
}

impl Admission {
    fn holds_at(&self, gate: &Gate) -> bool {
        match self {
            Admission::Database => gate.keeper == GateKeeper::Database,
            Admission::Redis { epoch, .. } => gate.keeper == GateKeeper::Redis && gate.epoch == *epoch,
        }
    }
}

impl Registration {
    /// A batch that is opened without files is charged nothing.
    pub fn needs_room(&self) -> bool {
        !self.files.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|new| new.file.charged_bytes).sum()
    }

    /// What its key is remembered by.
    fn made(&self) -> Option<Uuid> {
        match (&self.batch, self.files.first()) {
            (BatchUse::Opens(batch), _) => Some(batch.id.0),
            (BatchUse::None | BatchUse::Joins(_), first) => first.map(|new| new.file.id.0),
        }
    }

    async fn write(&self, tx: &mut Tx<'_>, tells: Tells) -> Result<Verdict<Registered>, CatalogError> {
        if let (Some(key_use), Some(made)) = (&self.key_use, self.made()) {
            match idempotency::take(tx, (&self.tenant, &self.user), key_use, made, self.now).await? {
                idempotency::Taken::Ours => {}
                idempotency::Taken::Before(id) => return Ok(Verdict::Rollback(Registered::Repeated(id))),
                idempotency::Taken::OtherBody => return Ok(Verdict::Rollback(Registered::KeyMismatch)),
            }
        }
        if let Some(refused) = self.write_batch(tx, tells).await? {
            return Ok(Verdict::Rollback(refused));
        }
        for some in self.files.chunks(tx.dialect().rows_max()) {
            insert_files(tx, some).await?;
            insert_objects(tx, some).await?;
            remember(tx, some, &self.actor).await?;
            archive::registered(tx, some, &self.actor, tells).await?;
            let checks: Vec<_> = some.iter().map(|new| (new.check_id, new.check.clone())).collect();
            delayed::insert_many(tx, &checks, self.now).await?;
            if self.by_broker {
                lines::insert_checks(tx, &checks, self.now).await?;
            }
        }
        if self.needs_room() {
            return self.charge(tx).await;
        }
        counters::noticed(tx, &self.tenant, &self.user).await?;
        Ok(Verdict::Commit(Registered::Made))
    }

    /// Whoever ends the batch waits until this has committed, or is waited for here.
    async fn write_batch(&self, tx: &mut Tx<'_>, tells: Tells) -> Result<Option<Registered>, CatalogError> {
        match &self.batch {
            BatchUse::None => Ok(None),
            BatchUse::Opens(batch) => {
                batches::insert(tx, batch).await?;
                archive::batch_turned(tx, batch, &self.actor, self.now, tells).await?;
                Ok(None)
            }
            BatchUse::Joins(id) => {
                let batch = batches::hold(tx, *id).await?;
                let own = batch.filter(|batch| (&batch.tenant, &batch.user) == (&self.tenant, &self.user));
                Ok(match own.map(|batch| batch.may_grow(self.now)) {
                    None => Some(Registered::NoBatch),
                    Some(Err(refusal)) => Some(Registered::BatchClosed(refusal)),
                    Some(Ok(())) => None,
                })
            }
        }
    }

    /// One charge for all of them.
    async fn charge(&self, tx: &mut Tx<'_>) -> Result<Verdict<Registered>, CatalogError> {
        let bytes = self.bytes();
        let owner = (&self.tenant, &self.user);
        counters::added(tx, self.files.iter().map(|new| &new.file)).await?;
        let limit_bytes = match self.admission {
            Admission::Redis { limit_bytes, .. } => limit_bytes,
            Admission::Database => {
                match charges::reserve(tx, &self.tenant, bytes, self.default_limit_bytes).await? {
                    charges::Reserved::Yes { limit_bytes } => limit_bytes,
                    charges::Reserved::No { used_bytes, limit_bytes } => {
                        return Ok(Verdict::Rollback(Registered::QuotaExceeded { used_bytes, limit_bytes }));
                    }
                    charges::Reserved::NotHere(gate) => {
                        return Ok(Verdict::Rollback(Registered::GateMoved(gate)));
                    }
                }
            }
        };
        if self.unconfirmed_limit_percent < 100 {
            let share = percent_of(limit_bytes, self.unconfirmed_limit_percent);
            let held = held_unconfirmed(tx, owner).await?;
            if held > share {
                return Ok(Verdict::Rollback(Registered::UnconfirmedLimit {
                    held_bytes: held.saturating_sub(bytes),
                    limit_bytes: share,
                }));
            }
        }
        Ok(Verdict::Commit(Registered::Made))
    }
}

async fn insert_files(tx: &mut Tx<'_>, files: &[NewFile]) -> Result<(), CatalogError> {
    let mut args = args![];
    for NewFile { file, .. } in files {
        args.extend(args![
            file.id.to_string(),
            file.tenant.as_str(),
            file.user.as_str(),
            file.batch.map(|batch| batch.to_string()),
            file.name.as_str(),
            signed(file.size),
            file.content_type.as_deref(),
            file.checksum_sha256.as_deref(),
            file.metadata.as_deref(),
            file.key.as_str(),
            file.status.as_str(),
            file.version,
            signed(file.charged_bytes),
            i64::from(file.retry_count),
            file.url_dead_at,
            file.next_look_at,
            file.created_at,
            file.updated_at,
            file.part_size.map(signed),
        ]);
    }
    let sql = format!(
        "INSERT INTO files (id, tenant_id, user_id, batch_id, file_name, size, content_type, \
         checksum_sha256, metadata, blob_path, pipeline_status, version, charged_bytes, retry_count, \
         url_dead_at, next_look_at, created_at, updated_at, part_size) VALUES {}",
        tuples(1, files.len(), 19)
    );
    tx.run_built(sql, args).await?;
    Ok(())
}

async fn insert_objects(tx: &mut Tx<'_>, files: &[NewFile]) -> Result<(), CatalogError> {
    let rows = files
        .iter()
        .map(|new| &new.file)
        .flat_map(|file| args![file.key.as_str(), file.id.to_string(), "original", file.created_at]);
    let sql =
        format!("INSERT INTO objects (key, file_id, kind, created_at) VALUES {}", tuples(1, files.len(), 4));
    tx.run_built(sql, rows.collect()).await?;
    Ok(())
}

/// The first line of each history.
async fn remember(tx: &mut Tx<'_>, files: &[NewFile], actor: &str) -> Result<(), CatalogError> {
    let rows = files.iter().map(|new| &new.file).flat_map(|file| {
        let (id, status) = (file.id.to_string(), file.status.as_str());
        args![id, file.version, file.updated_at, status, archive::REGISTERED, actor]
    });
    let sql = format!(
        "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) VALUES {}",
        tuples(1, files.len(), 6)
    );
    tx.run_built(sql, rows.collect()).await?;
    Ok(())
}

/// What a user holds in uploads that are not confirmed, or ended while their URL lives.
async fn held_unconfirmed(
    tx: &mut Tx<'_>,
    (tenant, user): (&TenantId, &UserId),
) -> Result<u64, CatalogError> {
    let row = tx
        .row(
            "SELECT CAST(COALESCE(SUM(charged_bytes), 0) AS BIGINT) AS held FROM file_counts \
             WHERE tenant_id = $1 AND user_id = $2 AND status IN ('registered', 'deleted')",
            args![tenant.as_str(), user.as_str()],
        )
        .await?;
    row.map_or(Ok(0), |row| row.bytes("held"))
}

impl Catalog {
    pub async fn register(&self, registration: Registration) -> Result<Registered, CatalogError> {
        let (beside_redis, tells) = (self.beside_redis, self.tells);
        self.write(Register { wanted: registration, beside_redis, tells }).await
    }
}
