//! The TLS provider of the process: ring. The S3 SDK is set to the same one where its client is built.

/// Call it before you build a client. A provider that an embedding program installed earlier stays.
pub fn install_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
