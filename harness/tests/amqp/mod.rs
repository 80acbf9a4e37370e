//! A minimal AMQP 0-9-1 client: publishes a message with confirmation, and gets it back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;

/// A connection with one channel and publisher confirms.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// `None`: the server refuses, for example because the virtual host does not exist.
    pub fn connect(url: &str) -> Option<Self> {
        let (_, address) = url.split_once('@')?;
        let (address, vhost) = address.split_once('/')?;
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let mut client = Self { stream };
        client.stream.write_all(b"AMQP\0\0\x09\x01").ok()?;
        client.answer(10, 10)?;
        client.send(
            0,
            &[&method(10, 11), &long(b""), &short("PLAIN"), &long(b"\0guest\0guest"), &short("en_US")],
        );
        let limits = client.answer(10, 30)?;
        // The server's limits, but no heartbeats.
        client.send(0, &[&method(10, 31), limits.get(..6)?, &[0, 0]]);
        client.send(0, &[&method(10, 40), &short(&vhost.replace("%2f", "/")), &short(""), &[0]]);
        client.answer(10, 41)?;
        client.send(1, &[&method(20, 10), &short("")]);
        client.answer(20, 11)?;
        client.send(1, &[&method(85, 10), &[0]]);
        client.answer(85, 11)?;
        Some(client)
    }

    /// Declares a durable queue of the type `classic` or `quorum`.
    pub fn declare(&mut self, queue: &str, kind: &str) {
        let arguments = [&short("x-queue-type")[..], b"S", &long(kind.as_bytes())].concat();
        self.send(1, &[&method(50, 10), &[0, 0], &short(queue), &[2], &long(&arguments)]);
        self.answer(50, 11).expect("declared");
    }

    /// Returns when the server has confirmed the message.
    pub fn publish(&mut self, queue: &str, body: &str) {
        self.send(1, &[&method(60, 40), &[0, 0], &short(""), &short(queue), &[0]]);
        let length = u64::try_from(body.len()).expect("a length").to_be_bytes();
        // The only property: the message is persistent.
        self.frame(HEADER, 1, &[&[0, 60, 0, 0], &length, &[0x10, 0, 2]]);
        self.frame(BODY, 1, &[body.as_bytes()]);
        self.answer(60, 80).expect("confirmed");
    }

    /// Removes the next message from the queue. `None`: there is no message, or no queue.
    pub fn get(&mut self, queue: &str) -> Option<String> {
        self.send(1, &[&method(60, 70), &[0, 0], &short(queue), &[1]]);
        self.answer(60, 71)?;
        self.receive()?;
        let (_, body) = self.receive()?;
        String::from_utf8(body).ok()
    }

    /// The arguments of the expected answer. `None`: another answer came.
    fn answer(&mut self, class: u16, number: u16) -> Option<Vec<u8>> {
        let (kind, payload) = self.receive()?;
        let arguments = payload.strip_prefix(&method(class, number)[..])?;
        (kind == METHOD).then(|| arguments.to_vec())
    }

    fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut start = [0; 7];
        self.stream.read_exact(&mut start).ok()?;
        let [kind, _, _, length @ ..] = start;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()? + 1];
        self.stream.read_exact(&mut payload).ok()?;
        (payload.pop()? == END).then_some((kind, payload))
    }

    fn send(&mut self, channel: u8, parts: &[&[u8]]) {
        self.frame(METHOD, channel, parts);
    }

    fn frame(&mut self, kind: u8, channel: u8, parts: &[&[u8]]) {
        let payload = parts.concat();
        let frame = [&[kind, 0, channel], &long(&payload)[..], &[END]].concat();
        self.stream.write_all(&frame).expect("sent");
    }
}

fn method(class: u16, number: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (class.to_be_bytes(), number.to_be_bytes());
    [a, b, c, d]
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).expect("not that long").to_be_bytes(), bytes].concat()
}
