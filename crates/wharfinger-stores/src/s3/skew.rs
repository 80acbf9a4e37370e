//! Updates the clock skew from the answers that the SDK receives.

use std::sync::Arc;

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;

use crate::skew::Skew;

/// Reads the `Date` header of every answer.
#[derive(Debug)]
pub(super) struct DateReader(pub(super) Arc<Skew>);

impl Intercept for DateReader {
    fn name(&self) -> &'static str {
        "DateReader"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.0.update_from(date);
        }
        Ok(())
    }
}
