//! The critical path: which steps, one caused by the other, the time went by.

use std::fmt;

use super::network::Network;
use super::{NO_LINK, PICOSECONDS, Record};

/// What the time of a simulation went by, from the call to the last step.
#[derive(Clone, Debug, PartialEq)]
pub struct CriticalPath {
    /// How many steps it is long.
    pub steps: usize,
    /// Microseconds for launching.
    pub launch_us: f64,
    /// Microseconds of software in which programs did nothing else, step by step.
    pub software_us: f64,
    /// Microseconds until messages were seen: on wires, and by software.
    pub message_us: f64,
    /// Microseconds in which bytes moved, by the narrowest link of their way, the longest first.
    pub parts: Vec<Part>,
}

/// What one link has of the critical path.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its name.
    pub link: String,
    /// How many steps sent over it.
    pub steps: usize,
    /// Microseconds.
    pub time_us: f64,
}

/// Goes back from the last step to the first.
pub(super) fn critical_path(records: &[Record], last: u32, launch: u64, network: &dyn Network) -> CriticalPath {
    let (mut software, mut messages, mut steps) = (0, 0, 0);
    let mut by_link: Vec<(u32, usize, u64)> = Vec::new();
    let mut index = last;
    while let Some(record) = records.get(index as usize) {
        steps += 1;
        software += record.moved - record.ready;
        let moving = record.done - record.moved;
        match by_link.iter_mut().find(|(link, ..)| *link == record.link) {
            Some((_, steps, time)) => {
                *steps += 1;
                *time += moving;
            }
            None => by_link.push((record.link, 1, moving)),
        }
        if record.cause == index {
            break;
        }
        let cause = &records[record.cause as usize];
        // Between the two the message, or word of an emptied slot, was on its way.
        messages += record.ready.saturating_sub(cause.done);
        index = record.cause;
    }
    by_link.sort_by_key(|(link, _, time)| (std::cmp::Reverse(*time), *link));
    let us = |picoseconds: u64| picoseconds as f64 / PICOSECONDS;
    let part = |(link, steps, time): (u32, usize, u64)| {
        let name = if link == NO_LINK { "this rank alone".to_owned() } else { network.link(link as usize).name };
        Part { link: name, steps, time_us: us(time) }
    };
    CriticalPath {
        steps,
        launch_us: us(launch),
        software_us: us(software),
        message_us: us(messages),
        parts: by_link.into_iter().filter(|(_, _, time)| *time > 0).map(part).collect(),
    }
}

/// Links of which a text says how long they took.
const PARTS_SHOWN: usize = 4;

impl fmt::Display for CriticalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CriticalPath { steps, launch_us, software_us, message_us, parts } = self;
        write!(
            f,
            "{steps} steps, one waiting for the other: {launch_us:.1} us to launch, {software_us:.1} us of software, \
             {message_us:.1} us until messages were seen"
        )?;
        for Part { link, steps, time_us } in parts.iter().take(PARTS_SHOWN) {
            write!(f, ", {time_us:.1} us of {steps} messages over {link}")?;
        }
        if parts.len() > PARTS_SHOWN {
            let rest: f64 = parts[PARTS_SHOWN..].iter().map(|part| part.time_us).sum();
            write!(f, ", {rest:.1} us over {} more links", parts.len() - PARTS_SHOWN)?;
        }
        Ok(())
    }
}
