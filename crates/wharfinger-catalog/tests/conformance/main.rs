//! What the catalog guarantees, tested on SQLite and on PostgreSQL. The catalog is audited after each case.

mod archiving;
mod audit_costs;
mod audit_log;
mod auditing;
mod batches;
mod claiming_cleanups;
mod claiming_jobs;
mod cleanup_outcomes;
mod commit_all;
mod committing;
mod constraints;
mod copying_vectors;
mod delete_races;
mod deletions;
mod diagnosing;
mod every_read;
mod every_write;
mod failing_catalog;
mod failing_jobs;
mod fairness;
mod faults;
mod figures;
mod finding;
mod group_commit;
mod growth;
mod keys;
mod leasing_jobs;
mod losing_pgvector;
mod migrations;
mod notifications;
mod objects;
mod opening;
mod orphans;
mod outage;
mod outbox;
mod outbox_in_order;
mod query_plans;
mod quota_owners;
mod quotas;
mod recovering;
mod registering;
mod sample;
mod searching;
mod service_keys;
mod source_files;
mod stage_outputs;
mod stages;
mod sweep_history;
mod sweep_writes;
mod sweeping;
mod test_db;
mod tombstones;
mod unreadable;

use test_db::TestDb;

/// Runs a case on its own database. The audit after it must find nothing.
async fn run(db: TestDb, case: impl AsyncFnOnce(&TestDb)) {
    case(&db).await;
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    db.remove().await;
}

/// Each case once per database, so that the output names both. The modules are declared outside of the macro because
/// rustfmt does not find files inside one.
macro_rules! cases {
    ($($module:ident: $($case:ident)+;)+) => {
        mod sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::sqlite().await, super::$module::$case).await;
                }
            )+)+
        }

        mod postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::postgres().await, super::$module::$case).await;
                }
            )+)+
        }
    };
}

/// Cases on a PostgreSQL with pgvector.
macro_rules! cases_with_pgvector {
    ($($module:ident: $($case:ident)+;)+) => {
        mod with_pgvector {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::with_pgvector().await, super::$module::$case).await;
                }
            )+)+
        }
    };
}

cases_with_pgvector! {
    every_write:
        a_failed_write_of_pgvector_changes_nothing;
    searching:
        candidates_are_ready_files_of_the_scope
        the_best_matches_are_among_the_candidates
        vectors_of_other_models_are_not_candidates
        no_page_of_candidates_is_skipped;
    copying_vectors:
        pgvector_returns_only_the_best_matches
        the_best_of_many_similar_vectors_are_found
        vectors_are_found_before_they_are_copied
        concurrent_copiers_copy_all_vectors
        vectors_copied_during_a_search_are_found
        vectors_that_pgvector_refuses_are_found
        unreadable_vectors_do_not_stop_the_copy
        numbers_are_stored_exactly;
    losing_pgvector:
        processes_that_start_together_all_use_pgvector
        the_catalog_works_after_pgvector_is_dropped
        a_search_finds_all_although_pgvector_is_dropped
        an_unusable_pgvector_is_explained
        a_role_without_schema_rights_works_without_pgvector
        pgvector_may_be_in_any_schema;
}

