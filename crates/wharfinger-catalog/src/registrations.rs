//! Registers files: one, or all of a batch, with their related rows. Many registrations share one transaction. Each is
//! written completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, BatchError};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{BatchId, JobId, TenantId, UserId};
use wharfinger_lifecycle::quota::{QuotaExceeded, percent_of};
use wharfinger_lifecycle::stage::show_list;

use crate::database::sql::{Tx, args, signed, tuples};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::idempotency::{self, IdempotencyKey};
use crate::files::{batches, history};
use crate::jobs::delayed::{self, NewJob};
use crate::outbox::{archive, lines};
use crate::quota::charges::{self, Reservation};
use crate::quota::owner::{self, QuotaOwner, QuotaState};
use crate::{Catalog, OutboxTargets, RowSettings};

/// Files that are registered together.
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
    pub idempotency_key: Option<IdempotencyKey>,
    pub admission: Admission,
    /// The broker delivers the checks when they are due.
    pub by_broker: bool,
}

#[derive(Clone, Debug)]
pub struct NewFile {
    pub file: File,
    /// The delayed check of the file at the end of its upload window.
    pub check: NewJob,
    pub check_id: JobId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchUse {
    None,
    /// The batch is created with its files.
    New(Batch),
    /// The files are added to an active batch.
    Existing(BatchId),
}

/// Who has admitted a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Not admitted yet: the tenant's quota row decides.
    Database,
    /// Redis has admitted and counted it.
    Redis { epoch: i64, limit_bytes: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterOutcome {
    Created,
    /// Nothing happened: the admission came from another owner or epoch than the current one.
    QuotaOwnerChanged(QuotaState),
    /// The key was used before with the same body and created this file or batch.
    Repeated(Uuid),
    /// The key was used before with another body.
    KeyMismatch,
    /// The user has no such batch.
    NoBatch,
    /// The batch accepts no more files.
    BatchClosed(BatchError),
    QuotaExceeded {
        used_bytes: u64,
        limit_bytes: u64,
    },
    UnconfirmedLimit {
        held_bytes: u64,
        limit_bytes: u64,
    },
}

/// Registrations in one transaction, with few statements per table and one charge per tenant.
struct Register {
    registrations: Arc<Vec<Registration>>,
    rows: RowSettings,
}

/// The answers to refused registrations, by their positions. If there is one, nothing was written.
type Refusals = BTreeMap<usize, RegisterOutcome>;

impl Write for Register {
    type Answer = Refusals;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Refusals>, CatalogError> {
        let refused = self.refuse_early(tx).await?;
        if !refused.is_empty() {
            return Ok(TxOutcome::Rollback(refused));
        }
        self.insert(tx).await?;
        // Quota rows are locked last, because other transactions wait for them.
        let refused = self.charge(tx).await?;
        Ok(match refused.is_empty() {
            true => TxOutcome::Commit(refused),
            false => TxOutcome::Rollback(refused),
        })
    }
}

impl Admission {
    fn is_valid_at(&self, state: &QuotaState) -> bool {
        match self {
            Admission::Database => state.owner == QuotaOwner::Database,
            Admission::Redis { epoch, .. } => state.owner == QuotaOwner::Redis && state.epoch == *epoch,
        }
    }
}

impl Registration {
    /// A new batch without files charges nothing.
    pub fn needs_quota(&self) -> bool {
        !self.files.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|new| new.file.charged_bytes).sum()
    }

    /// The id that is stored with its idempotency key.
    fn created_id(&self) -> Option<Uuid> {
        match (&self.batch, self.files.first()) {
            (BatchUse::New(batch), _) => Some(batch.id.0),
            (BatchUse::None | BatchUse::Existing(_), first) => first.map(|new| new.file.id.0),
        }
    }

    fn owner(&self) -> (&TenantId, &UserId) {
        (&self.tenant, &self.user)
    }

    /// Claims the idempotency key; an answer if it was used before.
    async fn refused_by_key(&self, tx: &mut Tx<'_>) -> Result<Option<RegisterOutcome>, CatalogError> {
        let (Some(idempotency_key), Some(created)) = (&self.idempotency_key, self.created_id()) else {
            return Ok(None);
        };
        Ok(match idempotency::claim(tx, self.owner(), idempotency_key, created, self.now).await? {
            idempotency::KeyClaim::New => None,
            idempotency::KeyClaim::Repeated(id) => Some(RegisterOutcome::Repeated(id)),
            idempotency::KeyClaim::Mismatch => Some(RegisterOutcome::KeyMismatch),
        })
    }

    /// Inserts a new batch. Locks an existing one until the commit, so that it cannot end before it.
    async fn refused_by_batch(
        &self,
        tx: &mut Tx<'_>,
        targets: OutboxTargets,
    ) -> Result<Option<RegisterOutcome>, CatalogError> {
        match &self.batch {
            BatchUse::None => Ok(None),
            BatchUse::New(batch) => {
                batches::insert(tx, batch).await?;
                archive::batch_changed(tx, batch, &self.actor, self.now, targets).await?;
                Ok(None)
            }
            BatchUse::Existing(id) => {
                let batch = batches::lock_shared(tx, *id).await?;
                let own = batch.filter(|batch| (&batch.tenant, &batch.user) == self.owner());
                Ok(match own.map(|batch| batch.check_open(self.now)) {
                    None => Some(RegisterOutcome::NoBatch),
                    Some(Err(refusal)) => Some(RegisterOutcome::BatchClosed(refusal)),
                    Some(Ok(())) => None,
                })
            }
        }
    }
}

impl Register {
    /// Checks what is known before the charge: the quota owner, keys and batches.
    async fn refuse_early(&self, tx: &mut Tx<'_>) -> Result<Refusals, CatalogError> {
        let mut states: BTreeMap<&TenantId, QuotaState> = BTreeMap::new();
        if self.rows.with_redis_quota {
            let charged = self.registrations.iter().filter(|registration| registration.needs_quota());
            for tenant in charged.map(|registration| &registration.tenant).collect::<BTreeSet<_>>() {
                states.insert(tenant, owner::lock_shared(tx, tenant).await?);
            }
        }
        let mut refused = Refusals::new();
        for (position, registration) in self.registrations.iter().enumerate() {
            let state = states.get(&registration.tenant).filter(|_| registration.needs_quota());
            let answer = match state.filter(|state| !registration.admission.is_valid_at(state)) {
                Some(state) => Some(RegisterOutcome::QuotaOwnerChanged(*state)),
                None => match registration.refused_by_key(tx).await? {
                    Some(answer) => Some(answer),
                    None => registration.refused_by_batch(tx, self.rows.targets).await?,
                },
            };
            refused.extend(answer.map(|answer| (position, answer)));
        }
        Ok(refused)
    }

