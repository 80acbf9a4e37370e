//! The promises of the blob stores: one suite for all of them, then what only local disk promises.

mod disk_faults;
mod landing;
mod left_behind;
mod long_folder;
mod lost_disk;
mod pruning;
mod shelf;
mod signing;
mod walking;

/// Each case once per store. A store that is added joins by a way to make an empty one.
macro_rules! cases {
    ($($room:ident: $($case:ident)+;)+) => {
        $(mod $room;)+

        cases!(@store disk $($($room $case)+)+);
        cases!(@store ceph $($($room $case)+)+);
        cases!(@store ceph_prefix $($($room $case)+)+);
        cases!(@store ceph_versions $($($room $case)+)+);
        cases!(@store strict $($($room $case)+)+);
    };
    (@store $store:ident $($room:ident $case:ident)+) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$room::$case(&super::shelf::Shelf::$store().await).await;
                }
            )+
        }
    };
}

cases! {
    objects:
        what_is_absent_is_not_found
        an_object_is_measured
        another_content_has_another_etag
        bytes_are_read_whole_and_in_part
        an_object_that_changed_is_not_read
        every_key_of_a_delete_is_answered
        a_full_batch_is_deleted
        a_store_that_works_says_so;
    listing:
        an_empty_store_lists_nothing
        keys_are_listed_in_the_order_of_their_bytes
        sizes_and_times_are_listed
        a_listing_can_be_left_half_read;
}
