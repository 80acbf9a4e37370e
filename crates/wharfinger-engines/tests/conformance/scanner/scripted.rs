//! Answers that a real clamd does not give: truncated, invalid, too early or too long. The file is never clean.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wharfinger_engines::scanner::{ScanError, Scanner, Verdict};

use super::site::{assert_unavailable, endless, file, infected, pieces};

#[derive(Clone, Copy)]
enum When {
    Immediately,
    /// After the end of the stream, or after a command without a stream.
    AtTheEnd,
}

/// A scanner whose server sends this answer on every connection, byte by byte, and closes the connection.
async fn answering(answer: impl Into<Vec<u8>>, when: When) -> Scanner {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                if let When::AtTheEnd = when {
                    read(&mut stream).await;
                }
                stream.set_nodelay(true).expect("set");
                for byte in answer {
                    let _ = stream.write_all(&[byte]).await;
                }
                let _ = stream.shutdown().await;
                // Reads until the client closes too. Closing with unread bytes would discard the answer.
                while stream.read(&mut [0; 65_536]).await.is_ok_and(|count| count > 0) {}
            });
        }
    });
    Scanner::clamd(&url).expect("an address")
}

async fn read(stream: &mut TcpStream) {
    let mut command = Vec::new();
    while command.last() != Some(&0) {
        command.push(stream.read_u8().await.expect("a command"));
    }
    if command != b"zINSTREAM\0" {
        return;
    }
    loop {
        let length = stream.read_u32().await.expect("a length");
        if length == 0 {
            return;
        }
        assert!(length <= 64 * 1024, "a piece of {length} bytes is too long for clamd");
        stream.read_exact(&mut vec![0; length as usize]).await.expect("as many bytes as announced");
    }
}

#[tokio::test]
async fn an_answer_is_read_completely_however_it_arrives() {
    let scanner = answering("stream: OK\0", When::AtTheEnd).await;
    assert_eq!(scanner.scan(pieces(&[1; 300_000], 70_001)).await, Ok(Verdict::Clean));
    let scanner = answering("stream: A b(44d88612fea8a8f36de82e1278abb02f:68) FOUND\0", When::AtTheEnd).await;
    assert_eq!(scanner.scan(file("x")).await, infected("A b(44d88612fea8a8f36de82e1278abb02f:68)"));
}

#[tokio::test]
async fn an_unknown_answer_is_never_clean() {
    for answer in [
        &b""[..],
        b"\0",
        b"stream: OK",
        b"stream: OK\n",
        b"stream: OK\0stream: X FOUND\0",
        b"stream: O",
        b"stream: X FOUND",
        b"stream:  FOUND\0",
        b"1: stream: OK\0",
        b"OK\0",
        b"PONG\0",
        b"UNKNOWN COMMAND\0",
        b"\xff\xfe\0",
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n",
        &[b'x'; 100_000],
    ] {
        for when in [When::AtTheEnd, When::Immediately] {
            let scanner = answering(answer, when).await;
            let why = assert_unavailable(scanner.scan(file("harmless")).await);
            assert!(why.len() < 400, "{why}");
            assert_unavailable(scanner.scan(source_for(when)).await);
            let why = assert_unavailable(scanner.check().await);
            assert!(why.len() < 400, "{why}");
        }
    }
}

fn source_for(when: When) -> wharfinger_engines::scanner::Chunks {
    match when {
        When::Immediately => endless().0,
        When::AtTheEnd => file("harmless"),
    }
}

#[tokio::test]
async fn a_wrong_address_is_reported_with_its_answer() {
    let scanner = answering("HTTP/1.1 400 Bad Request\r\n\r\n", When::AtTheEnd).await;
    let why = assert_unavailable(scanner.check().await);
    assert!(why.contains("HTTP/1.1 400"), "{why}");
    let scanner = answering("+PONG\0", When::AtTheEnd).await;
    let why = assert_unavailable(scanner.check().await);
    assert!(why.contains("check its address"), "{why}");
}

#[tokio::test]
async fn an_early_answer_is_never_clean() {
    let scanner = answering("stream: OK\0", When::Immediately).await;
    let why = assert_unavailable(scanner.scan(endless().0).await);
    assert!(why.contains("before it had received the whole file"), "{why}");
    let scanner = answering("stream: Early.Bird FOUND\0", When::Immediately).await;
    assert_eq!(scanner.scan(endless().0).await, infected("Early.Bird"));
}

#[tokio::test]
async fn errors_of_clamds_machine_are_retryable_and_errors_of_the_file_are_not() {
    for (answer, is_retryable) in [
        ("stream: Can't create temporary file ERROR", true),
        ("Temporary file -> write ERROR", true),
        ("COMMAND READ TIMED OUT", true),
        ("stream: Can't unpack some data ERROR", false),
        ("stream: Exceeded time limit ERROR", false),
    ] {
        let scanner = answering(format!("{answer}\0"), When::AtTheEnd).await;
        let error = scanner.scan(file("x")).await.expect_err(answer);
        assert_eq!(error.is_retryable(), is_retryable, "{error}");
        assert_eq!(matches!(error, ScanError::Refused(_)), !is_retryable, "{error}");
    }
}
