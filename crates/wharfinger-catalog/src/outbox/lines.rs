//! What must reach another system: lines written in the transaction they follow from, claimed row by row (never by
//! a cursor: commit order is not id order), and removed when they have arrived. A line may be delivered twice.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{JobId, TenantId};
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::dashboard::COUNTED_MAX;
use crate::fresh_id;
use crate::jobs::delayed::NewJob;
use crate::leases::engine::{self, Claim, Claimed};
use crate::leases::tables::OUTBOX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Quota,
    Broker,
    Webhook,
    Slack,
    Archive,
}

impl Destination {
    pub const ALL: [Destination; 5] = [
        Destination::Quota,
        Destination::Broker,
        Destination::Webhook,
        Destination::Slack,
        Destination::Archive,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Destination::Quota => "quota",
            Destination::Broker => "broker",
            Destination::Webhook => "webhook",
            Destination::Slack => "slack",
            Destination::Archive => "archive",
        }
    }

    /// Tenants take turns.
    fn is_fair(self) -> bool {
        self == Destination::Webhook
    }

    /// A line waits until every earlier one of its subject has left the outbox.
    fn keeps_order(self) -> bool {
        self == Destination::Webhook
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxLine {
    pub id: String,
    pub tenant: TenantId,
    pub payload: OutboxPayload,
    pub attempts: u32,
    pub created_at: UnixMs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxPayload {
    /// Bytes that Redis still counts, if it counts from this epoch on.
    Refund { bytes: u64, epoch: i64 },
    /// A delayed check that the broker is to bring back when it is due.
    Check { job: JobId, due_at: UnixMs },
    /// What an owner was told, to be told to the webhook too: `place` is where it stands among what its subject (a
    /// file, a batch) has to tell.
    Notice { notification: Uuid, subject: String, place: i64 },
    /// What operators are to know.
    Alert { message: String },
    /// What happened, for good: one JSON object.
    Event { body: String },
}

impl OutboxPayload {
    fn destination(&self) -> Destination {
        match self {
            OutboxPayload::Refund { .. } => Destination::Quota,
            OutboxPayload::Check { .. } => Destination::Broker,
            OutboxPayload::Notice { .. } => Destination::Webhook,
            OutboxPayload::Alert { .. } => Destination::Slack,
            OutboxPayload::Event { .. } => Destination::Archive,
        }
    }
}

/// A line that is not written yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewLine<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) payload: &'a OutboxPayload,
    pub(crate) at: UnixMs,
}

/// Far below what either database takes in one statement.
const LINES_PER_STATEMENT: usize = 500;

pub(crate) async fn insert(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    payload: &OutboxPayload,
    now: UnixMs,
) -> Result<(), CatalogError> {
    insert_all(tx, &[NewLine { tenant, payload, at: now }]).await
}

/// Alerts are nobody's in particular.
const ALL_TENANTS: &str = "-";

/// For operators, where anybody tells them.
pub(crate) async fn alert(tx: &mut Tx<'_>, message: String, now: UnixMs) -> Result<(), CatalogError> {
    let tenant =
        TenantId::new(ALL_TENANTS).map_err(|_| CatalogError::Corrupt("a fixed name is none".into()))?;
    insert(tx, &tenant, &OutboxPayload::Alert { message }, now).await
}

pub(crate) async fn insert_all(tx: &mut Tx<'_>, lines: &[NewLine<'_>]) -> Result<(), CatalogError> {
    for lines in lines.chunks(LINES_PER_STATEMENT) {
        let mut args = Vec::new();
        let mut rows = Vec::with_capacity(lines.len());
        for line in lines {
            rows.push(format!("({}, 0)", places(args.len() + 1, LINE_COLUMNS)));
            args.extend(line.args());
        }
        let sql = format!(
            "INSERT INTO outbox (id, destination, tenant_id, bytes, epoch, job_id, due_at, notification_id, \
             subject, place, message, created_at, next_attempt_at, attempts) VALUES {}",
            rows.join(", ")
        );
        tx.run_built(sql, args).await?;
    }
    Ok(())
}

const LINE_COLUMNS: usize = 13;

