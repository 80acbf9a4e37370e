//! Answers that no real clamd gives, broken off, garbled, too early or too long: never clean.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wharfinger_engines::scanner::{ScanError, Scanner, Verdict};

use super::site::{assert_unavailable, endless, file, infected, pieces};

#[derive(Clone, Copy)]
enum When {
    AtOnce,
    /// When the stream has ended, or the command that has none.
    AtTheEnd,
}

/// Answers every connection so, byte by byte, and hangs up.
async fn saying(answer: impl Into<Vec<u8>>, when: When) -> Scanner {
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
                // Until the other side has had enough too: closing with bytes unread would take the answer back.
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
        assert!(length <= 64 * 1024, "clamd would take {length} bytes for too many");
        stream.read_exact(&mut vec![0; length as usize]).await.expect("as long as it says");
    }
}

#[tokio::test]
async fn an_answer_counts_whole_however_it_arrives() {
    let scanner = saying("stream: OK\0", When::AtTheEnd).await;
    assert_eq!(scanner.scan(pieces(&[1; 300_000], 70_001)).await, Ok(Verdict::Clean));
    let scanner = saying("stream: A b(44d88612fea8a8f36de82e1278abb02f:68) FOUND\0", When::AtTheEnd).await;
    assert_eq!(scanner.scan(file("x")).await, infected("A b(44d88612fea8a8f36de82e1278abb02f:68)"));
}

#[tokio::test]
async fn what_clamd_never_says_is_not_clean() {
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
        for when in [When::AtTheEnd, When::AtOnce] {
            let scanner = saying(answer, when).await;
            let why = assert_unavailable(scanner.scan(file("harmless")).await);
            assert!(why.len() < 400, "{why}");
            assert_unavailable(scanner.scan(endless_unless(when)).await);
            let why = assert_unavailable(scanner.check().await);
            assert!(why.len() < 400, "{why}");
        }
    }
}

fn endless_unless(when: When) -> wharfinger_engines::scanner::Chunks {
    match when {
        When::AtOnce => endless().0,
        When::AtTheEnd => file("harmless"),
    }
}

#[tokio::test]
async fn a_wrong_address_is_told_by_what_answers_there() {
    let scanner = saying("HTTP/1.1 400 Bad Request\r\n\r\n", When::AtTheEnd).await;
    let why = assert_unavailable(scanner.check().await);
    assert!(why.contains("HTTP/1.1 400"), "{why}");
    let scanner = saying("+PONG\0", When::AtTheEnd).await;
    let why = assert_unavailable(scanner.check().await);
    assert!(why.contains("check its address"), "{why}");
}

#[tokio::test]
async fn before_the_end_of_a_file_it_is_not_clean() {
    let scanner = saying("stream: OK\0", When::AtOnce).await;
    let why = assert_unavailable(scanner.scan(endless().0).await);
    assert!(why.contains("before it had seen all of it"), "{why}");
    let scanner = saying("stream: Early.Bird FOUND\0", When::AtOnce).await;
    assert_eq!(scanner.scan(endless().0).await, infected("Early.Bird"));
}

#[tokio::test]
async fn an_error_is_the_files_own_or_clamds() {
    for (answer, is_retryable) in [
        ("stream: Can't create temporary file ERROR", true),
        ("Temporary file -> write ERROR", true),
        ("COMMAND READ TIMED OUT", true),
        ("stream: Can't unpack some data ERROR", false),
        ("stream: Exceeded time limit ERROR", false),
    ] {
        let scanner = saying(format!("{answer}\0"), When::AtTheEnd).await;
        let error = scanner.scan(file("x")).await.expect_err(answer);
        assert_eq!(error.is_retryable(), is_retryable, "{error}");
        assert_eq!(matches!(error, ScanError::Refused(_)), !is_retryable, "{error}");
    }
}
