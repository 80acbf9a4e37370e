//! The catalog's promises, each kept on SQLite and on PostgreSQL alike. After every case the catalog is audited.

mod archiving;
mod audit_costs;
mod auditing;
mod batches;
mod beside_deletes;
mod claiming_cleanups;
mod claiming_jobs;
mod committing;
mod copying_vectors;
mod diagnosing;
mod ending;
mod every_read;
mod every_write;
mod failing_jobs;
mod fairness;
mod faults;
mod figures;
mod finding;
mod forgetting;
mod group_commit;
mod growth;
mod guards;
mod keys;
mod leasing_jobs;
mod losing_pgvector;
mod migrations;
mod objects;
mod opening;
mod orphans;
mod outage;
mod outbox;
mod outbox_in_order;
mod plans;
mod quota_owners;
mod quotas;
mod recovering;
mod registering;
mod rehearsal;
mod sample;
mod searching;
mod settling_cleanups;
mod source_files;
mod stages;
mod sweeping;
mod telling;
mod test_db;
mod unreadable;

use test_db::TestDb;

/// Runs a case on a database of its own. Whatever the case did, the catalog must be in order after it.
async fn run(db: TestDb, case: impl AsyncFnOnce(&TestDb)) {
    case(&db).await;
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    db.remove().await;
}

/// Each case once per database, so that the output names both. The modules are declared outside: rustfmt does not look
/// for files inside a macro.
macro_rules! cases {
    ($($room:ident: $($case:ident)+;)+) => {
        mod sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::sqlite().await, super::$room::$case).await;
                }
            )+)+
        }

        mod postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::postgres().await, super::$room::$case).await;
                }
            )+)+
        }
    };
}

/// Cases where the database compares vectors, which hardly any other can tell.
macro_rules! cases_with_pgvector {
    ($($room:ident: $($case:ident)+;)+) => {
        mod with_pgvector {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::TestDb::with_pgvector().await, super::$room::$case).await;
                }
            )+)+
        }
    };
}

cases_with_pgvector! {
    every_write:
        no_write_of_pgvector_is_made_in_part;
    searching:
        candidates_are_ready_and_of_the_scope
        the_best_are_among_the_candidates
        no_page_is_missed;
    copying_vectors:
        the_database_brings_its_best_alone
        of_many_that_are_alike_the_best_are_found
        what_others_wrote_is_found_before_it_is_copied
        copiers_share_the_work
        what_is_copied_meanwhile_is_not_missed
        what_pgvector_does_not_take_is_found_all_the_same
        numbers_arrive_as_they_are;
    losing_pgvector:
        many_that_start_together_all_have_it
        it_goes_from_under_us
        it_goes_in_the_middle_of_a_search
        what_cannot_be_used_is_named
        who_may_not_change_the_schema_does_without
        it_may_be_in_a_schema_of_any_name;
}