impl NewLine<'_> {
    fn args(&self) -> Vec<Arg> {
        let (mut bytes, mut epoch, mut job, mut due_at) = (None, None, None, None);
        let (mut notice, mut of_subject, mut at_place, mut text) = (None, None, None, None);
        match self.payload {
            OutboxPayload::Refund { bytes: refunded, epoch: from } => {
                bytes = Some(crate::database::sql::signed(*refunded));
                epoch = Some(*from);
            }
            OutboxPayload::Check { job: checked, due_at: due } => {
                job = Some(checked.to_string());
                due_at = Some(*due);
            }
            OutboxPayload::Notice { notification, subject, place } => {
                notice = Some(notification.to_string());
                of_subject = Some(subject.clone());
                at_place = Some(*place);
            }
            OutboxPayload::Alert { message } | OutboxPayload::Event { body: message } => text = Some(message.clone()),
        }
        args![
            fresh_id(self.at).to_string(),
            self.payload.destination().as_str(),
            self.tenant.as_str(),
            bytes,
            epoch,
            job,
            due_at,
            notice,
            of_subject,
            at_place,
            text,
            self.at,
            self.at
        ]
    }
}

/// The delayed checks of these jobs, which the broker is to bring back.
pub(crate) async fn insert_checks(
    tx: &mut Tx<'_>,
    checks: &[(JobId, NewJob)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    let check = |(id, job): &(JobId, NewJob)| OutboxPayload::Check { job: *id, due_at: job.run_at };
    let payloads: Vec<OutboxPayload> = checks.iter().map(check).collect();
    let pairs = checks.iter().zip(&payloads);
    let lines: Vec<_> =
        pairs.map(|((_, job), payload)| NewLine { tenant: &job.tenant, payload, at: now }).collect();
    insert_all(tx, &lines).await
}

/// Refunds that whatever is loaded under a later epoch contains.
pub(crate) async fn forget_refunds_before(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    epoch: i64,
) -> Result<(), CatalogError> {
    tx.run(
        "DELETE FROM outbox WHERE destination = 'quota' AND tenant_id = $1 AND epoch < $2",
        args![tenant.as_str(), epoch],
    )
    .await?;
    Ok(())
}

struct ForgetAll {
    destination: Destination,
}

impl Write for ForgetAll {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run("DELETE FROM outbox WHERE destination = $1", args![self.destination.as_str()]).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Whoever sees a line sees all earlier ones of its subject that are not gone: the change that wrote it could not be
/// committed before theirs.
const FIRST_OF_ITS_SUBJECT: &str = " AND NOT EXISTS (SELECT 1 FROM outbox AS earlier \
     WHERE earlier.destination = outbox.destination AND earlier.subject = outbox.subject \
     AND (earlier.place < outbox.place OR (earlier.place = outbox.place AND earlier.id < outbox.id)))";

/// Lines that are due and claimed come first in rank. There are never so many in flight.
const RANKED_LOOKED_AT: usize = 1_000;

/// Takes due lines out of others' sight for a while. Who dies with them has only held them up.
struct ClaimLines {
    destination: Destination,
    limit: usize,
    now: UnixMs,
    hidden_until: UnixMs,
}

impl Write for ClaimLines {
    type Answer = Claimed<OutboxLine>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let by_rank = self.destination.is_fair();
        let (ranked, order) = if by_rank { ("IS NOT NULL", "rank") } else { ("IS NULL", "next_attempt_at") };
        let in_order = if self.destination.keeps_order() { FIRST_OF_ITS_SUBJECT } else { "" };
        let claim = Claim {
            queue: self.destination.as_str(),
            now: self.now,
            lease_until: self.hidden_until,
            due: &format!("next_attempt_at <= $2 AND rank {ranked}{in_order}"),
            order,
            by_rank,
            limit: self.limit,
            args: Vec::new(),
        };
        let Claimed { rows, rank } = engine::claim(tx, &OUTBOX, claim).await?;
        let decode = |row: &Row| decode(row, self.destination);
        let mut lines = engine::readable(tx, &OUTBOX, &rows, self.now, decode).await?;
        lines.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(TxOutcome::Commit(Claimed { rows: lines, rank }))
    }
}

fn decode(row: &Row, destination: Destination) -> Result<OutboxLine, CatalogError> {
    let tenant = row.text("tenant_id")?;
    let payload = match destination {
        Destination::Quota => OutboxPayload::Refund { bytes: row.bytes("bytes")?, epoch: row.int("epoch")? },
        Destination::Broker => OutboxPayload::Check { job: row.parsed("job_id")?, due_at: row.int("due_at")? },
        Destination::Webhook => OutboxPayload::Notice {
            notification: row.parsed("notification_id")?,
            subject: row.text("subject")?,
            place: row.int("place")?,
        },
        Destination::Slack => OutboxPayload::Alert { message: row.text("message")? },
        Destination::Archive => OutboxPayload::Event { body: row.text("message")? },
    };
    Ok(OutboxLine {
        id: row.text("id")?,
        tenant: TenantId::new(&tenant)
            .map_err(|_| CatalogError::Corrupt(format!("outbox names the tenant {tenant:?}")))?,
        payload,
        attempts: u32::try_from(row.int("attempts")?).unwrap_or(u32::MAX),
        created_at: row.int("created_at")?,
    })
}

/// A line of whatever destination it names.
pub(crate) fn decode_any(row: &Row) -> Result<OutboxLine, CatalogError> {
    let named = row.text("destination")?;
    let known = Destination::ALL.into_iter().find(|destination| destination.as_str() == named);
    let unknown = || CatalogError::Corrupt(format!("outbox names the destination {named:?}"));
    decode(row, known.ok_or_else(unknown)?)
}

struct Arrived {
    ids: Vec<String>,
}

impl Write for Arrived {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let sql = format!("DELETE FROM outbox WHERE id IN ({})", places(1, self.ids.len()));
        tx.run_built(sql, self.ids.iter().flat_map(|id| args![id.as_str()]).collect()).await?;
        Ok(TxOutcome::Commit(()))
    }
}

