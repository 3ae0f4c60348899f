//! The race detector: happens-before, per byte, scopes respected.
//!
//! **The idea** is FastTrack's (Flanagan and Freund, 2009): a clock for each thread that moves when the thread releases; each
//! byte remembers its last write and the reads since; an access is ordered after another if the thread's vector clock has
//! reached the other's time. A vector with an entry for each of many thousand threads would be hopeless, so it is compressed
//! along the lines on which GPU programs synchronise:
//!
//! - All threads of a block share one **time**, which moves at every release or barrier of any of them. That orders nothing
//!   by itself: it only numbers intervals.
//! - A block-wide barrier makes all that its threads did up to then known to all of them: one number ([`BlockClock::base_time`])
//!   and one shared [`Clock`]. What a thread has learned since, alone, is its own **extra** clock, usually none.
//! - A [`Clock`] holds for a foreign block one time up to which *all* its threads are known, and exceptions for single
//!   threads; and intervals of blocks that have ended and are known entirely.
//!
//! A release stores its knowledge ([`Record`]) at the address; the strong read that observes the value takes it over, if the scopes of both
//! include the other thread (PTX ISA, "Memory consistency model": release pattern, acquire pattern, morally strong). Fences
//! work as there: a fence before a strong write makes it a release, a fence after a strong read makes it an acquire.
//! Atomic read-modify-writes extend a release's sequence.
//!
//! Two accesses to the same bytes, one of them by way of a multicast address, are ordered only if there is a
//! `fence.proxy.alias` on the way from one to the other (PTX ISA, "Proxy-preserved base causality order"). What is asked here is a
//! little less: that the first thread has made one since, or the second one since it last learned of others; and none between what a thread
//! reads and what it writes then.
//!
//! Values and notes change under one lock (the page's), so that a reader gets the knowledge that belongs to the value it reads.
//! As in FastTrack, what is reported is a race of this run's order; of several unordered atomic writes only the last
//! is remembered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a granule: what one 16-byte access covers.
const GRANULE: usize = 16;

/// How far a strong access or fence reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

/// The device of host threads.
pub(crate) const HOST: u8 = u8::MAX;

/// One access, as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The block's number in the machine; 0 for no access at all.
    pub(crate) block: u32,
    pub(crate) time: u32,
    /// The instruction's number in the machine.
    pub(crate) site: u32,
    pub(crate) thread: u16,
    pub(crate) device: u8,
    /// Bytes, for strong accesses.
    pub(crate) bytes: u8,
    pub(crate) strong: Option<Scope>,
    /// Whether it goes by way of a multicast address.
    pub(crate) alias: bool,
}

impl Access {
    const NONE: Access =
        Access { block: 0, time: 0, site: 0, thread: 0, device: 0, bytes: 0, strong: None, alias: false };

    /// Whether two strong accesses may meet: each one's scope includes the other, and they are of one size.
    fn morally_strong(&self, other: &Access) -> bool {
        let (Some(scope), Some(other_scope)) = (self.strong, other.strong) else { return false };
        self.bytes == other.bytes
            && self.alias == other.alias
            && includes(scope.min(other_scope), (self.block, self.device), (other.block, other.device))
    }
}

/// Whether a scope around one thread includes another; each is (block, device).
pub(crate) fn includes(scope: Scope, one: (u32, u8), other: (u32, u8)) -> bool {
    match scope {
        Scope::Block => one.0 == other.0,
        Scope::Device => one.1 == other.1,
        Scope::System => true,
    }
}

/// What is known of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Of all its threads, up to this time.
    all: u32,
    /// Of single threads, further than that.
    threads: Vec<(u16, u32)>,
}

impl Known {
    fn learn(&mut self, thread: u16, time: u32) {
        if time <= self.all {
            return;
        }
        match self.threads.binary_search_by_key(&thread, |entry| entry.0) {
            Ok(at) => self.threads[at].1 = self.threads[at].1.max(time),
            Err(at) => self.threads.insert(at, (thread, time)),
        }
    }

    fn join(&mut self, other: &Known) {
        if other.all > self.all {
            self.all = other.all;
            let all = self.all;
            self.threads.retain(|entry| entry.1 > all);
        }
        for &(thread, time) in &other.threads {
            self.learn(thread, time);
        }
    }

