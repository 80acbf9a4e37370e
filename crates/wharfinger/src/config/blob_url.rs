//! `WHARFINGER_BLOB_URL`, and the usual variables of each store.

use std::path::{Path, PathBuf};

use wharfinger_stores::StoreConfig;
use wharfinger_stores::azure::AzureOptions;
use wharfinger_stores::gcs::GcsOptions;
use wharfinger_stores::s3::{S3Credentials, S3Options};

use super::{BadSetting, Flags, Values};

const NAME: &str = "WHARFINGER_BLOB_URL";
const EVENTS: &str = "INGEST_BLOB_URL";
const PUBLIC: &str = "WHARFINGER_BLOB_PUBLIC_ENDPOINT";

pub(super) fn blob_place(values: &Values, data_dir: &Path) -> Result<StoreConfig, BadSetting> {
    let url = values.text(NAME)?;
    let public_endpoint = values.get(PUBLIC).map(public_endpoint).transpose()?;
    if url.starts_with("file:") && public_endpoint.is_some() {
        return Err(BadSetting::new(
            PUBLIC,
            "is for remote stores. For local disk, set WHARFINGER_PUBLIC_URL",
        ));
    }
    place_at(NAME, &url, public_endpoint, values, data_dir)
}

/// `INGEST_BLOB_URL`: the store of events. No client gets signed URLs of it.
pub(super) fn events_place(values: &Values, data_dir: &Path) -> Result<Option<StoreConfig>, BadSetting> {
    let url = values.get(EVENTS);
    url.map(|url| place_at(EVENTS, &url, None, values, data_dir)).transpose()
}

/// A bucket of another application, from the command line.
#[derive(Clone, Debug)]
pub struct ForeignBucket {
    /// The whole bucket.
    pub place: StoreConfig,
    /// Only keys below it are read. Empty, or ends in a slash. Any characters are allowed.
    pub prefix: String,
}

/// Reads the URL of a bucket. Credentials and endpoint come from the usual variables of its store.
pub fn foreign_bucket(flags: &Flags, name: &'static str, url: &str) -> Result<ForeignBucket, BadSetting> {
    let values = Values::read(flags)?;
    if url.strip_prefix("file:").is_some_and(|path| path.trim_matches('/').is_empty()) {
        return Err(BadSetting::new(name, "has no folder, use one like file:/srv/files"));
    }
    let (bucket, prefix) = match url.split_once("://") {
        Some((scheme, rest)) if scheme != "file" => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            (format!("{scheme}://{bucket}"), prefix)
        }
        _ => (url.to_owned(), ""),
    };
    let place = place_at(name, &bucket, None, &values, Path::new(""))?;
    let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
    Ok(ForeignBucket { place, prefix: format!("{prefix}{slash}") })
}

fn place_at(
    name: &'static str,
    url: &str,
    public_endpoint: Option<String>,
    values: &Values,
    data_dir: &Path,
) -> Result<StoreConfig, BadSetting> {
    if let Some(path) = url.strip_prefix("file:") {
        return Ok(StoreConfig::Disk(match path {
            "" => data_dir.join("blobs"),
            path => PathBuf::from(path.strip_prefix("//").unwrap_or(path)),
        }));
    }
    match url.split_once("://") {
        Some(("s3", rest)) => s3(name, rest, public_endpoint, values).map(StoreConfig::S3),
        Some(("az", rest)) => {
            let (container, prefix) = bucket_and_prefix(name, rest)?;
            let options = AzureOptions { container, prefix, public_endpoint, ..AzureOptions::default() };
            Ok(StoreConfig::Azure(options.filled(&|name| values.of_store(name))))
        }
        Some(("gs", rest)) => {
            let (bucket, prefix) = bucket_and_prefix(name, rest)?;
            let options = GcsOptions { bucket, prefix, public_endpoint, ..GcsOptions::default() };
            Ok(StoreConfig::Gcs(options.filled(&|name| values.of_store(name))))
        }
        _ => Err(BadSetting::new(
            name,
            "must be `file:`, `file:/path`, `s3://bucket/prefix`, `az://container/prefix` or `gs://bucket/prefix`",
        )),
    }
}

/// A bucket and a prefix. The prefix ends with a slash or is empty.
fn bucket_and_prefix(name: &'static str, rest: &str) -> Result<(String, String), BadSetting> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if bucket.is_empty() || !bucket.bytes().all(is_name) {
        // A user may have written a secret before the name.
        let shown = bucket.rsplit('@').next().unwrap_or_default();
        return Err(BadSetting::new(
            name,
            format!("`{shown}` is not a bucket name, use a URL like s3://my-bucket/prefix"),
        ));
    }
    let prefix = prefix.trim_matches('/');
    let is_valid = prefix.split('/').all(|part| !matches!(part, "." | ".."))
        && prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\\%".contains(&byte))
        && !prefix.contains("//");
    if !is_valid {
        return Err(BadSetting::new(
            name,
            format!("the prefix `{prefix}` does not work in every store, use one like team/files"),
        ));
    }
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok((bucket.to_owned(), prefix))
}

fn public_endpoint(url: String) -> Result<String, BadSetting> {
    if url.starts_with("http://") || url.starts_with("https://") {
        Ok(url.trim_end_matches('/').to_owned())
    } else {
        Err(BadSetting::new(PUBLIC, "must begin with http:// or https://"))
    }
}

