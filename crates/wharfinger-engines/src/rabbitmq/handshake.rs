//! Reads the product and version that a broker sends before the login. The driver does not expose them, and it would
//! leak a thread per attempt with a broker that hangs. So a separate socket asks first.

use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use lapin::protocol::{AMQPClass, connection, parse_class};
use lapin::tcp::AMQPUriTcpExt;
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;

use super::error::{BrokerError, from_io_error};

/// Since version 3.10, quorum queues support message TTL and at-least-once dead-lettering.
const VERSION_MIN: (u32, u32) = (3, 10);

const HELLO: &[u8] = b"AMQP\x00\x00\x09\x01";
const FRAME_BYTES_MAX: usize = 128 * 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the version of the broker, or an error if it is not a supported RabbitMQ.
pub(super) async fn ask_version(uri: &AMQPUri) -> Result<String, BrokerError> {
    let asking = tokio::time::timeout(HANDSHAKE_TIMEOUT, read_start(uri));
    let start =
        asking.await.map_err(|_| BrokerError::late("waiting for the start of the AMQP handshake"))??;
    let product = property(&start.server_properties, "product").unwrap_or_default();
    let version = property(&start.server_properties, "version").unwrap_or_default();
    if product != "RabbitMQ" {
        return Err(BrokerError::Refused(format!("this is not RabbitMQ but `{product}` {version}")));
    }
    if numbers(&version).is_some_and(|found| found < VERSION_MIN) {
        let (major, minor) = VERSION_MIN;
        return Err(BrokerError::Refused(format!(
            "RabbitMQ {version} is too old, at least {major}.{minor} is required"
        )));
    }
    Ok(version)
}

async fn read_start(uri: &AMQPUri) -> Result<connection::Start, BrokerError> {
    let runtime = lapin::runtime::default_runtime()?;
    let mut stream = uri.connect_async(&runtime).await.map_err(|error| from_io_error(&error))?;
    stream.write_all(HELLO).await.map_err(|error| from_io_error(&error))?;
    stream.flush().await.map_err(|error| from_io_error(&error))?;
    let not_amqp = || BrokerError::Refused("the server does not speak AMQP 0-9-1".to_owned());
    // A method frame (1) on channel 0, its length, and 0xCE as its last byte.
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.map_err(|error| from_io_error(&error))?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    if head[..3] != [1, 0, 0] || length > FRAME_BYTES_MAX {
        return Err(not_amqp());
    }
    let mut payload = vec![0; length + 1];
    stream.read_exact(&mut payload).await.map_err(|error| from_io_error(&error))?;
    match parse_class(&payload[..length]) {
        Ok((_, AMQPClass::Connection(connection::AMQPMethod::Start(start)))) => Ok(start),
        _ => Err(not_amqp()),
    }
}

fn property(table: &FieldTable, name: &str) -> Option<String> {
    match table.inner().get(name) {
        Some(AMQPValue::LongString(value)) => Some(value.to_string()),
        _ => None,
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("3.9.29") < Some(VERSION_MIN));
        assert!(numbers("3.10.8") >= Some(VERSION_MIN));
        assert!(numbers("4.1.0-rc.1") >= Some(VERSION_MIN));
        assert_eq!(numbers("of tomorrow"), None);
    }
}
