//! Reads the store's clock off the answers that the SDK gets.

use std::sync::Arc;

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;

use crate::skew::Skew;

/// Reads the date of every answer.
#[derive(Debug)]
pub(super) struct ReadDates(pub(super) Arc<Skew>);

impl Intercept for ReadDates {
    fn name(&self) -> &'static str {
        "ReadDates"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.0.read(date);
        }
        Ok(())
    }
}
