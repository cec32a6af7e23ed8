//! What the runs came to.

/// How often the runs came to what they are to test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    pub steps: u64,
    pub stopped: u64,
    pub lengths: u64,
    pub cancels: u64,
    pub pauses: u64,
    pub preemptions: u64,
    pub swaps: u64,
    pub failed_copies: u64,
    pub run_ahead: u64,
    pub cached: u64,
    pub exhausted: u64,
    pub failed_collects: u64,
    pub invalid: u64,
    pub fences: u64,
    pub aborts: u64,
}

impl Reached {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.stopped += other.stopped;
        self.lengths += other.lengths;
        self.cancels += other.cancels;
        self.pauses += other.pauses;
        self.swaps += other.swaps;
        self.failed_copies += other.failed_copies;
        self.preemptions += other.preemptions;
        self.cached += other.cached;
        self.run_ahead += other.run_ahead;
        self.exhausted += other.exhausted;
        self.failed_collects += other.failed_collects;
        self.invalid += other.invalid;
        self.fences += other.fences;
        self.aborts += other.aborts;
    }

    pub fn everything(&self) -> bool {
        let Self {
            steps,
            stopped,
            lengths,
            cancels,
            pauses,
            preemptions,
            swaps,
            ..
        } = *self;
        let Self {
            run_ahead,
            cached,
            exhausted,
            failed_collects,
            failed_copies,
            invalid,
            fences,
            aborts,
            ..
        } = *self;
        steps > 50_000
            && [
                stopped,
                lengths,
                cancels,
                pauses,
                preemptions,
                swaps,
                run_ahead,
                cached,
            ]
            .iter()
            .all(|n| *n > 300)
            && [exhausted, failed_collects, invalid].iter().all(|n| *n > 100)
            && failed_copies > 20
            && fences > 2
            && aborts > 2
    }
}
