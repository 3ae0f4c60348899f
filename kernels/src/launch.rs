//! What a kernel does before it interprets its programs and after: it numbers the call, says what it does, and says that it is
//! done.
//!
//! All of that happens here and not on the host, because a captured launch may be replayed, by the GPU alone. So the sequence
//! number and the digest of the calls before live in the GPU's memory ([`RankState`]); each block works them out for itself, the
//! same way, and writes the call as it sees it where only it looks. The last block to end moves them on. What the host and the
//! peers may see is stored to the host's memory ([`Report`]), to which nothing here does anything but store, and from which it
//! only reads where a rank may not go on without (see [`agree`]).
//!
//! **Invariant.** As the interpreter's, but that a block may wait here: for ranks that have yet to come to the call before, while
//! it watches the abort word.

use crate::interpreter::State;
use crate::layout::{
    BlockView, Call, FINGERPRINT_WORDS, Fingerprint, HISTORY, ISSUE_WORDS, Issue, Launch, Program, ProgramReport,
    REPORTED_PROGRAMS, RankState, Report, buffer, issue_flag, launch_status,
};
use crate::target::{
    all, any, barrier, block_index, compare_and_set, count_up, fence_all, load_acquire, load_relaxed, nanosleep,
    sees_abort, store_relaxed, store_release, thread_count, thread_index,
};

/// IssueWords of 8 bytes of a [`Call`].
const CALL_WORDS: usize = size_of::<Call>() / 8;

/// IssueWords of 8 bytes of a [`Call`] and the [`Program`] behind it.
const VIEW_WORDS: usize = CALL_WORDS + size_of::<Program>() / 8;

/// How long a block sleeps between looks at the others' reports.
const LOOK_INTERVAL_NS: u32 = 500;

/// A launch as one block sees it. One address, since all that outlives a step takes registers away from the hot loops: what the
/// kernel's parameter leads to is looked up again.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a>(pub(crate) &'a BlockView);

/// A kernel's parameter: an [`Issue`], as words. It is taken apart word by word, since a struct whose address is taken would be
/// copied into each thread's local memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IssueWords(pub(crate) [u64; ISSUE_WORDS]);

/// Begins a launch; none if there is nothing to begin.
///
/// # Safety
/// The words are an [`Issue`] whose launch, and all that it points at, is valid until the kernel ends, as the host lays it out.
#[inline(always)]
pub(crate) unsafe fn begin<'a>(issue: IssueWords) -> Option<Block<'a>> {
    let IssueWords([launch, input, output, input_of_all, output_of_all, rest @ ..]) = issue;
    let [_, kind, count, plan, fingerprint_scale, scale, finish, ticket, flags] = rest;
    // SAFETY: passed on from the caller. The launch is only read; the state, which other blocks may write, is not borrowed.
    unsafe {
        let launch = &*core::ptr::with_exposed_provenance::<Launch>(launch as usize);
        let state = launch.rank;
        let own = launch.blocks.add(block_index());
        let has_program = block_index() < launch.program_count as usize;
        let mut word = thread_index();
        while word < VIEW_WORDS {
            *own.cast::<u64>().add(word) = if word < CALL_WORDS {
                *(&raw const launch.call).cast::<u64>().add(word)
            } else if has_program {
                *launch.programs.add(block_index()).cast::<u64>().add(word - CALL_WORDS)
            } else {
                0
            };
            word += thread_count();
        }
        barrier();
        if thread_index() == 0 {
            let call = &mut (*own).call;
            let fingerprint = Fingerprint { sequence: 0, call: kind, count, plan, scale: fingerprint_scale };
            call.fingerprint = fingerprint.after(&(*state).last);
            call.buffers[buffer::INPUT as usize] = core::ptr::with_exposed_provenance_mut(input as usize);
            call.buffers[buffer::OUTPUT as usize] = core::ptr::with_exposed_provenance_mut(output as usize);
            let multicast = &raw mut (*own).multicast;
            let of_all = (&raw mut (*multicast).buffers).cast::<u64>();
            *of_all.add(buffer::INPUT as usize) = input_of_all;
            *of_all.add(buffer::OUTPUT as usize) = output_of_all;
            call.multicast = multicast;
            call.sends = (*state).sends;
            call.receives = (*state).receives;
            call.scale = scale;
            call.finish = finish;
            (*own).launch = launch;
            (*own).ticket = ticket;
            (*own).flags = flags;
            if block_index() == 0 {
                post((*state).reports.add((*state).rank as usize), &call.fingerprint);
            }
        }
        barrier();
        let call = &(*own).call;
        // A rank that failed makes no more calls; nor does one whose communicator is broken. (Another block of this launch may be
        // failing just now, so its word is read as the abort word is.)
        let has_failed = || sees_abort(&raw const (*state).status) || sees_abort(call.abort);
        if any(thread_index() == 0 && has_failed()) {
            Block(&*own).fail(launch_status::ABORTED);
            return None;
        }
        if flags & issue_flag::EXPOSES != 0 {
            expose(state, call);
        }
        let must_wait = issue_flag::ROOTED | issue_flag::SENDS_FIRST;
        if flags & must_wait == must_wait && (*state).unconfirmed != 0 {
            let status = agree(state, &(*state).last, call.abort);
            if !all(status == launch_status::GOOD) {
                let differs = any(status == launch_status::MISMATCH);
                Block(&*own).fail(if differs { launch_status::MISMATCH } else { launch_status::ABORTED });
                return None;
            }
        }
        // What has been exposed comes before any slot that any thread publishes.
        barrier();
        Some(Block(&*own))
    }
}

