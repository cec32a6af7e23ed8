//! A step's metadata on the card: tokens and positions at once, the rest when the first layer needs it, for all layers.

use crate::{
    kv::KvCache,
    memory::Allocator,
    work::{Pieces, Work},
    workspace::{Room, Workspace},
};
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{AttentionShape, HostStep, Result, RopeTable, StepRows};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// A step.
#[derive(Debug)]
pub struct Step {
    pub(crate) host: HostStep,
    tokens: CUdeviceptr,
    room: RefCell<Room>,
    /// One for each table that the model's layers use.
    angles: RefCell<Vec<(RopeTable, CUdeviceptr)>>,
    /// One for each shape of attention.
    places: RefCell<Vec<Places>>,
    recurrences: Cell<Option<Recurrences>>,
}

impl Step {
    pub(crate) fn new(allocator: &Allocator, workspace: &Rc<Workspace>, rows: &StepRows<'_>) -> Result<Self> {
        let host = HostStep::new(rows)?;
        let workspace = is_decode(&host).then(|| workspace.clone());
        let mut room = Room::new(allocator, workspace);
        let positions = host.positions().map(|position| position as u32);
        let words: Vec<u32> = host.tokens().iter().copied().chain(positions).collect();
        Ok(Self {
            tokens: room.upload(&words)?,
            host,
            room: RefCell::new(room),
            angles: RefCell::default(),
            places: RefCell::default(),
            recurrences: Cell::default(),
        })
    }

    /// Whether each sequence has one token: then the next such step does the same with other numbers.
    pub(crate) fn is_decode(&self) -> bool {
        is_decode(&self.host)
    }

    /// Token ids; those that are taken on the card are 0 on the host.
    pub(crate) fn tokens(&self) -> CUdeviceptr {
        self.tokens
    }

    /// The position of each token.
    pub(crate) fn positions(&self) -> CUdeviceptr {
        self.tokens + size_of_val(self.host.tokens()) as u64
    }

    /// The angles by a table; where they are new, the second address is that of the table's frequencies, and they
    /// have to be filled.
    pub(crate) fn angles(&self, rope: &RopeTable) -> Result<(CUdeviceptr, Option<CUdeviceptr>)> {
        let mut tables = self.angles.borrow_mut();
        if let Some((_, angles)) = tables.iter().find(|(of, _)| of == rope) {
            return Ok((*angles, None));
        }
        let pairs = self.host.tokens().len() * rope.inverse_frequencies.len();
        let mut room = self.room.borrow_mut();
        let angles = room.take(pairs * 2 * size_of::<f32>())?;
        let frequencies = room.upload(&rope.inverse_frequencies)?;
        tables.push((rope.clone(), angles));
        Ok((angles, Some(frequencies)))
    }

    /// Its places for a cache and a shape of attention.
    pub(crate) fn places(&self, kv: &KvCache, shape: &AttentionShape) -> Result<Places> {
        let mut all = self.places.borrow_mut();
        if let Some(places) = all.iter().find(|places| places.are_of(kv, shape)) {
            return Ok(*places);
        }
        let mut work = Work::new(&self.host, kv, shape);
        if self.is_decode() {
            work.fill_up(self.host.rows().len());
        }
        let places = Places::new(&mut self.room.borrow_mut(), work, kv, shape)?;
        all.push(places);
        Ok(places)
    }

    /// Its sequences and their pieces, for operations that carry a state along them.
    pub(crate) fn recurrences(&self) -> Result<Recurrences> {
        if let Some(made) = self.recurrences.get() {
            return Ok(made);
        }
        let made = Recurrences::new(&mut self.room.borrow_mut(), Pieces::new(&self.host))?;
        self.recurrences.set(Some(made));
        Ok(made)
    }
}

fn is_decode(step: &HostStep) -> bool {
    step.rows().iter().all(|row| row.tokens.len() == 1)
}

/// Where a step's keys and values are, and how attention is cut, for one shape of cache and attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    shape: AttentionShape,
    block_size: usize,
    /// Each token's block and place in it.
    pub(crate) slots: CUdeviceptr,
    /// Block tables, one after another.
    pub(crate) tables: CUdeviceptr,
    pub(crate) item_list: CUdeviceptr,
    pub(crate) merge_list: CUdeviceptr,
    /// Items: tokens that a block does.
    pub(crate) items: usize,
    /// Tokens whose chunks are done apart.
    pub(crate) merges: usize,
    /// Partial sums, and their states; 0 where there are none.
    pub(crate) partials: [CUdeviceptr; 2],
}

impl Places {
    fn new(room: &mut Room, work: Work, kv: &KvCache, shape: &AttentionShape) -> Result<Self> {
        let (items, merges) = (work.items.len() / Work::ITEM, work.merges.len() / Work::MERGE);
        let partials = match work.partials {
            0 => [0; 2],
            n => {
                let heads = n * shape.heads;
                let sums = room.take(heads * shape.head_dim * size_of::<f32>())?;
                [sums, room.take(heads * 2 * size_of::<f32>())?]
            }
        };
        Ok(Self {
            shape: *shape,
            block_size: kv.block_size,
            slots: room.upload(&work.slots)?,
            tables: room.upload(&work.tables)?,
            item_list: room.upload(&work.items)?,
            merge_list: room.upload(&work.merges)?,
            items,
            merges,
            partials,
        })
    }

    fn are_of(&self, kv: &KvCache, shape: &AttentionShape) -> bool {
        self.shape == *shape && self.block_size == kv.block_size
    }
}

/// A step's sequences, as recurrent.cuh reads them, and their pieces, as conv.cu does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrences {
    pub(crate) rows: CUdeviceptr,
    pub(crate) pieces: CUdeviceptr,
    pub(crate) piece_count: usize,
}

impl Recurrences {
    fn new(room: &mut Room, lists: Pieces) -> Result<Self> {
        Ok(Self {
            rows: room.upload(&lists.rows)?,
            pieces: room.upload(&lists.pieces)?,
            piece_count: lists.pieces.len() / Pieces::PIECE,
        })
    }
}
