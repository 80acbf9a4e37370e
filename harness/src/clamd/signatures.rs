//! The signatures of the tests. They replace the usual databases, which are a download of hundreds of megabytes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Error;
use crate::packages::at;

/// clamd's name for the EICAR test file. It appends `.UNOFFICIAL` to names from unsigned databases.
pub const EICAR_SIGNATURE: &str = "Eicar-Test-Signature.UNOFFICIAL";

/// clamd reports these bytes at any position of a file.
pub const PATTERN: &[u8] = b"-- wharfinger test pattern: harmless, and found all the same --";
pub const PATTERN_SIGNATURE: &str = "Wharfinger.Test.Pattern.UNOFFICIAL";

/// clamd reports a file with exactly these bytes, by their hash.
pub const KNOWN_FILE: &[u8] = b"a file that is known by its hash\n";
pub const KNOWN_FILE_SIGNATURE: &str = "Wharfinger.Test.Hash.UNOFFICIAL";
/// Of [`KNOWN_FILE`].
pub const KNOWN_FILE_SHA256: &str = "6c70a961c0a19dbd26272ef9b415fab38023a0cdc804d85d4b2068a6840bb90a";

/// The EICAR test file. It is written backwards here, so that no scanner reports our sources or binaries.
pub fn eicar() -> Vec<u8> {
    let backwards = "*H+H$!ELIF-TSET-SURIVITNA-DRADNATS-RACIE$}7)CC7)^P(45XZP\\4[PA@%P!O5X";
    backwards.bytes().rev().collect()
}

/// Writes the databases: patterns as `name:type:offset:bytes` and hashes as `hash:size:name`.
pub(crate) fn write(folder: &Path) -> Result<(), Error> {
    let name = |signature: &'static str| signature.trim_end_matches(".UNOFFICIAL");
    let patterns = format!(
        "{}:0:0:{}\n{}:0:*:{}\n",
        name(EICAR_SIGNATURE),
        hex(&eicar()),
        name(PATTERN_SIGNATURE),
        hex(PATTERN)
    );
    let hashes = format!("{KNOWN_FILE_SHA256}:{}:{}\n", KNOWN_FILE.len(), name(KNOWN_FILE_SIGNATURE));
    for (file, text) in [("wharfinger.ndb", patterns), ("wharfinger.hsb", hashes)] {
        let path = folder.join(file);
        fs::write(&path, text).map_err(at("writing", &path))?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}
