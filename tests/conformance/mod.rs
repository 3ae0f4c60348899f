//! What every device's communicators must do, written once.
//!
//! A device instantiates the suite with one line, `conformance!(make)`, where `make` gives communicators for a number of ranks
//! and options, and says beside it whether it is there (`is_ready`), whether it is quick enough for all cases (`IS_QUICK`) and what
//! cargo calls its tests (`SUITE`). The modules below hold one topic each; what they share is a [`case::Case`] (one call, as every rank makes
//! it), the oracle that says what must come out, and the watchdog that turns a hang into a failure. Tests reach the library
//! only through its public interface.
//!
//! Random tests take their seed from `TUTTI_SEED` where it is set, and print the command that replays them where they fail.

pub(crate) mod asynchronous;
pub(crate) mod breaking;
pub(crate) mod buffers;
pub(crate) mod case;
pub(crate) mod deadlines;
pub(crate) mod disagreement;
pub(crate) mod endurance;
pub(crate) mod examples;
pub(crate) mod exhaustive;
pub(crate) mod groups;
pub(crate) mod lending;
pub(crate) mod number;
pub(crate) mod numbers;
pub(crate) mod oracle;
pub(crate) mod random;
pub(crate) mod ranks;
pub(crate) mod replay;
pub(crate) mod settings;
pub(crate) mod splitting;

use tutti::{Communicator, Options};

/// Gives one communicator for each of a number of ranks.
pub(crate) type Make = fn(usize, Options) -> tutti::Result<Vec<Communicator>>;