    fn reaches(&self, thread: u16, time: u32) -> bool {
        time <= self.all
            || self.threads.binary_search_by_key(&thread, |entry| entry.0).is_ok_and(|at| self.threads[at].1 >= time)
    }
}

/// What a thread knows of others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Blocks that have ended and are known entirely: half-open intervals, sorted, apart.
    ended: Vec<(u32, u32)>,
    blocks: BTreeMap<u32, Known>,
}

impl Clock {
    /// Takes over all that `other` knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.ended != other.ended {
            for &(first, end) in &other.ended {
                self.know_ended(first, end);
            }
        }
        for (&block, known) in &other.blocks {
            if !self.has_ended(block) {
                self.blocks.entry(block).or_default().join(known);
            }
        }
    }

    /// All that blocks `first..end` did is known.
    pub(crate) fn know_ended(&mut self, first: u32, end: u32) {
        if first == end || self.ended.iter().any(|&(other, other_end)| other <= first && end <= other_end) {
            return;
        }
        let (mut first, mut end) = (first, end);
        self.ended.retain(|&(other, other_end)| {
            let touches = other <= end && first <= other_end;
            if touches {
                first = first.min(other);
                end = end.max(other_end);
            }
            !touches
        });
        let at = self.ended.partition_point(|&(other, _)| other < first);
        self.ended.insert(at, (first, end));
        let inside: Vec<u32> = self.blocks.range(first..end).map(|(&block, _)| block).collect();
        for block in inside {
            self.blocks.remove(&block);
        }
    }

    pub(crate) fn know_all(&mut self, block: u32, time: u32) {
        if !self.has_ended(block) {
            self.blocks.entry(block).or_default().join(&Known { all: time, threads: Vec::new() });
        }
    }

    fn know_thread(&mut self, block: u32, thread: u16, time: u32) {
        if !self.has_ended(block) {
            self.blocks.entry(block).or_default().learn(thread, time);
        }
    }

    /// Whether it is worth making shorter.
    pub(crate) fn is_large(&self) -> bool {
        self.blocks.len() > 64
    }

    fn has_ended(&self, block: u32) -> bool {
        let after = self.ended.partition_point(|&(first, _)| first <= block);
        after > 0 && block < self.ended[after - 1].1
    }

    fn reaches(&self, block: u32, thread: u16, time: u32) -> bool {
        self.has_ended(block) || self.blocks.get(&block).is_some_and(|known| known.reaches(thread, time))
    }
}

/// What a release hands over.
#[derive(Debug)]
pub(crate) struct Record {
    base: Arc<Clock>,
    extra: Option<Arc<Clock>>,
    /// Of the releaser's own block, all threads are known up to here ...
    base_time: u32,
    block: u32,
    device: u8,
    /// ... and the releaser itself up to here.
    thread: u16,
    time: u32,
}

/// A record that lies at an address, with the scope of the write that put it there.
#[derive(Clone, Debug)]
pub(crate) struct Released {
    record: Arc<Record>,
    scope: Scope,
}

/// When each thread made its last `fence.proxy.alias`, by block and thread.
#[derive(Debug, Default)]
pub(crate) struct AliasFences(Mutex<HashMap<(u32, u16), u32>>);

impl AliasFences {
    fn note(&self, block: u32, thread: u16, time: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((block, thread), time);
    }

    fn is_since(&self, access: &Access) -> bool {
        let fences = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fences.get(&(access.block, access.thread)).is_some_and(|time| *time >= access.time)
    }
}

#[derive(Clone, Debug, Default)]
struct ThreadClock {
    /// What this thread has learned since its block's last barrier.
    extra: Option<Arc<Clock>>,
    /// What it knew at its last fence of each scope.
    fences: [Option<Arc<Record>>; 3],
    /// What strong reads without acquire have seen, for a fence to come.
    pending: Vec<Released>,
    /// Whether it has made a `fence.proxy.alias` since it last learned of others.
    alias_fenced: bool,
}

/// The clocks of one block.
#[derive(Debug)]
pub(crate) struct BlockClock {
    pub(crate) block: u32,
    pub(crate) device: u8,
    pub(crate) time: u32,
    /// Up to here, all threads of the block know all threads of the block.
    base_time: u32,
    pub(crate) base: Arc<Clock>,
    threads: Vec<ThreadClock>,
    alias_fences: Arc<AliasFences>,
}

