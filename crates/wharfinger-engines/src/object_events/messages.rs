//! The forms of messages. Each is recognised by its members, because senders do not set a useful content type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::sns::SnsMessage;

/// How deep an SNS message may contain others.
const NESTING_MAX: u32 = 2;
const OBJECTS_MAX: usize = 10_000;

/// A bucket (a container on Azure) and a key as the message has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedObject {
    pub bucket: String,
    /// Some senders encode it as in a URL, others do not.
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Empty if the message is about other events.
    Created(Vec<CreatedObject>),
    /// Azure wants this code back before it sends events.
    AzureValidation { code: String },
    /// A message from SNS. Its signature is not verified yet.
    Sns(Box<SnsMessage>),
}

/// Reads a message. An error says what is wrong with it.
pub fn parse(body: &[u8]) -> Result<Message, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("is not JSON: {error}"))?;
    let message = message(value, NESTING_MAX)?;
    match &message {
        Message::Created(objects) if objects.len() > OBJECTS_MAX => {
            Err(format!("has more than {OBJECTS_MAX} objects"))
        }
        _ => Ok(message),
    }
}

/// The objects inside an SNS message.
pub(super) fn parse_inner(text: &str) -> Result<Vec<CreatedObject>, String> {
    // SNS also carries texts that are no events, such as the one that S3 sends as a test.
    let Ok(value) = serde_json::from_str(text) else { return Ok(Vec::new()) };
    match message(value, NESTING_MAX - 1)? {
        Message::Created(objects) => Ok(objects),
        Message::AzureValidation { .. } | Message::Sns(_) => Ok(Vec::new()),
    }
}

fn message(value: Value, nesting: u32) -> Result<Message, String> {
    match &value {
        Value::Array(_) => azure(value),
        Value::Object(members) => {
            let has = |name: &str| members.contains_key(name);
            if has("Records") {
                s3(value)
            } else if has("Type") && has("MessageId") && nesting == NESTING_MAX {
                let sns = from(value, "an SNS message")?;
                Ok(Message::Sns(Box::new(sns)))
            } else if has("detail-type") {
                event_bridge(value)
            } else if has("message") {
                pub_sub(value)
            } else if has("specversion") {
                azure(Value::Array(vec![value]))
            } else if members.get("Event").is_some_and(|event| event == "s3:TestEvent") {
                Ok(Message::Created(Vec::new()))
            } else {
                Err(UNKNOWN.into())
            }
        }
        _ => Err(UNKNOWN.into()),
    }
}

const UNKNOWN: &str = "is no message of S3, SNS, EventBridge, MinIO, Google Pub/Sub or Azure Event Grid";

fn from<T: serde::de::DeserializeOwned>(value: Value, what: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("is not {what}: {error}"))
}

#[derive(Deserialize)]
struct S3Event {
    #[serde(rename = "Records")]
    records: Vec<Value>,
}

#[derive(Deserialize)]
struct S3Record {
    #[serde(rename = "eventName")]
    event: String,
    s3: S3Place,
}

#[derive(Deserialize)]
struct S3Place {
    bucket: S3Bucket,
    object: S3Object,
}

#[derive(Deserialize)]
struct S3Bucket {
    name: String,
}

#[derive(Deserialize)]
struct S3Object {
    key: String,
}

impl From<S3Place> for CreatedObject {
    fn from(place: S3Place) -> Self {
        CreatedObject { bucket: place.bucket.name, key: place.object.key }
    }
}

/// AWS writes `ObjectCreated:Put`, MinIO and Ceph `s3:ObjectCreated:Put`. A record of another form is skipped.
fn s3(value: Value) -> Result<Message, String> {
    let event: S3Event = from(value, "an S3 event")?;
    let records = event.records.into_iter().filter_map(|record| from::<S3Record>(record, "").ok());
    let created =
        records.filter(|record| record.event.trim_start_matches("s3:").starts_with("ObjectCreated:"));
    Ok(Message::Created(created.map(|record| record.s3.into()).collect()))
}

#[derive(Deserialize)]
struct EventBridgeEvent {
    #[serde(rename = "detail-type")]
    kind: String,
    detail: Value,
}

fn event_bridge(value: Value) -> Result<Message, String> {
    let event: EventBridgeEvent = from(value, "an EventBridge event")?;
    if event.kind != "Object Created" {
        return Ok(Message::Created(Vec::new()));
    }
    let place: S3Place = from(event.detail, "an EventBridge event of S3")?;
    Ok(Message::Created(vec![place.into()]))
}

#[derive(Deserialize)]
struct PubSubPush {
    message: PubSubMessage,
}

