//! The worked examples of the literature and of other libraries' manuals, as they print them.

use half::{bf16, f16};
use tutti::Reduction::{Avg, Sum};

use super::Make;
use super::ranks::{SOON, on_threads, options, within};

pub(crate) fn four_ranks_of_1_2_3_all_reduce_to_4_8_12(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let input = [1.0_f32, 2.0, 3.0];
            let mut output = [0.0; 3];
            rank.all_reduce(&input, &mut output, Sum).unwrap();
            assert_eq!((input, output), ([1.0, 2.0, 3.0], [4.0, 8.0, 12.0]));
            let mut halves = [1.0, 2.0, 3.0].map(f16::from_f32);
            rank.all_reduce_in_place(&mut halves, Sum).unwrap();
            assert_eq!(halves, [4.0, 8.0, 12.0].map(f16::from_f32));
        });
    });
}

pub(crate) fn one_number_from_each_of_four_ranks_gathers_to_1_2_3_4(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let mut output = vec![0.0; 4];
            rank.all_gather(&[rank.rank() as f32 + 1.0], &mut output).unwrap();
            assert_eq!(output, [1.0, 2.0, 3.0, 4.0]);
        });
    });
}

pub(crate) fn four_ranks_of_1_2_3_4_reduce_scatter_to_4_8_12_and_16(make: Make) {
    within(SOON, move || {
        let outputs = on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let mut output = [0.0_f32];
            rank.reduce_scatter(&[1.0, 2.0, 3.0, 4.0], &mut output, Sum).unwrap();
            output[0]
        });
        assert_eq!(outputs, [4.0, 8.0, 12.0, 16.0]);
    });
}

pub(crate) fn four_ranks_of_multiples_of_their_number_reduce_scatter_to_10_20_30_and_40(make: Make) {
    within(SOON, move || {
        let outputs = on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let number = rank.rank() as f32 + 1.0;
            let mut output = [0.0_f32];
            rank.reduce_scatter(&[number, 2.0 * number, 3.0 * number, 4.0 * number], &mut output, Sum).unwrap();
            output[0]
        });
        assert_eq!(outputs, [10.0, 20.0, 30.0, 40.0]);
    });
}

pub(crate) fn a_broadcast_gives_everyone_the_roots_numbers(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let mut output = [0.0_f32; 3];
            let input: &[f32] = if rank.rank() == 2 { &[7.0, 8.0, 9.0] } else { &[] };
            rank.broadcast(input, &mut output, 2).unwrap();
            assert_eq!(output, [7.0, 8.0, 9.0]);
        });
    });
}

pub(crate) fn a_reduce_gives_the_root_the_sum_and_leaves_the_others_alone(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let mut buffer = [1.0_f32, 2.0, 3.0];
            rank.reduce_in_place(&mut buffer, Sum, 3).unwrap();
            assert_eq!(buffer, if rank.rank() == 3 { [4.0, 8.0, 12.0] } else { [1.0, 2.0, 3.0] });
        });
    });
}

pub(crate) fn the_average_of_0_1_2_and_3_is_one_and_a_half(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let mut buffer = vec![bf16::from_f32(rank.rank() as f32); 5];
            rank.all_reduce_in_place(&mut buffer, Avg).unwrap();
            assert_eq!(buffer, [bf16::from_f32(1.5); 5]);
        });
    });
}

pub(crate) fn all_reduce_equals_reduce_scatter_followed_by_all_gather(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |rank| {
            let input: Vec<f32> = (0..4000).map(|index| (index * (rank.rank() + 1) % 97) as f32).collect();
            let (mut whole, mut part, mut joined) = (vec![0.0; 4000], vec![0.0; 1000], vec![0.0; 4000]);
            rank.all_reduce(&input, &mut whole, Sum).unwrap();
            rank.reduce_scatter(&input, &mut part, Sum).unwrap();
            rank.all_gather(&part, &mut joined).unwrap();
            assert_eq!(whole, joined);
        });
    });
}