/// A thread's view, against which an access is checked.
pub(crate) struct View<'a> {
    block: u32,
    thread: u16,
    base_time: u32,
    base: &'a Clock,
    extra: Option<&'a Clock>,
    alias_fenced: bool,
    alias_fences: &'a AliasFences,
}

impl View<'_> {
    /// Whether that access happened before all that the thread does now.
    fn ordered(&self, block: u32, thread: u16, time: u32) -> bool {
        if block == self.block && (thread == self.thread || time <= self.base_time) {
            return true;
        }
        self.base.reaches(block, thread, time) || self.extra.is_some_and(|extra| extra.reaches(block, thread, time))
    }

    fn is_ordered(&self, access: &Access) -> bool {
        self.ordered(access.block, access.thread, access.time)
    }

    /// Whether `earlier` comes before `access`, which this thread makes now, by whatever addresses they go.
    fn comes_before(&self, earlier: &Access, access: &Access) -> bool {
        self.is_ordered(earlier) && (earlier.alias == access.alias || self.is_fenced(earlier))
    }

    /// Whether a `fence.proxy.alias` lies between that access and now. The host makes none itself.
    fn is_fenced(&self, earlier: &Access) -> bool {
        let is_own = (earlier.block, earlier.thread) == (self.block, self.thread);
        (self.alias_fenced && !is_own)
            || earlier.device == HOST
            || self.base.has_ended(earlier.block)
            || self.alias_fences.is_since(earlier)
    }
}

impl BlockClock {
    /// A block (or, as a block of one, a host thread) that begins with that knowledge.
    pub(crate) fn new(block: u32, device: u8, threads: usize, base: Arc<Clock>) -> BlockClock {
        let threads = vec![ThreadClock::default(); threads];
        BlockClock { block, device, time: 1, base_time: 0, base, threads, alias_fences: Arc::default() }
    }

    /// The same, with the fences that all blocks of a machine share.
    pub(crate) fn with_alias_fences(self, alias_fences: Arc<AliasFences>) -> BlockClock {
        BlockClock { alias_fences, ..self }
    }

