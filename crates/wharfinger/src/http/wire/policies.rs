//! The rules of a tenant, as operators read and set them.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::media_type::TypeList;
use wharfinger_lifecycle::tenant_policy::{
    EffectivePolicy, REQUESTS_PER_SECOND_MAX, TenantPolicy, TenantPolicyChange,
};

use super::super::problem::Problem;

/// An absent field is kept, `null` clears it: then the default of the settings applies.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetPolicyRequest {
    /// Replaces UPLOAD_ALLOWED_TYPES for this tenant.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["image/*", "application/pdf"]))]
    allowed_types: Option<Option<Vec<String>>>,
    /// At most MAX_FILE_SIZE_BYTES.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u64>, example = 104_857_600, minimum = 1)]
    max_file_size_bytes: Option<Option<u64>>,
    /// Replaces TENANT_REQUESTS_PER_SECOND for this tenant. 0: no limit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, example = 50, minimum = 0, maximum = 1_000_000)]
    requests_per_second: Option<Option<u64>>,
}

/// Tells a `null` from an absent field.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(field).map(Some)
}

impl SetPolicyRequest {
    pub fn into_change(self, defaults: &EffectivePolicy) -> Result<TenantPolicyChange, Problem> {
        let types = |list: Vec<String>| {
            let list = TypeList::new(list.iter().map(String::as_str));
            list.map_err(|bad| Problem::invalid("allowedTypes", bad))
        };
        let size = |size: u64| match size {
            0 => Err(Problem::invalid("maxFileSizeBytes", "must be at least 1")),
            size if size > defaults.file_size_bytes_max => {
                let max = defaults.file_size_bytes_max;
                Err(Problem::invalid(
                    "maxFileSizeBytes",
                    format!("must be at most {max} (MAX_FILE_SIZE_BYTES)"),
                ))
            }
            size => Ok(size),
        };
        let rate = |rate: u64| {
            let problem = || format!("must be 0 (no limit) to {REQUESTS_PER_SECOND_MAX}");
            let rate = u32::try_from(rate).ok().filter(|rate| *rate <= REQUESTS_PER_SECOND_MAX);
            rate.ok_or_else(|| Problem::invalid("requestsPerSecond", problem()))
        };
        Ok(TenantPolicyChange {
            allowed_types: self.allowed_types.map(|list| list.map(types).transpose()).transpose()?,
            file_size_bytes_max: self.max_file_size_bytes.map(|max| max.map(size).transpose()).transpose()?,
            requests_per_second: self.requests_per_second.map(|max| max.map(rate).transpose()).transpose()?,
        })
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    #[schema(example = "acme")]
    tenant: String,
    /// Null: not set for this tenant.
    #[schema(example = json!(["image/*", "application/pdf"]))]
    allowed_types: Option<Vec<String>>,
    #[schema(example = 104_857_600)]
    max_file_size_bytes: Option<u64>,
    #[schema(example = 50)]
    requests_per_second: Option<u32>,
    effective: EffectivePolicyView,
}

/// What applies, with the defaults of the settings.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectivePolicyView {
    /// Null: all types.
    #[schema(example = json!(["image/*", "application/pdf"]))]
    allowed_types: Option<Vec<String>>,
    #[schema(example = 104_857_600)]
    max_file_size_bytes: u64,
    /// 0: no limit.
    #[schema(example = 50)]
    requests_per_second: u32,
}

impl PolicyView {
    pub fn new(tenant: &TenantId, policy: &TenantPolicy, defaults: &EffectivePolicy) -> PolicyView {
        let types = |list: &Option<TypeList>| list.as_ref().map(|list| list.types().to_vec());
        let effective = policy.over(defaults);
        PolicyView {
            tenant: tenant.to_string(),
            allowed_types: types(&policy.allowed_types),
            max_file_size_bytes: policy.file_size_bytes_max,
            requests_per_second: policy.requests_per_second,
            effective: EffectivePolicyView {
                allowed_types: types(&effective.allowed_types),
                max_file_size_bytes: effective.file_size_bytes_max,
                requests_per_second: effective.requests_per_second,
            },
        }
    }
}
