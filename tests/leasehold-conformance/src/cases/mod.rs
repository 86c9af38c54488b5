//! The cases, and the list of all.

mod acquire;
mod attributes;
mod bodies;
mod break_lock;
mod clock;
mod damaged;
mod data;
mod foreign;
mod heartbeat;
mod history;
mod keys;
mod listing;
mod occurrence;
mod release;
mod rows;
mod semaphore;
mod sequence;
mod several;
mod single_key;
mod sort_key;
mod together;
mod transport;
mod want;
mod watch;

use std::pin::Pin;

use crate::bench::Bench;

/// One requirement on the service.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Bench) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! cases {
    ($($module:ident { $($case:ident),+ $(,)? })+) => {
        &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: |bench| Box::pin($module::$case(bench)),
        }),+),+]
    };
}

/// Cases for a table with or without a sort key.
pub(crate) const ON_ANY_TABLE: &[Case] = cases! {
    semaphore {
        permits_are_granted_up_to_the_capacity,
        request_beyond_the_capacity_is_refused,
        repeated_acquire_takes_no_permit_twice,
        heartbeat_renews_its_own_holder,
        upgrade_is_refused_and_downgrade_is_not,
        release_is_remembered,
        dead_holder_is_evicted_by_its_observer,
        observed_entries_have_rules,
        caller_that_finds_itself_dead_keeps_its_place,
        queue_goes_by_its_numbers,
        waiter_out_of_turn_is_refused,
        late_pass_overtakes_nobody,
        late_turn_overtakes_nobody,
        ticket_is_withdrawn_by_a_release,
        late_requests_of_a_waiter_change_nothing,
        writer_is_not_starved_by_readers,
        dead_tickets_are_removed_by_who_comes,
        waiter_removes_more_dead_holders_than_ten,
        full_queue_is_entered_past_its_dead,
        holders_have_a_bound,
        capacity_can_be_changed,
        operator_breaks_holders_and_tickets,
        late_copies_of_a_spent_enqueue_make_no_ticket,
        late_copies_of_a_spent_acquire_make_no_holder,
        evicted_waiter_is_remembered,
        ends_of_holders_hide_no_end_of_a_ticket,
        old_epoch_is_refused_and_the_next_try_is_not,
        request_that_names_its_ticket_makes_no_other,
        holder_of_another_token_is_lost,
        late_change_of_the_capacity_undoes_nothing,
        dead_come_free_by_the_clock_for_who_asks_once,
        ticket_above_the_capacity_is_ahead_of_nobody,
        enqueue_is_granted_where_permits_are_free,
        watch_waits_for_the_turn_of_a_ticket,
        public_ids_are_no_proof,
        watch_waits_for_permits_and_the_queue,
        semaphore_and_lock_do_not_mix,
        semaphore_takes_a_deleted_lock,
        listing_shows_semaphores_by_kind,
        semaphore_row_is_as_described,
        damaged_semaphore_grants_nothing,
        semaphore_whose_permits_do_not_add_up_grants_nothing,
        requests_are_checked,
    }
    acquire {
        free_key_is_created,
        defaults_and_a_generated_lease_id,
        held_lock_is_refused_and_left_alone,
        repeat_is_a_renewal,
        observed_version_takes_over,
        any_other_version_is_refused,
        observed_version_is_good_for_one_takeover,
        observed_version_is_no_obstacle,
        released_lock_is_reacquired,
        lease_id_is_good_for_one_acquisition,
        lease_id_ends_with_a_break,
        ended_lease_id_cannot_disturb_a_successor,
        ended_lease_id_is_remembered_by_a_tombstone,
        only_if_exists_never_creates,
        fencing_tokens_rise_through_everything,
        every_version_is_new,
        leases_have_bounds,
    }
    data {
        it_stays_unless_it_is_replaced,
        it_is_stored_only_where_there_is_none,
        bytes_travel_as_base64,
        empty_data_is_data,
        heartbeat_keeps_sets_and_deletes_it,
        data_of_a_release_reaches_the_successor,
        refused_request_stores_nothing,
        quarter_of_a_mebibyte_fits,
        more_does_not_fit,
    }
    attributes {
        they_round_trip,
        they_add_up,
        they_survive_release_and_takeover,
        names_of_the_lock_are_refused,
        they_have_limits,
        they_go_with_a_deletion,
        numbers_must_be_exact,
    }
    history {
        history_is_told_or_refused,
        requests_are_checked,
    }
    heartbeat {
        it_renews,
        it_changes_the_lease_only_if_asked,
        it_keeps_observers_off,
        it_may_name_the_version,
        absent_lock_is_lost,
        released_lock_is_lost,
        broken_lock_is_lost,
        deleted_lock_is_lost,
        lock_of_someone_else_is_lost,
        lock_with_a_successor_is_lost,
    }
    release {
        it_keeps_the_row,
        it_may_be_repeated,
        absent_lock_is_absent,
        it_deletes_the_row_if_asked,
        released_lock_may_still_be_deleted,
        lock_of_someone_else_is_lost,
        repeat_is_told_under_a_successor,
        lock_that_was_taken_over_is_lost,
        it_may_name_the_version,
        deleting_may_name_the_version,
    }
    want {
        holder_learns_that_somebody_waits,
        lock_that_nobody_holds_is_free,
        mark_is_no_sign_of_life,
        key_of_a_semaphore_is_of_the_wrong_kind,
        row_of_another_client_takes_no_mark,
        request_must_be_complete,
    }
    break_lock {
        it_releases_and_may_be_repeated,
        holder_learns_of_it,
        another_version_is_refused,
        unknown_key_is_a_mismatch,
        repeat_is_told_under_a_successor,
    }
    clock {
        dead_lease_is_taken_over_after_the_skew,
        heartbeat_keeps_a_lease_alive,
        it_is_no_obstacle,
        it_excludes_an_observed_version,
    }
    listing {
        get_shows_a_lock,
        get_knows_no_other_lock,
        pages_add_up,
        page_has_no_more_than_asked_for,
        unfiltered_listing_has_every_lock,
        filters_by_state_and_owner,
        key_lists_its_locks,
        forged_cursor_is_refused,
        cursor_belongs_to_its_listing,
        parameters_have_bounds,
        service_is_healthy,
    }
    occurrence {
        run_that_succeeded_is_not_repeated,
        run_that_failed_is_tried_again,
        run_at_most_once_is_not_tried_again,
        repeat_of_a_completed_run_has_its_answers,
        completion_that_is_not_stored_is_lost,
        completion_of_another_run_is_not_ones_own,
        completion_names_the_running_occurrence,
        acquire_without_an_occurrence_is_not_asked,
        holder_cannot_go_back,
        row_with_a_done_occurrence_never_expires,
        row_outlives_the_time_of_its_occurrence,
        token_rises_when_the_row_of_an_occurrence_is_gone,
        tombstone_keeps_the_occurrence,
        occurrences_are_compared_byte_for_byte,
        unreadable_occurrence_is_no_leave,
        job_of_a_far_occurrence_can_be_set_back,
        occurrence_is_set_on_a_free_lock_alone,
        occurrence_of_no_lock_cannot_be_set,
        its_fields_have_bounds,
    }
    rows {
        acquire_writes_the_whole_record,
        acquire_without_data_writes_none,
        renewal_writes_the_record_anew,
        heartbeat_writes_version_and_times,
        heartbeat_with_a_lease_writes_the_lease,
        release_ends_the_version,
        release_with_data_stores_it,
        break_ends_the_version,
        reacquiring_unmarks,
        takeover_keeps_what_is_not_its_own,
        deletion_leaves_a_tombstone,
        sequence_is_stored,
        refusal_writes_nothing,
    }
    foreign {
        held_row_is_held,
        held_row_cannot_be_renewed_or_released,
        held_row_is_taken_over_when_it_is_stale,
        held_row_can_be_broken,
        row_is_never_dead_by_the_clock,
        released_row_is_reacquired,
        replaced_row_is_lost,
        row_overwritten_in_place_disowns_its_holder,
        row_overwritten_in_place_is_taken_over_when_it_is_stale,
        row_overwritten_in_place_and_released_is_reacquired,
        released_row_overwritten_in_place_is_held,
        tombstone_overwritten_in_place_is_a_lock,
        row_after_a_tombstone_is_a_lock_when_released,
        unknown_attributes_are_shown_and_kept,
    }
    damaged {
        missing_lease,
        lease_that_is_a_number,
        lease_of_the_go_client,
        lease_of_words,
        lease_of_zero,
        empty_lease,
        missing_owner,
        owner_that_is_a_number,
        token_of_text,
        token_at_the_limit,
        missing_version,
        version_that_is_null,
        row_of_nothing,
        row_of_an_unknown_kind_is_left_alone,
        unreadable_lease_can_be_broken,
        released_row_without_a_lease_is_free,
        released_row_with_a_bad_token_is_not_free,
        granted_record_is_readable,
        holder_can_repair_its_lease,
        holder_can_release_an_unreadable_row,
        hash_of_the_wrong_length_is_nobodys,
    }
    keys {
        odd_keys_round_trip,
        look_alikes_are_different_locks,
        longest_key_round_trips,
        longer_key_is_refused,
        bytes_count_and_not_characters,
        other_texts_have_limits,
    }
    bodies {
        body_that_is_not_json_is_refused,
        body_is_refused_when_it_is_no_object,
        text_after_the_object_is_refused,
        missing_fields_are_named,
        empty_fields_are_named,
        unknown_fields_are_named,
        duplicate_fields_are_named,
        fields_of_the_wrong_type_are_named,
        null_is_as_good_as_absent,
        leases_are_whole_numbers,
        data_comes_in_one_form,
        data_and_its_deletion_exclude_each_other,
        base64_is_strict,
        text_is_unicode,
        bytes_are_utf_8,
        nesting_has_limits,
    }
    sequence {
        repeated_acquire_has_its_first_answer,
        repeated_heartbeat_has_its_first_answer,
        late_request_is_superseded,
        another_request_of_the_same_number_is_superseded,
        request_without_a_number_counts_as_new,
        number_does_not_outlive_its_lease_id,
        late_heartbeat_changes_no_later_grant,
        number_is_no_possession,
        numbers_and_ids_have_bounds,
    }
    watch {
        it_answers_at_once_when_the_lock_is_another,
        it_answers_when_the_lock_changes,
        it_answers_when_there_is_a_lock,
        it_answers_when_the_lock_is_gone,
        it_ends_with_the_lock_as_it_is,
        its_parameters_have_bounds,
    }
    transport {
        json_is_what_the_header_says,
        methods_are_fixed,
        options_is_no_exception,
        routes_are_fixed,
        two_mebibytes_are_read,
        more_is_not_read,
        queries_are_strict,
        queries_are_decoded_once,
        every_answer_keeps_the_secret,
    }
};