    pub(crate) fn view(&self, thread: u16) -> View<'_> {
        View {
            block: self.block,
            thread,
            base_time: self.base_time,
            base: &self.base,
            extra: self.threads[usize::from(thread)].extra.as_deref(),
            alias_fenced: self.threads[usize::from(thread)].alias_fenced,
            alias_fences: &self.alias_fences,
        }
    }

    fn record(&mut self, thread: u16) -> Arc<Record> {
        let record = Record {
            base: self.base.clone(),
            extra: self.threads[usize::from(thread)].extra.clone(),
            base_time: self.base_time,
            block: self.block,
            device: self.device,
            thread,
            time: self.time,
        };
        // What any thread does from here on is later than what was handed over.
        self.time += 1;
        Arc::new(record)
    }

    fn learn(&mut self, thread: u16, record: &Record) {
        if self.view(thread).ordered(record.block, record.thread, record.time) {
            return;
        }
        let mut extra =
            self.threads[usize::from(thread)].extra.take().map_or_else(Clock::default, Arc::unwrap_or_clone);
        extra.join(&record.base);
        if let Some(other) = &record.extra {
            extra.join(other);
        }
        extra.know_all(record.block, record.base_time);
        extra.know_thread(record.block, record.thread, record.time);
        self.threads[usize::from(thread)].extra = Some(Arc::new(extra));
        self.threads[usize::from(thread)].alias_fenced = false;
    }

    /// What a strong write by `thread` puts at its address.
    pub(crate) fn write_strong(&mut self, thread: u16, release: bool, scope: Scope) -> Vec<Released> {
        if release {
            return vec![Released { record: self.record(thread), scope }];
        }
        let fences = self.threads[usize::from(thread)].fences.iter().zip([Scope::Block, Scope::Device, Scope::System]);
        let released = |(record, fenced): (&Option<Arc<Record>>, Scope)| {
            record.as_ref().map(|record| Released { record: record.clone(), scope: fenced.min(scope) })
        };
        fences.filter_map(released).collect()
    }

    /// What a strong read by `thread` takes from its address.
    pub(crate) fn read_strong(&mut self, thread: u16, acquire: bool, scope: Scope, found: &[Released]) {
        for released in found {
            let record = &released.record;
            let scope = scope.min(released.scope);
            if !includes(scope, (self.block, self.device), (record.block, record.device)) {
                continue;
            }
            if acquire {
                self.learn(thread, record);
                continue;
            }
            let pending = &mut self.threads[usize::from(thread)].pending;
            if !pending.iter().any(|other| Arc::ptr_eq(&other.record, record) && other.scope >= scope) {
                // A later record of the same thread holds all that an earlier one does.
                pending.retain(|other| {
                    let older = other.record.block == record.block && other.record.thread == record.thread;
                    !(older && other.record.time <= record.time && other.scope <= scope)
                });
                pending.push(Released { record: record.clone(), scope });
            }
        }
    }

    /// A fence by `thread`.
    pub(crate) fn fence(&mut self, thread: u16, scope: Scope) {
        let pending = std::mem::take(&mut self.threads[usize::from(thread)].pending);
        let own = (self.block, self.device);
        for released in &pending {
            if includes(scope.min(released.scope), own, (released.record.block, released.record.device)) {
                self.learn(thread, &released.record);
            }
        }
        self.threads[usize::from(thread)].pending = pending;
        let record = self.record(thread);
        self.threads[usize::from(thread)].fences[scope as usize] = Some(record);
    }

    /// A `fence.proxy.alias` by threads of one warp.
    pub(crate) fn alias_fence(&mut self, threads: impl Iterator<Item = u16>) {
        for thread in threads {
            self.threads[usize::from(thread)].alias_fenced = true;
            self.alias_fences.note(self.block, thread, self.time);
        }
        // What follows is later than the fence.
        self.time += 1;
    }

    /// All threads of the block have met.
    pub(crate) fn barrier_all(&mut self) {
        let mut joined: Option<Clock> = None;
        let mut last: Option<Arc<Clock>> = None;
        for thread in &mut self.threads {
            thread.alias_fenced = false;
            if let Some(extra) = thread.extra.take() {
                if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &extra)) {
                    continue;
                }
                joined.get_or_insert_with(|| (*self.base).clone()).join(&extra);
                last = Some(extra);
            }
        }
        if let Some(mut joined) = joined {
            joined.blocks.remove(&self.block);
            self.base = Arc::new(joined);
        }
        self.base_time = self.time;
        self.time += 1;
    }

    /// Some threads of the block have met: `from` hand over, `to` take.
    pub(crate) fn barrier_some(&mut self, from: &[u16], to: &[u16]) {
        let mut joined = Clock::default();
        for &thread in from {
            if let Some(extra) = &self.threads[usize::from(thread)].extra {
                joined.join(extra);
            }
            joined.know_thread(self.block, thread, self.time);
        }
        self.time += 1;
        if from == to {
            let joined = Arc::new(joined);
            for &thread in to {
                self.threads[usize::from(thread)].extra = Some(joined.clone());
                self.threads[usize::from(thread)].alias_fenced = false;
            }
            return;
        }
        for &thread in to {
            let mut extra = joined.clone();
            if let Some(own) = &self.threads[usize::from(thread)].extra {
                extra.join(own);
            }
            self.threads[usize::from(thread)].extra = Some(Arc::new(extra));
            self.threads[usize::from(thread)].alias_fenced = false;
        }
    }

    /// All that the block knows, at its end.
    pub(crate) fn knowledge(&mut self) -> Arc<Clock> {
        self.barrier_all();
        self.base.clone()
    }

    /// For a host thread: takes over what has become known by waiting.
    pub(crate) fn learn_clock(&mut self, clock: &Clock) {
        let base = Arc::make_mut(&mut self.base);
        base.join(clock);
    }

    /// For a host thread: of host threads that are gone, by their numbers and last times, it is enough to know that they are.
    pub(crate) fn forget_retired(&mut self, retired: &HashMap<u32, u32>) {
        let is_over = |(block, known): (&u32, &Known)| {
            retired.get(block).is_some_and(|last| known.all >= *last).then_some(*block)
        };
        let over: Vec<u32> = self.base.blocks.iter().filter_map(is_over).collect();
        if !over.is_empty() {
            let base = Arc::make_mut(&mut self.base);
            for block in over {
                base.know_ended(block, block + 1);
            }
        }
    }

    /// For a host thread: all that it knows and has done, for what begins now.
    pub(crate) fn hand_over(&mut self) -> Arc<Clock> {
        self.barrier_all();
        let mut clock = (*self.base).clone();
        clock.know_all(self.block, self.base_time);
        Arc::new(clock)
    }
}

