//! The simulation itself: what happens next, and what follows from it.
//!
//! There are three kinds of events: a program is looked at again, bytes of a step set out, bytes of a flow have left. They lie in a
//! heap by time; of equal times the one that was put there first comes first. An event of a flow whose end has moved since is
//! recognised when it comes up, and dropped.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::flows::{Flows, Way};
use super::network::{Network, Route};
use super::path::critical_path;
use super::{NO_LINK, PICOSECONDS, Record, Settings, SimulateError, Simulated, WaitsFor};
use crate::plan::{After, ConnectionId, Operand, Plan, ProgramId, Rank, Step, StepId};
use crate::topology::Software;

/// What happens, packed with its time so that a heap of many stays small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time: u64,
    /// In the order in which events were put there.
    number: u64,
    what: u32,
    index: u32,
}

const LOOK: u32 = 0;
const SET_OUT: u32 = 1;
const LEFT: u32 = 2;

/// A program that runs.
struct Running<'a> {
    rank: Rank,
    id: ProgramId,
    loop_index: usize,
    iteration: u64,
    step_index: usize,
    /// Through the program.
    step_id: u32,
    current: Option<(&'a Step, u64)>,
    fired: u64,
    state: State,
    /// Flows of the current step that have not left.
    flowing: u32,
    /// Of the step that runs: when it could, and when its bytes set out.
    ready: u64,
    moved: u64,
    /// When the step before was done.
    free: u64,
    /// Records: of this program's last step, and of what the current step waited for last.
    last_record: u32,
    cause: u32,
    cause_time: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Looks,
    Runs,
    WaitsFull(ConnectionId),
    WaitsRoom(ConnectionId),
    WaitsAfter(usize),
    Ended,
}

/// A connection on its way.
#[derive(Default)]
struct Fifo {
    slots: u32,
    /// Of each message that has been sent and not taken: when it is there, and the record of the step that sent it.
    full: VecDeque<(u64, u32)>,
    /// Slots that are not known to be empty.
    taken: u32,
    /// When word comes back that a slot is empty, and whose step emptied it.
    emptied: VecDeque<(u64, u32)>,
    /// How the last slot came to be known as empty.
    last_emptied: (u64, u32),
    producer: u32,
    consumer: u32,
    /// Picoseconds from the end of a step until its message is seen, and of the wire alone.
    latency: u64,
    wire: u64,
    /// Into the routes.
    route: u32,
}

pub(super) struct Engine<'a> {
    plan: &'a Plan,
    network: &'a dyn Network,
    settings: &'a Settings,
    programs: Vec<Running<'a>>,
    /// By rank, the number of its first program.
    first_program: Vec<u32>,
    fifos: Vec<Fifo>,
    routes: Vec<Way>,
    /// Of each route, picoseconds of its wires and of its software, and its narrowest link.
    route_times: Vec<(u64, u64, u32)>,
    windows: HashMap<(u32, u32), u32>,
    switched: HashMap<(u32, bool), u32>,
    flows: Flows,
    events: BinaryHeap<Reverse<Event>>,
    number: u64,
    /// By program, who waits for which of its steps having been fired how often.
    waiters: Vec<Vec<(u64, u32)>>,
    /// By rank, how many times as long its software takes.
    slowness: Vec<f64>,
    link_bytes: Vec<u64>,
    records: Vec<Record>,
    is_recorded: bool,
    fired: u64,
    end: u64,
    end_record: u32,
    launch: u64,
    step_time: u64,
}