cases! {
    searching:
        candidates_are_ready_files_of_the_scope
        the_best_matches_are_among_the_candidates
        vectors_of_other_models_are_not_candidates
        no_page_of_candidates_is_skipped;
    delete_races:
        outputs_written_during_a_delete_are_deleted_with_the_file;
    diagnosing:
        lifecycle_and_catalog_find_the_same_faults;
    opening:
        a_second_migration_changes_nothing
        concurrent_migrations_apply_each_step_once
        a_newer_schema_is_refused
        ping_and_server_time_are_answered
        writes_survive_closing_and_reopening;
    migrations:
        tables_of_another_application_stay_unchanged
        a_schema_of_another_application_is_refused
        a_catalog_from_before_the_first_release_is_refused
        a_later_step_is_applied_once_to_a_filled_catalog
        missing_indexes_are_built_during_writes
        indexes_are_built_without_a_time_limit
        a_migration_waits_for_a_locked_table;
    registering:
        a_registration_writes_all_its_rows
        an_id_is_registered_once
        the_last_byte_fits_and_the_next_does_not
        registrations_sent_together_get_one_answer_each
        an_unknown_tenant_has_the_default_limit
        unconfirmed_bytes_are_capped_per_user
        an_ended_file_counts_as_unconfirmed_until_its_url_expires
        concurrent_registrations_never_exceed_the_limit
        concurrent_first_files_of_a_tenant_all_fit
        registrations_are_counted_once_during_limit_changes_and_rebuilds
        a_pin_is_read_back_unchanged;
    service_keys:
        a_service_key_is_read_as_it_was_written
        a_key_is_revoked_once
        uses_of_a_key_are_written_only_now_and_then
        ended_keys_are_purged_in_bounded_batches
        the_number_of_keys_is_bounded
        an_unreadable_key_does_not_hide_the_others;
    keys:
        a_key_creates_one_file
        a_key_belongs_to_its_user_and_route
        a_key_answers_after_its_file_is_deleted
        an_expired_key_can_be_used_again
        expired_keys_are_purged_in_bounded_batches
        concurrent_requests_with_one_key_create_one_file;
    committing:
        confirming_is_one_transaction
        deleting_is_one_transaction
        a_deleted_file_is_charged_until_its_url_expires
        reclaiming_notifies_the_owner
        quarantine_keeps_the_charge_and_the_bytes
        a_fresh_url_moves_the_next_check_and_its_job
        a_postponed_check_loses_its_lease_and_waits_again
        a_stale_change_changes_nothing
        exactly_one_of_confirm_delete_and_reclaim_wins
        a_charged_file_without_a_quota_row_cannot_change;
    finding:
        unknown_files_are_not_found
        files_are_listed_by_owner_newest_first
        pages_of_files_have_no_gaps
        due_files_are_checked_oldest_first
        files_are_counted_by_status
        names_are_sorted_by_their_bytes;
    figures:
        figures_count_only_files_of_the_scope
        waiting_files_are_counted_by_stage
        dead_letters_are_counted_until_they_are_resolved
        outcomes_are_counted_in_their_time_span
        deleting_an_old_file_changes_no_outcome_counter
        the_processing_time_is_an_average_of_the_last_hundred_files
        figures_show_errors_stuck_files_and_batches
        every_status_change_is_noticed
        quotas_are_listed_by_tenant;
    tombstones:
        live_files_are_not_purged
        a_pending_cleanup_keeps_its_tombstone
        a_charge_keeps_its_tombstone
        purging_a_file_deletes_everything_but_its_deletion_log;
    quotas:
        the_default_limit_is_not_stored
        a_limit_can_be_set_below_the_usage
        a_rebuild_without_drift_changes_nothing
        a_rebuild_reports_and_corrects_drift
        a_policy_is_changed_field_by_field;
    quota_owners:
        only_the_quota_owner_admits
        a_move_raises_the_epoch_above_the_one_seen
        refunds_are_sent_to_redis_while_it_owns_the_quota
        a_move_counts_concurrent_charges_and_refunds_once;
    outbox:
        a_line_names_its_job_and_due_time
        a_claimed_line_is_hidden_until_its_lease_ends
        eight_relays_never_get_the_same_line
        jobs_are_claimed_by_id;
    batches:
        opening_a_batch_writes_all_its_rows
        a_refused_batch_writes_nothing
        a_key_creates_one_batch
        a_batch_can_have_ten_thousand_files
        a_file_joins_only_an_active_batch_of_its_owner
        a_batch_ends_once
        ending_a_batch_makes_unconfirmed_files_due
        an_expired_batch_notifies_its_owner_once
        a_batch_completes_only_without_unconfirmed_files
        a_batch_that_ends_misses_no_added_file
        fresh_urls_are_only_for_unchanged_files
        overdue_batches_are_found_oldest_first
        an_ended_batch_is_purged_with_its_last_file;
    outbox_in_order:
        a_notice_writes_a_line_for_each_target
        a_line_waits_for_earlier_lines_of_its_subject
        a_delayed_line_does_not_delay_other_subjects
        eight_relays_keep_the_order_of_every_subject;
    archiving:
        every_line_of_history_is_an_event
        without_an_archive_no_event_is_written
        an_event_has_all_its_fields
        rejected_changes_write_no_event
        many_events_are_written_by_few_statements;
    notifications:
        a_notice_has_all_its_fields
        users_see_only_their_own_notices_newest_first
        old_notices_are_purged_in_bounded_batches;
    commit_all:
        only_unchanged_files_are_reclaimed
        concurrent_reclaims_end_each_file_once
        due_refunds_are_committed_together
        changes_of_every_kind_are_committed_together
        tombstones_are_purged_together_after_their_cleanups;
    sweeping:
        a_due_sweep_is_leased_by_one_process
        a_sweep_lease_lasts_as_long_as_it_is_extended
        a_released_sweep_is_due_at_once
        a_more_frequent_schedule_brings_the_next_run_forward
        a_sweep_started_by_hand_need_not_be_due
        a_failed_run_keeps_the_time_of_the_last_success
        a_read_only_catalog_refuses_writes
        a_lost_sweep_lease_writes_nothing
        a_sweep_commits_nothing_after_a_newer_claim
        the_last_run_of_a_sweep_is_recorded;
    sweep_history:
        a_run_is_in_the_history_from_its_start
        a_lost_run_is_closed_by_the_next_claim
        dry_and_stopped_runs_are_no_last_runs
        the_last_hundred_runs_are_kept
        idle_runs_do_not_fill_the_history;
    deletions:
        a_delete_is_logged_with_what_ordered_it
        derived_objects_share_one_line
        deletions_are_listed_by_scope_newest_first
        a_cursor_of_another_list_is_refused;
    claiming_jobs:
        a_claimed_job_has_all_its_fields
        a_claim_returns_only_due_jobs_of_its_queue
        the_next_job_is_the_earliest_waiting_one
        eight_claimers_never_get_the_same_job;
    leasing_jobs:
        an_old_token_changes_nothing
        each_job_of_a_batch_is_completed_independently
        no_heartbeat_extends_a_lease_past_the_deadline
        no_claim_leases_a_job_past_the_deadline
        an_expired_lease_counts_as_an_attempt
        expired_leases_are_ended_in_bounded_batches
        an_expired_lease_is_ended_once
        a_job_is_either_completed_or_expired;
    stages:
        a_file_passes_its_stages_with_one_job
        a_lost_lease_ends_no_stage
        a_result_for_a_changed_file_is_rejected
        each_stage_of_a_batch_has_its_own_outcome
        a_job_without_attempts_left_becomes_a_dead_letter
        a_postponed_job_spends_no_attempt
        waiting_in_a_backlog_is_not_counted_as_an_outage
        suspects_are_claimed_separately
        reasons_with_a_nul_or_of_any_length_are_accepted
        a_file_whose_workers_die_fails_after_growing_delays
        a_refused_object_makes_its_file_wait_longer_each_time
        a_claim_with_a_lost_answer_is_released
        concurrent_workers_never_share_a_file;
    stage_outputs:
        an_output_is_stored_once
        chunks_of_another_model_are_embedded_again
        unneeded_derived_objects_get_a_cleanup;
    fairness:
        a_single_file_does_not_wait_behind_a_large_backlog
        every_tenant_gets_its_share
        an_idle_tenant_gets_no_credit_for_its_idle_time
        a_claim_for_other_tenants_skips_a_large_backlog
        concurrent_claims_stay_fair
        cleanups_are_claimed_fairly
        notifications_are_claimed_fairly
        tenants_without_waiting_jobs_are_purged;
    unreadable:
        unreadable_rows_do_not_stop_a_stage
        unreadable_rows_do_not_stop_checks_and_cleanups
        unreadable_lines_do_not_stop_the_outbox
        unreadable_rows_do_not_stop_lists_and_sweeps
        rows_after_a_page_of_unreadable_rows_are_found
        rows_that_are_readable_again_leave_the_list;
    query_plans:
        no_read_scans_a_large_table
        no_call_costs_more_with_a_large_backlog;
    audit_costs:
        the_cost_of_an_audit_grows_linearly;
    growth:
        empty_batches_are_purged_in_pages
        zero_counters_are_purged
        the_history_of_one_file_is_bounded
        undelivered_lines_are_dropped_by_age;
    recovering:
        only_files_with_unsound_jobs_are_recovered
        a_recovery_revokes_the_lease_of_the_old_worker
        a_file_recovered_too_often_fails
        a_waiting_file_is_listed_but_not_recovered
        a_file_is_stuck_only_after_the_threshold
        a_scheduled_job_is_brought_forward
        recoveries_count_lost_workers_too
        concurrent_recoveries_recover_each_file_once
        an_unreadable_file_does_not_stop_the_recovery_of_others
        a_recovery_under_a_lost_sweep_lease_changes_nothing
        stuck_files_are_listed_by_scope_longest_first;
    failing_jobs:
        a_job_is_retried_until_its_attempts_are_used_up
        a_job_that_cannot_be_retried_dies_at_once
        a_long_error_is_cut_at_a_character;
    objects:
        an_object_has_one_upload_id
        only_registered_files_get_an_upload_id
        late_bytes_get_a_cleanup
        late_bytes_get_a_cleanup_while_another_one_ends
        facts_are_set_and_raised;
    orphans:
        object_rows_say_whether_the_object_must_exist
        the_sample_of_an_empty_catalog_is_empty
        the_sample_of_a_large_catalog_is_spread_over_its_keys
        scan_progress_is_counted_once
        an_orphan_has_one_cleanup_and_is_removed_with_it
        only_orphans_without_a_cleanup_are_queued
        outdated_findings_are_purged_in_bounded_batches
        findings_of_a_dry_run_are_never_queued;
    claiming_cleanups:
        a_claimed_cleanup_has_all_its_fields
        a_claimed_cleanup_is_leased
        the_longest_overdue_cleanups_are_claimed_first
        eight_reapers_never_get_the_same_cleanup
        pending_cleanups_are_listed_by_scope
        pending_cleanups_are_counted_by_scope;
    cleanup_outcomes:
        a_cleanup_is_done_when_its_bytes_are_gone
        bytes_are_deleted_again_after_the_url_expires
        refusals_spend_attempts_until_the_cleanup_is_exhausted
        an_exhausted_cleanup_that_succeeds_is_no_longer_exhausted
        an_outage_of_the_store_spends_no_attempts
        an_old_claim_changes_no_cleanup
        each_cleanup_of_a_batch_has_its_own_outcome
        a_long_error_of_a_cleanup_is_cut_at_a_character
        failed_cleanups_are_retried_now_by_scope;
    auditing:
        the_audit_finds_wrong_quotas
        the_audit_finds_wrong_counters
        the_audit_finds_lost_objects_and_files
        the_audit_finds_impossible_histories
        the_audit_finds_files_without_a_next_check
        the_audit_finds_files_of_wrong_batches
        the_audit_finds_wrong_cleanups;
    constraints:
        an_unfinished_file_has_a_next_check
        impossible_file_rows_are_refused
        a_key_belongs_to_one_object
        impossible_quota_rows_are_refused
        a_leased_job_has_a_lease_end_and_a_deadline
        a_version_has_one_history_line;
    every_write:
        a_failed_write_changes_nothing
        a_failed_migration_leaves_no_partial_step;
    faults:
        a_fault_never_leaves_half_a_registration
        a_failed_read_is_not_an_empty_answer;
}
