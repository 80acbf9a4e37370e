//! Registers files: one, or all of a batch, with everything that belongs to them. Many registrations share one transaction,
//! and each is made whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, BatchError};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{BatchId, JobId, TenantId, UserId};
use wharfinger_lifecycle::quota::{QuotaExceeded, percent_of};

use crate::database::sql::{Tx, args, signed, tuples};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::idempotency::{self, IdempotencyKey};
use crate::files::{batches, history};
use crate::jobs::delayed::{self, NewJob};
use crate::outbox::{archive, lines};
use crate::quota::charges::{self, Reserved};
use crate::quota::owner::{self, QuotaOwner, QuotaState};
use crate::{Catalog, OutboxTargets, RowSettings};

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
    pub idempotency_key: Option<IdempotencyKey>,
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
    New(Batch),
    /// The files become part of one that is active.
    Existing(BatchId),
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
pub enum RegisterOutcome {
    Created,
    /// Whoever let it in, or was asked to, is not the one who does; nothing happened.
    QuotaOwnerChanged(QuotaState),
    /// The key was used before with the same body, and made this file or batch.
    Repeated(Uuid),
    /// The key was used before with another body.
    KeyMismatch,
    /// The owner has no such batch.
    NoBatch,
    /// The batch takes no files any more.
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

/// Registrations that are made together: one statement for each table, one charge for each tenant.
struct Register {
    wanted: Arc<Vec<Registration>>,
    rows: RowSettings,
}

/// Answers of those that cannot be made, by their places. If there is one, nothing was made.
type Refused = BTreeMap<usize, RegisterOutcome>;

impl Write for Register {
    type Answer = Refused;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Refused>, CatalogError> {
        let refused = self.refused_at_once(tx).await?;
        if !refused.is_empty() {
            return Ok(TxOutcome::Rollback(refused));
        }
        self.insert(tx).await?;
        // The quota rows come last: others wait for them.
        let refused = self.charge(tx).await?;
        Ok(match refused.is_empty() {
            true => TxOutcome::Commit(refused),
            false => TxOutcome::Rollback(refused),
        })
    }
}

impl Admission {
    fn holds_at(&self, state: &QuotaState) -> bool {
        match self {
            Admission::Database => state.owner == QuotaOwner::Database,
            Admission::Redis { epoch, .. } => state.owner == QuotaOwner::Redis && state.epoch == *epoch,
        }
    }
}

impl Registration {
    /// A batch that is opened without files is charged nothing.
    pub fn needs_quota(&self) -> bool {
        !self.files.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|new| new.file.charged_bytes).sum()
    }

    /// What its key is remembered by.
    fn made(&self) -> Option<Uuid> {
        match (&self.batch, self.files.first()) {
            (BatchUse::New(batch), _) => Some(batch.id.0),
            (BatchUse::None | BatchUse::Existing(_), first) => first.map(|new| new.file.id.0),
        }
    }

    fn owner(&self) -> (&TenantId, &UserId) {
        (&self.tenant, &self.user)
    }

    /// The answer to a key that was used before.
    async fn refused_by_key(&self, tx: &mut Tx<'_>) -> Result<Option<RegisterOutcome>, CatalogError> {
        let (Some(idempotency_key), Some(made)) = (&self.idempotency_key, self.made()) else { return Ok(None) };
        Ok(match idempotency::take(tx, self.owner(), idempotency_key, made, self.now).await? {
            idempotency::Taken::Ours => None,
            idempotency::Taken::Before(id) => Some(RegisterOutcome::Repeated(id)),
            idempotency::Taken::OtherBody => Some(RegisterOutcome::KeyMismatch),
        })
    }

