//! `manifest.json`: the bucket, the time of the inventory, and its data files.

use serde::Deserialize;

use super::super::SourceError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub source_bucket: String,
    /// When the inventory was created, in milliseconds since 1970.
    pub created_at: Option<i64>,
    pub format: FileFormat,
    pub files: Vec<DataFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// The positions of the columns that are read.
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
struct ManifestJson {
    source_bucket: String,
    creation_timestamp: Option<String>,
    file_format: String,
    file_schema: String,
    files: Vec<DataFile>,
}

impl Manifest {
    pub fn parse(text: &[u8]) -> Result<Manifest, SourceError> {
        let json: ManifestJson = serde_json::from_slice(text).map_err(|error| {
            SourceError::Invalid(format!("this is not a manifest of an S3 inventory: {error}"))
        })?;
        let format = match json.file_format.to_ascii_uppercase().as_str() {
            "CSV" => FileFormat::Csv(Columns::of(&json.file_schema)?),
            "PARQUET" => FileFormat::Parquet,
            other => {
                return Err(SourceError::Invalid(format!(
                    "the inventory has the format {other}: configure it to use CSV or Parquet"
                )));
            }
        };
        Ok(Manifest {
            source_bucket: json.source_bucket,
            created_at: json.creation_timestamp.and_then(|at| at.parse().ok()),
            format,
            files: json.files,
        })
    }
}

impl Columns {
    fn of(schema: &str) -> Result<Columns, SourceError> {
        let titles: Vec<&str> = schema.split(',').map(str::trim).collect();
        let place = |name: &str| titles.iter().position(|title| title.eq_ignore_ascii_case(name));
        let key = place("Key").ok_or_else(|| {
            SourceError::Invalid(format!("the inventory has no column Key; its columns are {schema}"))
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
    fn a_documented_manifest_is_parsed() {
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
    fn an_unsupported_manifest_is_refused() {
        let error = |text: &str| Manifest::parse(text.as_bytes()).expect_err("refused").to_string();
        assert!(error(&CSV.replace("CSV", "ORC")).contains("ORC"));
        assert!(error(&CSV.replace("Key,", "Name,")).contains("no column Key"));
        assert!(error("{}").contains("not a manifest"));
    }
}
