//! Compresses lines to gzip in one call.

use libdeflater::{CompressionLvl, Compressor};

/// A higher level costs more time than it saves bytes (`bench/README.md`, events).
const LEVEL: i32 = 1;

/// Reuses its buffers for the next batch. Each thread needs its own.
pub struct Packer(Compressor);

impl Default for Packer {
    fn default() -> Packer {
        let level = CompressionLvl::new(LEVEL).expect("level 1 exists");
        Packer(Compressor::new(level))
    }
}

impl Packer {
    pub fn pack(&mut self, lines: &[u8]) -> Vec<u8> {
        let mut gz = vec![0; self.0.gzip_compress_bound(lines.len())];
        let length = self.0.gzip_compress(lines, &mut gz).expect("the buffer has the maximum size");
        gz.truncate(length);
        gz.shrink_to_fit();
        gz
    }
}