#[derive(Deserialize)]
struct PubSubMessage {
    #[serde(default)]
    attributes: PubSubAttributes,
    #[serde(default)]
    data: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PubSubAttributes {
    event_type: String,
    bucket_id: String,
    object_id: String,
}

#[derive(Deserialize)]
struct GoogleObject {
    bucket: String,
    name: String,
}

fn pub_sub(value: Value) -> Result<Message, String> {
    let PubSubPush { message } = from(value, "a Pub/Sub push")?;
    let PubSubAttributes { event_type, bucket_id, object_id } = message.attributes;
    let created = match event_type.as_str() {
        "OBJECT_FINALIZE" if !object_id.is_empty() => {
            Some(CreatedObject { bucket: bucket_id, key: object_id })
        }
        "OBJECT_FINALIZE" => {
            let data = STANDARD.decode(&message.data).map_err(|_| "`message.data` is not Base64")?;
            let object: GoogleObject =
                serde_json::from_slice(&data).map_err(|error| format!("`message.data`: {error}"))?;
            Some(CreatedObject { bucket: object.bucket, key: object.name })
        }
        _ => None,
    };
    Ok(Message::Created(created.into_iter().collect()))
}

/// An event of the Event Grid schema (`eventType`) or of CloudEvents (`type`).
#[derive(Deserialize)]
struct AzureEvent {
    #[serde(alias = "eventType", rename = "type")]
    kind: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    data: Value,
}

const AZURE_CREATED: &str = "Microsoft.Storage.BlobCreated";
const AZURE_VALIDATION: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";

fn azure(value: Value) -> Result<Message, String> {
    let events: Vec<AzureEvent> = from(value, "a list of Event Grid events")?;
    let mut created = Vec::new();
    for event in events {
        match event.kind.as_str() {
            AZURE_VALIDATION => {
                let code = event.data.get("validationCode").and_then(Value::as_str);
                let code = code.ok_or("`data.validationCode` is missing")?.to_owned();
                return Ok(Message::AzureValidation { code });
            }
            AZURE_CREATED => created.extend(azure_blob(&event.subject)),
            _ => {}
        }
    }
    Ok(Message::Created(created))
}

/// `/blobServices/default/containers/<container>/blobs/<name>`
fn azure_blob(subject: &str) -> Option<CreatedObject> {
    let (_, rest) = subject.split_once("/containers/")?;
    let (container, name) = rest.split_once("/blobs/")?;
    Some(CreatedObject { bucket: container.to_owned(), key: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn created(body: Value) -> Vec<(String, String)> {
        match parse(body.to_string().as_bytes()).expect("a known message") {
            Message::Created(objects) => {
                objects.into_iter().map(|object| (object.bucket, object.key)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn one(bucket: &str, key: &str) -> Vec<(String, String)> {
        vec![(bucket.to_owned(), key.to_owned())]
    }

    #[test]
    fn messages_of_each_store() {
        let record = |event: &str| {
            json!({ "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": event,
            "s3": { "bucket": { "name": "b" }, "object": { "key": "uploads/t/u/1", "size": 3 } } })
        };
        assert_eq!(
            created(json!({ "Records": [record("ObjectCreated:Put"), record("ObjectRemoved:Delete")] })),
            one("b", "uploads/t/u/1")
        );
        let minio = json!({ "EventName": "s3:ObjectCreated:Put", "Key": "b/uploads/t/u/1",
            "Records": [record("s3:ObjectCreated:Put"), { "eventName": 1 }] });
        assert_eq!(created(minio), one("b", "uploads/t/u/1"));
        let test = json!({ "Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b" });
        assert_eq!(created(test), []);
        let event_bridge = |kind: &str| {
            json!({ "version": "0", "source": "aws.s3", "detail-type": kind,
            "detail": { "bucket": { "name": "b" }, "object": { "key": "k", "size": 3 } } })
        };
        assert_eq!(created(event_bridge("Object Created")), one("b", "k"));
        assert_eq!(created(event_bridge("Object Deleted")), []);
        let push = |event: &str| {
            json!({ "subscription": "s", "message": { "messageId": "1", "data": "",
            "attributes": { "eventType": event, "bucketId": "b", "objectId": "k" } } })
        };
        assert_eq!(created(push("OBJECT_FINALIZE")), one("b", "k"));
        assert_eq!(created(push("OBJECT_DELETE")), []);
        let data = STANDARD.encode(r#"{"bucket":"b","name":"k"}"#);
        let push = json!({ "message": { "attributes": { "eventType": "OBJECT_FINALIZE" }, "data": data } });
        assert_eq!(created(push), one("b", "k"));
        let subject = "/blobServices/default/containers/c/blobs/wharf/uploads/t/u/1";
        let event_grid = json!([{ "id": "1", "eventType": AZURE_CREATED, "subject": subject, "data": {} },
            { "id": "2", "eventType": "Microsoft.Storage.BlobDeleted", "subject": subject, "data": {} }]);
        assert_eq!(created(event_grid), one("c", "wharf/uploads/t/u/1"));
        let cloud_event = json!({ "specversion": "1.0", "type": AZURE_CREATED, "subject": subject });
        assert_eq!(created(cloud_event), one("c", "wharf/uploads/t/u/1"));
    }

    #[test]
    fn handshakes_and_bad_messages() {
        let validation = json!([{ "id": "1", "eventType": AZURE_VALIDATION, "subject": "",
            "data": { "validationCode": "code-1", "validationUrl": "https://example.com" } }]);
        assert_eq!(
            parse(validation.to_string().as_bytes()),
            Ok(Message::AzureValidation { code: "code-1".into() })
        );
        for bad in ["", "[1]", "7", "{}", r#"{"message":1}"#, r#"{"Type":"Notification","MessageId":"1"}"#] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
