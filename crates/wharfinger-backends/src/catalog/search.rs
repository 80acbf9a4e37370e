//! The vectors of a scope's ready files, page by page: whoever searches compares them all.

use wharfinger_lifecycle::id::FileId;

use super::chunks::from_bytes;
use super::error::CatalogError;
use super::sql::{Arg, args};
use super::{Catalog, Scope};

#[derive(Clone, Debug, PartialEq)]
pub struct StoredVector {
    pub file: FileId,
    pub ordinal: u64,
    pub vector: Vec<f32>,
}

impl Catalog {
    /// In the order of files and their chunks, after a place in it. Only what is ready is found.
    pub async fn vectors(
        &self,
        scope: &Scope,
        after: Option<(FileId, u64)>,
        limit: usize,
    ) -> Result<Vec<StoredVector>, CatalogError> {
        let (id, ordinal) = after.map_or((String::new(), -1), |(id, ordinal)| {
            (id.to_string(), i64::try_from(ordinal).unwrap_or(i64::MAX))
        });
        let mut args: Vec<Arg> = args![id, ordinal, limit as i64];
        let owned = match scope {
            Scope::All => "",
            Scope::Tenant(tenant) => {
                args.extend(args![tenant.as_str()]);
                "AND files.tenant_id = $4"
            }
            Scope::User(tenant, user) => {
                args.extend(args![tenant.as_str(), user.as_str()]);
                "AND files.tenant_id = $4 AND files.user_id = $5"
            }
        };
        let sql = format!(
            "SELECT chunks.file_id, chunks.ordinal, chunks.vector FROM files JOIN chunks ON chunks.file_id = files.id \
             WHERE files.pipeline_status = 'ready' AND files.pipeline_status <> 'deleted' AND chunks.vector IS NOT NULL \
             AND files.id >= $1 AND (files.id > $1 OR chunks.ordinal > $2) {owned} \
             ORDER BY files.id, chunks.ordinal LIMIT $3"
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        rows.iter()
            .map(|row| {
                Ok(StoredVector {
                    file: row.parsed("file_id")?,
                    ordinal: row.bytes("ordinal")?,
                    vector: from_bytes(&row.blob("vector")?),
                })
            })
            .collect()
    }
}