/// Instantiates the suite for the communicators that `$make` (a [`Make`]) gives.
macro_rules! conformance {
    ($make:expr) => {
        conformance! { @tests $make;
            examples: [
                four_ranks_of_1_2_3_all_reduce_to_4_8_12
                one_number_from_each_of_four_ranks_gathers_to_1_2_3_4
                four_ranks_of_1_2_3_4_reduce_scatter_to_4_8_12_and_16
                four_ranks_of_multiples_of_their_number_reduce_scatter_to_10_20_30_and_40
                a_broadcast_gives_everyone_the_roots_numbers
                a_reduce_gives_the_root_the_sum_and_leaves_the_others_alone
                the_average_of_0_1_2_and_3_is_one_and_a_half
                all_reduce_equals_reduce_scatter_followed_by_all_gather
            ];
            exhaustive: [
                every_small_all_reduce_is_right
                every_small_reduce_scatter_is_right
                every_small_all_gather_is_right
                every_small_broadcast_is_right
                every_small_reduce_is_right
                every_algorithm_is_right_on_threads_too
                calls_around_the_default_slots_and_chunks_are_right
                the_same_call_twice_gives_the_same_bits
                slots_of_every_small_size_and_number_carry_every_algorithm
                nobody_leaves_a_barrier_before_everyone_has_come
            ];
            random: [
                any_call_is_right
                any_row_of_calls_is_right
            ];
            numbers: [
                a_nan_at_any_rank_is_a_nan_everywhere
                nans_that_differ_between_ranks_are_a_nan_on_every_rank
                copies_keep_every_bit_pattern
                special_values_meet_as_ieee_says
                all_values_of_8_and_16_bits_meet_as_they_should
                minus_zero_is_less_than_plus_zero
                infinities_and_their_differences_are_what_ieee_says
                sums_of_f16_overflow_to_infinity
                averages_of_the_largest_numbers_do_not_overflow
                averages_next_to_zero_lose_no_more_than_is_documented
                subnormals_are_kept_whatever_mode_the_calling_thread_is_in
                direct_and_one_shot_reduce_in_rank_order_and_round_once
            ];
            disagreement: [
                calls_that_differ_on_one_rank_are_a_mismatch_on_every_rank
                any_difference_by_any_algorithm_is_a_mismatch_on_every_rank
                any_two_algorithms_in_another_order_are_a_mismatch_on_every_rank
                calls_that_differ_on_every_rank_are_a_mismatch_on_every_rank
                calls_in_another_order_are_a_mismatch
                a_group_with_other_contents_is_a_mismatch
                a_rank_with_one_call_too_many_is_a_mismatch_as_soon_as_the_others_call_something_else
                broadcasts_from_different_roots_are_noticed_in_the_next_call
                ranks_that_only_send_notice_who_comes_later
                any_single_difference_in_a_row_of_calls_reaches_every_rank
                large_calls_that_differ_by_one_element_write_nothing_outside_their_buffers
                scaled_sums_that_differ_in_their_scale_name_both_scales
            ];
            deadlines: [
                a_rank_that_never_comes_is_named_on_every_rank
                several_late_ranks_are_all_named
                a_deadline_of_one_call_is_its_own
                a_rank_that_comes_late_but_in_time_is_waited_for
                a_late_rank_is_named_with_its_last_call
                a_late_rank_is_named_by_those_that_do_not_wait_for_it_directly
                a_rank_whose_calls_come_from_short_lived_threads_is_waited_for
                a_late_rank_whose_thread_has_ended_is_named_so
                a_rank_whose_thread_has_panicked_and_lives_on_gets_the_shorter_deadline
                a_root_waits_in_its_second_call_for_those_that_have_not_come_to_the_first
                deadlines_of_zero_and_of_forever_are_deadlines
            ];
            breaking: [
                abort_ends_a_call_that_is_under_way
                abort_ends_calls_that_come_later
                abort_reaches_every_algorithm
                abort_outlives_the_communicators
                a_panic_frees_the_other_ranks
                a_panic_in_the_middle_of_a_row_of_calls_frees_the_other_ranks
                a_panic_of_a_thread_that_only_borrows_its_communicator_frees_the_other_ranks
                a_panic_that_is_caught_breaks_nothing
                a_panic_among_asynchronous_calls_unwinds_at_once
                a_dropped_communicator_frees_the_other_ranks
                a_rank_may_leave_as_soon_as_it_has_finished
                a_broken_communicator_stays_broken_with_the_same_error
                mistakes_of_one_caller_leave_the_communicator_usable
                mistakes_are_described_with_what_was_expected_and_what_came
                reductions_and_scales_that_do_not_fit_are_described_and_do_no_harm
            ];
            lending: [
                nobody_touches_buffers_after_an_aborted_call_has_returned
                nobody_touches_buffers_after_a_rank_has_left
            ];
            splitting: [
                colours_and_keys_decide_who_is_where
                a_rank_without_a_colour_gets_none
                a_part_outlives_the_whole
                parts_of_parts_work_beside_their_parents
                calls_on_lanes_overlap
                a_broken_part_leaves_the_whole_usable
                an_abort_reaches_lanes_and_parts
                an_abort_reaches_parts_of_parts_that_are_gone
                parts_inherit_settings
            ];
            asynchronous: [
                asynchronous_calls_do_what_blocking_ones_do
                blocking_calls_come_after_asynchronous_ones_that_were_issued_before
                a_thousand_calls_can_be_outstanding
                a_dropped_pending_call_is_made_all_the_same
                failed_calls_give_their_buffers_back
                asynchronous_calls_go_on_when_their_communicator_is_dropped
                dropping_all_ranks_with_a_call_under_way_ends_it
                any_owned_buffer_can_be_lent
                an_asynchronous_call_has_settings_of_its_own
                a_buffer_that_panics_when_it_is_dropped_stops_no_later_call
                a_buffer_that_panics_when_it_is_asked_panics_in_its_callers_thread_and_breaks_nothing
            ];
            groups: [
                a_group_looks_like_its_calls_one_after_the_other
                one_thread_can_be_all_ranks_of_several_communicators
                a_group_that_is_dropped_does_nothing
                a_mistake_is_reported_where_it_is_added
                a_failure_in_one_communicator_leaves_the_others_finished
                a_group_waits_for_asynchronous_calls_that_were_issued_before
                a_group_goes_on_beside_calls_that_need_it
                groups_of_two_threads_do_not_mix
                a_call_of_a_group_has_settings_of_its_own
                empty_groups_succeed
            ];
            settings: [
                settings_out_of_range_are_errors_that_say_the_range
                a_memory_report_counts_connections_and_plans_and_prints_itself
                a_memory_budget_is_kept_or_a_typed_error_on_every_rank
                a_memory_budget_of_what_is_needed_is_enough_and_a_byte_less_is_not
                a_trace_has_every_step_in_order
                a_trace_of_any_length_can_be_asked_for
                a_trace_ends_where_the_memory_budget_does
                memory_and_plans_can_be_looked_at_while_a_call_waits
                a_plan_can_be_looked_at_before_it_runs
                slots_beyond_all_memory_are_a_typed_error_on_every_rank
                a_communicators_algorithm_is_used_where_it_offers_the_collective
                every_setting_has_a_method_that_changes_it_alone
                communicators_and_errors_can_go_between_threads
            ];
            endurance: [
                ten_thousand_mixed_calls_agree_on_every_rank
                a_root_may_run_ahead
                a_small_call_follows_a_much_larger_one
                threads_may_share_a_communicator
                many_communicators_work_side_by_side
                many_more_ranks_than_processors_make_progress
                communicators_come_and_go
            ];
        }
    };
    (@tests $make:expr; $($module:ident: [$($test:ident)*];)*) => {
        $(
            mod $module {
                $(
                    #[test]
                    fn $test() {
                        if crate::is_ready() {
                            crate::conformance::$module::$test($make);
                        }
                    }
                )*
            }
        )*
    };
}
