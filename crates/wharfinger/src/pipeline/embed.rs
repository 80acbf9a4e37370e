//! Computes a vector for each chunk: with an embeddings endpoint, or by hashing words.

use wharfinger_catalog::{ChunkRow, ChunkVector};
use wharfinger_engines::embeddings::{EmbedError, Embeddings, EmbeddingsOptions};
use wharfinger_lifecycle::stage_end::AttemptOutcome;
use wharfinger_text::hashing;

use super::chunk::run_blocking;
use super::output::VectorSink;
use super::{Attempt, Backend, StageError, bad};
use crate::config::PipelineSettings;
use crate::core::OpenError;

/// Chunks embedded and written at once.
const PAGE_CHUNKS: usize = 128;
/// Assumed until the endpoint has answered once.
const USUAL_DIMENSIONS: usize = 1_536;

pub enum Embedder {
    Endpoint { embeddings: Box<Embeddings>, model: String },
    Hashing,
}

impl Embedder {
    pub(super) fn open(settings: &PipelineSettings) -> Result<Embedder, OpenError> {
        let Some(endpoint) = &settings.embeddings else { return Ok(Embedder::Hashing) };
        let options = EmbeddingsOptions {
            url: endpoint.url.clone(),
            model: endpoint.model.clone(),
            api_key: endpoint.api_key.clone(),
        };
        let embeddings = Embeddings::new(options).map_err(|problem| bad("EMBEDDINGS_URL", problem))?;
        Ok(Embedder::Endpoint { embeddings: Box::new(embeddings), model: endpoint.model.clone() })
    }

    pub fn model(&self) -> &str {
        match self {
            Embedder::Endpoint { model, .. } => model,
            Embedder::Hashing => "feature-hashing",
        }
    }

    /// The length of its vectors, or an assumed one.
    pub fn dimensions(&self) -> usize {
        match self {
            Embedder::Hashing => hashing::DIMENSIONS,
            Embedder::Endpoint { embeddings, .. } => embeddings.dimensions().unwrap_or(USUAL_DIMENSIONS),
        }
    }

    /// Checks that the endpoint answers.
    pub async fn check(&self) -> Result<(), EmbedError> {
        match self {
            Embedder::Endpoint { embeddings, .. } => embeddings.check().await.map(drop),
            Embedder::Hashing => Ok(()),
        }
    }

    /// Returns a vector for each text, in order.
    pub async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, StageError> {
        match self {
            Embedder::Hashing => {
                run_blocking(move || texts.iter().map(|text| hashing::embed(text)).collect()).await
            }
            Embedder::Endpoint { embeddings, .. } => {
                embeddings.embed(&texts).await.map_err(|error| match error {
                    EmbedError::RateLimited { retry_after_ms, why } => {
                        StageError::RateLimited { why, ms: retry_after_ms.unwrap_or(30_000) }
                    }
                    EmbedError::Unavailable(why) | EmbedError::NotAllowed(why) => {
                        StageError::Backend(Backend::Embeddings, why)
                    }
                    EmbedError::Refused(why) => StageError::Permanent(why),
                })
            }
        }
    }
}

/// Chunks that an earlier attempt embedded with the same model are not embedded again.
pub async fn embed(attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
    let (pipeline, file) = (attempt.pipeline, attempt.held.file.id);
    let (core, embedder) = (&pipeline.core, &pipeline.embedder);
    let mut sink = VectorSink::open(attempt, embedder.model()).await?;
    let mut from = 0;
    while !sink.is_cut {
        let chunks = core.catalog.chunks_to_embed(file, embedder.model(), from, PAGE_CHUNKS).await?;
        let Some(last) = chunks.last() else { break };
        from = last.ordinal + 1;
        let (ordinals, texts): (Vec<u64>, Vec<String>) =
            chunks.into_iter().map(|ChunkRow { ordinal, text, .. }| (ordinal, text)).unzip();
        let vectors = embedder.embed(texts).await?;
        let pairs = ordinals.into_iter().zip(vectors);
        sink.push(pairs.map(|(ordinal, vector)| ChunkVector { ordinal, vector }).collect()).await?;
    }
    sink.finish().await
}
