//! `manifest.json`: which bucket was looked at and when, and the files that hold what was there.

use serde::Deserialize;

use super::super::SourceError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub source_bucket: String,
    /// When the bucket was looked at, in milliseconds since 1970.
    pub created_at: Option<i64>,
    pub format: FileFormat,
    pub files: Vec<DataFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Where what is read stands in a row.
    Csv(Columns),
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub key: usize,
    pub size: Option<usize>,
    pub modified_at: Option<usize>,
    pub is_latest: Option<usize>,
    pub is_delete_marker: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DataFile {
    pub key: String,
    pub size: Option<u64>,
    #[serde(rename = "MD5checksum")]
    pub md5: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    source_bucket: String,
    creation_timestamp: Option<String>,
    file_format: String,
    file_schema: String,
    files: Vec<DataFile>,
}

impl Manifest {
    pub fn parse(text: &[u8]) -> Result<Manifest, SourceError> {
        let wire: Wire = serde_json::from_slice(text).map_err(|error| {
            SourceError::Wrong(format!("this is no manifest of an S3 inventory: {error}"))
        })?;
        let format = match wire.file_format.to_ascii_uppercase().as_str() {
            "CSV" => FileFormat::Csv(Columns::of(&wire.file_schema)?),
            "PARQUET" => FileFormat::Parquet,
            other => {
                return Err(SourceError::Wrong(format!(
                    "the inventory is {other}: only CSV and Parquet are read, have it made as one of them"
                )));
            }
        };
        Ok(Manifest {
            source_bucket: wire.source_bucket,
            created_at: wire.creation_timestamp.and_then(|at| at.parse().ok()),
            format,
            files: wire.files,
        })
    }
}

impl Columns {
    fn of(schema: &str) -> Result<Columns, SourceError> {
        let titles: Vec<&str> = schema.split(',').map(str::trim).collect();
        let place = |name: &str| titles.iter().position(|title| title.eq_ignore_ascii_case(name));
        let key = place("Key").ok_or_else(|| {
            SourceError::Wrong(format!("the inventory's files have no column Key, but {schema}"))
        })?;
        Ok(Columns {
            key,
            size: place("Size"),
            modified_at: place("LastModifiedDate"),
            is_latest: place("IsLatest"),
            is_delete_marker: place("IsDeleteMarker"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = r#"{"sourceBucket": "source", "destinationBucket": "arn:aws:s3:::destination",
        "version": "2016-11-30", "creationTimestamp": "1514944800000", "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag",
        "files": [{"key": "inventory/source/data/939c6d46.csv.gz", "size": 2147483647,
        "MD5checksum": "f11166069f1990abeb9c97ace9cdfabc"}]}"#;

    #[test]
    fn a_manifest_is_read_as_it_is_documented() {
        let manifest = Manifest::parse(CSV.as_bytes()).expect("a manifest");
        assert_eq!(
            (manifest.source_bucket.as_str(), manifest.created_at),
            ("source", Some(1_514_944_800_000))
        );
        let columns = Columns {
            key: 1,
            size: Some(5),
            modified_at: Some(6),
            is_latest: Some(3),
            is_delete_marker: Some(4),
        };
        assert_eq!(manifest.format, FileFormat::Csv(columns));
        assert_eq!(manifest.files[0].md5.as_deref(), Some("f11166069f1990abeb9c97ace9cdfabc"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let said = |text: &str| Manifest::parse(text.as_bytes()).expect_err("no manifest").to_string();
        assert!(said(&CSV.replace("CSV", "ORC")).contains("ORC"));
        assert!(said(&CSV.replace("Key,", "Name,")).contains("no column Key"));
        assert!(said("{}").contains("no manifest"));
    }
}