    async fn insert(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        let now = self.registrations.iter().map(|registration| registration.now).max().unwrap_or_default();
        let files: Vec<(&NewFile, &Registration)> = self
            .registrations
            .iter()
            .flat_map(|registration| registration.files.iter().map(move |new| (new, registration)))
            .collect();
        for some in files.chunks(tx.dialect().rows_max()) {
            let new: Vec<&NewFile> = some.iter().map(|(new, _)| *new).collect();
            let by: Vec<(&NewFile, &str)> =
                some.iter().map(|(new, registration)| (*new, registration.actor.as_str())).collect();
            insert_files(tx, &new).await?;
            insert_objects(tx, &new).await?;
            history::insert_first(tx, &by).await?;
            archive::registered(tx, &by, self.rows.targets).await?;
            let checks: Vec<_> = new.iter().map(|new| (new.check_id, new.check.clone())).collect();
            delayed::insert_many(tx, &checks, now).await?;
            let by_broker = some.iter().filter(|(_, registration)| registration.by_broker);
            let checks: Vec<_> = by_broker.map(|(new, _)| (new.check_id, new.check.clone())).collect();
            lines::insert_checks(tx, &checks, now).await?;
        }
        counters::added(tx, files.iter().map(|(new, _)| &new.file)).await?;
        for empty in self.registrations.iter().filter(|registration| !registration.needs_quota()) {
            counters::record_other_change(tx, &empty.tenant, &empty.user).await?;
        }
        Ok(())
    }

