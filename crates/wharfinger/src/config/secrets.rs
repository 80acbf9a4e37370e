//! Secrets that the program makes for itself on first start, readable by nobody else.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use wharfinger_lifecycle::checksum::to_hex;

use super::{BadSetting, Settings};

pub struct Secrets {
    /// None: tokens are checked by a JWKS alone.
    pub jwt_secret: Option<Vec<u8>>,
    /// None: nothing that all processes share was given; the catalog keeps one for them.
    pub url_signing_key: Option<Vec<u8>>,
    /// The data dir was new: somebody is here for the first time.
    pub first_start: bool,
}

const SECRET_BYTES: usize = 32;

pub fn prepare(settings: &Settings) -> Result<Secrets, BadSetting> {
    let folder = settings.data_dir.join("secrets");
    let unusable = |error: io::Error| {
        BadSetting::new("WHARFINGER_DATA_DIR", format!("{} cannot be used: {error}", folder.display()))
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unusable)?;
    warn_if_open(&settings.data_dir);
    let mut first_start = false;
    let mut make = |name: &str| -> Result<Vec<u8>, BadSetting> {
        let (secret, made) = read_or_make(&folder.join(name)).map_err(unusable)?;
        first_start |= made;
        Ok(secret)
    };
    let jwt_secret = match &settings.jwt_secret {
        Some(secret) => Some(secret.clone().into_bytes()),
        // With an issuer configured, tokens signed by another key would be a surprise.
        None if settings.jwks_file.is_some() || settings.jwks_url.is_some() => None,
        None if settings.is_embedded() => Some(make("jwt.key")?),
        None => {
            return Err(BadSetting::new(
                "WHARFINGER_JWT_SECRET",
                "must be set (or WHARFINGER_JWKS_FILE or WHARFINGER_JWKS_URL): a secret made here would not be \
                 known to the other processes on this database",
            ));
        }
    };
    // Of what all processes know, where there may be more than one; of a file of its own otherwise.
    let url_signing_key = match &settings.jwt_secret {
        Some(secret) => Some(derived(secret.as_bytes(), b"wharfinger local store urls")),
        None if settings.is_embedded() => Some(make("url-signing.key")?),
        None => None,
    };
    Ok(Secrets { jwt_secret, url_signing_key, first_start })
}

/// What others may enter, they may read as far as the files in it allow.
fn warn_if_open(data_dir: &Path) {
    if let Ok(metadata) = fs::metadata(data_dir)
        && metadata.permissions().mode() & 0o077 != 0
    {
        let mode = format!("{:o}", metadata.permissions().mode() & 0o777);
        tracing::warn!(folder = %data_dir.display(), mode,
            "other users can enter the data dir (WHARFINGER_DATA_DIR), run chmod 700 on it");
    }
}

fn derived(secret: &[u8], purpose: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(purpose);
    mac.finalize().into_bytes().to_vec()
}

/// The secret in this file; true if it was made just now.
fn read_or_make(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    match fs::read(path) {
        Ok(secret) if secret.len() >= SECRET_BYTES => return Ok((secret, false)),
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is too short to be a secret; remove it to make a new one", path.display()),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let secret: [u8; SECRET_BYTES] = rand::random();
    let text = to_hex(&secret);
    // Written whole under another name first: a crash leaves no half secret, and a second process that starts
    // at the same moment takes ours.
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => Ok((text.into_bytes(), true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((fs::read(path)?, false)),
        Err(error) => Err(error),
    }
}