fn picoseconds(us: f64) -> u64 {
    (us * PICOSECONDS).round() as u64
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        network: &'a dyn Network,
        settings: &'a Settings,
    ) -> Result<Engine<'a>, SimulateError> {
        let (offered, needed) = (network.rank_count(), plan.rank_count());
        if offered < needed {
            return Err(SimulateError::TooFewRanks { offered, needed });
        }
        let mut rates: Vec<f64> =
            (0..network.link_count()).map(|index| network.link(index).bandwidth_gb_per_s * 1e-3).collect();
        for (link, part) in &settings.slow_links {
            if let Some(rate) = rates.get_mut(*link) {
                *rate *= part;
            }
        }
        let mut slowness = vec![1.0; needed];
        for (rank, times) in &settings.slow_ranks {
            if let Some(slowness) = slowness.get_mut(rank.index()) {
                *slowness = *times;
            }
        }
        let Software { launch_us, launch_each_rank_us, switch_us, .. } = settings.software;
        let mut steps = plan.ranks.iter().flat_map(|rank| &rank.programs).flat_map(|program| &program.loops);
        let is_switched = steps.any(|looped| looped.steps.iter().any(Step::is_multicast));
        let launch = launch_us + launch_each_rank_us * needed as f64 + if is_switched { switch_us } else { 0.0 };
        let mut engine = Engine {
            plan,
            network,
            settings,
            programs: Vec::new(),
            first_program: Vec::with_capacity(needed),
            fifos: Vec::with_capacity(plan.connections.len()),
            routes: Vec::new(),
            route_times: Vec::new(),
            windows: HashMap::new(),
            switched: HashMap::new(),
            flows: Flows::new(rates),
            events: BinaryHeap::new(),
            number: 0,
            waiters: Vec::new(),
            slowness,
            link_bytes: vec![0; network.link_count()],
            records: Vec::new(),
            is_recorded: true,
            fired: 0,
            end: 0,
            end_record: 0,
            launch: picoseconds(launch),
            step_time: picoseconds(settings.software.step_us),
        };
        engine.add_programs()?;
        for connection in &plan.connections {
            if connection.from.index() >= needed || connection.to.index() >= needed {
                return Err(SimulateError::TooFewRanks { offered: needed, needed: needed + 1 });
            }
            let route = engine.window(connection.from, connection.to);
            let (wire, software, _) = engine.route_times[route as usize];
            let slowness = engine.slowness[connection.from.index()];
            let latency = wire + (software as f64 * slowness) as u64;
            let slots = connection.slots.max(settings.slots);
            engine.fifos.push(Fifo {
                slots,
                latency,
                wire,
                route,
                producer: u32::MAX,
                consumer: u32::MAX,
                ..Fifo::default()
            });
        }
        engine.add_ends()?;
        Ok(engine)
    }

    fn add_programs(&mut self) -> Result<(), SimulateError> {
        for (rank, own) in self.plan.ranks.iter().enumerate() {
            let rank = Rank(rank as u32);
            self.first_program.push(self.programs.len() as u32);
            for (id, program) in own.programs.iter().enumerate() {
                let id = ProgramId(id as u32);
                let is_whole = |looped: &crate::plan::Loop| !looped.steps.is_empty() && looped.chunk_bytes > 0;
                if !program.loops.iter().all(is_whole) {
                    return Err(SimulateError::NotAPlan { rank, program: id });
                }
                let current = program.loops.first().map(|looped| (&looped.steps[0], u64::from(looped.chunk_bytes)));
                let state = if current.is_some() { State::Looks } else { State::Ended };
                self.programs.push(Running {
                    rank,
                    id,
                    loop_index: 0,
                    iteration: 0,
                    step_index: 0,
                    step_id: 0,
                    current,
                    fired: 0,
                    state,
                    flowing: 0,
                    ready: 0,
                    moved: 0,
                    free: 0,
                    last_record: u32::MAX,
                    cause: u32::MAX,
                    cause_time: 0,
                });
            }
        }
        self.waiters.resize_with(self.programs.len(), Vec::new);
        Ok(())
    }

    /// Notes the programs at the ends of each connection.
    fn add_ends(&mut self) -> Result<(), SimulateError> {
        let mut number = 0;
        for (rank, own) in self.plan.ranks.iter().enumerate() {
            for (id, program) in own.programs.iter().enumerate() {
                let wrong = SimulateError::NotAPlan { rank: Rank(rank as u32), program: ProgramId(id as u32) };
                for step in program.loops.iter().flat_map(|looped| &looped.steps) {
                    for source in &step.sources {
                        if let Operand::Slot(connection) = source.operand {
                            self.fifos.get_mut(connection.index()).ok_or_else(|| wrong.clone())?.consumer = number;
                        }
                    }
                    for destination in &step.destinations {
                        if let Operand::Slot(connection) = destination {
                            self.fifos.get_mut(connection.index()).ok_or_else(|| wrong.clone())?.producer = number;
                        }
                    }
                    if step.after.is_some_and(|after| after.program.index() >= own.programs.len()) {
                        return Err(wrong);
                    }
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// The route from one rank's memory to another's.
    fn window(&mut self, from: Rank, to: Rank) -> u32 {
        if let Some(route) = self.windows.get(&(from.0, to.0)) {
            return *route;
        }
        let route = self.network.route(from.index(), to.index());
        let id = self.add_route(&route);
        self.windows.insert((from.0, to.0), id);
        id
    }

    fn add_route(&mut self, route: &Route) -> u32 {
        let bandwidth = |link: &u32| self.network.link(*link as usize).bandwidth_gb_per_s;
        let narrowest = route.links.iter().copied().min_by(|one, other| bandwidth(one).total_cmp(&bandwidth(other)));
        let software = picoseconds(self.settings.software.message_us(route.class));
        self.route_times.push((picoseconds(route.latency_us), software, narrowest.unwrap_or(NO_LINK)));
        let bytes_each = 1.0 / (self.settings.software.payload * route.efficiency);
        self.routes.push(Way { links: route.links.clone().into_boxed_slice(), bytes_each });
        self.routes.len() as u32 - 1
    }

    fn switched(&mut self, rank: Rank, to_all: bool) -> Result<u32, SimulateError> {
        if let Some(route) = self.switched.get(&(rank.0, to_all)) {
            return Ok(*route);
        }
        let route = self.network.switched_route(rank.index(), to_all).ok_or(SimulateError::NoSwitch)?;
        let id = self.add_route(&route);
        self.switched.insert((rank.0, to_all), id);
        Ok(id)
    }

    fn put(&mut self, time: u64, what: u32, index: u32) {
        self.number += 1;
        self.events.push(Reverse(Event { time, number: self.number, what, index }));
    }

    pub(super) fn run(mut self) -> Result<Simulated, SimulateError> {
        for program in 0..self.programs.len() as u32 {
            if self.programs[program as usize].state == State::Looks {
                self.put(0, LOOK, program);
            }
        }
        let mut now = 0;
        while let Some(Reverse(Event { time, what, index, .. })) = self.events.pop() {
            match what {
                LOOK => {
                    now = time;
                    self.look(index as usize, time);
                }
                SET_OUT => {
                    now = time;
                    self.set_out(index as usize, time)?;
                }
                _ => {
                    // The flow may end at another time by now, or be another flow.
                    if !self.flows.ends_at(index, time) {
                        continue;
                    }
                    now = time;
                    let program = self.flows.end(&self.routes, index, time) as usize;
                    self.note_changed();
                    self.programs[program].flowing -= 1;
                    if self.programs[program].flowing == 0 {
                        self.complete(program, time);
                    }
                }
            }
        }
        if let Some(error) = self.stuck(now) {
            return Err(error);
        }
        let end = self.end + self.launch;
        let critical_path = (self.is_recorded && !self.records.is_empty())
            .then(|| critical_path(&self.records, self.end_record, self.launch, self.network));
        Ok(Simulated {
            time_us: end as f64 / PICOSECONDS,
            link_bytes: self.link_bytes,
            events: self.fired,
            critical_path,
            records: if self.is_recorded { self.records } else { Vec::new() },
        })
    }

    fn note_changed(&mut self) {
        let Engine { flows, events, number, .. } = self;
        flows.changed(|flow, ends| {
            *number += 1;
            events.push(Reverse(Event { time: ends, number: *number, what: LEFT, index: flow }));
        });
    }

    /// Runs the program's current step if it can.
    fn look(&mut self, program: usize, now: u64) {
        let running = &mut self.programs[program];
        if matches!(running.state, State::Runs | State::Ended) {
            return;
        }
        let Some((step, _)) = running.current else { return };
        (running.cause, running.cause_time) = (running.last_record, running.free);
        for source in &step.sources {
            let Operand::Slot(connection) = source.operand else { continue };
            match self.fifos[connection.index()].full.front() {
                Some(&(time, record)) if time <= now => {
                    if time >= running.cause_time {
                        (running.cause, running.cause_time) = (record, time);
                    }
                }
                // Who sends it has put a look there for when it comes.
                _ => {
                    running.state = State::WaitsFull(connection);
                    return;
                }
            }
        }
        for destination in &step.destinations {
            let Operand::Slot(connection) = *destination else { continue };
            let fifo = &mut self.fifos[connection.index()];
            while let Some(&(time, record)) = fifo.emptied.front()
                && time <= now
            {
                fifo.emptied.pop_front();
                fifo.taken -= 1;
                fifo.last_emptied = (time, record);
            }
            if fifo.taken >= fifo.slots {
                running.state = State::WaitsRoom(connection);
                // Who empties a slot from now on puts a look there; for those that are empty already it is done here.
                if let Some(&(time, _)) = fifo.emptied.front() {
                    self.put(time, LOOK, program as u32);
                }
                return;
            }
            let (time, record) = fifo.last_emptied;
            // Only what there was to wait for: with a slot to spare nobody asks when another became free.
            if fifo.taken + 1 == fifo.slots && time > running.cause_time {
                (running.cause, running.cause_time) = (record, time);
            }
        }
        if let Some(After { program: other, step: after }) = step.after {
            let target = self.first_program[running.rank.index()] as usize + other.index();
            let needed = tick_of(self.plan, running.rank, other, after, running.iteration);
            let iteration_fired = self.programs[target].fired;
            if iteration_fired < needed {
                self.programs[program].state = State::WaitsAfter(target);
                self.waiters[target].push((needed, program as u32));
                return;
            }
            let (free, record) = (self.programs[target].free, self.programs[target].last_record);
            let running = &mut self.programs[program];
            if iteration_fired == needed && free >= running.cause_time {
                (running.cause, running.cause_time) = (record, free);
            }
        }
        let software = self.step_time;
        let running = &mut self.programs[program];
        running.state = State::Runs;
        running.ready = now;
        let slowness = self.slowness[running.rank.index()];
        let takes = if slowness == 1.0 { software } else { (software as f64 * slowness) as u64 };
        self.put(now + takes, SET_OUT, program as u32);
    }

    /// The step's bytes begin to move.
    fn set_out(&mut self, program: usize, now: u64) -> Result<(), SimulateError> {
        let running = &mut self.programs[program];
        let Some((step, chunk_bytes)) = running.current else { return Ok(()) };
        running.moved = now;
        let begin = running.iteration.saturating_mul(chunk_bytes).min(step.bytes);
        let bytes = chunk_bytes.min(step.bytes - begin);
        let rank = running.rank;
        for source in &step.sources {
            match source.operand {
                Operand::Window { rank: peer, .. } => {
                    let route = self.window(peer, rank);
                    self.flow(route, bytes, program, now);
                }
                Operand::Multicast { .. } => {
                    let route = self.switched(rank, false)?;
                    self.flow(route, bytes, program, now);
                }
                Operand::Local { .. } | Operand::Slot(_) => {}
            }
        }
        for destination in &step.destinations {
            let route = match *destination {
                Operand::Slot(connection) => {
                    let fifo = &mut self.fifos[connection.index()];
                    fifo.taken += 1;
                    fifo.route
                }
                Operand::Window { rank: peer, .. } => self.window(rank, peer),
                Operand::Multicast { .. } => self.switched(rank, true)?,
                Operand::Local { .. } => continue,
            };
            self.flow(route, bytes, program, now);
        }
        if self.programs[program].flowing == 0 {
            self.complete(program, now);
        }
        Ok(())
    }

    /// So many bytes of a step set out over a route.
    fn flow(&mut self, route: u32, bytes: u64, program: usize, now: u64) {
        if bytes == 0 {
            return;
        }
        let wire_bytes = bytes as f64 * self.routes[route as usize].bytes_each;
        for link in &self.routes[route as usize].links {
            self.link_bytes[*link as usize] += wire_bytes as u64;
        }
        self.programs[program].flowing += 1;
        self.flows.begin(&self.routes, route, wire_bytes, program as u32, now);
        self.note_changed();
    }

    /// All bytes of the program's step have left.
    fn complete(&mut self, program: usize, now: u64) {
        self.fired += 1;
        let running = &self.programs[program];
        let Some((step, _)) = running.current else { return };
        let record = self.record(program, step, now);
        for source in &step.sources {
            let Operand::Slot(connection) = source.operand else { continue };
            let fifo = &mut self.fifos[connection.index()];
            fifo.full.pop_front();
            let known = now + fifo.wire;
            fifo.emptied.push_back((known, record));
            let producer = fifo.producer as usize;
            if self.programs[producer].state == State::WaitsRoom(connection) {
                self.put(known, LOOK, producer as u32);
            }
        }
        for destination in &step.destinations {
            let Operand::Slot(connection) = *destination else { continue };
            let fifo = &mut self.fifos[connection.index()];
            let there = now + fifo.latency;
            fifo.full.push_back((there, record));
            let consumer = fifo.consumer;
            // It may not wait yet, but come to wait before the message is there.
            self.put(there, LOOK, consumer);
        }
        let running = &mut self.programs[program];
        running.fired += 1;
        running.free = now;
        running.last_record = record;
        if now >= self.end {
            (self.end, self.end_record) = (now, record);
        }
        self.move_on(program);
        let fired = self.programs[program].fired;
        let mut waiters = std::mem::take(&mut self.waiters[program]);
        waiters.retain(|(needed, waiter)| {
            let is_due = fired >= *needed;
            if is_due {
                self.put(now, LOOK, *waiter);
            }
            !is_due
        });
        self.waiters[program] = waiters;
        if self.programs[program].current.is_some() {
            self.look(program, now);
        }
    }

    /// Keeps when the step ran.
    fn record(&mut self, program: usize, step: &Step, now: u64) -> u32 {
        let running = &self.programs[program];
        if self.records.len() >= self.settings.records_max {
            self.is_recorded = false;
        }
        if !self.is_recorded {
            self.records = Vec::new();
            return u32::MAX;
        }
        let own = self.records.len() as u32;
        // The narrowest link of the ways that it used; of messages if there are any, which are what others wait for.
        let mut link = NO_LINK;
        let windows = step.sources.iter().map(|source| (&source.operand, false));
        for (operand, sends) in windows.chain(step.destinations.iter().map(|operand| (operand, true))) {
            let route = match *operand {
                Operand::Slot(connection) if sends => Some(self.fifos[connection.index()].route),
                Operand::Window { rank: peer, .. } if link == NO_LINK => {
                    let (from, to) = if sends { (running.rank, peer) } else { (peer, running.rank) };
                    self.windows.get(&(from.0, to.0)).copied()
                }
                _ => None,
            };
            if let Some(route) = route {
                link = self.route_times[route as usize].2;
            }
        }
        let cause = if running.cause == u32::MAX { own } else { running.cause };
        let (ready, moved) = (running.ready, running.moved);
        self.records.push(Record {
            program: program as u32,
            step: running.step_id,
            cause,
            link,
            ready,
            moved,
            done: now,
        });
        own
    }

    /// To the next step.
    fn move_on(&mut self, program: usize) {
        let running = &mut self.programs[program];
        let loops = &self.plan.ranks[running.rank.index()].programs[running.id.index()].loops;
        let looped = &loops[running.loop_index];
        running.state = State::Looks;
        running.step_index += 1;
        running.step_id += 1;
        if running.step_index == looped.steps.len() {
            running.step_index = 0;
            running.iteration += 1;
            if running.iteration >= looped.iterations {
                running.iteration = 0;
                running.loop_index += 1;
            } else {
                running.step_id -= looped.steps.len() as u32;
            }
        }
        let looped = loops.get(running.loop_index);
        running.current = looped.map(|looped| (&looped.steps[running.step_index], u64::from(looped.chunk_bytes)));
        if running.current.is_none() {
            running.state = State::Ended;
        }
    }

    /// The error of a simulation in which nothing happens any more and not all is done.
    fn stuck(&self, now: u64) -> Option<SimulateError> {
        let waiting = |running: &&Running| running.state != State::Ended;
        let count = self.programs.iter().filter(waiting).count();
        // Who is held up by a link is why the others wait.
        let stopped = |(number, running): (usize, &Running)| {
            let is_moving = running.state == State::Runs;
            is_moving.then(|| self.flows.stopped(&self.routes, number as u32)).flatten().map(|link| (number, link))
        };
        let by_link = self.programs.iter().enumerate().find_map(stopped);
        let number = by_link
            .map(|(number, _)| number)
            .or_else(|| self.programs.iter().position(|running| running.state != State::Ended))?;
        let running = &self.programs[number];
        let waits_for = match (by_link, running.state) {
            (Some((_, link)), _) => {
                WaitsFor::DeadLink { link: link as usize, name: self.network.link(link as usize).name }
            }
            (None, State::WaitsFull(id)) => WaitsFor::Full(id, self.plan.connections[id.index()].from),
            (None, State::WaitsRoom(id)) => WaitsFor::Room(id, self.plan.connections[id.index()].to),
            (None, State::WaitsAfter(target)) => WaitsFor::After(self.programs[target].id),
            (None, State::Looks | State::Runs | State::Ended) => return None,
        };
        Some(SimulateError::Stuck {
            rank: running.rank,
            program: running.id,
            step: StepId(running.step_id),
            waits_for,
            waiting: count,
            time_us: (now + self.launch) as f64 / PICOSECONDS,
        })
    }
}

/// How many steps of a program have been fired when `step` has at `iteration` of its loop.
fn tick_of(plan: &Plan, rank: Rank, program: ProgramId, step: StepId, iteration: u64) -> u64 {
    let (mut before, mut first) = (0, 0);
    for looped in &plan.ranks[rank.index()].programs[program.index()].loops {
        let steps = looped.steps.len() as u64;
        if u64::from(step.0) < first + steps {
            return before + iteration * steps + (u64::from(step.0) - first) + 1;
        }
        before += looped.iterations * steps;
        first += steps;
    }
    u64::MAX
}
