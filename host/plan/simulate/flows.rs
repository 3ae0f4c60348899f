//! Bytes on their way, and how they share links.

/// A flow that there is, as an index into the table of flows.
pub(super) type FlowId = u32;

/// Bytes on their way over some links.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// Into the routes of the simulation.
    route: u32,
    /// Bytes that have not moved as of `since`.
    left: f64,
    /// Bytes in a picosecond.
    rate: f64,
    /// Picoseconds.
    since: u64,
    /// When its last byte moves, as things stand; `NEVER` where nothing moves.
    ends: u64,
    /// The program whose step it is part of.
    program: u32,
    is_live: bool,
}

/// No time.
pub(super) const NEVER: u64 = u64::MAX;

/// The links of a way, as flows see them.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) links: Box<[u32]>,
    /// Bytes on the links for each byte of data.
    pub(super) bytes_each: f64,
}

/// All flows, and which of them are on which link.
pub(super) struct Flows {
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    /// By directed link, bytes in a picosecond.
    rates: Vec<f64>,
    /// By directed link.
    on_link: Vec<Vec<FlowId>>,
    /// Flows whose end has moved since that was last asked for.
    changed: Vec<FlowId>,
}

impl Flows {
    /// Over links with these many bytes in a picosecond.
    pub(super) fn new(rates: Vec<f64>) -> Flows {
        let on_link = vec![Vec::new(); rates.len()];
        Flows { flows: Vec::new(), free: Vec::new(), rates, on_link, changed: Vec::new() }
    }

    /// Bytes set out; the flow's end is among what [`Flows::changed`] gives.
    pub(super) fn begin(&mut self, ways: &[Way], route: u32, bytes: f64, program: u32, now: u64) {
        let flow = Flow { route, left: bytes, rate: 0.0, since: now, ends: NEVER, program, is_live: true };
        let id = match self.free.pop() {
            Some(id) => {
                self.flows[id as usize] = flow;
                id
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as FlowId - 1
            }
        };
        for link in &ways[route as usize].links {
            self.on_link[*link as usize].push(id);
        }
        self.share_again(ways, route, now);
        if ways[route as usize].links.is_empty() {
            // Nothing to cross: it has arrived.
            self.flows[id as usize].ends = now;
            self.changed.push(id);
        }
    }

    /// Takes a flow away that has come to its end; the program that it is part of.
    pub(super) fn end(&mut self, ways: &[Way], id: FlowId, now: u64) -> u32 {
        let Flow { route, program, .. } = self.flows[id as usize];
        for link in &ways[route as usize].links {
            let on_link = &mut self.on_link[*link as usize];
            if let Some(place) = on_link.iter().position(|other| *other == id) {
                on_link.swap_remove(place);
            }
        }
        self.flows[id as usize].is_live = false;
        self.free.push(id);
        self.share_again(ways, route, now);
        program
    }

    /// Whether a flow ends at this time, as things stand.
    pub(super) fn ends_at(&self, id: FlowId, time: u64) -> bool {
        let flow = &self.flows[id as usize];
        flow.is_live && flow.ends == time
    }

    /// Each flow whose end has moved, and when it is now.
    pub(super) fn changed(&mut self, mut each: impl FnMut(FlowId, u64)) {
        for id in self.changed.drain(..) {
            let flow = &self.flows[id as usize];
            if flow.is_live && flow.ends != NEVER {
                each(id, flow.ends);
            }
        }
    }

    /// A flow of a program's that does not move, and a link of its way on which nothing does.
    pub(super) fn stopped(&self, ways: &[Way], program: u32) -> Option<u32> {
        let flow = self.flows.iter().find(|flow| flow.is_live && flow.program == program && flow.ends == NEVER)?;
        ways[flow.route as usize].links.iter().copied().find(|link| self.rates[*link as usize] == 0.0)
    }

    /// Shares the links of a way anew among the flows that are on them.
    fn share_again(&mut self, ways: &[Way], route: u32, now: u64) {
        for link in &ways[route as usize].links {
            for index in 0..self.on_link[*link as usize].len() {
                let id = self.on_link[*link as usize][index];
                let way = &ways[self.flows[id as usize].route as usize];
                let part = |link: &u32| self.rates[*link as usize] / self.on_link[*link as usize].len() as f64;
                let rate = way.links.iter().map(part).fold(f64::INFINITY, f64::min);
                let flow = &mut self.flows[id as usize];
                if rate == flow.rate && flow.ends != NEVER {
                    continue;
                }
                let moved = flow.rate * (now - flow.since) as f64;
                flow.left = (flow.left - moved).max(0.0);
                (flow.rate, flow.since) = (rate, now);
                flow.ends = match flow.left {
                    0.0 => now,
                    left if rate > 0.0 => now.saturating_add((left / rate).ceil() as u64),
                    _ => NEVER,
                };
                self.changed.push(id);
            }
        }
    }
}