/// Lets everybody see that the rank has come to a call.
///
/// # Safety
/// The report is this rank's, and no other thread posts.
#[inline(always)]
unsafe fn post(report: *mut Report, fingerprint: &Fingerprint) {
    // SAFETY: passed on from the caller; the words are only ever accessed atomically while kernels run.
    unsafe {
        let place = (&raw mut (*report).history).cast::<Fingerprint>().add(fingerprint.sequence as usize % HISTORY);
        let mut word = 0;
        while word < FINGERPRINT_WORDS {
            store_relaxed(place.cast::<u64>().add(word), *core::ptr::from_ref(fingerprint).cast::<u64>().add(word));
            word += 1;
        }
        // Orders the fingerprint before it, for whoever acquires the number.
        store_release(&raw mut (*report).sequence, fingerprint.sequence);
    }
}

/// Tells every rank where this one's buffers are, wherever that rank looks it up. Each block does, so that whichever first
/// publishes a slot has done so: they store the same, relaxed, and readers load the same way.
///
/// # Safety
/// The state and the call are this launch's.
#[inline(always)]
unsafe fn expose(state: *mut RankState, call: &Call) {
    // SAFETY: there is a table for each rank, with an entry for each rank.
    unsafe {
        let mut peer = thread_index();
        while peer < (*state).rank_count as usize {
            let window = (*(*state).window_tables.add(peer)).add((*state).rank as usize);
            let mut index = 0;
            while index < buffer::COUNT {
                let place = (&raw mut (*window).buffers).cast::<u64>().add(index);
                store_relaxed(place, call.buffers[index].expose_provenance() as u64);
                index += 1;
            }
            peer += thread_count();
        }
    }
}

/// Waits until all ranks have come to a call, and compares what this one did in it with what they say that they did, this thread
/// for its share of them; one of [`launch_status`].
///
/// # Safety
/// The state is this launch's; `mine` is a call that this rank has come to; the abort word outlives the kernel.
#[inline(always)]
unsafe fn agree(state: *mut RankState, mine: &Fingerprint, abort: *const u32) -> u32 {
    let mut peer = thread_index();
    // SAFETY: there is a report for each rank; passed on from the caller.
    unsafe {
        while peer < (*state).rank_count as usize {
            while load_acquire(&raw const (*(*state).reports.add(peer)).sequence) < mine.sequence {
                if sees_abort(abort) {
                    return launch_status::ABORTED;
                }
                nanosleep(LOOK_INTERVAL_NS);
            }
            if differs_from((*state).reports.add(peer), mine) {
                return launch_status::MISMATCH;
            }
            peer += thread_count();
        }
    }
    launch_status::GOOD
}

/// Whether a rank says that it did something else than `mine` in the call of that number. One that has yet to come to it does
/// not, and of one that is so far ahead that its report has forgotten it nobody knows.
///
/// # Safety
/// The report is valid.
#[inline(always)]
unsafe fn differs_from(report: *const Report, mine: &Fingerprint) -> bool {
    // SAFETY: passed on from the caller; what kernels write there they write atomically.
    unsafe {
        // Acquires the fingerprints of the calls that the rank has come to.
        if load_acquire(&raw const (*report).sequence) < mine.sequence {
            return false;
        }
        let place = (&raw const (*report).history).cast::<Fingerprint>().add(mine.sequence as usize % HISTORY);
        let mut differs = false;
        let mut word = 0;
        while word < FINGERPRINT_WORDS {
            differs |=
                load_relaxed(place.cast::<u64>().add(word)) != *core::ptr::from_ref(mine).cast::<u64>().add(word);
            word += 1;
        }
        // If the rank has since begun to overwrite the entry, it has published the call before: the fence orders this look
        // behind those at the words.
        fence_all();
        differs && load_acquire(&raw const (*report).sequence) < mine.sequence + HISTORY as u64 - 1
    }
}

