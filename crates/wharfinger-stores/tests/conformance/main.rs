//! The promises of the blob stores: one suite for all of them, then what only local disk promises.

mod addressing;
mod azure_entra;
mod azure_only;
mod bad_answers;
mod bad_stores;
mod disk_faults;
mod fixture;
mod foreign;
mod incoming;
mod left_behind;
mod long_folder;
mod lost_disk;
mod pruning;
mod scripted_gcs;
mod scripted_s3;
mod sending;
mod signing;
mod versions;
mod walking;

/// Each case once per store. A store that is added joins by a way to make an empty one. The program serves local
/// disk's URLs itself, so that only the others have something to say to those who use them.
macro_rules! cases {
    (
        every store { $($room:ident: $($case:ident)+;)+ }
        remote stores { $($remote_room:ident: $($remote_case:ident)+;)+ }
    ) => {
        $(mod $room;)+
        $(mod $remote_room;)+

        cases!(@store disk $($($room $case)+)+);
        cases!(@store ceph $($($room $case)+)+ $($($remote_room $remote_case)+)+);
        cases!(@store ceph_prefix $($($room $case)+)+ $($($remote_room $remote_case)+)+);
        cases!(@store ceph_versions $($($room $case)+)+ $($($remote_room $remote_case)+)+);
        cases!(@store strict $($($room $case)+)+ $($($remote_room $remote_case)+)+);
        cases!(@store azure $($($room $case)+)+ $($($remote_room $remote_case)+)+);
        cases!(@store azure_prefix $($($room $case)+)+ $($($remote_room $remote_case)+)+);
    };
    (@store $store:ident $($room:ident $case:ident)+) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$room::$case(&super::fixture::StoreFixture::$store().await).await;
                }
            )+
        }
    };
}

cases! {
    every store {
        objects:
            what_is_absent_is_not_found
            an_object_is_measured
            another_content_has_another_etag
            bytes_are_read_whole_and_in_part
            an_object_that_changed_is_not_read
            every_key_is_taken_as_it_is
            every_key_of_a_delete_is_answered
            what_was_seen_is_deleted
            a_full_batch_is_deleted
            a_store_that_works_says_so;
        listing:
            an_empty_store_lists_nothing
            keys_are_listed_in_the_order_of_their_bytes
            a_listing_of_many_pages_is_whole
            sizes_and_times_are_listed
            a_listing_can_be_left_half_read;
    }
    remote stores {
        grants:
            a_granted_upload_lands
            an_upload_url_is_good_for_nothing_else
            the_headers_of_a_grant_must_come
            what_the_caps_say_is_enforced_and_nothing_else_is
            an_upload_url_used_again
            urls_expire
            a_granted_download_is_the_object
            a_download_url_is_good_for_nothing_else;
        parts:
            parts_sent_in_any_order_are_joined_in_theirs
            a_part_of_another_length
            a_part_url_is_good_for_nothing_else
            a_part_that_is_not_there_is_not_joined
            what_is_abandoned_leaves_nothing
            one_upload_of_many_is_abandoned
            unfinished_uploads_are_listed_once_each;
    }
}
