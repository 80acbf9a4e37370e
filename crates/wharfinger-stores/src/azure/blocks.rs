//! Multipart uploads on Azure. Azure has no uploads, only the uncommitted blocks of a blob. So each block id contains
//! an upload id, and marker blocks record that an upload was started or aborted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use super::super::Part;

/// The marker of a started upload. An upload without parts has no other block.
const START_MARKER: u32 = 0;
/// The marker of an aborted upload. Blocks cannot be deleted one by one while another upload of the blob continues.
const ABORT_MARKER: u32 = 99_999_999;
/// The upload id for blocks that belong to no upload, for example a part that arrived after its upload ended.
pub(super) const WITHOUT_UPLOAD: &str = "without-upload";
const ID_LENGTH: usize = 20;

/// The id of a new upload. It contains the time by the store's clock.
pub(super) fn new_upload(at: UnixMs) -> String {
    let random = uuid::Uuid::new_v4().as_u128() as u32;
    format!("{:012x}{random:08x}", at.max(0))
}

pub(super) fn started_at(upload_id: &str) -> Option<UnixMs> {
    i64::from_str_radix(upload_id.get(..12)?, 16).ok()
}

/// The ids of all blocks of a blob must have the same length.
pub(super) fn block_id(upload_id: &str, number: u32) -> String {
    STANDARD.encode(format!("{upload_id}-{number:08}"))
}

pub(super) fn start_marker(upload_id: &str) -> String {
    block_id(upload_id, START_MARKER)
}

pub(super) fn abort_marker(upload_id: &str) -> String {
    block_id(upload_id, ABORT_MARKER)
}

fn parse(block_id: &str) -> Option<(String, u32)> {
    let text = String::from_utf8(STANDARD.decode(block_id).ok()?).ok()?;
    let (upload_id, number) = text.split_once('-')?;
    let ours = upload_id.len() == ID_LENGTH && number.len() == 8;
    Some((upload_id.to_owned(), number.parse().ok()?)).filter(|_| ours)
}

/// The uncommitted blocks of a blob.
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
    /// The blocks whose ids have our form.
    fn own_blocks(&self) -> impl Iterator<Item = (String, u32, &Block)> {
        let blocks = self.uncommitted_blocks.block.iter();
        blocks.filter_map(|block| parse(&block.name).map(|(upload_id, number)| (upload_id, number, block)))
    }

    /// The unfinished uploads, oldest first. Blocks without an upload count as an upload if there is no other, so that
    /// the sweep removes them.
    pub(super) fn uploads(&self) -> Vec<String> {
        let marked = |marker: u32| {
            self.own_blocks().filter(move |(_, number, _)| *number == marker).map(|(upload_id, ..)| upload_id)
        };
        let aborted: Vec<String> = marked(ABORT_MARKER).collect();
        let mut unfinished: Vec<String> =
            marked(START_MARKER).filter(|upload_id| !aborted.contains(upload_id)).collect();
        unfinished.sort();
        let mut blocks = self.uncommitted_blocks.block.iter().map(|block| parse(&block.name));
        let is_stray =
            |id: Option<(String, u32)>| id.is_none_or(|(upload_id, _)| !aborted.contains(&upload_id));
        if unfinished.is_empty() && blocks.any(is_stray) {
            unfinished.push(WITHOUT_UPLOAD.to_owned());
        }
        unfinished
    }

    /// The parts of an upload in order. None: the upload is not unfinished.
    pub(super) fn parts(&self, upload_id: &str) -> Option<Vec<Part>> {
        if upload_id == WITHOUT_UPLOAD || !self.uploads().iter().any(|known| known == upload_id) {
            return None;
        }
        let mut parts: Vec<Part> = self
            .own_blocks()
            .filter(|(of, number, _)| of == upload_id && !matches!(*number, START_MARKER | ABORT_MARKER))
            .map(|(_, number, block)| Part { number, size: block.size, etag: block.name.clone() })
            .collect();
        parts.sort_by_key(|part| part.number);
        Some(parts)
    }
}