impl Block<'_> {
    /// Whether the block is to stop; asked by one that has been waiting for a while.
    #[inline(always)]
    pub(crate) fn is_aborted(self) -> bool {
        // SAFETY: the abort word outlives the kernel.
        any(thread_index() == 0 && unsafe { sees_abort(self.0.call.abort) })
    }

    /// Says how far the program is, and that it is waiting.
    #[inline(always)]
    pub(crate) fn report_waiting(self, state: &State) {
        if thread_index() == 0 {
            // SAFETY: the state is that of this block's program, at a step; the words are only stored to.
            unsafe {
                let report = self.place();
                let sequence = self.0.call.fingerprint.sequence << ProgramReport::SEQUENCE_SHIFT;
                store_relaxed(&raw mut (*report).progress, sequence + state.completed(&self.0.program));
                store_relaxed(&raw mut (*report).is_waiting, 1);
            }
        }
    }

    /// Says that the program, which had said that it was waiting, is so no longer.
    #[inline(always)]
    pub(crate) fn report_moving(self) {
        if thread_index() == 0 {
            // SAFETY: as above.
            unsafe { store_relaxed(&raw mut (*self.place()).is_waiting, 0) };
        }
    }

    /// Where this block says how far it is.
    ///
    /// # Safety
    /// The block is this one.
    #[inline(always)]
    unsafe fn place(self) -> *mut ProgramReport {
        let last = REPORTED_PROGRAMS - 1;
        let index = if block_index() < last { block_index() } else { last };
        // SAFETY: the rank has a report, with so many places.
        unsafe { (&raw mut (*own_report((*self.0.launch).rank)).programs).cast::<ProgramReport>().add(index) }
    }

    /// Ends the rank's calls, for the reason `status`, unless they have been ended already.
    #[inline(always)]
    pub(crate) fn fail(self, status: u32) {
        if thread_index() == 0 {
            // SAFETY: the words are only accessed atomically while the kernel runs.
            unsafe {
                let state = (*self.0.launch).rank;
                if compare_and_set(&raw mut (*state).status, launch_status::GOOD, status) {
                    store_relaxed(&raw mut (*own_report(state)).status, u64::from(status));
                }
            }
        }
    }

    /// Ends the block's part; the last one to do so ends the call.
    #[inline(always)]
    pub(crate) fn end(self) {
        // Everything that this block did comes before it counts.
        barrier();
        if thread_index() != 0 {
            return;
        }
        let BlockView { launch, ticket, flags, .. } = *self.0;
        // SAFETY: the last block is alone with the state and the table of completed steps. What it stores there the next launch
        // sees, which comes after this one.
        unsafe {
            let state = (*launch).rank;
            let programs = (*launch).program_count;
            let blocks = if programs == 0 { 1 } else { programs };
            if count_up(&raw mut (*state).blocks_done) + 1 < blocks {
                return;
            }
            (*state).blocks_done = 0;
            if flags & issue_flag::LOOKS != 0 {
                // Of two ranks that both post and then look, at least one sees the other.
                fence_all();
                let mut status = launch_status::GOOD;
                let mut peer = 0;
                while peer < (*state).rank_count {
                    if differs_from((*state).reports.add(peer as usize), &self.0.call.fingerprint) {
                        status = launch_status::MISMATCH;
                    }
                    peer += 1;
                }
                if status != launch_status::GOOD {
                    return self.fail(status);
                }
            }
            let mut index = 0;
            while index < programs as usize {
                (*(*launch).call.completed.add(index)).steps = 0;
                index += 1;
            }
            let mut word = 0;
            while word < FINGERPRINT_WORDS {
                *(&raw mut (*state).last).cast::<u64>().add(word) =
                    *(&raw const self.0.call.fingerprint).cast::<u64>().add(word);
                word += 1;
            }
            (*state).unconfirmed = (flags & issue_flag::ROOTED != 0) as u32;
            let report = own_report(state);
            if ticket != 0 {
                store_relaxed(&raw mut (*report).ticket, ticket);
            }
            // Orders all of the call before it, for whoever acquires the number.
            store_release(&raw mut (*report).finished, self.0.call.fingerprint.sequence);
        }
    }
}

/// Where a rank's kernels say what they do.
///
/// # Safety
/// The state is valid.
#[inline(always)]
unsafe fn own_report(state: *mut RankState) -> *mut Report {
    // SAFETY: there is a report for each rank.
    unsafe { (*state).reports.add((*state).rank as usize) }
}
