//! The trainer of `examples/train.rs`: many ranks must learn what one rank learns.

#[path = "../train.rs"]
#[expect(dead_code, reason = "the example's own way in")]
mod train;

use clap::Parser;
use train::{Model, Settings, TOLERANCE, Wines};

/// Settings as the command line gives them.
fn settings(flags: &str) -> Settings {
    Settings::try_parse_from(["train"].into_iter().chain(flags.split_whitespace())).expect("flags that parse")
}

/// Training without ranks and without tutti: the whole batch at once. Gives the weights.
fn weights_without_ranks(settings: &Settings, wines: &Wines) -> Vec<f32> {
    let model = Model::new().unwrap();
    let mut weights = model.draw_weights(settings.seed);
    let mut gradients = vec![f32::NAN; weights.len()];
    let mut velocity = vec![0.0; weights.len()];
    for step in 0..settings.steps {
        model.load(&weights).unwrap();
        let batch = wines.draw(settings, step, 0..settings.batch).unwrap();
        model.gradients(&batch, 1.0, &mut gradients).unwrap();
        train::descend(&mut weights, &gradients, &mut velocity, settings.learning_rate);
    }
    weights
}

/// Trains with the ranks that `flags` ask for: each must come to the weights that there are without ranks, and to a lower loss.
fn assert_ranks_learn_as_if_they_were_one(flags: &str) {
    let settings = settings(flags);
    let wines = Wines::load().unwrap();
    let expected = weights_without_ranks(&settings, &wines);
    let outcomes = train::train(&settings, &wines).unwrap();
    assert_eq!(outcomes.len(), settings.ranks);
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.weights.len(), expected.len());
        let difference = train::largest_difference(&outcome.weights, &expected);
        assert!(difference <= TOLERANCE, "{flags}: rank {rank} is {difference:e} away");
        assert_eq!(outcome.weights, outcomes[0].weights, "{flags}: ranks {rank} and 0 hold different bits");
        let [first_loss, last_loss] = outcome.losses;
        assert!(last_loss < 0.8 * first_loss, "{flags}: the loss of rank {rank} went from {first_loss} to {last_loss}");
    }
}

#[test]
fn ranks_that_reduce_all_gradients_learn_as_if_they_were_one() {
    for ranks in 1..=4 {
        assert_ranks_learn_as_if_they_were_one(&format!("--ranks {ranks} --batch 128"));
    }
}

#[test]
fn ranks_that_step_on_shards_learn_as_if_they_were_one() {
    for ranks in 1..=4 {
        assert_ranks_learn_as_if_they_were_one(&format!("--ranks {ranks} --batch 128 --sharded"));
    }
}

#[test]
fn a_batch_that_does_not_divide_by_the_ranks_is_weighed_by_its_parts() {
    for way in ["", "--sharded"] {
        // 1, 2, 2 and 2 wines: an average of averages would be far off.
        assert_ranks_learn_as_if_they_were_one(&format!("--ranks 4 --batch 7 --learning-rate 0.01 {way}"));
        assert_ranks_learn_as_if_they_were_one(&format!("--ranks 3 --batch 100 --seed 7 {way}"));
    }
}

#[test]
fn one_rank_in_two_learning_something_else_would_be_noticed() {
    // The comparison that the other tests rest on: other wines give other weights, and NaN is no agreement.
    let wines = Wines::load().unwrap();
    let weights = weights_without_ranks(&settings("--batch 128"), &wines);
    let others = weights_without_ranks(&settings("--batch 127"), &wines);
    assert!(train::largest_difference(&weights, &others) > 100.0 * TOLERANCE);
    assert!(train::largest_difference(&[0.0, f32::NAN, 1.0], &[0.0, 0.0, 0.0]).is_nan());
}

#[test]
fn flags_that_make_no_sense_are_refused_with_what_was_expected() {
    for (flags, expected) in [
        ("--ranks 0", "0 is not in 1..=64"),
        ("--ranks 65", "65 is not in 1..=64"),
        ("--steps 0", "0 is not in 1..=1000000"),
        ("--batch 2048", "2048 is not in 1..=2047"),
        ("--batch -1", "unexpected argument '-1'"),
        ("--batch many", "invalid digit"),
        ("--learning-rate nan", "expected a number above 0, at most 1"),
        ("--learning-rate inf", "expected a number above 0, at most 1"),
        ("--learning-rate -0.1", "unexpected argument '-0'"),
        ("--learning-rate=-0.1", "expected a number above 0, at most 1"),
        ("--shared", "unexpected argument '--shared'"),
    ] {
        let error = Settings::try_parse_from(["train"].into_iter().chain(flags.split_whitespace())).unwrap_err();
        assert!(error.to_string().contains(expected), "{flags}: {error}");
    }
    let error = train::train(&settings("--ranks 4 --batch 3"), &Wines::load().unwrap()).err().unwrap();
    assert_eq!(error.to_string(), "a batch of 3 leaves ranks without a wine: expected at least 4");
}
