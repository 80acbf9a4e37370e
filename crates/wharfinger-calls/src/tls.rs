//! One TLS provider for the process, chosen here and nowhere else.

/// To be called before a client is built. A provider that an embedding program chose before stays.
pub fn ready() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
