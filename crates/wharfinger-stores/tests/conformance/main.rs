//! Conformance tests of the blob stores: one suite for all stores, then tests of single stores.

mod addressing;
mod azure_entra;
mod azure_only;
mod bad_answers;
mod bad_stores;
mod disk_faults;
mod disk_parts;
mod disk_route;
mod fixture;
mod foreign;
mod incoming;
mod leftovers;
mod long_folder;
mod pruning;
mod scripted_gcs;
mod scripted_s3;
mod sending;
mod signing;
mod unmounted_disk;
mod versions;
mod walking;

/// Runs each case once per store. A new store only needs a `StoreFixture`. The cases of remote stores test signed URLs.
/// The program itself serves the URLs of local disk; `disk_route` does it for the cases of every store.
macro_rules! cases {
    (
        every store { $($module:ident: $($case:ident)+;)+ }
        remote stores { $($remote_module:ident: $($remote_case:ident)+;)+ }
    ) => {
        $(mod $module;)+
        $(mod $remote_module;)+

        cases!(@store disk $($($module $case)+)+);
        cases!(@store ceph $($($module $case)+)+ $($($remote_module $remote_case)+)+);
        cases!(@store ceph_prefix $($($module $case)+)+ $($($remote_module $remote_case)+)+);
        cases!(@store ceph_versions $($($module $case)+)+ $($($remote_module $remote_case)+)+);
        cases!(@store strict $($($module $case)+)+ $($($remote_module $remote_case)+)+);
        cases!(@store azure $($($module $case)+)+ $($($remote_module $remote_case)+)+);
        cases!(@store azure_prefix $($($module $case)+)+ $($($remote_module $remote_case)+)+);
    };
    (@store $store:ident $($module:ident $case:ident)+) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$module::$case(&super::fixture::StoreFixture::$store().await).await;
                }
            )+
        }
    };
}

cases! {
    every store {
        objects:
            an_absent_object_is_not_found
            head_returns_size_etag_and_time
            different_content_has_a_different_etag
            ranges_of_bytes_are_read
            a_changed_object_is_not_read
            every_valid_key_is_stored_unchanged
            a_delete_returns_one_outcome_per_key
            an_unchanged_object_is_deleted
            a_full_batch_is_deleted
            the_check_of_a_working_store_succeeds;
        listing:
            an_empty_store_lists_nothing
            keys_are_listed_in_byte_order
            a_listing_of_many_pages_is_complete
            sizes_and_times_are_listed
            a_listing_can_be_dropped_early;
        parts:
            parts_are_joined_in_the_order_of_their_numbers
            a_part_of_wrong_length_is_refused_or_reported
            a_part_url_permits_only_the_signed_request
            an_upload_with_a_missing_part_is_not_completed
            an_aborted_upload_leaves_nothing
            one_of_several_uploads_is_aborted
            unfinished_uploads_are_listed_once_each;
    }
    remote stores {
        grants:
            a_signed_upload_is_stored
            an_upload_url_permits_only_the_signed_request
            the_signed_headers_are_required
            exactly_the_reported_capabilities_are_enforced
            an_upload_url_can_be_used_again_after_a_delete
            urls_expire
            a_signed_download_returns_the_object
            a_download_url_permits_only_the_signed_request;
    }
}
