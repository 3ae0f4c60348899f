//! Plans on their way to the ranks that run them.
//!
//! All ranks of a call need the same plan, and a plan says what every rank does: were each rank to build its own, a thousand
//! ranks would build a million ranks' programs. So the first rank that comes to a new call builds the plan, the others find
//! it here, and it goes when all of them have laid out their parts. Ranks that share no memory each have a cache of their own;
//! nothing depends on who built a plan, since building is deterministic.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::plan::{Algorithm, Collective, Plan, Rank};
use crate::sync::lock;
use crate::transport::ConnectionKey;

/// Plans that wait for ranks which have not come for them. A rank that comes later builds its plan again.
const PLANS_WAITING: usize = 4;

/// What a plan depends on, among ranks that agree on the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) count: u64,
    pub(crate) element_bytes: u32,
}

/// A plan, with what every rank needs to know of the whole of it.
pub(crate) struct SharedPlan {
    pub(crate) plan: Plan,
    pub(crate) digest: u64,
    /// The plan's connections as the transport names them.
    pub(crate) connections: Vec<ConnectionKey>,
    /// Whether some rank touches another's buffers.
    pub(crate) uses_windows: bool,
}

impl SharedPlan {
    pub(crate) fn new(plan: Plan) -> SharedPlan {
        let (digest, uses_windows) = (plan.digest(), plan.touches_windows());
        SharedPlan { digest, uses_windows, connections: connection_keys(&plan), plan }
    }
}

/// The connections of a plan as the transport names them: several from one rank to another are told apart by their order,
/// which is the same on both sides.
fn connection_keys(plan: &Plan) -> Vec<ConnectionKey> {
    let mut seen: HashMap<(Rank, Rank), u32> = HashMap::new();
    plan.connections
        .iter()
        .map(|connection| {
            let count = seen.entry((connection.from, connection.to)).or_default();
            let index = *count;
            *count += 1;
            ConnectionKey { from: connection.from.index(), to: connection.to.index(), index }
        })
        .collect()
}

/// A plan that waits, and how many ranks have come for it.
struct Waiting {
    key: PlanKey,
    plan: Arc<SharedPlan>,
    taken: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<VecDeque<Waiting>>);

impl PlanCache {
    /// The plan of `key` for one of `rank_count` ranks; built while the other ranks that ask wait.
    pub(crate) fn take(
        &self,
        key: PlanKey,
        rank_count: usize,
        build: impl FnOnce() -> Result<Plan>,
    ) -> Result<Arc<SharedPlan>> {
        let mut waiting = lock(&self.0);
        let index = match waiting.iter().position(|waiting| waiting.key == key) {
            Some(index) => index,
            None => {
                let plan = Arc::new(SharedPlan::new(build()?));
                if waiting.len() == PLANS_WAITING {
                    waiting.pop_front();
                }
                waiting.push_back(Waiting { key, plan, taken: 0 });
                waiting.len() - 1
            }
        };
        let one = &mut waiting[index];
        one.taken += 1;
        let plan = Arc::clone(&one.plan);
        if one.taken == rank_count {
            waiting.remove(index);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Geometry, build};

    fn key(count: u64) -> PlanKey {
        PlanKey { collective: Collective::AllReduce, algorithm: Algorithm::Ring, count, element_bytes: 4 }
    }

    fn take(cache: &PlanCache, count: u64, built: &mut usize) -> Arc<SharedPlan> {
        let plan = cache.take(key(count), 3, || {
            *built += 1;
            let plan = build(Collective::AllReduce, Algorithm::Ring, 3, count, 4, &Geometry::default());
            Ok(plan.expect("a ring of three ranks"))
        });
        plan.expect("the plan is built")
    }

    #[test]
    fn a_plan_is_built_once_for_all_ranks_and_then_goes() {
        let (cache, mut built) = (PlanCache::default(), 0);
        let plans: Vec<_> = (0..3).map(|_| take(&cache, 10, &mut built)).collect();
        assert_eq!(built, 1);
        assert!(plans.iter().all(|plan| Arc::ptr_eq(plan, &plans[0])));
        assert!(lock(&cache.0).is_empty());
        take(&cache, 10, &mut built);
        assert_eq!(built, 2);
    }

    #[test]
    fn ranks_that_never_come_do_not_fill_the_memory() {
        let (cache, mut built) = (PlanCache::default(), 0);
        for count in 0..20 {
            take(&cache, count, &mut built);
        }
        assert_eq!(lock(&cache.0).len(), PLANS_WAITING);
        take(&cache, 19, &mut built);
        assert_eq!(built, 20, "the newest is still there");
    }
}