/// Reads of one warp at one time.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// As of the newest of them; its thread's lane is meaningless.
    access: Access,
    lanes: u32,
}

impl Read {
    const NONE: Read = Read { access: Access::NONE, lanes: 0 };

    fn key(&self) -> (u32, u16) {
        (self.access.block, self.access.thread / 32)
    }

    fn each(&self) -> impl Iterator<Item = Access> + '_ {
        (0..32u16)
            .filter(|lane| self.lanes >> lane & 1 != 0)
            .map(|lane| Access { thread: self.access.thread / 32 * 32 + lane, ..self.access })
    }

    fn is_ordered(&self, view: &View) -> bool {
        self.each().all(|access| view.is_ordered(&access))
    }
}

type Readers = HashMap<(u32, u16), Vec<Read>>;

/// What is remembered of a byte, or of several that have always been accessed together.
#[derive(Clone, Debug)]
struct State {
    write: Access,
    read: Read,
    more: Option<Box<Readers>>,
}

impl Default for State {
    fn default() -> State {
        State { write: Access::NONE, read: Read::NONE, more: None }
    }
}

impl State {
    fn read(&mut self, access: Access, view: &View) -> Option<Access> {
        let lane = 1 << (access.thread % 32);
        let key = (access.block, access.thread / 32);
        let same = |read: &Read| {
            read.key() == key
                && (read.access.time, read.access.strong, read.access.alias)
                    == (access.time, access.strong, access.alias)
        };
        if same(&self.read) && self.read.lanes & lane != 0 {
            return None;
        }
        let write = self.write;
        let conflict = write.block != 0 && !view.comes_before(&write, &access) && !write.morally_strong(&access);
        let new = Read { access, lanes: lane };
        if self.read.access.block == 0 {
            self.read = new;
        } else if same(&self.read) {
            self.read.lanes |= lane;
            self.read.access = access;
        } else if self.more.is_none() && self.read.is_ordered(view) {
            self.read = new;
        } else {
            let reads = self.more.get_or_insert_default().entry(key).or_default();
            match reads.iter_mut().find(|read| same(read)) {
                Some(read) => read.lanes |= lane,
                None => {
                    reads.retain(|read| !read.is_ordered(view));
                    reads.push(new);
                }
            }
        }
        conflict.then_some(write)
    }

    fn write(&mut self, access: Access, view: &View) -> Option<(Access, bool)> {
        let write = self.write;
        let mut conflict = None;
        if write.block != 0 && !view.comes_before(&write, &access) && !write.morally_strong(&access) {
            conflict = Some((write, true));
        }
        let mut check = |read: &Read| {
            // A thread has what it loaded before it stores that anywhere, by whatever address; and kernels load in order to store.
            let is_own = |other: &Access| (other.block, other.thread) == (access.block, access.thread);
            let unordered = read.each().find(|other| !is_own(other) && !view.comes_before(other, &access));
            let Some(other) = unordered else { return false };
            if !other.morally_strong(&access) && conflict.is_none() {
                conflict = Some((other, false));
            }
            // What is unordered and allowed to be stays, for writes to come.
            other.morally_strong(&access)
        };
        if self.read.access.block != 0 && !check(&self.read) {
            self.read = Read::NONE;
        }
        if let Some(more) = &mut self.more {
            more.retain(|_, reads| {
                reads.retain(&mut check);
                !reads.is_empty()
            });
            if more.is_empty() {
                self.more = None;
            }
        }
        self.write = access;
        conflict
    }

    fn access(&mut self, access: Access, is_write: bool, view: &View) -> Option<(Access, bool)> {
        if is_write { self.write(access, view) } else { self.read(access, view).map(|write| (write, true)) }
    }
}

/// A tree of states: whole while all its bytes are accessed together, else split.
#[derive(Clone, Debug)]
enum Cell<Part> {
    Whole(State),
    Split(Box<[Part; 4]>),
}

impl<Part> Default for Cell<Part> {
    fn default() -> Cell<Part> {
        Cell::Whole(State::default())
    }
}

type Granule = Cell<Cell<State>>;