/// Cases for a table in one region.
pub(crate) const IN_ONE_REGION: &[Case] = cases! {
    together {
        all_locks_are_granted,
        none_is_granted_where_one_is_held,
        token_is_above_all_others,
        dead_locks_are_taken_over_by_their_versions,
        repeat_has_its_first_answer,
        repeat_without_a_number_is_a_renewal,
        late_request_is_superseded,
        lease_id_that_holds_some_is_lost,
        ended_lease_id_is_lost,
        each_lock_is_one_like_any_other,
        semaphore_is_no_lock,
        damaged_row_is_not_free,
        its_fields_have_bounds,
        crossed_callers_get_all_or_none,
    }
    several {
        lock_and_permits_are_granted_together,
        caller_that_finds_itself_dead_is_renewed,
        semaphore_is_made_or_takes_a_tombstone,
        none_is_granted_where_permits_are_missing,
        while_somebody_waits_several_are_refused,
        lease_id_that_waits_is_lost,
        dead_holders_and_tickets_make_way,
        dead_make_way_by_the_clock,
        repeat_has_its_first_answer,
        repeat_with_other_permits_is_refused,
        late_request_is_superseded,
        request_above_the_capacity_names_its_key,
        key_of_another_kind_is_named,
        lease_id_without_its_permits_is_lost,
        ended_or_outdated_request_is_refused,
        token_is_above_all_others,
        damaged_semaphore_is_not_free,
        its_fields_have_bounds,
    }
};

/// Cases for a table in several regions.
pub(crate) const IN_SEVERAL_REGIONS: &[Case] = cases! {
    together {
        it_is_refused_in_several_regions,
    }
};

/// Cases for a table without a sort key.
pub(crate) const WITHOUT_SORT_KEY: &[Case] = cases! {
    single_key {
        sort_key_is_refused,
    }
};

/// Cases for a table with a sort key.
pub(crate) const WITH_SORT_KEY: &[Case] = cases! {
    sort_key {
        missing_sort_key_is_refused,
        sort_keys_are_independent,
        key_lists_its_sort_keys_in_order,
        listing_of_a_key_can_be_filtered,
        odd_sort_keys_round_trip,
        sort_keys_have_limits,
    }
};
