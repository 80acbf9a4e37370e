//! How uploads in parts are told apart. Azure knows no uploads, only the blocks of a blob that are not committed
//! yet: so each block's id names its upload, and an upload's first and last words are blocks too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use super::super::Part;

/// Says that an upload was begun, for one without parts leaves no other trace.
const BEGUN: u32 = 0;
/// Says that an upload was abandoned while another of the same blob was not: blocks cannot be deleted one by one.
const ABANDONED: u32 = 99_999_999;
/// The upload of blocks that are of none of ours, as of a part that came after its upload had ended.
pub(super) const STRAY: &str = "stray";
const ID_LENGTH: usize = 20;

/// The id of a new upload, with the time by the store's clock in it.
pub(super) fn new_upload(at: UnixMs) -> String {
    let random = uuid::Uuid::new_v4().as_u128() as u32;
    format!("{:012x}{random:08x}", at.max(0))
}

pub(super) fn begun_at(upload_id: &str) -> Option<UnixMs> {
    i64::from_str_radix(upload_id.get(..12)?, 16).ok()
}

/// All ids of a blob's blocks must be of one length.
pub(super) fn block_id(upload_id: &str, number: u32) -> String {
    STANDARD.encode(format!("{upload_id}-{number:08}"))
}

pub(super) fn begun(upload_id: &str) -> String {
    block_id(upload_id, BEGUN)
}

pub(super) fn abandoned(upload_id: &str) -> String {
    block_id(upload_id, ABANDONED)
}

fn parse(block_id: &str) -> Option<(String, u32)> {
    let text = String::from_utf8(STANDARD.decode(block_id).ok()?).ok()?;
    let (upload_id, number) = text.split_once('-')?;
    let ours = upload_id.len() == ID_LENGTH && number.len() == 8;
    Some((upload_id.to_owned(), number.parse().ok()?)).filter(|_| ours)
}

/// The blocks of a blob that are not committed.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BlockList {
    #[serde(default)]
    uncommitted_blocks: Blocks,
}

#[derive(Debug, Default, Deserialize)]
struct Blocks {
    #[serde(default, rename = "Block")]
    block: Vec<Block>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Block {
    name: String,
    size: u64,
}

impl BlockList {
    fn known(&self) -> impl Iterator<Item = (String, u32, &Block)> {
        let blocks = self.uncommitted_blocks.block.iter();
        blocks.filter_map(|block| parse(&block.name).map(|(upload_id, number)| (upload_id, number, block)))
    }

    /// The uploads that go on, oldest first. Blocks of none are an upload too, so that someone ends it.
    pub(super) fn uploads(&self) -> Vec<String> {
        let of = |wanted: u32| {
            self.known().filter(move |(_, number, _)| *number == wanted).map(|(upload_id, ..)| upload_id)
        };
        let ended: Vec<String> = of(ABANDONED).collect();
        let mut going_on: Vec<String> = of(BEGUN).filter(|upload_id| !ended.contains(upload_id)).collect();
        going_on.sort();
        let mut blocks = self.uncommitted_blocks.block.iter().map(|block| parse(&block.name));
        let stray = |of: Option<(String, u32)>| of.is_none_or(|(upload_id, _)| !ended.contains(&upload_id));
        if going_on.is_empty() && blocks.any(stray) {
            going_on.push(STRAY.to_owned());
        }
        going_on
    }

    /// The parts of an upload in order, or none if it does not go on.
    pub(super) fn parts(&self, upload_id: &str) -> Option<Vec<Part>> {
        if upload_id == STRAY || !self.uploads().iter().any(|known| known == upload_id) {
            return None;
        }
        let mut parts: Vec<Part> = self
            .known()
            .filter(|(of, number, _)| of == upload_id && !matches!(*number, BEGUN | ABANDONED))
            .map(|(_, number, block)| Part { number, size: block.size, etag: block.name.clone() })
            .collect();
        parts.sort_by_key(|part| part.number);
        Some(parts)
    }
}