fn s3(
    name: &'static str,
    rest: &str,
    public_endpoint: Option<String>,
    values: &Values,
) -> Result<S3Options, BadSetting> {
    let (bucket, prefix) = bucket_and_prefix(name, rest)?;
    let virtual_host = match values.of_store("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").as_deref() {
        None => None,
        Some("true" | "1") => Some(true),
        Some("false" | "0") => Some(false),
        Some(other) => {
            return Err(BadSetting::new(
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
                format!("must be `true` or `false`, not `{other}`"),
            ));
        }
    };
    let credentials = match (values.of_store("AWS_ACCESS_KEY_ID"), values.of_store("AWS_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret_key)) => Some(S3Credentials {
            access_key,
            secret_key,
            session_token: values.of_store("AWS_SESSION_TOKEN"),
        }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(BadSetting::new("AWS_SECRET_ACCESS_KEY", "is missing, but AWS_ACCESS_KEY_ID is set"));
        }
        (None, Some(_)) => {
            return Err(BadSetting::new("AWS_ACCESS_KEY_ID", "is missing, but AWS_SECRET_ACCESS_KEY is set"));
        }
    };
    Ok(S3Options {
        bucket,
        prefix,
        region: values.of_store("AWS_REGION").or_else(|| values.of_store("AWS_DEFAULT_REGION")),
        endpoint: values.of_store("AWS_ENDPOINT_URL_S3").or_else(|| values.of_store("AWS_ENDPOINT_URL")),
        public_endpoint,
        virtual_host,
        credentials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(pairs: &[(&str, &str)]) -> Result<StoreConfig, BadSetting> {
        blob_place(&Values::for_tests(pairs), Path::new("data"))
    }

    #[test]
    fn bucket_urls_are_split_into_bucket_and_prefix() {
        for (url, bucket, prefix) in [
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("s3://b/a", "b", "a/"),
            ("s3://b/a/b/", "b", "a/b/"),
            ("s3://my.bucket-1/x", "my.bucket-1", "x/"),
        ] {
            let Ok(StoreConfig::S3(options)) = place(&[(NAME, url)]) else { panic!("{url}") };
            assert_eq!((options.bucket.as_str(), options.prefix.as_str()), (bucket, prefix), "{url}");
        }
        let problem = place(&[(NAME, "s3://key:secret@b b/")])
            .map_err(|error| error.problem)
            .expect_err("not a bucket name");
        assert!(!problem.contains("secret"), "{problem}");
        for url in
            ["s3://", "s3:///x", "s3://b/../c", "s3://b/a//b", "s3://user:pass@b/", "s3://b/a?x=y", "b"]
        {
            assert_eq!(
                place(&[(NAME, url)]).map_err(|error| error.name).err().as_deref(),
                Some(NAME),
                "{url}"
            );
        }
    }

    #[test]
    fn foreign_buckets_may_have_any_prefix() {
        let bucket = |url| foreign_bucket(&Flags::default(), "--bucket", url);
        for (url, shown, prefix) in [
            ("s3://b", "s3://b/", ""),
            ("s3://b/images", "s3://b/", "images/"),
            ("s3://b/a b/ü/", "s3://b/", "a b/ü/"),
            ("s3://b//a", "s3://b/", "/a/"),
            ("file:/srv/files", "/srv/files", ""),
            ("gs://b/100%", "gs://b/", "100%/"),
        ] {
            let bucket = bucket(url).expect("a bucket");
            assert_eq!((bucket.place.to_string().as_str(), bucket.prefix.as_str()), (shown, prefix), "{url}");
        }
        for url in ["", "b", "file:", "file:///", "s3://", "s3:///x", "http://b/x"] {
            assert_eq!(bucket(url).map_err(|error| error.name).err().as_deref(), Some("--bucket"), "{url}");
        }
    }

    #[test]
    fn azure_and_google_variables_are_read() {
        let set = [
            (NAME, "az://c/p"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "acme"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0"),
            ("AZURE_STORAGE_ENDPOINT", "http://localhost:10000/acme"),
        ];
        let Ok(StoreConfig::Azure(options)) = place(&set) else { panic!("valid settings") };
        assert_eq!(
            (options.account.as_str(), options.container.as_str(), options.prefix.as_str()),
            ("acme", "c", "p/")
        );
        assert!(!format!("{options:?}").contains("c2VjcmV0"));
        let set = [(NAME, "gs://b"), ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json")];
        let Ok(StoreConfig::Gcs(options)) = place(&set) else { panic!("valid settings") };
        assert_eq!((options.bucket.as_str(), options.prefix.as_str()), ("b", ""));
        assert!(options.credentials.is_some());
    }

    #[test]
    fn s3_variables_are_read() {
        let set = [
            (NAME, "s3://b"),
            ("AWS_ENDPOINT_URL", "http://localhost:9000"),
            ("AWS_REGION", "eu-north-1"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_SESSION_TOKEN", "token"),
            (PUBLIC, "https://files.example/"),
        ];
        let Ok(StoreConfig::S3(options)) = place(&set) else { panic!("valid settings") };
        assert_eq!(options.endpoint.as_deref(), Some("http://localhost:9000"));
        assert_eq!(options.region.as_deref(), Some("eu-north-1"));
        assert_eq!(options.public_endpoint.as_deref(), Some("https://files.example"));
        assert_eq!(options.credentials.as_ref().and_then(|c| c.session_token.as_deref()), Some("token"));
        assert!(!format!("{options:?}").contains("secret"));
        let half = place(&[(NAME, "s3://b"), ("AWS_ACCESS_KEY_ID", "id")]);
        assert_eq!(half.map_err(|error| error.name), Err("AWS_SECRET_ACCESS_KEY".into()));
    }
}
