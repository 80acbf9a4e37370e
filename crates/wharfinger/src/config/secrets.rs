//! The secrets of a server. Those that are not set are created in the data dir at the first start; only the user of the
//! program can read them.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use wharfinger_lifecycle::checksum::to_hex;

use super::{BadSetting, Settings};

pub struct Secrets {
    /// None: tokens are checked only with a JWKS.
    pub jwt_secret: Option<Vec<u8>>,
    /// None: the processes share a key in the catalog.
    pub url_signing_key: Option<Vec<u8>>,
    /// A secret was just created, so this is the first start.
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
    let mut secret_in = |name: &str| -> Result<Vec<u8>, BadSetting> {
        let (secret, is_new) = read_or_create(&folder.join(name)).map_err(unusable)?;
        first_start |= is_new;
        Ok(secret)
    };
    let jwt_secret = match &settings.jwt_secret {
        Some(secret) => Some(secret.clone().into_bytes()),
        // With an issuer and no own secret, only tokens of the issuer are accepted.
        None if settings.jwks_file.is_some() || settings.jwks_url.is_some() => None,
        None if settings.is_embedded() => Some(secret_in("jwt.key")?),
        None => {
            return Err(BadSetting::new(
                "WHARFINGER_JWT_SECRET",
                "must be set with PostgreSQL, to the same value in all processes. Create one with `openssl rand -hex \
                 32`. WHARFINGER_JWKS_FILE or WHARFINGER_JWKS_URL can replace it",
            ));
        }
    };
    // Derived from the shared secret if one is set, because there may be several processes.
    let url_signing_key = match &settings.jwt_secret {
        Some(secret) => Some(derived(secret.as_bytes(), b"wharfinger local store urls")),
        None if settings.is_embedded() => Some(secret_in("url-signing.key")?),
        None => None,
    };
    Ok(Secrets { jwt_secret, url_signing_key, first_start })
}

/// Other users of the machine should not be able to enter the data dir.
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

/// The secret in this file, and true if it was just created.
fn read_or_create(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    match fs::read(path) {
        Ok(secret) if secret.len() >= SECRET_BYTES => return Ok((secret, false)),
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is too short for a secret. Delete it to create a new one", path.display()),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let secret: [u8; SECRET_BYTES] = rand::random();
    let text = to_hex(&secret);
    // Written under a temporary name first: a crash leaves no partial secret, and a second process that starts at the
    // same time uses this one.
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