cases! {
    searching:
        candidates_are_ready_and_of_the_scope
        the_best_are_among_the_candidates
        no_page_is_missed;
    beside_deletes:
        what_is_written_beside_a_delete_goes_with_the_file;
    diagnosing:
        the_core_and_the_catalog_agree;
    opening:
        migrates_once
        two_handles_migrate_at_once
        a_newer_schema_is_refused
        answers_when_asked
        what_was_written_is_there_after_closing;
    migrations:
        tables_of_an_application_are_left_alone
        a_schema_of_others_is_refused
        a_catalog_from_before_the_first_release_is_refused
        a_later_step_is_applied_once_to_a_filled_catalog
        indexes_are_completed_beside_writers
        indexes_are_built_without_a_time_limit
        a_table_in_use_is_waited_for;
    registering:
        a_registration_is_whole
        an_id_is_registered_once
        the_last_byte_fits_and_the_next_does_not
        many_are_registered_together_and_each_is_answered
        an_unknown_tenant_has_the_default_limit
        unconfirmed_bytes_are_capped_per_user
        an_ended_file_counts_while_its_url_lives
        two_hundred_want_what_suffices_for_a_hundred
        a_new_tenants_first_files_all_fit
        registering_races_with_limits_and_rebuilds
        a_pin_comes_back_as_it_was;
    keys:
        a_key_makes_one_file
        a_key_belongs_to_its_user_and_route
        a_key_outlives_its_file
        an_expired_key_is_free_again
        expired_keys_are_forgotten_in_bounded_batches
        one_key_at_the_same_time_makes_one_file;
    committing:
        confirming_is_one_transaction
        deleting_is_one_transaction
        a_live_url_keeps_the_charge_of_a_deleted_file
        reclaiming_tells_the_owner
        quarantine_keeps_the_charge_and_the_bytes
        a_fresh_url_moves_the_look_and_the_check
        a_leased_check_that_is_put_off_waits_again
        a_stale_change_changes_nothing
        exactly_one_of_confirm_delete_and_reclaim_wins
        charged_files_without_a_quota_row_are_damage;
    finding:
        what_is_not_there_is_not_found
        files_are_listed_by_owner_newest_first
        pages_of_files_join_without_a_gap
        what_is_due_is_looked_at_oldest_first
        files_are_counted_by_status
        names_are_sorted_by_their_bytes;
    figures:
        figures_are_those_of_the_scope
        what_waits_is_counted_by_stage
        dead_letters_are_counted_until_they_are_none
        outcomes_are_counted_where_they_came_about
        an_old_file_that_ends_moves_no_counter
        the_last_hundred_are_averaged
        errors_and_stuck_files_and_batches
        every_change_of_a_status_is_noticed
        quotas_are_listed_by_tenant;
    forgetting:
        the_living_are_not_forgotten
        a_pending_cleanup_keeps_its_tombstone
        a_charge_keeps_its_tombstone
        nothing_of_the_forgotten_is_left;
    quotas:
        the_default_limit_is_not_written_down
        a_limit_can_be_lowered_below_what_is_used
        what_did_not_drift_is_left_alone
        drift_is_measured_and_set_right;
    quota_owners:
        only_the_quota_owner_admits
        a_move_goes_beyond_what_was_seen
        refunds_go_to_whoever_counts
        a_move_races_with_charges_and_refunds;
    outbox:
        a_line_says_what_it_is_about
        a_claimed_line_is_hidden_and_comes_again
        eight_relays_never_get_the_same_line
        jobs_are_claimed_by_name;
    batches:
        a_batch_comes_to_be_whole
        a_batch_that_does_not_fit_leaves_nothing
        a_key_makes_one_batch
        ten_thousand_files_are_one_batch
        a_file_joins_its_owners_active_batch_only
        a_batch_ends_once
        what_is_not_confirmed_is_called_off
        an_expired_batch_is_told_of_once
        completing_waits_for_every_file
        adding_races_with_ending
        fresh_urls_are_for_those_that_are_as_they_were
        overdue_batches_are_found_oldest_first
        an_ended_batch_goes_with_its_last_file;
    outbox_in_order:
        a_notice_leaves_a_line_for_everybody_who_is_told
        a_line_waits_for_the_earlier_ones_of_its_subject
        one_subjects_trouble_is_not_anothers
        eight_relays_keep_the_order_of_every_subject;
    archiving:
        every_line_of_history_is_an_event
        nobody_who_does_not_archive_leaves_an_event
        an_event_says_all_that_is_known
        what_does_not_happen_leaves_no_event
        events_are_written_together;
    telling:
        a_notice_is_told_in_full
        notices_are_told_newest_first_and_to_nobody_else
        old_notices_are_forgotten_in_bounded_batches
        the_last_run_of_a_sweep_is_on_record;
    ending:
        those_that_are_still_as_they_were_read_end
        eight_that_end_the_same_end_each_once
        refunds_come_due_together
        changes_of_every_kind_are_made_together
        tombstones_go_together_but_not_before_their_bytes;
    sweeping:
        a_sweep_that_is_due_is_one_processes_turn
        a_turn_lasts_as_long_as_its_lease_is_extended
        a_turn_that_was_given_back_is_due_at_once
        a_denser_schedule_brings_the_next_run_forward
        a_sweep_that_is_asked_for_need_not_be_due
        a_run_that_failed_does_not_hide_the_last_that_did_not
        who_only_looks_writes_nothing
        who_lost_the_turn_writes_nothing
        a_claim_does_not_slip_into_a_commit;
    claiming_jobs:
        a_job_is_claimed_with_all_it_carries
        nothing_runs_before_its_time_or_from_another_queue
        the_next_job_is_the_earliest_that_waits
        eight_claimers_never_get_the_same_job;
    leasing_jobs:
        an_old_token_changes_nothing
        each_of_a_batch_is_completed_for_itself
        no_heartbeat_outlives_the_deadline
        no_lease_outlives_the_deadline
        a_lost_lease_is_an_attempt
        lost_leases_are_taken_back_in_bounded_batches
        a_lost_lease_is_taken_back_once
        completing_races_with_taking_back;
    stages:
        a_file_goes_through_its_stages_with_one_job
        a_lost_lease_ends_no_stage
        a_stage_of_a_file_that_changed_ends_nothing
        each_of_a_batch_of_stages_has_an_outcome_of_its_own
        attempts_are_used_up_and_the_letter_is_dead
        who_is_put_off_spends_no_attempt
        a_backlog_is_no_outage
        suspects_are_claimed_apart_from_the_others
        an_output_is_taken_in_once
        whatever_reason_is_given_is_kept
        a_file_that_loses_its_workers_fails_after_growing_pauses
        an_object_that_is_refused_makes_its_file_wait_longer_each_time
        a_claim_whose_answer_was_lost_is_given_back
        what_was_embedded_by_another_model_is_embedded_again
        derived_objects_go_when_they_are_of_no_use
        workers_that_race_never_share_a_file;
    fairness:
        one_file_does_not_wait_behind_a_crowd
        every_tenant_gets_its_share
        who_comes_back_is_not_paid_for_having_been_away
        one_place_is_found_for_another_tenant
        claims_that_race_keep_the_order_fair
        cleanups_of_tenants_take_turns
        notifications_of_tenants_take_turns
        tenants_with_nothing_waiting_are_forgotten;
    unreadable:
        a_stage_goes_on_beside_unreadable_rows
        checks_and_cleanups_go_on_beside_unreadable_rows
        the_outbox_goes_on_beside_unreadable_lines
        lists_and_sweeps_go_on_beside_unreadable_rows
        what_lies_behind_a_page_of_unreadable_rows_is_found
        what_can_be_read_again_is_dropped_from_the_list;
    plans:
        no_read_looks_through_a_large_table
        no_call_costs_more_beside_a_backlog;
    audit_costs:
        an_audit_of_four_times_the_rows_costs_four_times_as_much;
    growth:
        batches_without_files_go_in_pages
        counters_of_nothing_go
        the_history_of_one_file_is_bounded
        lines_that_nobody_delivers_are_dropped_by_age;
    recovering:
        sound_jobs_are_told_from_others
        who_held_the_job_of_a_recovered_file_has_lost_it
        a_file_begun_anew_too_often_is_given_up
        what_only_waits_is_listed_and_left_alone
        a_file_is_stuck_when_its_time_is_over
        what_is_scheduled_is_brought_forward
        poison_is_noticed_by_recovery_too
        recoveries_that_race_begin_each_file_anew_once
        a_file_that_cannot_be_mended_is_nobody_elses_trouble
        a_recovery_whose_turn_is_over_changes_nothing
        stuck_files_are_listed_by_scope_longest_first;
    failing_jobs:
        a_job_is_tried_again_until_its_attempts_are_used_up
        what_cannot_be_helped_dies_at_once
        a_long_error_is_cut_at_a_character;
    objects:
        one_upload_fills_an_object
        what_is_not_waited_for_gets_no_upload
        bytes_that_came_too_late_get_a_cleanup
        late_bytes_have_a_cleanup_whatever_ends_at_that_moment
        facts_are_set_and_counted;
    orphans:
        rows_say_what_must_be_there
        an_empty_catalog_has_no_sample
        a_large_catalog_is_sampled_all_over
        progress_is_counted_once
        an_orphan_has_one_cleanup_and_is_forgotten_with_it
        what_is_alive_or_has_a_cleanup_gets_none
        outdated_findings_are_forgotten_in_bounded_batches;
    claiming_cleanups:
        a_cleanup_is_claimed_with_all_it_says
        a_claim_is_a_lease
        the_longest_overdue_are_claimed_first
        eight_reapers_never_get_the_same_cleanup
        pending_cleanups_are_listed_by_scope
        pending_cleanups_are_counted_by_scope;
    settling_cleanups:
        what_is_gone_for_good_is_done
        what_may_come_back_is_deleted_once_more
        a_refusal_spends_attempts_until_they_are_exhausted
        an_exhausted_cleanup_that_succeeds_is_exhausted_no_more
        a_store_that_is_down_spends_nobodys_attempts
        an_old_claim_settles_nothing
        each_of_a_batch_is_settled_for_itself
        a_long_refusal_is_cut_at_a_character
        what_failed_is_retried_now_by_scope;
    auditing:
        the_audit_finds_wrong_quotas
        the_audit_finds_wrong_counters
        the_audit_finds_lost_objects_and_files
        the_audit_finds_histories_that_cannot_be
        the_audit_finds_a_row_nobody_looks_at
        the_audit_finds_files_of_wrong_batches
        the_audit_finds_wrong_cleanups;
    guards:
        a_row_not_at_rest_is_looked_at
        a_file_is_what_it_can_be
        a_key_belongs_to_one_object
        sums_do_not_go_below_zero
        a_leased_job_has_an_end
        a_version_is_told_once;
    every_write:
        no_write_is_made_in_part
        no_migration_is_made_in_part;
    faults:
        a_fault_never_halves_a_registration
        a_read_that_fails_is_not_an_empty_answer;
}
