//! The outbox: messages to other systems, written in the transaction that causes them and deleted when delivered. Lines are
//! claimed row by row, not by a cursor, because commit order is not id order. A line may be delivered twice.

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

    /// Whether lines are claimed in a fair order between tenants.
    fn is_fair(self) -> bool {
        self == Destination::Webhook
    }

    /// Whether a line waits until all earlier ones of its subject have left the outbox.
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
    /// A refund for Redis, which ignores it if it was loaded under a later epoch.
    Refund { bytes: u64, epoch: i64 },
    /// A delayed check that the broker delivers when it is due.
    Check { job: JobId, due_at: UnixMs },
    /// A notification for the webhook. `place` is its order among the messages of its subject, a file or batch.
    Notification { notification: Uuid, subject: String, place: i64 },
    /// An alert for operators.
    Alert { message: String },
    /// An event for the archive: one JSON object.
    Event { body: String },
}

impl OutboxPayload {
    fn destination(&self) -> Destination {
        match self {
            OutboxPayload::Refund { .. } => Destination::Quota,
            OutboxPayload::Check { .. } => Destination::Broker,
            OutboxPayload::Notification { .. } => Destination::Webhook,
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

/// Keeps a statement far below the maximum number of values of both databases.
const LINES_PER_STATEMENT: usize = 500;

pub(crate) async fn insert(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    payload: &OutboxPayload,
    now: UnixMs,
) -> Result<(), CatalogError> {
    insert_all(tx, &[NewLine { tenant, payload, at: now }]).await
}

/// The tenant of alerts, which belong to no tenant.
const ALL_TENANTS: &str = "-";

/// Writes an alert for operators.
pub(crate) async fn alert(tx: &mut Tx<'_>, message: String, now: UnixMs) -> Result<(), CatalogError> {
    let tenant = TenantId::new(ALL_TENANTS)
        .map_err(|_| CatalogError::Corrupt("a constant tenant name is invalid".into()))?;
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
            OutboxPayload::Notification { notification, subject, place } => {
                notice = Some(notification.to_string());
                of_subject = Some(subject.clone());
                at_place = Some(*place);
            }
            OutboxPayload::Alert { message } | OutboxPayload::Event { body: message } => {
                text = Some(message.clone())
            }
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

/// Writes the delayed checks of these jobs for the broker.
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

/// Deletes refunds that are older than `epoch`: a load under that epoch contains them.
pub(crate) async fn delete_refunds_before(
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

struct PurgeDestination {
    destination: Destination,
}

impl Write for PurgeDestination {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run("DELETE FROM outbox WHERE destination = $1", args![self.destination.as_str()]).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// A transaction that sees a line also sees all undelivered earlier lines of its subject: changes of one subject commit in
/// their order.
const FIRST_OF_ITS_SUBJECT: &str = " AND NOT EXISTS (SELECT 1 FROM outbox AS earlier \
     WHERE earlier.destination = outbox.destination AND earlier.subject = outbox.subject \
     AND (earlier.place < outbox.place OR (earlier.place = outbox.place AND earlier.id < outbox.id)))";

/// How many ranked lines are read to find the next due time. Claimed ones come first, and these are not due.
const RANKED_READ: usize = 1_000;

/// Claims due lines by hiding them for a while. If the process dies, they are due again after that.
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
        Destination::Broker => {
            OutboxPayload::Check { job: row.parsed("job_id")?, due_at: row.int("due_at")? }
        }
        Destination::Webhook => OutboxPayload::Notification {
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

/// A line of the destination that its row names.
pub(crate) fn decode_any(row: &Row) -> Result<OutboxLine, CatalogError> {
    let named = row.text("destination")?;
    let known = Destination::ALL.into_iter().find(|destination| destination.as_str() == named);
    let unknown = || CatalogError::Corrupt(format!("outbox names the destination {named:?}"));
    decode(row, known.ok_or_else(unknown)?)
}

struct DeleteDelivered {
    ids: Vec<String>,
}

impl Write for DeleteDelivered {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let sql = format!("DELETE FROM outbox WHERE id IN ({})", places(1, self.ids.len()));
        tx.run_built(sql, self.ids.iter().flat_map(|id| args![id.as_str()]).collect()).await?;
        Ok(TxOutcome::Commit(()))
    }
}

struct DelayLines {
    ids: Vec<String>,
    error: String,
    until: UnixMs,
}

impl Write for DelayLines {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let listed = |from| format!("id IN ({})", places(from, self.ids.len()));
        let ids = || self.ids.iter().flat_map(|id| args![id.as_str()]);
        let mut args = args![clip(&self.error, ERROR_TEXT_BYTES_MAX)];
        args.extend(ids());
        let set = ["attempts = attempts + 1", "last_error = $2"];
        engine::release(tx, &OUTBOX, &listed(3), Some(self.until), &set, args).await?;
        // Later lines of the same subject have to wait for these: they become due with them.
        let sql =
            format!("SELECT destination, subject FROM outbox WHERE subject IS NOT NULL AND {}", listed(1));
        for row in tx.rows_built(sql, ids().collect()).await? {
            let later = "destination = $2 AND subject = $3 AND next_attempt_at < $1";
            let args = args![row.text("destination")?, row.text("subject")?];
            engine::release(tx, &OUTBOX, later, Some(self.until), &[], args).await?;
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
        self.write(DeleteDelivered { ids }).await
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
        self.write(DelayLines { ids, error: error.to_owned(), until }).await
    }

    /// Deletes all lines for a destination that is switched off.
    pub async fn purge_outbox(&self, destination: Destination) -> Result<(), CatalogError> {
        if self.outbox_depth(destination).await?.0 == 0 {
            return Ok(());
        }
        self.write(PurgeDestination { destination }).await
    }

    /// When the next line for a destination is due. Lines that wait for an earlier one of their subject count, too.
    pub async fn next_outbox_at(&self, destination: Destination) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(
                "SELECT MIN(next_attempt_at) AS next FROM ( \
                 SELECT MIN(next_attempt_at) AS next_attempt_at FROM outbox WHERE destination = $1 AND rank IS NULL \
                 UNION ALL SELECT next_attempt_at FROM (SELECT next_attempt_at FROM outbox \
                 WHERE destination = $1 AND rank IS NOT NULL ORDER BY rank, id LIMIT $2) AS first_ones) AS next_ones",
                args![destination.as_str(), RANKED_READ as i64],
            )
            .await?;
        row.map_or(Ok(None), |row| row.maybe_int("next"))
    }

    /// How many lines wait for a destination, at most [`COUNTED_MAX`], and the creation time of the oldest.
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
