//! Everything outside the process: the catalog (SQLite, PostgreSQL), the blobs (local disk, S3, Azure, GCS), and the faults
//! that tests put in front of both.

pub mod blobs;
pub mod catalog;
pub mod faults;
pub mod tls;