    /// A batch that is joined cannot end before this has committed, and one that is about to end is waited for.
    async fn refused_by_batch(
        &self,
        tx: &mut Tx<'_>,
        targets: OutboxTargets,
    ) -> Result<Option<RegisterOutcome>, CatalogError> {
        match &self.batch {
            BatchUse::None => Ok(None),
            BatchUse::New(batch) => {
                batches::insert(tx, batch).await?;
                archive::batch_turned(tx, batch, &self.actor, self.now, targets).await?;
                Ok(None)
            }
            BatchUse::Existing(id) => {
                let batch = batches::hold(tx, *id).await?;
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
    /// What is known before anything is charged: who admits, keys and batches.
    async fn refused_at_once(&self, tx: &mut Tx<'_>) -> Result<Refused, CatalogError> {
        let mut states: BTreeMap<&TenantId, QuotaState> = BTreeMap::new();
        if self.rows.with_redis_quota {
            let charged = self.wanted.iter().filter(|wanted| wanted.needs_quota());
            for tenant in charged.map(|wanted| &wanted.tenant).collect::<BTreeSet<_>>() {
                states.insert(tenant, owner::hold(tx, tenant).await?);
            }
        }
        let mut refused = Refused::new();
        for (place, wanted) in self.wanted.iter().enumerate() {
            let state = states.get(&wanted.tenant).filter(|_| wanted.needs_quota());
            let answer = match state.filter(|state| !wanted.admission.holds_at(state)) {
                Some(state) => Some(RegisterOutcome::QuotaOwnerChanged(*state)),
                None => match wanted.refused_by_key(tx).await? {
                    Some(answer) => Some(answer),
                    None => wanted.refused_by_batch(tx, self.rows.targets).await?,
                },
            };
            refused.extend(answer.map(|answer| (place, answer)));
        }
        Ok(refused)
    }

    async fn insert(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        let now = self.wanted.iter().map(|wanted| wanted.now).max().unwrap_or_default();
        let files: Vec<(&NewFile, &Registration)> =
            self.wanted.iter().flat_map(|wanted| wanted.files.iter().map(move |new| (new, wanted))).collect();
        for some in files.chunks(tx.dialect().rows_max()) {
            let new: Vec<&NewFile> = some.iter().map(|(new, _)| *new).collect();
            let by: Vec<(&NewFile, &str)> =
                some.iter().map(|(new, wanted)| (*new, wanted.actor.as_str())).collect();
            insert_files(tx, &new).await?;
            insert_objects(tx, &new).await?;
            history::begin(tx, &by).await?;
            archive::registered(tx, &by, self.rows.targets).await?;
            let checks: Vec<_> = new.iter().map(|new| (new.check_id, new.check.clone())).collect();
            delayed::insert_many(tx, &checks, now).await?;
            let by_broker = some.iter().filter(|(_, wanted)| wanted.by_broker);
            let checks: Vec<_> = by_broker.map(|(new, _)| (new.check_id, new.check.clone())).collect();
            lines::insert_checks(tx, &checks, now).await?;
        }
        counters::added(tx, files.iter().map(|(new, _)| &new.file)).await?;
        for empty in self.wanted.iter().filter(|wanted| !wanted.needs_quota()) {
            counters::noticed(tx, &empty.tenant, &empty.user).await?;
        }
        Ok(())
    }

    /// One charge for all of a tenant. Where they do not fit together, they are admitted in their order.
    async fn charge(&self, tx: &mut Tx<'_>) -> Result<Refused, CatalogError> {
        let mut by_tenant: BTreeMap<&TenantId, Vec<(usize, &Registration)>> = BTreeMap::new();
        for (place, wanted) in self.wanted.iter().enumerate().filter(|(_, wanted)| wanted.needs_quota()) {
            by_tenant.entry(&wanted.tenant).or_default().push((place, wanted));
        }
        let mut refused = Refused::new();
        for (tenant, all) in by_tenant {
            let by_database: Vec<_> =
                all.iter().filter(|(_, wanted)| wanted.admission == Admission::Database).collect();
            let mut limit_bytes = None;
            if let Some((_, first)) = by_database.first() {
                let sizes: Vec<u64> = by_database.iter().map(|(_, wanted)| wanted.bytes()).collect();
                match charges::reserve(tx, tenant, &sizes, first.default_limit_bytes).await? {
                    Reserved::All { limit_bytes: limit } => limit_bytes = Some(limit),
                    Reserved::NotAll { limit_bytes: limit, exceeded } => {
                        limit_bytes = Some(limit);
                        for ((place, _), exceeded) in by_database.iter().zip(exceeded) {
                            refused.extend(exceeded.map(|exceeded| (*place, RegisterOutcome::exceeded(exceeded))));
                        }
                    }
                    Reserved::NotHere(state) => {
                        refused.extend(
                            by_database.iter().map(|(place, _)| (*place, RegisterOutcome::QuotaOwnerChanged(state))),
                        );
                    }
                }
            }
            let limited = all.into_iter().filter(|(place, _)| !refused.contains_key(place));
            let limited = limited.filter_map(|(place, wanted)| match wanted.admission {
                Admission::Redis { limit_bytes, .. } => Some((place, wanted, limit_bytes)),
                Admission::Database => Some((place, wanted, limit_bytes?)),
            });
            let over = self.over_unconfirmed(tx, limited.collect()).await?;
            if !over.is_empty() {
                // They took room from others of the tenant, which are tried again without them.
                let own = |place: &usize| self.wanted[*place].tenant == *tenant;
                refused.retain(|place, answer| {
                    !(own(place) && matches!(answer, RegisterOutcome::QuotaExceeded { .. }))
                });
            }
            refused.extend(over);
        }
        Ok(refused)
    }

    /// Those by which their user would hold more unconfirmed bytes than allowed, in their order. All are counted already.
    async fn over_unconfirmed(
        &self,
        tx: &mut Tx<'_>,
        wanted: Vec<(usize, &Registration, u64)>,
    ) -> Result<Refused, CatalogError> {
        let mut refused = Refused::new();
        let mut held_by: BTreeMap<(&TenantId, &UserId), u64> = BTreeMap::new();
        for (place, wanted, limit_bytes) in wanted {
            if wanted.unconfirmed_limit_percent >= 100 {
                continue;
            }
            let owner = wanted.owner();
            let before = match held_by.get(&owner) {
                Some(held) => *held,
                None => {
                    let own = self.wanted.iter().filter(|wanted| wanted.owner() == owner);
                    let ours: u64 = own.map(Registration::bytes).sum();
                    held_unconfirmed(tx, owner).await?.saturating_sub(ours)
                }
            };
            let share = percent_of(limit_bytes, wanted.unconfirmed_limit_percent);
            let held = before.saturating_add(wanted.bytes());
            held_by.insert(owner, if held > share { before } else { held });
            if held > share {
                refused
                    .insert(place, RegisterOutcome::UnconfirmedLimit { held_bytes: before, limit_bytes: share });
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
        ]);
    }
    let sql = format!(
        "INSERT INTO files (id, tenant_id, user_id, batch_id, file_name, size, content_type, \
         checksum_sha256, metadata, blob_path, pipeline_status, version, charged_bytes, retry_count, \
         url_dead_at, next_check_at, created_at, updated_at, part_size) VALUES {}",
        tuples(1, files.len(), 19)
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
    pub async fn register(&self, registration: Registration) -> Result<RegisterOutcome, CatalogError> {
        let wanted = Arc::new(vec![registration]);
        let refused = self.write(Register { wanted, rows: self.rows }).await?;
        Ok(refused.into_values().next().unwrap_or(RegisterOutcome::Created))
    }

    /// Makes those that can be made in one transaction, and answers each in order. A refused one never hinders the others: they
    /// are tried again without it. Where the database refuses a set, each is tried by itself.
    pub async fn register_all(&self, wanted: Vec<Registration>) -> Vec<Result<RegisterOutcome, CatalogError>> {
        let mut answers = BTreeMap::new();
        let mut left: Vec<(usize, Registration)> = wanted.into_iter().enumerate().collect();
        while !left.is_empty() {
            // The second use of a key is answered by what the first has made.
            let mut keys = BTreeSet::new();
            let is_first = |(_, wanted): &(usize, Registration)| {
                wanted.idempotency_key.as_ref().is_none_or(|used| {
                    keys.insert((wanted.tenant.clone(), wanted.user.clone(), used.route, used.key.clone()))
                })
            };
            let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(is_first);
            let (places, set): (Vec<usize>, Vec<Registration>) = now.into_iter().unzip();
            let set = Arc::new(set);
            left = later;
            match self.write(Register { wanted: set.clone(), rows: self.rows }).await {
                Ok(refused) if refused.is_empty() => {
                    answers.extend(places.into_iter().map(|place| (place, Ok(RegisterOutcome::Created))));
                }
                Ok(mut refused) => {
                    for (n, place) in places.into_iter().enumerate() {
                        match refused.remove(&n) {
                            Some(answer) => drop(answers.insert(place, Ok(answer))),
                            None => left.push((place, set[n].clone())),
                        }
                    }
                }
                // All of them may have been made.
                Err(CatalogError::Unknown(why)) => {
                    let unknown = |place| (place, Err(CatalogError::Unknown(why.clone())));
                    answers.extend(places.into_iter().map(unknown));
                }
                Err(error) if places.len() == 1 => {
                    answers.extend(places.into_iter().zip([Err(error)]));
                }
                Err(_) => {
                    for (n, place) in places.into_iter().enumerate() {
                        answers.insert(place, self.register(set[n].clone()).await);
                    }
                }
            }
            left.sort_by_key(|(place, _)| *place);
        }
        answers.into_values().collect()
    }
}