    /// One charge for all registrations of a tenant. If they exceed the limit together, they are admitted in their order.
    async fn charge(&self, tx: &mut Tx<'_>) -> Result<Refusals, CatalogError> {
        let mut by_tenant: BTreeMap<&TenantId, Vec<(usize, &Registration)>> = BTreeMap::new();
        for (position, registration) in
            self.registrations.iter().enumerate().filter(|(_, registration)| registration.needs_quota())
        {
            by_tenant.entry(&registration.tenant).or_default().push((position, registration));
        }
        let mut refused = Refusals::new();
        for (tenant, all) in by_tenant {
            let by_database: Vec<_> = all
                .iter()
                .filter(|(_, registration)| registration.admission == Admission::Database)
                .collect();
            let mut limit_bytes = None;
            if let Some((_, first)) = by_database.first() {
                let sizes: Vec<u64> =
                    by_database.iter().map(|(_, registration)| registration.bytes()).collect();
                match charges::reserve(tx, tenant, &sizes, first.default_limit_bytes).await? {
                    Reservation::Charged { limit_bytes: limit } => limit_bytes = Some(limit),
                    Reservation::Exceeded { limit_bytes: limit, exceeded } => {
                        limit_bytes = Some(limit);
                        for ((position, _), exceeded) in by_database.iter().zip(exceeded) {
                            refused.extend(
                                exceeded.map(|exceeded| (*position, RegisterOutcome::exceeded(exceeded))),
                            );
                        }
                    }
                    Reservation::OwnedByRedis(state) => {
                        refused.extend(
                            by_database
                                .iter()
                                .map(|(position, _)| (*position, RegisterOutcome::QuotaOwnerChanged(state))),
                        );
                    }
                }
            }
            let limited = all.into_iter().filter(|(position, _)| !refused.contains_key(position));
            let limited = limited.filter_map(|(position, registration)| match registration.admission {
                Admission::Redis { limit_bytes, .. } => Some((position, registration, limit_bytes)),
                Admission::Database => Some((position, registration, limit_bytes?)),
            });
            let over = self.over_unconfirmed(tx, limited.collect()).await?;
            if !over.is_empty() {
                // They used up quota of others of the tenant, which are tried again without them.
                let own = |position: &usize| self.registrations[*position].tenant == *tenant;
                refused.retain(|position, answer| {
                    !(own(position) && matches!(answer, RegisterOutcome::QuotaExceeded { .. }))
                });
            }
            refused.extend(over);
        }
        Ok(refused)
    }

    /// Registrations that exceed the user's limit of unconfirmed bytes, in their order. All are counted already.
    async fn over_unconfirmed(
        &self,
        tx: &mut Tx<'_>,
        registrations: Vec<(usize, &Registration, u64)>,
    ) -> Result<Refusals, CatalogError> {
        let mut refused = Refusals::new();
        let mut held_by: BTreeMap<(&TenantId, &UserId), u64> = BTreeMap::new();
        for (position, registration, limit_bytes) in registrations {
            if registration.unconfirmed_limit_percent >= 100 {
                continue;
            }
            let owner = registration.owner();
            let before = match held_by.get(&owner) {
                Some(held) => *held,
                None => {
                    let own = self.registrations.iter().filter(|registration| registration.owner() == owner);
                    let ours: u64 = own.map(Registration::bytes).sum();
                    held_unconfirmed(tx, owner).await?.saturating_sub(ours)
                }
            };
            let share = percent_of(limit_bytes, registration.unconfirmed_limit_percent);
            let held = before.saturating_add(registration.bytes());
            held_by.insert(owner, if held > share { before } else { held });
            if held > share {
                refused.insert(
                    position,
                    RegisterOutcome::UnconfirmedLimit { held_bytes: before, limit_bytes: share },
                );
            }
        }
        Ok(refused)
    }
}

impl RegisterOutcome {
    fn exceeded(exceeded: QuotaExceeded) -> RegisterOutcome {
        let QuotaExceeded { used_bytes, limit_bytes, .. } = exceeded;
        RegisterOutcome::QuotaExceeded { used_bytes, limit_bytes }
    }
}

async fn insert_files(tx: &mut Tx<'_>, files: &[&NewFile]) -> Result<(), CatalogError> {
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
            file.next_check_at,
            file.created_at,
            file.updated_at,
            file.part_size.map(signed),
            file.stages.as_deref().map(show_list),
        ]);
    }
    let sql = format!(
        "INSERT INTO files (id, tenant_id, user_id, batch_id, file_name, size, content_type, \
         checksum_sha256, metadata, blob_path, pipeline_status, version, charged_bytes, retry_count, \
         url_dead_at, next_check_at, created_at, updated_at, part_size, stages) VALUES {}",
        tuples(1, files.len(), 20)
    );
    tx.run_built(sql, args).await?;
    Ok(())
}

