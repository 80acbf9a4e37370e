//! Facts about the whole catalog: its id, its store, its keys.

use crate::Catalog;
use crate::database::sql::{Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

struct GetOrSetFact {
    name: String,
    value: String,
}

impl Write for GetOrSetFact {
    type Answer = String;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<String>, CatalogError> {
        tx.run(
            "INSERT INTO catalog_facts (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            args![self.name.as_str(), self.value.as_str()],
        )
        .await?;
        let row =
            tx.row("SELECT value FROM catalog_facts WHERE name = $1", args![self.name.as_str()]).await?;
        let row =
            row.ok_or_else(|| CatalogError::Corrupt("a fact is missing after it was written".into()))?;
        Ok(TxOutcome::Commit(row.text("value")?))
    }
}

struct SetFact {
    name: String,
    value: String,
}

impl Write for SetFact {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run(
            "INSERT INTO catalog_facts (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            args![self.name.as_str(), self.value.as_str()],
        )
        .await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Adds one to a counter, which starts at 0.
struct IncrementFact {
    name: String,
}

impl Write for IncrementFact {
    type Answer = i64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<i64>, CatalogError> {
        let row = tx
            .row(
                "INSERT INTO catalog_facts (name, value) VALUES ($1, '1') ON CONFLICT (name) DO UPDATE \
                 SET value = CAST(CAST(catalog_facts.value AS BIGINT) + 1 AS TEXT) \
                 RETURNING CAST(value AS BIGINT) AS raised",
                args![self.name.as_str()],
            )
            .await?;
        let row = row.ok_or_else(|| {
            CatalogError::Corrupt(format!("catalog_facts has no row {} after it was raised", self.name))
        })?;
        Ok(TxOutcome::Commit(row.int("raised")?))
    }
}

impl Catalog {
    /// A fact about this catalog as a whole, such as its id.
    pub async fn fact(&self, name: &str) -> Result<Option<String>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row("SELECT value FROM catalog_facts WHERE name = $1", args![name])
            .await?;
        row.map(|row| row.text("value")).transpose()
    }

    /// Stores a fact unless it has a value; returns the stored value.
    pub async fn get_or_set_fact(&self, name: &str, value: &str) -> Result<String, CatalogError> {
        self.write(GetOrSetFact { name: name.to_owned(), value: value.to_owned() }).await
    }

    pub async fn set_fact(&self, name: &str, value: &str) -> Result<(), CatalogError> {
        self.write(SetFact { name: name.to_owned(), value: value.to_owned() }).await
    }

    /// Adds one to a counter; returns the new value.
    pub async fn increment_fact(&self, name: &str) -> Result<i64, CatalogError> {
        self.write(IncrementFact { name: name.to_owned() }).await
    }
}
