//! Traces by OTLP, if an endpoint is set. Each file is one trace, from init to ready, also across processes. No trace context
//! has to be stored: the trace id is the file's id, and the root span's id is its random half.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;

const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The exporter of traces. By default there is none.
#[derive(Default)]
pub struct Traces(Option<Exporter>);

struct Exporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// One operation on a file.
pub struct FileSpan<'a> {
    pub name: &'static str,
    pub from: UnixMs,
    pub to: UnixMs,
    /// Why it failed.
    pub error: Option<String>,
    pub file: &'a File,
    pub attempt: Option<u32>,
}

impl Traces {
    /// Must be called on the runtime that will send the traces.
    pub fn to(endpoint: &str, instance: &str) -> Result<Traces, String> {
        let client =
            reqwest::Client::builder().timeout(SEND_TIMEOUT).build().map_err(|error| error.to_string())?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender { client, runtime: Handle::current(), is_away: AtomicBool::new(false) })
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| error.to_string())?;
        let resource = Resource::builder()
            .with_service_name("wharfinger")
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_id_generator(Ids::default())
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("wharfinger");
        Ok(Traces(Some(Exporter { provider, tracer })))
    }

    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// The root span of a new file, linked to the client's span.
    pub fn root(&self, operation: &FileSpan<'_>) {
        let Some(open) = &self.0 else { return };
        let caller = CALLER.try_with(Clone::clone).ok().flatten();
        let links = caller.map(Link::with_context).into_iter().collect();
        let builder = open.tracer.span_builder(operation.name).with_links(links);
        NEXT.set(Some(operation.file.id));
        let span = self.described(builder, operation).start_with_context(&open.tracer, &Context::new());
        NEXT.set(None);
        end(span, operation);
    }

    /// A later span of the file's trace.
    pub fn child(&self, operation: &FileSpan<'_>) {
        let Some(open) = &self.0 else { return };
        let parent = Context::new().with_remote_span_context(root(operation.file.id));
        let builder = open.tracer.span_builder(operation.name);
        end(self.described(builder, operation).start_with_context(&open.tracer, &parent), operation);
    }

    fn described(
        &self,
        builder: opentelemetry::trace::SpanBuilder,
        operation: &FileSpan<'_>,
    ) -> opentelemetry::trace::SpanBuilder {
        let file = operation.file;
        let mut attributes = vec![
            KeyValue::new("wharfinger.file.id", file.id.to_string()),
            KeyValue::new("wharfinger.tenant", file.tenant.to_string()),
            KeyValue::new("wharfinger.file.size", i64::try_from(file.size).unwrap_or(i64::MAX)),
            KeyValue::new("wharfinger.file.status", file.status.as_str()),
        ];
        attributes.extend(operation.attempt.map(|n| KeyValue::new("wharfinger.attempt", i64::from(n))));
        builder
            .with_kind(SpanKind::Internal)
            .with_start_time(moment(operation.from))
            .with_attributes(attributes)
    }

    /// Sends the remaining spans. Blocks, at most for `FLUSH_TIMEOUT`.
    pub fn close(&self) {
        if let Some(open) = &self.0 {
            let _ = open.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        }
    }

    /// Sends the spans that wait.
    pub fn flush(&self) {
        if let Some(open) = &self.0 {
            let _ = open.provider.force_flush();
        }
    }
}

fn end(mut span: impl opentelemetry::trace::Span, operation: &FileSpan<'_>) {
    if let Some(error) = &operation.error {
        span.set_status(Status::error(error.clone()));
    }
    span.end_with_timestamp(moment(operation.to));
}

fn moment(at: UnixMs) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap_or(0))
}

fn ids(file: FileId) -> (TraceId, SpanId) {
    let (_, tail) = file.0.as_u64_pair();
    (TraceId::from(file.0.as_u128()), SpanId::from(tail))
}

fn root(file: FileId) -> SpanContext {
    let (trace, span) = ids(file);
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default())
}

thread_local! {
    /// The file whose root span is created on this thread.
    static NEXT: Cell<Option<FileId>> = const { Cell::new(None) };
}

/// Random ids, except for the root spans of files.
#[derive(Debug, Default)]
struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().map_or_else(|| self.0.new_trace_id(), |file| ids(file).0)
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.get().map_or_else(|| self.0.new_span_id(), |file| ids(file).1)
    }
}

tokio::task_local! {
    /// The client's span, from its `traceparent` header.
    static CALLER: Option<SpanContext>;
}

/// Runs `work` for a client that sent this `traceparent`.
pub async fn for_caller<T>(traceparent: Option<&str>, work: impl Future<Output = T>) -> T {
    CALLER.scope(traceparent.and_then(parse), work).await
}

/// `00-<trace>-<span>-<flags>` (W3C). Later versions start the same way.
fn parse(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
        return None;
    }
    let trace = TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// Sends on our runtime, because the exporter's thread has none.
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether the last attempt failed. A change is logged.
    is_away: AtomicBool,
}

impl Sender {
    fn note(&self, problem: Option<String>) {
        let was_away = self.is_away.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_away => {
                tracing::warn!(
                    backend = "traces",
                    error = problem,
                    "the collector does not accept traces, they are lost"
                );
            }
            None if was_away => tracing::info!(backend = "traces", "the collector accepts traces again"),
            _ => {}
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let answer = client.execute(request).await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        });
        let (status, body) = match sent.await? {
            Ok(answer) => answer,
            Err(error) => {
                let error = error.without_url();
                self.note(Some(error.to_string()));
                return Err(error.into());
            }
        };
        self.note((!status.is_success()).then(|| status.to_string()));
        Ok(Response::builder().status(status).body(body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_w3c_traceparent_is_parsed() {
        let read = |text: &str| parse(text).map(|c| (c.trace_id().to_string(), c.span_id().to_string()));
        let sound = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let ids = ("0af7651916cd43dd8448eb211c80319c".to_owned(), "b7ad6b7169203331".to_owned());
        assert_eq!(read(sound), Some(ids.clone()));
        assert_eq!(read(&format!("{sound}-more")), Some(ids), "a later version");
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319x-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_has_one_trace() {
        let file: FileId = "018f4e6e-7f3a-7000-8000-0000000000a1".parse().expect("an id");
        assert_eq!(root(file).trace_id().to_string(), "018f4e6e7f3a700080000000000000a1");
        assert_eq!(root(file).span_id().to_string(), "80000000000000a1");
        assert!(root(file).is_valid());
    }
}