async fn insert_objects(tx: &mut Tx<'_>, files: &[&NewFile]) -> Result<(), CatalogError> {
    let rows = files
        .iter()
        .map(|new| &new.file)
        .flat_map(|file| args![file.key.as_str(), file.id.to_string(), "original", file.created_at]);
    let sql =
        format!("INSERT INTO objects (key, file_id, kind, created_at) VALUES {}", tuples(1, files.len(), 4));
    tx.run_built(sql, rows.collect()).await?;
    Ok(())
}

/// The charged bytes of a user's uploads that are unconfirmed, or deleted while their URL is still valid.
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
    pub async fn register(&self, registration: Registration) -> Result<RegisterOutcome, CatalogError> {
        let registrations = Arc::new(vec![registration]);
        let refused = self.write(Register { registrations, rows: self.rows }).await?;
        Ok(refused.into_values().next().unwrap_or(RegisterOutcome::Created))
    }

    /// Registers many in few transactions; the answers are in their order. After a refusal the others are tried again
    /// without it. If the database rejects a set, each is tried alone.
    pub async fn register_all(
        &self,
        registrations: Vec<Registration>,
    ) -> Vec<Result<RegisterOutcome, CatalogError>> {
        let mut answers = BTreeMap::new();
        let mut left: Vec<(usize, Registration)> = registrations.into_iter().enumerate().collect();
        while !left.is_empty() {
            // A repeated key comes after its first use, and is answered with what that created.
            let mut keys = BTreeSet::new();
            let is_first = |(_, registration): &(usize, Registration)| {
                registration.idempotency_key.as_ref().is_none_or(|used| {
                    keys.insert((
                        registration.tenant.clone(),
                        registration.user.clone(),
                        used.route,
                        used.key.clone(),
                    ))
                })
            };
            let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(is_first);
            let (positions, set): (Vec<usize>, Vec<Registration>) = now.into_iter().unzip();
            let set = Arc::new(set);
            left = later;
            match self.write(Register { registrations: set.clone(), rows: self.rows }).await {
                Ok(refused) if refused.is_empty() => {
                    answers.extend(
                        positions.into_iter().map(|position| (position, Ok(RegisterOutcome::Created))),
                    );
                }
                Ok(mut refused) => {
                    for (n, position) in positions.into_iter().enumerate() {
                        match refused.remove(&n) {
                            Some(answer) => drop(answers.insert(position, Ok(answer))),
                            None => left.push((position, set[n].clone())),
                        }
                    }
                }
                // All of them may have been written.
                Err(CatalogError::Unknown(why)) => {
                    let unknown = |position| (position, Err(CatalogError::Unknown(why.clone())));
                    answers.extend(positions.into_iter().map(unknown));
                }
                Err(error) if positions.len() == 1 => {
                    answers.extend(positions.into_iter().zip([Err(error)]));
                }
                Err(_) => {
                    for (n, position) in positions.into_iter().enumerate() {
                        answers.insert(position, self.register(set[n].clone()).await);
                    }
                }
            }
            left.sort_by_key(|(position, _)| *position);
        }
        answers.into_values().collect()
    }
}
