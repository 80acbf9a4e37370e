//! The guarantees that the tests of RabbitMQ need: virtual hosts are separate, faults are real, messages survive them,
//! and all servers and folders are removed at the end.

mod amqp;
mod observe;

use std::io::Read;

use amqp::Client;
use harness::rabbitmq::{ADDRESS_VARIABLE, RabbitMq, shared};
use observe::{
    becomes_true, folders_of, gets_no_answer, is_open, port_of, processes_of, send, services,
    test_passes_with,
};

const KINDS: [&str; 2] = ["classic", "quorum"];

fn connect(url: &str) -> Client {
    Client::connect(url).expect("connected")
}

fn queues_in(rabbitmq: &RabbitMq, url: &str) -> String {
    let (_, vhost) = url.rsplit_once('/').expect("a virtual host");
    rabbitmq.ctl(&["list_queues", "-p", vhost, "name", "messages"]).expect("listed")
}

#[test]
fn virtual_hosts_are_separate() {
    let rabbitmq = shared();
    let (one, other) = (rabbitmq.create_vhost(), rabbitmq.create_vhost());
    let mut client = connect(&one);
    client.declare("queue", "classic");
    client.publish("queue", "message");
    assert_eq!(queues_in(rabbitmq, &other), "");
    assert_eq!(connect(&other).get("queue"), None);
    assert_eq!(client.get("queue").as_deref(), Some("message"));
    assert_eq!(client.get("queue"), None);
    assert!(Client::connect(&rabbitmq.url_of("missing")).is_none(), "connected to a missing virtual host");
    let error = rabbitmq.ctl(&["delete_vhost", "missing"]).expect_err("no such virtual host");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn confirmed_messages_survive_a_kill_but_not_a_wipe() {
    let mut rabbitmq = RabbitMq::start().expect("started");
    let port = rabbitmq.port();
    let folder = rabbitmq.folder().expect("started here");
    let mut client = connect(&rabbitmq.url());
    for kind in KINDS {
        client.declare(kind, kind);
    }
    rabbitmq.flush_queue_metadata().expect("flushed");
    for kind in KINDS {
        client.publish(kind, "kept");
    }

    rabbitmq.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(rabbitmq.pid(), None);
    assert!(rabbitmq.ctl(&["list_queues"]).is_err(), "a killed server answered");
    assert!(rabbitmq.kill().is_err(), "killed a server that does not run");
    rabbitmq.start_again().expect("started after a kill");
    assert!(rabbitmq.start_again().is_err(), "started a server that already runs");
    assert_eq!(rabbitmq.port(), port);
    let mut client = connect(&rabbitmq.url());
    for kind in KINDS {
        assert_eq!(client.get(kind).as_deref(), Some("kept"), "{kind}");
        client.publish(kind, "wiped");
    }

    rabbitmq.pause().expect("paused");
    let mut connection = send(port, b"AMQP\0\0\x09\x01");
    assert!(gets_no_answer(&mut connection), "a paused server answered");
    rabbitmq.resume().expect("resumed");
    assert_eq!(connect(&rabbitmq.url()).get("none"), None);
    connection.read_exact(&mut [0]).expect("answered after the pause");

    rabbitmq.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    rabbitmq.wipe().expect("wiped");
    assert_eq!(rabbitmq.port(), port);
    assert_eq!(rabbitmq.ctl(&["list_queues"]).expect("listed"), "");

    drop(rabbitmq);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, url) = services("rabbitmq", ADDRESS_VARIABLE);
    let pid = process.id();
    let (_, epmd) = url.split_once("&epmd=").expect("the registry's port");
    let epmd = epmd.split('&').next().and_then(|port| port.parse().ok()).expect("a number");
    assert!(is_open(port_of(&url)) && is_open(epmd), "the server does not accept connections");
    // The node, epmd, and a watchdog for each. epmd does not have its folder in its arguments. The condition is
    // repeated, because the node sometimes runs `df` on its folder.
    assert!(becomes_true(|| (folders_of(pid), processes_of(pid)) == (2, 3)));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed =
        || !is_open(port_of(&url)) && !is_open(epmd) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(becomes_true(is_removed), "the server still runs");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "virtual_hosts_are_separate";
    assert!(test_passes_with(ADDRESS_VARIABLE, &shared().sharing_url(), test));
    let nowhere = shared().sharing_url().replace(&format!(":{}/", shared().port()), ":1/");
    assert!(!test_passes_with(ADDRESS_VARIABLE, &nowhere, test), "started another server instead");
}
