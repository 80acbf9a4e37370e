//! Lines into gzip, all at once.

use libdeflater::{CompressionLvl, Compressor};

/// More costs more time than it saves bytes (`bench/README.md`, events).
const LEVEL: i32 = 1;

/// One for each thread: it keeps what it needs for the next batch.
pub struct Packer(Compressor);

impl Default for Packer {
    fn default() -> Packer {
        let level = CompressionLvl::new(LEVEL).expect("the level is one that there is");
        Packer(Compressor::new(level))
    }
}

impl Packer {
    pub fn pack(&mut self, lines: &[u8]) -> Vec<u8> {
        let mut gz = vec![0; self.0.gzip_compress_bound(lines.len())];
        let length = self.0.gzip_compress(lines, &mut gz).expect("the bound is one");
        gz.truncate(length);
        gz.shrink_to_fit();
        gz
    }
}