fn access_word(
    cell: &mut Cell<State>,
    from: usize,
    to: usize,
    access: Access,
    is_write: bool,
    view: &View,
) -> Option<(Access, bool)> {
    if let (Cell::Whole(state), true) = (&mut *cell, from == 0 && to == 4) {
        return state.access(access, is_write, view);
    }
    if let Cell::Whole(state) = cell {
        *cell = Cell::Split(Box::new(std::array::from_fn(|_| state.clone())));
    }
    let Cell::Split(parts) = cell else { return None };
    let mut conflict = None;
    for part in &mut parts[from..to] {
        conflict = conflict.or(part.access(access, is_write, view));
    }
    if is_write && from == 0 && to == 4 && parts.iter().all(|part| part.read.access.block == 0 && part.more.is_none()) {
        *cell = Cell::Whole(parts[0].clone());
    }
    conflict
}

fn access_granule(
    cell: &mut Granule,
    from: usize,
    to: usize,
    access: Access,
    is_write: bool,
    view: &View,
) -> Option<(Access, bool)> {
    if let (Cell::Whole(state), true) = (&mut *cell, from == 0 && to == GRANULE) {
        return state.access(access, is_write, view);
    }
    if let Cell::Whole(state) = cell {
        *cell = Cell::Split(Box::new(std::array::from_fn(|_| Cell::Whole(state.clone()))));
    }
    let Cell::Split(parts) = cell else { return None };
    let mut conflict = None;
    for (index, part) in parts.iter_mut().enumerate() {
        let (low, high) = (from.max(4 * index), to.min(4 * index + 4));
        if low < high {
            conflict = conflict.or(access_word(part, low - 4 * index, high - 4 * index, access, is_write, view));
        }
    }
    let clean =
        |part: &Cell<State>| matches!(part, Cell::Whole(state) if state.read.access.block == 0 && state.more.is_none());
    if is_write
        && (from, to) == (0, GRANULE)
        && parts.iter().all(clean)
        && let Cell::Whole(state) = &parts[0]
    {
        *cell = Cell::Whole(state.clone());
    }
    conflict
}

/// The notes on one page of memory.
#[derive(Debug)]
pub(crate) struct Page {
    cells: Box<[Granule]>,
    /// What releases left, by the offset of the address, with the bytes of the write.
    released: BTreeMap<u16, (u8, Vec<Released>)>,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            cells: vec![Granule::default(); crate::memory::PAGE_BYTES as usize / GRANULE].into_boxed_slice(),
            released: BTreeMap::new(),
        }
    }
}

impl Page {
    /// Notes an access to `bytes` bytes at `offset`; answers the access with which it races, and whether that one writes.
    pub(crate) fn access(
        &mut self,
        offset: usize,
        bytes: usize,
        access: Access,
        is_write: bool,
        view: &View,
    ) -> Option<(Access, bool)> {
        let (mut at, end) = (offset, offset + bytes);
        let mut conflict = None;
        while at < end {
            let (granule, from) = (at / GRANULE, at % GRANULE);
            let to = (from + end - at).min(GRANULE);
            let Some(cell) = self.cells.get_mut(granule) else { break };
            conflict = conflict.or(access_granule(cell, from, to, access, is_write, view));
            at += to - from;
        }
        conflict
    }

    /// A write that releases nothing ends what was released at those bytes.
    pub(crate) fn clear_released(&mut self, offset: usize, bytes: usize) {
        if !self.released.is_empty() {
            let from = offset.saturating_sub(7) as u16;
            let near = self.released.range(from..(offset + bytes) as u16);
            let overlaps =
                |&(&at, written): &(&u16, &(u8, Vec<Released>))| usize::from(at) + usize::from(written.0) > offset;
            let inside: Vec<u16> = near.filter(overlaps).map(|(&at, _)| at).collect();
            for at in inside {
                self.released.remove(&at);
            }
        }
    }

    pub(crate) fn released(&self, offset: usize) -> &[Released] {
        self.released.get(&(offset as u16)).map_or(&[], |written| &written.1)
    }

    /// A strong write's records; a read-modify-write keeps those that it found.
    pub(crate) fn release(&mut self, offset: usize, bytes: usize, records: Vec<Released>, keep: bool) {
        if !keep {
            self.clear_released(offset, bytes);
        }
        if !records.is_empty() {
            let (width, there) = self.released.entry(offset as u16).or_default();
            *width = bytes as u8;
            for new in records {
                there.retain(|old| {
                    let older = old.record.block == new.record.block && old.record.thread == new.record.thread;
                    !(older && old.scope <= new.scope)
                });
                there.push(new);
            }
        }
    }
}
