//! The way into a slot: the generation that serves, and the requests that wait for one. Pure: what enters and
//! what waits are the caller's.

use std::{collections::VecDeque, time::Duration};

/// How requests that find no generation are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Most requests that wait.
    pub max: usize,
    /// Longest wait of one.
    pub deadline: Duration,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            max: 1024,
            deadline: Duration::from_secs(60),
        }
    }
}

/// See the [module](self). `G` is a generation, `W` whoever waits for one.
#[derive(Clone, Debug)]
pub(super) struct Door<G, W> {
    current: Option<G>,
    /// There where a generation is expected: requests wait for it.
    hold: Option<Hold>,
    held: VecDeque<W>,
    held_total: u64,
}

/// What a request finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry<G> {
    /// This one serves it.
    Serves(G),
    /// It is to wait: give [`Door::wait`] something to tell it by.
    Wait(Hold),
    /// Too many wait already.
    Full,
    /// Nothing serves, and nothing is expected.
    Closed,
}

impl<G: Clone, W> Door<G, W> {
    pub fn new() -> Self {
        Self {
            current: None,
            hold: None,
            held: VecDeque::new(),
            held_total: 0,
        }
    }

    /// What a request finds that comes now. `serves` tells whether a generation takes requests; `has_left`
    /// whether one that waits has given up. A request that was served before (`goes_on`) finds a place whatever
    /// the length of the line.
    pub fn enter(
        &mut self,
        goes_on: bool,
        serves: impl FnOnce(&G) -> bool,
        has_left: impl Fn(&W) -> bool,
    ) -> Entry<G> {
        if let Some(current) = self.current.as_ref().filter(|current| serves(current)) {
            return Entry::Serves(current.clone());
        }
        let Some(hold) = self.hold else {
            return Entry::Closed;
        };
        if !goes_on && self.held.len() >= hold.max {
            self.held.retain(|waiting| !has_left(waiting));
        }
        match goes_on || self.held.len() < hold.max {
            true => Entry::Wait(hold),
            false => Entry::Full,
        }
    }

    /// Takes one that is to wait into the line.
    pub fn wait(&mut self, waiting: W) {
        self.held.push_back(waiting);
        self.held_total += 1;
    }

    /// The generation that serves now.
    pub fn current(&self) -> Option<&G> {
        self.current.as_ref()
    }

    /// Lets another generation serve, or none. Returns the one that did, and those that waited and are to be
    /// told of the new one, in the order in which they came.
    #[must_use = "those that waited must be told"]
    pub fn switch(&mut self, to: Option<G>) -> (Option<G>, VecDeque<W>) {
        let served = match to {
            Some(_) => std::mem::take(&mut self.held),
            None => VecDeque::new(),
        };
        (std::mem::replace(&mut self.current, to), served)
    }

    /// From now on a generation is expected.
    pub fn hold(&mut self, hold: Hold) {
        self.hold = Some(hold);
    }

    /// From now on none is expected. Returns those that waited for it.
    #[must_use = "those that waited must be told"]
    pub fn let_go(&mut self) -> VecDeque<W> {
        self.hold = None;
        std::mem::take(&mut self.held)
    }

    /// Whether a request would be taken, now or soon.
    pub fn is_held_open(&self) -> bool {
        self.hold.is_some()
    }

    /// How many requests have ever waited.
    pub fn held_total(&self) -> u64 {
        self.held_total
    }

    /// How many wait now.
    pub fn held(&self, has_left: impl Fn(&W) -> bool) -> usize {
        self.held.iter().filter(|waiting| !has_left(waiting)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Hold = Hold {
        max: 2,
        deadline: Duration::ZERO,
    };

    fn enter(door: &mut Door<u8, u8>, goes_on: bool) -> Entry<u8> {
        door.enter(goes_on, |generation| *generation != 13, |waiting| *waiting == 9)
    }

    #[test]
    fn requests_wait_where_a_generation_is_expected_and_are_told_of_it_in_order() {
        let mut door = Door::new();
        assert_eq!(enter(&mut door, false), Entry::Closed);
        door.hold(HOLD);
        for waiting in [1, 2] {
            assert_eq!(enter(&mut door, false), Entry::Wait(HOLD));
            door.wait(waiting);
        }
        assert_eq!(enter(&mut door, false), Entry::Full);
        assert_eq!(enter(&mut door, true), Entry::Wait(HOLD), "it has waited before");
        assert_eq!(door.switch(Some(7)), (None, VecDeque::from([1, 2])));
        assert_eq!(enter(&mut door, false), Entry::Serves(7));
        assert_eq!((door.held(|_| false), door.held_total()), (0, 2));
    }

    #[test]
    fn one_that_has_left_makes_room_and_a_broken_generation_serves_nobody() {
        let mut door = Door::new();
        door.hold(HOLD);
        door.wait(9);
        door.wait(1);
        assert_eq!(door.held(|waiting| *waiting == 9), 1);
        assert_eq!(enter(&mut door, false), Entry::Wait(HOLD));
        let (_, told) = door.switch(Some(13));
        assert_eq!(told, [1]);
        assert_eq!(enter(&mut door, false), Entry::Wait(HOLD));
        assert!(door.let_go().is_empty());
        assert_eq!(enter(&mut door, false), Entry::Closed);
    }
}