struct PutOff {
    ids: Vec<String>,
    error: String,
    until: UnixMs,
}

impl Write for PutOff {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let listed = |from| format!("id IN ({})", places(from, self.ids.len()));
        let ids = || self.ids.iter().flat_map(|id| args![id.as_str()]);
        let mut args = args![clip(&self.error, ERROR_TEXT_BYTES_MAX)];
        args.extend(ids());
        let set = ["attempts = attempts + 1", "last_error = $2"];
        engine::release(tx, &OUTBOX, &listed(3), Some(self.until), &set, args).await?;
        // Those behind them cannot go before them: claims need not look at them until then.
        let sql =
            format!("SELECT destination, subject FROM outbox WHERE subject IS NOT NULL AND {}", listed(1));
        for row in tx.rows_built(sql, ids().collect()).await? {
            let behind = "destination = $2 AND subject = $3 AND next_attempt_at < $1";
            let args = args![row.text("destination")?, row.text("subject")?];
            engine::release(tx, &OUTBOX, behind, Some(self.until), &[], args).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

impl Catalog {
    pub async fn claim_outbox(
        &self,
        destination: Destination,
        limit: usize,
        now: UnixMs,
        hidden_until: UnixMs,
    ) -> Result<Vec<OutboxLine>, CatalogError> {
        let queue = (&OUTBOX, destination.as_str(), now);
        let claim = ClaimLines { destination, limit, now, hidden_until };
        self.claim(queue, destination.is_fair(), claim).await
    }

    pub async fn outbox_delivered(&self, ids: Vec<String>) -> Result<(), CatalogError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.write(Arrived { ids }).await
    }

    pub async fn delay_outbox(
        &self,
        ids: Vec<String>,
        error: &str,
        until: UnixMs,
    ) -> Result<(), CatalogError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.write(PutOff { ids, error: error.to_owned(), until }).await
    }

    /// Nobody is there any more to tell.
    pub async fn purge_outbox(&self, destination: Destination) -> Result<(), CatalogError> {
        if self.outbox_depth(destination).await?.0 == 0 {
            return Ok(());
        }
        self.write(ForgetAll { destination }).await
    }

    /// When the next line for a destination is due; one that waits for an earlier one of its subject counts too.
    pub async fn next_outbox_at(&self, destination: Destination) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(
                "SELECT MIN(next_attempt_at) AS next FROM ( \
                 SELECT MIN(next_attempt_at) AS next_attempt_at FROM outbox WHERE destination = $1 AND rank IS NULL \
                 UNION ALL SELECT next_attempt_at FROM (SELECT next_attempt_at FROM outbox \
                 WHERE destination = $1 AND rank IS NOT NULL ORDER BY rank, id LIMIT $2) AS first_ones) AS next_ones",
                args![destination.as_str(), RANKED_LOOKED_AT as i64],
            )
            .await?;
        row.map_or(Ok(None), |row| row.maybe_int("next"))
    }

    /// How many lines wait for a destination, up to [`COUNTED_MAX`], and since when the oldest does.
    pub async fn outbox_depth(
        &self,
        destination: Destination,
    ) -> Result<(u64, Option<UnixMs>), CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(
                "SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM outbox WHERE destination = $1 LIMIT $2) AS counted) AS waiting, \
                 (SELECT MIN(created_at) FROM outbox WHERE destination = $1) AS oldest",
                args![destination.as_str(), COUNTED_MAX as i64],
            )
            .await?;
        row.map_or(Ok((0, None)), |row| Ok((row.bytes("waiting")?, row.maybe_int("oldest")?)))
    }
}
